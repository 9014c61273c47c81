//! Open files of shards that are not open, or that move between workers.

use super::client::request;
use super::moves::{clients, moved, settled, stays};
use super::*;
use crate::shards::{FileUse, PeerCall, PeerReply, PeerRequest, SESSIONS_RETURN};
use std::sync::atomic::AtomicBool;
use tokio::sync::oneshot;
use varve_proto::{Locator, NewNode, OpenedBefore};
use varve_schema::peer::{FileCall, FileReply, Openness, ShardTerm};
use varve_types::{Epoch, Errno, InodeId, SessionId};

/// Calls a shard at a worker as a read-only view of another shard does. Returns the term of the reply and the reply, or
/// `None` if the shard is not at this worker.
fn ask(
    server: &Server,
    worker: usize,
    shard: ShardId,
    term: Option<Epoch>,
    call: FileCall,
) -> Option<(Epoch, PeerReply)> {
    let from = ShardTerm { shard: ShardId(1), term: ShardTerm::NONE };
    let request = PeerRequest { from, to: shard, term, id: 1, deadline: STOP, call: PeerCall::Files(call) };
    let (reply, answer) = oneshot::channel();
    assert!(server.inboxes[worker].blocking_send(WorkerMessage::Peer { request, reply }).is_ok());
    let answered = answer.blocking_recv().unwrap().ok()?.unwrap();
    assert_eq!(answered.from.shard, shard);
    Some((answered.from.term, answered.reply))
}

fn openness(openness: Openness) -> PeerReply {
    PeerReply::Files(FileReply::Openness(vec![openness]))
}

/// Registers an open of a session at worker 0 or 1, which owns the shard of this number.
fn register(server: &Server, session: u64, inode: InodeId) {
    let opens = FileCall::Register(FileUse::open(SessionId(session), inode, false));
    let (_, reply) = ask(server, inode.shard().0.into(), inode.shard(), None, opens).unwrap();
    assert!(matches!(reply, PeerReply::Files(FileReply::Registered { .. })), "{reply:?}");
}

/// Creates and opens `f` in the root, whose shard is 0.
fn create(client: &mut TestClient<UnixStream>) -> InodeId {
    let create =
        Call::Create { parent: InodeId::ROOT.0, name: b"f".to_vec(), node: NewNode::Regular, mode: 0o600, open: true };
    match settled(client, 0, &create) {
        Ok(Reply::Node(made)) if InodeId(made.inode).shard() == ShardId(0) => InodeId(made.inode),
        other => panic!("{other:?}"),
    }
}

fn unlink(client: &mut TestClient<UnixStream>) {
    settled(client, 0, &Call::Unlink { parent: InodeId::ROOT.0, name: b"f".to_vec() }).unwrap();
}

/// Has session 1 release `inode` in a request to `shard`.
fn release(client: &mut TestClient<UnixStream>, shard: u16, inode: InodeId) -> Result<Reply, CallFailure> {
    client.number += 1;
    let mut release = request(1, client.slot, client.number, shard, Call::Release);
    release.released = vec![inode.0];
    client.exchange(release).unwrap()
}

fn attributes(inode: InodeId) -> Call {
    Call::GetAttributes { at: Locator::Inode { inode: inode.0 } }
}

fn open_files(client: &mut TestClient<UnixStream>, shard: u16) -> Result<u64, CallFailure> {
    match client.call(shard, Call::ShardStatus)? {
        Reply::ShardStatus(status) => Ok(status.open_files),
        other => panic!("{other:?}"),
    }
}

/// Waits until an orphan is removed, for less than a shard waits for clients of an earlier server.
fn wait_until_removed(client: &mut TestClient<UnixStream>, inode: InodeId) {
    let begun = Instant::now();
    while client.call(0, attributes(inode)) != Err(CallFailure::NotHere) {
        assert!(begun.elapsed() < SESSIONS_RETURN / 2, "the orphan was not reaped");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A store that opens no log of a shard, until this is dropped.
struct BrokenLog {
    log: PathBuf,
    aside: PathBuf,
}

impl BrokenLog {
    fn of(site: &Site, shard: ShardId) -> BrokenLog {
        let log = PathBuf::from(site.config.volume.shard_log(shard));
        let aside = site.directory.path().join("aside");
        std::fs::rename(&log, &aside).unwrap();
        std::fs::write(&log, b"no directory").unwrap();
        BrokenLog { log, aside }
    }
}

impl Drop for BrokenLog {
    fn drop(&mut self) {
        std::fs::remove_file(&self.log).unwrap();
        std::fs::rename(&self.aside, &self.log).unwrap();
    }
}

/// Promise: open files move with their shard. A worker that the shard has left releases nothing and names the new one.
#[test]
fn open_files_move_with_their_shard() {
    let site = Site::new(4);
    let server = site.start();
    let mut workers = clients(&server, &site, 1, Purpose::Work);
    let inode = create(&mut workers[0]);
    let mut admin = clients(&server, &site, 2, Purpose::Administer);
    assert_eq!(moved(admin[0].call(0, Call::MoveShard { worker: 1 })), (0, 1));

    assert_eq!(open_files(&mut admin[1], 0), Ok(1));
    unlink(&mut workers[1]);
    let refused = release(&mut workers[0], 0, inode);
    assert!(matches!(refused, Err(CallFailure::NotOwner { .. })), "{refused:?}");
    let astray = release(&mut workers[0], 2, inode);
    assert_eq!(astray, Err(CallFailure::Errno(Errno::EINVAL.number())), "it is a file of another shard");
    assert!(matches!(workers[1].call(0, attributes(inode)), Ok(Reply::Node(_))), "it is open");
    assert_eq!(release(&mut workers[1], 0, inode), Ok(Reply::Done));
    wait_until_removed(&mut workers[1], inode);
    assert_eq!(open_files(&mut admin[1], 0), Ok(0));
}

/// Promise: the table of open files serves clients and other shards before its shard is open, and names no term then.
#[test]
fn files_of_unopened_shard_are_registered() {
    const SHARD: ShardId = ShardId(1);
    let site = Site::new(2);
    let broken = BrokenLog::of(&site, SHARD);
    let server = site.start();
    let mut client = TestClient::at(&server, &site, 1, 1, Purpose::Work);
    let [inode, other] = [8, 9].map(|number| InodeId::new(SHARD, number));
    let is_open = |term| ask(&server, 1, SHARD, term, FileCall::AreOpen(vec![inode])).unwrap();
    assert_eq!(is_open(None), (ShardTerm::NONE, openness(Openness::Closed)));
    assert_eq!(is_open(Some(Epoch(1))), (ShardTerm::NONE, PeerReply::WrongTerm));
    register(&server, 1, inode);
    let files = vec![OpenedBefore { inode: other.0, writes: false }];
    assert_eq!(client.call(1, Call::Register { files }), Ok(Reply::Done));
    let answer = release(&mut client, 1, other);
    assert!(matches!(answer, Err(CallFailure::Server { .. } | CallFailure::Busy)), "{answer:?}");
    assert_eq!(is_open(None).1, openness(Openness::Open));

    drop(broken);
    let begun = Instant::now();
    while open_files(&mut client, 1) != Ok(1) {
        assert!(begun.elapsed() < STOP, "{:?} open files", open_files(&mut client, 1));
        std::thread::sleep(Duration::from_millis(20));
    }
    let (term, reply) = is_open(None);
    assert!(term > ShardTerm::NONE && reply == openness(Openness::Open), "{term:?}: {reply:?}");
    assert_eq!(is_open(Some(term)), (term, openness(Openness::Open)));
    assert_eq!(is_open(Some(Epoch(term.0 + 1))), (term, PeerReply::WrongTerm), "a later owner is known");
}

/// Promise: while a shard moves, calls about its open files wait, find what was registered before, and see terms grow.
#[test]
fn file_calls_follow_a_moving_shard() {
    let site = Site::new(4);
    let server = site.start();
    let mut client = TestClient::of(&server, &site, 1, Purpose::Work);
    let inode = create(&mut client);
    let ended = AtomicBool::new(false);
    let answered = std::thread::scope(|scope| {
        let asks = scope.spawn(|| {
            let (mut answered, mut known) = (0_u32, None);
            while !ended.load(SeqCst) {
                for worker in 0..2 {
                    let asked = ask(&server, worker, ShardId(0), known, FileCall::AreOpen(vec![inode]));
                    let Some((term, reply)) = asked else { continue };
                    assert!(known.is_none_or(|known| term >= known), "{term:?} after {known:?}");
                    match known.replace(term) {
                        Some(before) if before != term => assert_eq!(reply, PeerReply::WrongTerm),
                        _ => assert_eq!(reply, openness(Openness::Open)),
                    }
                    answered += 1;
                }
            }
            answered
        });
        let mut admin = clients(&server, &site, 2, Purpose::Administer);
        for number in 0..20 {
            let (from, to) = (number % 2, (number + 1) % 2);
            let begun = Instant::now();
            while !matches!(
                settled(&mut admin[from], 0, &Call::MoveShard { worker: to as u16 }),
                Ok(Reply::ShardMoved { .. })
            ) {
                assert!(begun.elapsed() < STOP, "it does not move");
            }
        }
        ended.store(true, SeqCst);
        asks.join().unwrap()
    });
    assert!(answered > 20, "only {answered} answers");
    assert_eq!(open_files(&mut client, 0), Ok(1));
}

/// Promise: a worker that cannot open a shard gives its open files back, and they count there whether it opens or not.
#[test]
fn failed_take_over_gives_open_files_back() {
    let site = Site::new(2);
    let server = site.start();
    let mut client = TestClient::of(&server, &site, 1, Purpose::Work);
    let inode = create(&mut client);
    assert_eq!(settled(&mut client, 0, &Call::Sync), Ok(Reply::Done));
    let mut admin = clients(&server, &site, 2, Purpose::Administer);
    let broken = BrokenLog::of(&site, ShardId(0));
    let reason = stays(admin[0].call(0, Call::MoveShard { worker: 1 }));
    assert!(reason.contains("shard 0 cannot be opened"), "{reason}");
    let is_open = |worker| ask(&server, worker, ShardId(0), None, FileCall::AreOpen(vec![inode]));
    assert_eq!(is_open(0).unwrap().1, openness(Openness::Open));
    assert!(is_open(1).is_none());
    drop(broken);
    let begun = Instant::now();
    while open_files(&mut client, 0) != Ok(1) {
        assert!(begun.elapsed() < STOP, "{:?} open files", open_files(&mut client, 0));
        std::thread::sleep(Duration::from_millis(20));
    }
    unlink(&mut client);
    assert!(matches!(client.call(0, attributes(inode)), Ok(Reply::Node(_))), "it is open");
}

/// Promise: what a session has open at a shard that moves while the session ends is closed by the move, and a file that
/// only this session kept is removed at once.
#[test]
fn session_that_ends_during_a_move_keeps_no_file() {
    let site = Site::new(4);
    let server = site.start();
    let mut workers = clients(&server, &site, 1, Purpose::Work);
    let inode = create(&mut workers[0]);
    // No worker is told of the end of a session that is not there.
    register(&server, 99, inode);
    unlink(&mut workers[0]);
    assert_eq!(release(&mut workers[0], 0, inode), Ok(Reply::Done));
    assert!(matches!(workers[0].call(0, attributes(inode)), Ok(Reply::Node(_))), "the other session has it open");
    let mut admin = clients(&server, &site, 2, Purpose::Administer);
    assert_eq!(moved(admin[0].call(0, Call::MoveShard { worker: 1 })), (0, 1));
    wait_until_removed(&mut workers[1], inode);
    assert_eq!(open_files(&mut admin[1], 0), Ok(0));
}
