//! Truncates of large files that fail: they are not applied later either.

use super::cluster::{Cluster, PATIENCE, name};
use super::hanging::{hang_for_long, pass};
use crate::shards::decision::{DecisionOutcome, TxnContext};
use crate::shards::foreign::Foreign;
use crate::shards::replies::SessionChange;
use crate::shards::{BatchNumber, Execution, Makes, ReplyRecorder, RequestAddress, Shard, ShardRefusal};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use varve_posix::{
    At, BackingFile, ChangeAttributes, Effect, FindTruncate, GetAttributes, Granted, Node, NodeContent, Open, OpenMode,
    Promote, RaiseSize, RecordSize, Rename, RenameFlags, SizeState, Unlink, Verb,
};
use varve_types::{Credentials, Errno, InodeId, LayoutGeneration, Mode, SessionId, SetAttributes, ShardId};

const WRITER: SessionId = SessionId(1);
const ASKED: SessionChange = SessionChange { session: SessionId(9), slot: 2, number: 5 };

/// After this time, every wait for a hung store is given up.
const HUNG: Duration = Duration::from_secs(30);

/// A large file that a session writes.
struct Large {
    at: At,
    generation: LayoutGeneration,
    path: PathBuf,
    shard: Rc<Shard>,
}

impl Large {
    async fn make(cluster: &Cluster) -> Large {
        let (parent, made) = (InodeId::ROOT, cluster.create(InodeId::ROOT, "f").await.unwrap());
        cluster.open_files(made.inode).open(WRITER, made.inode, true);
        let (path, shard) = (cluster.volume.backing_file(made.inode), cluster.shard(ShardId(0)));
        std::fs::write(&path, b"before").unwrap();
        let at = At::Entry { parent, name: name("f"), inode: made.inode };
        let promote = Promote { at: at.clone(), generation: made.generation, size: 6 };
        let generation = run(&shard, &at, &promote).await.unwrap().generation;
        Large { at, generation, path: path.into(), shard }
    }

    /// Requests a truncate to zero, as a client does.
    async fn cut(&self) -> Result<Node, ShardRefusal> {
        let set = SetAttributes { size: Some(0), ..SetAttributes::default() };
        self.ask(&ChangeAttributes { at: self.at.clone(), set }, &Credentials::root()).await
    }

    async fn ask<V: Verb<Outcome = Node>>(&self, verb: &V, caller: &Credentials) -> Result<Node, ShardRefusal> {
        let encode = |_: &_| bytes::Bytes::from_static(b"done");
        let (SessionChange { session, slot, number }, makes) = (ASKED, Makes::Nothing);
        let record = Some(ReplyRecorder { session, slot, number, encode: &encode });
        self.shard.run(verb, Execution { caller, address: address(&self.at), makes, record, registrar: None }).await
    }

    fn is_answered(&self) -> bool {
        self.shard.find_reply(ASKED.session, ASKED.slot, ASKED.number).is_some()
    }

    /// The writer continues, syncs, closes the file and records its size: all of its bytes are there.
    async fn is_whole(&self, at: &At) {
        let grown = b"before and after";
        std::fs::write(&self.path, grown).unwrap();
        let file = BackingFile { at: at.clone(), generation: self.generation };
        let at_least = grown.len() as u64;
        let raised = run(&self.shard, at, &RaiseSize { file: file.clone(), at_least }).await.unwrap();
        assert_eq!(raised.content, NodeContent::Backing(SizeState::Stale { at_least }));
        let mtime = raised.attributes.mtime;
        let settled = run(&self.shard, at, &RecordSize { file, size: at_least, mtime }).await.unwrap();
        assert_eq!(settled.content, NodeContent::Backing(SizeState::Authoritative));
        let open = Open { at: at.clone(), mode: OpenMode::Read, truncate: false, granted: Granted::Nothing };
        assert_eq!(run(&self.shard, at, &open).await.unwrap().attributes.size, at_least);
        assert_eq!(std::fs::read(&self.path).unwrap(), grown);
        let turns_end = async {
            while !self.shard.state.borrow().truncating.is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, turns_end).await.expect("nobody waits any more");
    }
}

fn address(at: &At) -> RequestAddress {
    match at {
        At::Entry { parent, name, .. } => RequestAddress::Name(*parent, name.hash()),
        At::Inode(inode) => RequestAddress::Inode(*inode),
    }
}

async fn run<V: Verb>(shard: &Rc<Shard>, at: &At, verb: &V) -> Result<V::Outcome, ShardRefusal> {
    let run = Execution {
        caller: &Credentials::root(),
        address: address(at),
        makes: Makes::Nothing,
        record: None,
        registrar: None,
    };
    shard.run(verb, run).await
}

fn is_hung(result: &Result<Node, ShardRefusal>) -> bool {
    matches!(result, Err(ShardRefusal::Failed(cause)) if cause.errno == Errno::ETIMEDOUT)
}

/// Promise: a truncate given up because the log accepted no writes is not applied later, over data that others have
/// written and synced since. A retry is not reported as done either.
#[test]
fn truncate_not_logged_in_time_is_not_applied() {
    Cluster::run(1, 1000, |cluster| async move {
        let large = Large::make(&cluster).await;
        let snapshots = cluster.snapshots(large.shard.id());
        let hung = snapshots.hang().await;
        let (cut, ()) = futures::join!(large.cut(), hang_for_long(&large.shard));
        assert!(is_hung(&cut), "{cut:?}");
        assert!(!large.is_answered());
        drop(hung);
        large.is_whole(&large.at).await;
        cluster.reopen_after_crash().await;
        let large = Large { shard: cluster.shard(ShardId(0)), ..large };
        assert!(!large.is_answered());
        assert_eq!(run(&large.shard, &large.at, &FindTruncate { at: large.at.clone() }).await, Ok(None));
    });
}

/// Promise: the same holds for a truncate given up because the log was not fsynced, wherever the file's row is by then.
#[test]
fn truncate_not_synced_in_time_is_not_applied() {
    for renamed in [false, true] {
        Cluster::run(1, 1000, |cluster| async move {
            let large = Large::make(&cluster).await;
            let hung = cluster.hang_fsyncs();
            let meanwhile = async {
                while large.shard.state.borrow().truncating.is_empty() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                if renamed {
                    let (parent, flags) = (InodeId::ROOT, RenameFlags::Replace);
                    let verb = Rename { parent, name: name("f"), new_parent: parent, new_name: name("g"), flags };
                    cluster.at_name(parent, &name("f"), Makes::Nothing, &verb).await.unwrap();
                }
                // The fsync, and then the record that it is given up.
                for _ in 0..2 {
                    pass(HUNG).await;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            };
            let (cut, ()) = futures::join!(large.cut(), meanwhile);
            assert!(is_hung(&cut), "{cut:?}");
            assert!(!large.is_answered());
            drop(hung);
            let at = if renamed { At::Inode(large.at.inode()) } else { large.at.clone() };
            large.is_whole(&at).await;
        });
    }
}

/// Promise: after a truncate that the store refused, a retry does not report it as done, but makes it then. If an
/// effect before it failed, the truncate is not applied later.
#[test]
fn failed_truncate_is_not_reported_as_done() {
    Cluster::run(1, 1000, |cluster| async move {
        let large = Large::make(&cluster).await;
        let mode = SetAttributes { mode: Some(Mode::new(0o4666)), ..SetAttributes::default() };
        run(&large.shard, &large.at, &ChangeAttributes { at: large.at.clone(), set: mode }).await.unwrap();
        let aside = large.path.with_extension("aside");
        // For this caller, the `Own` effect clears the set-user-id bit of the backing file before the truncate.
        let other = Credentials::user(1000, 1000, Vec::new());
        let (mode, granted) = (OpenMode::ReadWrite, Granted::Nothing);
        let open = Open { at: large.at.clone(), mode, truncate: true, granted };
        for by_open in [false, true] {
            std::fs::rename(&large.path, &aside).unwrap();
            let cut = match by_open {
                true => large.ask(&open, &other).await,
                false => large.cut().await,
            };
            assert!(matches!(&cut, Err(ShardRefusal::Failed(_))), "{cut:?}");
            std::fs::rename(&aside, &large.path).unwrap();
            assert!(!large.is_answered());
            assert_eq!(run(&large.shard, &large.at, &FindTruncate { at: large.at.clone() }).await, Ok(None));
        }
        cluster.reopen_after_crash().await;
        let large = Large { shard: cluster.shard(ShardId(0)), ..large };
        assert!(!large.is_answered());
        run(&large.shard, &large.at, &GetAttributes { at: large.at.clone() }).await.unwrap();
        assert_eq!(std::fs::read(&large.path).unwrap(), b"before");
        large.cut().await.unwrap();
        assert!(large.is_answered());
        assert_eq!(std::fs::read(&large.path).unwrap(), b"");
    });
}

/// Decides a change and does not wait for its batch.
fn decided<V: Verb>(shard: &Rc<Shard>, verb: &V, run: &Execution<'_, V::Outcome>) -> (Vec<Effect>, BatchNumber) {
    let decided = shard.decide(verb, run, &TxnContext::of(InodeId::ROOT), &Foreign::default()).unwrap();
    let DecisionOutcome::Done { effects, batch, .. } = decided.outcome else { panic!("it has to wait") };
    (effects, batch)
}

/// Promise: the request that decided a truncate fails also if another request tried the truncate and gave it up.
#[test]
fn truncate_abandoned_by_another_has_failed() {
    Cluster::run(1, 1000, |cluster| async move {
        let large = Large::make(&cluster).await;
        let set = SetAttributes { size: Some(0), ..SetAttributes::default() };
        let verb = ChangeAttributes { at: large.at.clone(), set };
        let run = Execution {
            caller: &Credentials::root(),
            address: address(&large.at),
            makes: Makes::Nothing,
            record: None,
            registrar: None,
        };
        let (effects, batch) = decided(&large.shard, &verb, &run);
        large.shard.appended_with_work(batch).await.unwrap();
        std::fs::remove_file(&large.path).unwrap();
        let found = large.shard.truncate(large.at.clone(), None, None);
        let (found, decided) = futures::join!(found, large.shard.perform(effects, None));
        assert!(matches!(&found, Err(ShardRefusal::Failed(_))), "{found:?}");
        assert_eq!(decided, found);
        assert!(large.shard.state.borrow().truncating.is_empty());
    });
}

/// Promise: the same holds if another truncate replaced the decided one, and that one was given up.
#[test]
fn truncate_fails_if_its_successor_was_abandoned() {
    Cluster::run(1, 1000, |cluster| async move {
        let large = Large::make(&cluster).await;
        std::fs::remove_file(&large.path).unwrap();
        let decided = [3, 5].map(|size| {
            let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
            let verb = ChangeAttributes { at: large.at.clone(), set };
            let (caller, makes) = (&Credentials::root(), Makes::Nothing);
            let run = Execution { caller, address: address(&large.at), makes, record: None, registrar: None };
            decided(&large.shard, &verb, &run)
        });
        large.shard.appended_with_work(decided[1].1).await.unwrap();
        let [first, second] = decided.map(|(effects, _)| large.shard.perform(effects, None));
        let (second, first) = futures::join!(second, first);
        assert!(matches!(&second, Err(ShardRefusal::Failed(_))), "{second:?}");
        assert_eq!(first, second);
    });
}

/// Promise: a truncate is given up also if the file's row is in another shard by then.
#[test]
fn truncate_is_abandoned_in_another_shard() {
    Cluster::run(2, 1000, |cluster| async move {
        let (parent, flags) = (cluster.mkdir(InodeId::ROOT, "d", ShardId(1)).await, RenameFlags::Replace);
        let inode = cluster.create(InodeId::ROOT, "f").await.unwrap().inode;
        let unreachable =
            Rename { parent: InodeId::ROOT, name: name("f"), new_parent: parent, new_name: name("g"), flags };
        cluster.at_name(InodeId::ROOT, &name("f"), Makes::Nothing, &unreachable).await.unwrap();
        cluster.open_files(inode).open(WRITER, inode, true);
        let (shard, at) = (cluster.shard(ShardId(1)), At::Entry { parent, name: name("g"), inode });
        std::fs::write(cluster.volume.backing_file(inode), b"before").unwrap();
        let promote = Promote { at: at.clone(), generation: LayoutGeneration(0), size: 6 };
        run(&shard, &at, &promote).await.unwrap();
        let set = SetAttributes { size: Some(0), ..SetAttributes::default() };
        let (caller, makes) = (&Credentials::root(), Makes::Nothing);
        let decide = Execution { caller, address: address(&at), makes, record: None, registrar: None };
        let cut = ChangeAttributes { at, set };
        let (effects, _) = decided(&shard, &cut, &decide);
        let onward = Rename { parent, name: name("g"), new_parent: parent, new_name: name("h"), flags };
        cluster.at_name(parent, &name("g"), Makes::Nothing, &onward).await.unwrap();
        let (at, home) = (At::Inode(inode), cluster.shard(ShardId(0)));
        let find = FindTruncate { at: at.clone() };
        assert!(run(&home, &at, &find).await.unwrap().is_some());
        shard.give_up_all(effects, None, &ShardRefusal::Failed("its store hangs".into()));
        let ends = async {
            while run(&home, &at, &find).await != Ok(None) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, ends).await.expect("it is given up");
    });
}

/// Promise: a file's data in the store are removed with the file, even if its removal was given up while the store hung
/// and reached the log afterwards.
#[test]
fn removal_during_a_hang_deletes_the_backing_file() {
    Cluster::run(1, 1000, |cluster| async move {
        let large = Large::make(&cluster).await;
        large.shard.release(WRITER, large.at.inode());
        let snapshots = cluster.snapshots(large.shard.id());
        let hung = snapshots.hang().await;
        let unlink = Unlink { parent: InodeId::ROOT, name: name("f") };
        let (removed, ()) = futures::join!(run(&large.shard, &large.at, &unlink), hang_for_long(&large.shard));
        assert!(matches!(&removed, Err(ShardRefusal::Failed(cause)) if cause.errno == Errno::ETIMEDOUT), "{removed:?}");
        assert!(large.path.exists());
        drop(hung);
        let goes = async {
            while large.path.exists() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, goes).await.expect("it goes");
    });
}

/// Promise: a server whose lease has ended does not truncate a file: the shard's next owner has, and a client may have
/// written it since.
#[test]
fn truncate_after_the_lease_is_not_applied() {
    Cluster::run(1, 1000, |cluster| async move {
        let large = Large::make(&cluster).await;
        cluster.lease.end();
        assert_eq!(large.cut().await, Err(ShardRefusal::Busy));
        assert_eq!(std::fs::read(&large.path).unwrap(), b"before");
        cluster.lease.renewed(large.shard.clock.monotonic(), Duration::from_secs(3600));
        let find = FindTruncate { at: large.at.clone() };
        assert!(run(&large.shard, &large.at, &find).await.unwrap().is_some(), "the row still requires it");
        run(&large.shard, &large.at, &GetAttributes { at: large.at.clone() }).await.unwrap();
        large.shard.truncate(large.at.clone(), None, None).await.unwrap();
        assert_eq!(std::fs::read(&large.path).unwrap(), b"");
    });
}
