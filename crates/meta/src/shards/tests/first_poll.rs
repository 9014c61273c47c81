//! Requests that wait for nothing but the log need no task: a worker polls them, sends the batches of its shards and
//! polls them again.

use super::cluster::{Cluster, name};
use crate::shards::{Execution, Makes, RequestAddress};
use futures::FutureExt;
use std::pin::pin;
use varve_posix::{Create, Lookup, MakeDirectory, NewNode, RemoveDirectory, Unlink, Verb};
use varve_types::{Credentials, InodeId, Mode, NameHash, ShardId};

/// Runs a verb on a name as a worker does; returns how often the batches were sent before it was done.
async fn sends<V: Verb>(cluster: &Cluster, parent: InodeId, at: &str, makes: Makes, verb: &V) -> (V::Outcome, u32) {
    let caller = &Credentials::root();
    let address = RequestAddress::Name(parent, NameHash::of(at.as_bytes()));
    let run = Execution { caller, address, makes, record: None, registrar: None };
    let shard = cluster.shard(parent.shard());
    let mut call = pin!(shard.run(verb, run));
    for sends in 0.. {
        match call.as_mut().now_or_never() {
            Some(done) => return (done.unwrap(), sends),
            None => assert!(cluster.commits.send(), "it waits for something else than a batch"),
        }
    }
    unreachable!()
}

/// Promise: where one worker serves all shards, a request whose rows are in memory waits for the batches of its own
/// change only, also if the change concerns a directory of another shard.
#[test]
fn changes_on_one_worker_wait_only_for_their_batches() {
    Cluster::run(4, 1000, |cluster| async move {
        cluster.peers.all_near.set(true);
        // The shards take ids, and their committers start.
        let first = cluster.mkdir(InodeId::ROOT, "first", ShardId(2)).await;
        cluster.create(first, "f").await.unwrap();
        cluster.commits.set_open(true);

        let directory = MakeDirectory { parent: InodeId::ROOT, name: name("d"), mode: Mode::new(0o755) };
        let makes = Makes::Directory { home: ShardId(2) };
        let (made, count) = sends(&cluster, InodeId::ROOT, "d", makes, &directory).await;
        assert_eq!((made.inode.shard(), count), (ShardId(2), 2), "its rows, then its name");

        let parent = made.inode;
        let create = Create { parent, name: name("f"), node: NewNode::Regular, mode: Mode::new(0o644) };
        assert_eq!(sends(&cluster, parent, "f", Makes::File, &create).await.1, 1);
        let lookup = Lookup { parent, name: name("f") };
        assert_eq!(sends(&cluster, parent, "f", Makes::Nothing, &lookup).await.1, 0);
        let unlink = Unlink { parent, name: name("f") };
        assert_eq!(sends(&cluster, parent, "f", Makes::Nothing, &unlink).await.1, 1);
        let rmdir = RemoveDirectory { parent: InodeId::ROOT, name: name("d") };
        assert_eq!(sends(&cluster, InodeId::ROOT, "d", Makes::Nothing, &rmdir).await.1, 2, "its rows, then its name");
        cluster.commits.set_open(false);
    });
}
