//! Races between opens of a file and changes that depend on whether it is open, where the file's row is in another shard
//! than its number.

use super::cluster::{Cluster, PATIENCE, name};
use super::transactions::{kept, rename};
use crate::shards::{
    Execution, FileUse, Makes, MeasureTime, MeasureVerdict, Measurement, OtherWriters, Registrar, RequestAddress,
    ShardRefusal, SizeUse,
};
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use varve_posix::{
    At, ChangeAttributes, GetAttributes, Granted, Node, NodeContent, Open, OpenMode, Promote, Refusal, SizeState,
    Unlink, Verb,
};
use varve_types::{Credentials, InodeId, LayoutGeneration, Name, NameHash, SessionId, SetAttributes, ShardId};

const SESSION: SessionId = SessionId(7);
const HOME: ShardId = ShardId(1);
const ROW: ShardId = ShardId(2);

/// A file whose row is in another shard than its number.
#[derive(Clone)]
struct Elsewhere {
    cluster: Rc<Cluster>,
    parent: InodeId,
    name: Name,
    inode: InodeId,
}

impl Elsewhere {
    async fn make(cluster: &Rc<Cluster>) -> Elsewhere {
        let a = cluster.mkdir(InodeId::ROOT, "a", HOME).await;
        let parent = cluster.mkdir(InodeId::ROOT, "b", ROW).await;
        // The first split of the directory takes the name away.
        let at =
            (0..).map(|number| format!("f{number}")).find(|at| name(at).hash().0 >> (NameHash::BITS - 1) == 1).unwrap();
        let inode = cluster.create(a, "f").await.unwrap().inode;
        rename(cluster, (a, "f"), (parent, &at)).await.unwrap();
        assert_eq!((inode.shard(), cluster.lookup(parent, &at).await), (HOME, Some((inode, false))));
        Elsewhere { cluster: Rc::clone(cluster), parent, name: name(&at), inode }
    }

    fn at(&self) -> At {
        At::Entry { parent: self.parent, name: self.name.clone(), inode: self.inode }
    }

    /// Opens the file in a session, at the shard of its row.
    async fn open(&self, mode: OpenMode) -> Result<Node, ShardRefusal> {
        let verb = Open { at: self.at(), mode, truncate: false, granted: Granted::Nothing };
        let of = |decided: Result<&Node, &Refusal>| {
            decided.ok().map(|node| FileUse::open(SESSION, node.inode, mode != OpenMode::Read))
        };
        let run = Execution {
            caller: &Credentials::root(),
            address: RequestAddress::Name(self.parent, self.name.hash()),
            makes: Makes::Nothing,
            record: None,
            registrar: Some(Registrar { of: &of, writer_gone: &Cell::new(false) }),
        };
        self.cluster.shard(ROW).run(&verb, run).await
    }

    fn opens(&self, mode: OpenMode) -> LocalBoxFuture<'static, ()> {
        let file = self.clone();
        async move { assert_eq!(file.open(mode).await.unwrap().inode, file.inode) }.boxed_local()
    }

    async fn unlink(&self) {
        self.run(&Unlink { parent: self.parent, name: self.name.clone() }).await;
    }

    async fn run<V: Verb>(&self, verb: &V) -> V::Outcome {
        let ran = self.cluster.at_name(self.parent, &self.name, Makes::Nothing, verb).await;
        ran.unwrap_or_else(|refusal| panic!("{refusal}"))
    }

    /// The file has lost its name, and stays until the session releases it.
    async fn stays_until_released(&self) {
        assert_eq!(kept(&self.cluster, self.inode).await, (true, true), "it is open");
        assert!(!self.cluster.shard(ROW).is_asking_about_files(), "nothing is left under way");
        self.cluster.shard(HOME).release(SESSION, self.inode);
        let begun = Instant::now();
        while kept(&self.cluster, self.inode).await != (false, false) {
            assert!(begun.elapsed() < PATIENCE, "nobody has it open");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Promise: a file opened after its shard has said that it is not open, and before the removal is decided, stays.
#[test]
fn file_opened_before_the_answer_arrives_stays() {
    Cluster::run(4, 1000, |cluster| async move {
        let file = Elsewhere::make(&cluster).await;
        cluster.peers.before_answer.replace(Some(file.opens(OpenMode::Read)));
        file.unlink().await;
        assert!(cluster.peers.before_answer.borrow().is_none());
        file.stays_until_released().await;
    });
}

/// Promise: a removal waits for an open that is granted and not registered yet, and finds the file open.
#[test]
fn unlink_waits_for_open_being_registered() {
    Cluster::run(4, 1000, |cluster| async move {
        let file = Elsewhere::make(&cluster).await;
        let (removal, removes) = (Rc::new(Cell::new(false)), file.clone());
        let begun = Rc::clone(&removal);
        let first = async move {
            let done = Rc::clone(&begun);
            tokio::task::spawn_local(async move {
                removes.unlink().await;
                done.set(true);
            });
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert!(!begun.get(), "it would not find the file open");
        };
        cluster.peers.before_register.replace(Some(first.boxed_local()));
        file.open(OpenMode::Read).await.unwrap();
        while !removal.get() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        file.stays_until_released().await;
    });
}

/// Promise: a file that a rename from a third shard replaces stays for the session that opens it meanwhile, whether it
/// is opened before the answer to the participant's question arrives, or the rename comes before it is registered.
#[test]
fn file_opened_while_replaced_from_a_third_shard_stays() {
    for registers in [false, true] {
        Cluster::run(4, 1000, |cluster| async move {
            let file = Elsewhere::make(&cluster).await;
            let c = cluster.mkdir(InodeId::ROOT, "c", ShardId(3)).await;
            let new = cluster.create(c, "new").await.unwrap().inode;
            let at = String::from_utf8(file.name.as_bytes().to_vec()).unwrap();
            let replaced = || rename(&cluster, (c, "new"), (file.parent, &at));
            if registers {
                let wait = tokio::time::sleep(Duration::from_millis(50));
                cluster.peers.before_register.replace(Some(wait.boxed_local()));
                let (opened, renamed) = futures::join!(file.open(OpenMode::Read), replaced());
                opened.unwrap();
                renamed.unwrap();
            } else {
                cluster.peers.before_answer.replace(Some(file.opens(OpenMode::Read)));
                replaced().await.unwrap();
                assert!(cluster.peers.before_answer.borrow().is_none());
            }
            assert_eq!(cluster.lookup(file.parent, &at).await.map(|(inode, _)| inode), Some(new));
            file.stays_until_released().await;
        });
    }
}

/// Promise: the size of a file that was truncated is authoritative only if no session opened it for writing by then.
#[test]
fn truncated_file_opened_meanwhile_has_a_stale_size() {
    for opened in [false, true] {
        Cluster::run(4, 1000, |cluster| async move {
            let file = Elsewhere::make(&cluster).await;
            std::fs::write(cluster.volume.backing_file(file.inode), b"before").unwrap();
            let promote = Promote { at: file.at(), generation: LayoutGeneration(0), size: 6 };
            file.run(&promote).await;
            if opened {
                let (opens, home) = (file.opens(OpenMode::Write), cluster.open_files(file.inode).clone());
                // The open itself ends after the truncate.
                let registered = async move {
                    tokio::task::spawn_local(opens);
                    while home.is_empty() {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                };
                cluster.peers.before_answer.replace(Some(registered.boxed_local()));
            }
            let set = SetAttributes { size: Some(2), ..SetAttributes::default() };
            let cut = ChangeAttributes { at: file.at(), set };
            file.run(&cut).await;
            assert!(cluster.peers.before_answer.borrow().is_none());
            let node = file.run(&GetAttributes { at: file.at() }).await;
            let size = if opened { SizeState::Stale { at_least: 2 } } else { SizeState::Authoritative };
            assert_eq!(node.content, NodeContent::Backing(size));
        });
    }
}

/// Promise: a measured size that was right when it was judged is not recorded if another session begins to change the
/// file, or if the file is truncated, before that is decided.
#[test]
fn measurement_judged_before_a_change_is_not_recorded() {
    Cluster::run(4, 1000, |cluster| async move {
        let file = Elsewhere::make(&cluster).await;
        let (shard, other) = (cluster.shard(ROW), SessionId(8));
        let changes = |session| FileUse::size(session, file.inode, SizeUse::Changes(OtherWriters::Known));
        shard.register(changes(SESSION)).await.unwrap();
        let judge = async |number| {
            let (session, inode, time) = (SESSION, file.inode, MeasureTime::Last);
            shard.judging(Measurement { session, inode, by: (1, number), time }).await.unwrap()
        };
        assert_eq!(judge(1).await.verdict(), MeasureVerdict::Right);
        let judged = judge(2).await;
        shard.note_size_changed(file.inode).await.unwrap();
        assert_eq!(judged.verdict(), MeasureVerdict::Wrong);
        shard.register(changes(SESSION)).await.unwrap();
        let judged = judge(3).await;
        assert_eq!(judged.verdict(), MeasureVerdict::Right);
        shard.register(changes(other)).await.unwrap();
        assert_eq!(judged.verdict(), MeasureVerdict::Wrong);
        assert_eq!(judge(4).await.verdict(), MeasureVerdict::Wrong, "the other one measures last");
    });
}

/// Promise: an open is not answered by a shard that a split has taken the file from while the open was registered: the
/// file may have been removed at the other shard by then.
#[test]
fn open_follows_a_file_that_a_split_moves() {
    Cluster::run(4, 8, |cluster| async move {
        let file = Elsewhere::make(&cluster).await;
        let splits = file.clone();
        let first = async move {
            let Elsewhere { cluster, parent, name, .. } = splits;
            let begun = Instant::now();
            for number in 0.. {
                assert!(begun.elapsed() < PATIENCE, "the directory is not split");
                // The home lists the new partition before the split is committed.
                let listed = cluster.map(parent).await.shard_of(parent.shard(), name.hash()) != ROW;
                match listed {
                    true if !cluster.is_splitting(parent) => return,
                    true => tokio::time::sleep(Duration::from_millis(1)).await,
                    false => drop(cluster.create(parent, &format!("other-{number}")).await.unwrap()),
                }
            }
        };
        cluster.peers.before_register.replace(Some(first.boxed_local()));
        let moved = file.open(OpenMode::Read).await;
        let is_moved = matches!(&moved, Err(ShardRefusal::Moved { directory, .. }) if *directory == file.parent);
        assert!(is_moved, "{moved:?}");
    });
}
