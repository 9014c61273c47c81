//! Operations that leave their thread, of a frontend none of whose threads looks for answers.

use crate::site::*;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use varve_client::{ClientConfig, Failure, FileSystem};
use varve_meta::server::Server;
use varve_types::Errno;

/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// An answer that takes so long was brought by what is done now and then.
const LEFT_ALONE: Duration = Duration::from_millis(100);

type Ended = Receiver<Result<(), Failure>>;

/// Has what follows until it is released meet another operation.
struct Met {
    release: std::sync::mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Met {
    fn at(fs: &Arc<FileSystem>) -> Met {
        let (fs, (release, released), (tell, begun)) = (Arc::clone(fs), channel(), channel());
        let thread = std::thread::spawn(move || {
            let work = async move {
                tell.send(()).unwrap();
                released.recv_timeout(LONG).unwrap();
                Ok(())
            };
            fs.async_op(work, |_| ());
        });
        begun.recv_timeout(LONG).unwrap();
        Met { release, thread }
    }

    fn ends(self) {
        self.release.send(()).unwrap();
        self.thread.join().unwrap();
    }
}

fn look_up(fs: &Arc<FileSystem>, text: &str) -> Ended {
    let (theirs, text, (tell, ended)) = (Arc::clone(fs), name(text), channel());
    let work = async move { theirs.lookup(&root(), ROOT, &text).await.map(drop) };
    fs.async_op(work, move |done| tell.send(done).unwrap());
    ended
}

/// A volume with a file, a client whose frontend has threads that never attend, and an operation that all others meet.
fn unattended(deadline: Duration) -> (Site, Server, Arc<FileSystem>, Met) {
    let site = Site::new(4);
    let server = site.serve();
    let fs = FileSystem::connect(ClientConfig { deadline, ..site.config() }).unwrap();
    fs.run_reactor_on(2, |_| false);
    make_file(&fs, ROOT, "f");
    let met = Met::at(&fs);
    (site, server, fs, met)
}

/// Promise: answers that nobody looks for come soon, also where there is no connection yet for each call.
#[test]
fn replies_arrive_without_a_reactor_thread() {
    let (_site, _server, fs, met) = unattended(LONG);
    let left_alone = (1..=10).filter(|round| {
        let begun = Instant::now();
        let ended: Vec<_> = (0..5 * round).map(|_| look_up(&fs, "f")).collect();
        ended.iter().for_each(|ended| ended.recv_timeout(LONG).unwrap().unwrap());
        begun.elapsed() > LEFT_ALONE
    });
    // A busy machine may hold them up, once or twice.
    let left_alone = left_alone.count();
    assert!(left_alone <= 2, "in {left_alone} of 10 rounds");
    met.ends();
    varve_client::block_on(fs.shutdown()).unwrap();
}

/// Promise: calls under way at a server that goes away are answered by the next one.
#[test]
fn async_calls_find_the_next_server() {
    let (site, server, fs, met) = unattended(LONG);
    let mut ended: Vec<_> = (0..8).map(|_| look_up(&fs, "f")).collect();
    server.stop(STOP).unwrap();
    ended.extend((0..8).map(|_| look_up(&fs, "f")));
    let _server = site.serve();
    ended.iter().for_each(|ended| ended.recv_timeout(LONG).unwrap().unwrap());
    met.ends();
    varve_client::block_on(fs.shutdown()).unwrap();
}

/// Promise: they end at their deadline where there is none.
#[test]
fn async_calls_complete() {
    let (_site, server, fs, met) = unattended(Duration::from_secs(1));
    server.stop(STOP).unwrap();
    let ended: Vec<_> = (0..8).map(|_| look_up(&fs, "f")).collect();
    for ended in ended {
        assert_eq!(ended.recv_timeout(LONG).unwrap().unwrap_err().errno, Errno::ETIMEDOUT);
    }
    met.ends();
    let _ = varve_client::block_on(fs.shutdown());
}

/// Promise: an operation that hangs once its answer has come, as in a store that does, keeps no other from its answer nor from
/// its deadline.
#[test]
fn hanging_async_op_blocks_no_other() {
    let (_site, server, fs, met) = unattended(Duration::from_secs(5));
    let hung: Vec<_> = (0..4)
        .map(|_| {
            let (theirs, (release, released), (tell, hangs)) = (Arc::clone(&fs), channel::<()>(), channel());
            let work = async move {
                let found = theirs.lookup(&root(), ROOT, &name("f")).await.map(drop);
                tell.send(found.is_ok()).unwrap();
                let _ = released.recv_timeout(LONG);
                found
            };
            let (done, ended) = channel();
            fs.async_op(work, move |found| done.send(found).unwrap());
            assert!(hangs.recv_timeout(LONG).unwrap(), "it was found");
            (release, ended)
        })
        .collect();
    (0..8).map(|_| look_up(&fs, "f")).for_each(|ended| ended.recv_timeout(LONG / 2).unwrap().unwrap());
    server.stop(STOP).unwrap();
    let late: Vec<_> = (0..8).map(|_| look_up(&fs, "f")).collect();
    for ended in late {
        assert_eq!(ended.recv_timeout(LONG / 2).unwrap().unwrap_err().errno, Errno::ETIMEDOUT);
    }
    for (release, ended) in hung {
        release.send(()).unwrap();
        ended.recv_timeout(LONG).unwrap().unwrap();
    }
    met.ends();
    let _ = varve_client::block_on(fs.shutdown());
}
