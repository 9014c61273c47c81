//! Shards that fail while the store is unreachable for a time that is over at the next call, or at the end of the
//! server.

use super::client::request;
use super::*;
use varve_proto::{Locator, NewNode, Request};
use varve_types::{InodeId, SetAttributes};

/// Longer than the sync interval of a site plus the duration of a sync.
const FOUND_OUT: Duration = Duration::from_millis(1500);

/// Calls of a round of [`meanwhile`].
const ATTEMPTS: u64 = 20;

/// The store of a site, moved to another path. Open files are still written there, and the next sync finds the store
/// unreachable.
struct MovedStore {
    store: PathBuf,
    aside: PathBuf,
    /// A directory that was created while the store was unreachable.
    made: String,
}

impl MovedStore {
    fn of(site: &Site) -> MovedStore {
        let (store, aside) = (site.config.volume.root().to_owned(), site.directory.path().join("aside"));
        std::fs::rename(&store, &aside).unwrap();
        MovedStore { store, aside, made: String::new() }
    }

    fn back(self) {
        std::fs::rename(&self.aside, &self.store).unwrap();
    }

    /// Truncates the last file of the one log that has content.
    fn lose_last_byte(&self) {
        let log = VolumeDir::new(&self.aside).shard_log(ShardId(0));
        let files = std::fs::read_dir(log).unwrap().map(|entry| entry.unwrap().path());
        let logs = files.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
        let file = std::fs::File::options().write(true).open(logs.max().unwrap()).unwrap();
        file.set_len(file.metadata().unwrap().len() - 1).unwrap();
    }
}

fn make_directory(name: &str) -> Call {
    Call::MakeDirectory { parent: InodeId::ROOT.0, name: name.as_bytes().to_vec(), mode: 0o755 }
}

fn look(name: &str) -> Call {
    Call::Lookup { parent: InodeId::ROOT.0, name: name.as_bytes().to_vec() }
}

/// Retries the call while its shard is busy, as clients do.
fn insist(client: &mut TestClient<UnixStream>, request: &Request) -> Result<Reply, CallFailure> {
    let begun = Instant::now();
    loop {
        match client.exchange(request.clone()).unwrap() {
            Err(CallFailure::Busy) if begun.elapsed() < STOP => {}
            answer => return answer,
        }
    }
}

/// The inode that was created.
fn node(reply: Result<Reply, CallFailure>) -> u64 {
    match reply {
        Ok(Reply::Node(node)) => node.inode,
        other => panic!("{other:?}"),
    }
}

/// Creates two directories on slot 4: "before `round`", which is synced, and another while the store is unreachable.
/// (The first one takes inode ids in advance, which is fsynced.)
fn meanwhile(site: &Site, client: &mut TestClient<UnixStream>, round: u64) -> MovedStore {
    node(insist(client, &request(1, 4, round * ATTEMPTS, 0, make_directory(&format!("before {round}")))));
    for attempt in round * ATTEMPTS + 1..(round + 1) * ATTEMPTS {
        assert_eq!(insist(client, &request(1, 5, attempt, 0, Call::Sync)), Ok(Reply::Done));
        let unreachable = MovedStore::of(site);
        let made = format!("meanwhile {attempt}");
        match insist(client, &request(1, 4, attempt, 0, make_directory(&made))) {
            // A background sync came in between and found the store unreachable.
            Err(CallFailure::Server { .. }) => unreachable.back(),
            answer => {
                node(answer);
                std::thread::sleep(FOUND_OUT);
                return MovedStore { made, ..unreachable };
            }
        }
    }
    panic!("syncs came between in {ATTEMPTS} attempts");
}

/// A server that is asked to stop before anybody has noticed that its shards had failed, or while they are being
/// reopened, ends like one whose store was always reachable: nothing is lost.
#[test]
fn stop_after_store_return_succeeds() {
    for found in [false, true] {
        let site = Site::new(1);
        let server = site.start();
        let mut client = TestClient::of(&server, &site, 1, Purpose::Work);
        let unreachable = meanwhile(&site, &mut client, 1);
        if found {
            let refused = insist(&mut client, &request(1, 6, 1, 0, Call::Sync));
            assert!(matches!(refused, Err(CallFailure::Server { .. })), "{refused:?}");
        }
        let meanwhile = unreachable.made.clone();
        unreachable.back();
        server.stop(STOP).unwrap();
        let server = site.start();
        let mut client = TestClient::of(&server, &site, 2, Purpose::Work);
        for name in ["before 1", &meanwhile] {
            let found = insist(&mut client, &request(2, 3, 1, 0, look(name)));
            assert!(found.is_ok(), "{name}: {found:?}");
        }
        server.stop(STOP).unwrap();
        assert!(varve_admin::fsck::check(&site.config.volume, &mut |_| {}).unwrap().is_sound());
    }
}

/// If changes are lost, the stop reports it.
#[test]
fn stop_reports_lost_changes() {
    let site = Site::new(1);
    let server = site.start();
    let mut client = TestClient::of(&server, &site, 1, Purpose::Work);
    let unreachable = meanwhile(&site, &mut client, 1);
    unreachable.lose_last_byte();
    unreachable.back();
    let stopped = server.stop(STOP).unwrap_err().to_string();
    assert!(stopped.contains("are lost"), "{stopped}");
}

/// The first change after the store's return waits for the shard and succeeds.
#[test]
fn change_succeeds_after_store_return() {
    let site = Site::new(1);
    let server = site.start();
    let mut client = TestClient::of(&server, &site, 1, Purpose::Work);
    let parent = InodeId::ROOT.0;
    let named = |name: &str| name.as_bytes().to_vec();
    let node_of = |name| Call::Create { parent, name, node: NewNode::Regular, mode: 0o644, open: false };
    let inode = node(insist(&mut client, &request(1, 3, 1, 0, node_of(named("file")))));
    let at = Locator::Entry { parent, name: named("file"), inode };
    let set = SetAttributes { mode: Some(varve_types::Mode(0o600)), ..SetAttributes::default() };
    let changes = [
        node_of(named("created")),
        make_directory("made"),
        Call::SetAttributes { at, set: set.into() },
        Call::Unlink { parent, name: named("file") },
    ];
    for (number, change) in (2..).step_by(2).zip(changes) {
        let unreachable = meanwhile(&site, &mut client, number);
        unreachable.back();
        let changed = insist(&mut client, &request(1, 3, number, 0, change.clone()));
        assert!(changed.is_ok(), "{change:?}: {changed:?}");
    }
    server.stop(STOP).unwrap();
    assert!(varve_admin::fsck::check(&site.config.volume, &mut |_| {}).unwrap().is_sound());
}

/// A change that reached the log of a shard that then failed is acknowledged, and is executed once; if the trouble
/// persists, the caller gets the error.
#[test]
fn retry_of_unknown_outcome_is_answered_after_reopen() {
    let site = Site::syncing_at_once(1);
    let server = site.start();
    let mut client = TestClient::of(&server, &site, 1, Purpose::Work);
    node(insist(&mut client, &request(1, 3, 1, 0, make_directory("before"))));
    for (number, call) in [(1, create("file".to_owned())), (2, make_directory("directory"))] {
        let unreachable = MovedStore::of(&site);
        let change = request(1, 4, number, 0, call.clone());
        let first = client.exchange(change.clone()).unwrap();
        assert_eq!(first, Err(CallFailure::Busy), "its outcome is known to nobody");
        unreachable.back();
        node(insist(&mut client, &change));
        let other = insist(&mut client, &request(1, 5, number, 0, call));
        assert_eq!(other, Err(CallFailure::Errno(libc::EEXIST)), "it was made");
    }
    let unreachable = MovedStore::of(&site);
    let refused = insist(&mut client, &request(1, 4, 3, 0, make_directory("refused")));
    assert!(matches!(refused, Err(CallFailure::Server { errno: libc::EIO, .. })), "{refused:?}");
    unreachable.back();
    server.stop(STOP).unwrap();
    assert!(varve_admin::fsck::check(&site.config.volume, &mut |_| {}).unwrap().is_sound());
}
