//! Processes that are stopped or killed in the middle of a put: this test program starts itself as a child, which stops
//! itself at the chosen point.

use super::*;
use crate::stop_point::{StopPoint, VARIABLE};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ROOT: &str = "VARVE_TEST_STOPPED_IN";
const DEED: &str = "VARVE_TEST_STOPPED_DEED";

/// The part of the child process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Create,
    Overwrite,
    Update,
}

/// Every point at which a put can be stopped.
const PLACES: [(Deed, StopPoint); 6] = [
    (Deed::Create, StopPoint::CreateWritten),
    (Deed::Create, StopPoint::CreateLinked),
    (Deed::Overwrite, StopPoint::ReplaceWritten),
    (Deed::Overwrite, StopPoint::UpdateCompared),
    (Deed::Update, StopPoint::UpdateCompared),
    (Deed::Update, StopPoint::ReplaceWritten),
];

const BOUNDARY: &str = "0000/gc/boundary";
const CONTESTED: &str = "0000/manifest/7";

/// The child. It ends with 0 if its put succeeded and with 1 if the put was refused because of another one.
#[test]
fn child_that_is_stopped() {
    let (Some(root), Ok(deed)) = (std::env::var_os(ROOT), std::env::var(DEED)) else { return };
    let store = PosixStore::with_exclusive(PathBuf::from(root), Exclusive::Link);
    let done = block_on(async {
        match deed.as_str() {
            "Create" => create(&store, CONTESTED, b"child").await,
            "Overwrite" => store.put(&path(BOUNDARY), "child".into()).await,
            _ => {
                let found = store.head(&path(BOUNDARY)).await.unwrap().e_tag;
                update(&store, BOUNDARY, "child".into(), found).await
            }
        }
    });
    match done {
        Ok(_) => std::process::exit(0),
        Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => std::process::exit(1),
        Err(error) => panic!("{error}"),
    }
}

/// A store with an object that is updated, and a child that has stopped in it.
struct Scene {
    directory: tempfile::TempDir,
    store: PosixStore,
    child: Child,
}

impl Scene {
    fn begin(deed: Deed, point: StopPoint) -> Scene {
        let (directory, store) = posix();
        block_on(put(&store, BOUNDARY, b"old"));
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "posix_store::tests::stopped::child_that_is_stopped", "--test-threads=1"])
            .env(ROOT, directory.path())
            .env(DEED, format!("{deed:?}"))
            .env(VARIABLE, format!("{point:?}"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let scene = Scene { directory, store, child };
        let begin = Instant::now();
        loop {
            match waitpid(Some(scene.pid()), WaitOptions::UNTRACED | WaitOptions::NOHANG).unwrap() {
                Some((_, status)) if status.stopped() => return scene,
                Some((_, status)) => panic!("{deed:?} did not stop at {point:?}: {status:?}"),
                None => assert!(begin.elapsed() < Duration::from_secs(60), "{deed:?} did not reach {point:?}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Lets the child go on; whether its put succeeded.
    fn wake(&mut self) -> bool {
        kill_process(self.pid(), Signal::CONT).unwrap();
        match self.child.wait().unwrap().code() {
            Some(0) => true,
            Some(1) => false,
            other => panic!("the child ended with {other:?}"),
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that is stopped anywhere in a put keeps no other process from creating objects of the same shard, among
/// them the one that it is creating itself. That is all that a takeover needs. When it goes on, one of the two has won.
#[test]
fn stopped_process_blocks_no_creation() {
    for (deed, point) in PLACES {
        let mut scene = Scene::begin(deed, point);
        let begin = Instant::now();
        let won = block_on(async {
            create(&scene.store, "0000/manifest/8", b"parent").await.unwrap();
            put(&scene.store, "0000/compacted/new", b"parent").await;
            scene.store.delete(&path("0000/compacted/new")).await.unwrap();
            create(&scene.store, CONTESTED, b"parent").await.is_ok()
        });
        assert!(begin.elapsed() < Duration::from_secs(10), "{deed:?} at {point:?} held up a creation");
        let child_won = scene.wake();
        if deed == Deed::Create {
            assert_ne!(won, child_won, "{point:?}: one winner");
            assert_eq!(child_won, point == StopPoint::CreateLinked);
        } else {
            assert!(won && child_won);
        }
        let expected = if won { "parent" } else { "child" };
        assert_eq!(block_on(content(&scene.store, CONTESTED)), expected);
        assert_eq!(hidden(scene.directory.path()), 0, "{deed:?} at {point:?}");
    }
}

/// A replacement by another process waits for the shard's lock only for a limited time, and works again when the
/// stopped process goes on or dies. Other shards are not concerned.
#[test]
fn replacement_fails_while_the_lock_holder_is_stopped() {
    for dies in [false, true] {
        let mut scene = Scene::begin(Deed::Update, StopPoint::UpdateCompared);
        block_on(async {
            put(&scene.store, "0001/gc/boundary", b"old").await;
            put(&scene.store, "0001/gc/boundary", b"new").await;
            let tag = scene.store.head(&path(BOUNDARY)).await.unwrap().e_tag;
            let begin = Instant::now();
            let error = update(&scene.store, BOUNDARY, "parent".into(), tag.clone()).await.unwrap_err();
            assert!(matches!(error, Error::Generic { .. }) && error.to_string().contains("lock the shard"), "{error}");
            assert!(begin.elapsed() < Duration::from_secs(30));
            if dies {
                scene.child.kill().unwrap();
                scene.child.wait().unwrap();
            } else {
                assert!(scene.wake());
            }
            let updated = update(&scene.store, BOUNDARY, "parent".into(), tag).await;
            assert_eq!(updated.is_ok(), dies, "the version of the stopped process counts if it lives on");
            assert_eq!(content(&scene.store, BOUNDARY).await, if dies { "parent" } else { "child" });
        });
    }
}

/// Killed at any point of a put, a process leaves the old object or the complete new one, and a temporary file that the
/// next start removes.
#[test]
fn killed_put_leaves_old_or_new_object() {
    for (deed, point) in PLACES {
        let mut scene = Scene::begin(deed, point);
        scene.child.kill().unwrap();
        scene.child.wait().unwrap();
        block_on(async {
            assert_eq!(content(&scene.store, BOUNDARY).await, "old");
            match (deed, point) {
                (Deed::Create, StopPoint::CreateLinked) => assert_eq!(content(&scene.store, CONTESTED).await, "child"),
                _ => assert!(matches!(scene.store.head(&path(CONTESTED)).await, Err(Error::NotFound { .. }))),
            }
            assert_eq!(hidden(scene.directory.path()), 1, "{deed:?} at {point:?}");
            assert_eq!(scene.store.remove_leftovers(&[]).unwrap(), 1);
            put(&scene.store, BOUNDARY, b"next").await;
            assert_eq!(content(&scene.store, BOUNDARY).await, "next");
        });
    }
}
