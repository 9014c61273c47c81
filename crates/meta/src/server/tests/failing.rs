//! A store that fails for a while.

use super::client::request;
use super::*;
use std::collections::BTreeSet;
use varve_proto::NewNode;
use varve_types::InodeId;

/// A volume of one shard on a file system of a few MiB.
struct SmallSite {
    // Dropped before the directory that contains the mount point.
    store: MountGuard,
    site: Site,
}

impl SmallSite {
    /// `None` if this user may not mount.
    fn new() -> Option<SmallSite> {
        let directory = tempfile::tempdir().unwrap();
        let small = directory.path().join("small");
        std::fs::create_dir(&small).unwrap();
        let store = MountGuard::mount(&["-t", "tmpfs", "-o", "size=24m,mode=755", "varve-test"], &small)?;
        let volume = store.0.join("volume");
        Some(SmallSite { store, site: Site::in_directory(directory, volume, 1) })
    }

    /// Fills the store with data of another program.
    fn fill(&self) {
        let mut filler = std::fs::File::create(self.filler()).unwrap();
        while filler.write_all(&[0; 4096]).is_ok() {}
    }

    fn filler(&self) -> PathBuf {
        self.store.0.join("filler")
    }
}

/// A full store makes calls fail. Once the store has space, the server reopens the shard by itself, and all
/// acknowledged changes are there.
#[test]
fn a_shard_whose_store_was_full_serves_again() {
    let Some(small) = SmallSite::new() else { return };
    let server = small.site.start();
    let mut client = TestClient::of(&server, &small.site, 1, Purpose::Work);
    let create = |number: u32| Call::Create {
        parent: InodeId::ROOT.0,
        name: number.to_string().into_bytes(),
        node: NewNode::Symlink { target: vec![b'x'; 4000] },
        mode: 0o777,
        open: false,
    };
    // The sync makes sure that the shard is open before the store is full; a shard that could not be opened would end
    // the server.
    assert_eq!(client.call(0, Call::Sync), Ok(Reply::Done));
    small.fill();
    let mut acknowledged = BTreeSet::new();
    let mut numbers = 0..;
    let failure = loop {
        let number = numbers.next().unwrap();
        match client.call(0, create(number)) {
            Ok(_) => {
                acknowledged.insert(number);
            }
            Err(failure) => break failure,
        }
    };
    assert!(matches!(failure, CallFailure::Server { .. } | CallFailure::Errno(_) | CallFailure::Busy), "{failure:?}");
    std::fs::remove_file(small.filler()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let number = numbers.next().unwrap();
        match client.call(0, create(number)) {
            Ok(_) => {
                acknowledged.insert(number);
                break;
            }
            Err(failure) => assert!(Instant::now() < deadline, "{failure:?}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    for number in acknowledged {
        let found = client.call(0, Call::Lookup { parent: InodeId::ROOT.0, name: number.to_string().into_bytes() });
        assert!(found.is_ok(), "{number}: {found:?}");
    }
    server.stop(STOP).unwrap();
    let report = varve_admin::fsck::check(&small.site.config.volume, &mut |_| {}).unwrap();
    assert!(report.is_sound(), "{:#?}", report.findings);
}

/// A retry of a change that was made gets the first reply even if the store has become full since, while new changes
/// are refused. The test covers a change of one shard and one of two.
#[test]
fn applied_change_is_answered_on_a_full_store() {
    let Some(small) = SmallSite::new() else { return };
    let server = small.site.start();
    let mut client = TestClient::of(&server, &small.site, 1, Purpose::Work);
    let make_directory = Call::MakeDirectory { parent: InodeId::ROOT.0, name: b"directory".to_vec(), mode: 0o755 };
    let made: Vec<_> = [(2, create("file".to_owned())), (3, make_directory)]
        .into_iter()
        .map(|(slot, call)| {
            let request = request(1, slot, 1, 0, call);
            let reply = client.exchange(request.clone()).unwrap();
            assert!(reply.is_ok(), "{reply:?}");
            (request, reply)
        })
        .collect();
    small.fill();
    // The server checks the store's free space periodically.
    let deadline = Instant::now() + Duration::from_secs(60);
    let refused = (0..).find_map(|number| {
        assert!(Instant::now() < deadline, "nothing is refused");
        std::thread::sleep(Duration::from_millis(20));
        client.call(0, create(format!("other-{number}"))).err()
    });
    let no_room = |failure: &CallFailure| match failure {
        CallFailure::Errno(errno) | CallFailure::Server { errno, .. } => *errno == libc::ENOSPC,
        _ => false,
    };
    assert!(refused.as_ref().is_some_and(no_room), "{refused:?}");
    for (request, reply) in made {
        assert_eq!(client.exchange(request.clone()).unwrap(), reply, "{request:?} sent again");
    }
    let fresh = client.call(0, create("fresh".to_owned())).unwrap_err();
    assert!(no_room(&fresh), "{fresh:?}");
    server.stop(STOP).unwrap();
}
