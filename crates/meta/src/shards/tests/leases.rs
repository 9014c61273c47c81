//! Changes of directories whose names or attributes other sessions have leased.

use super::cluster::{Cluster, name};
use crate::shards::{Execution, LEASE, LeaseKey, Makes, ReplyRecorder, RequestAddress, ShardRefusal};
use bytes::Bytes;
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use varve_posix::{Rename, RenameFlags};
use varve_types::{Credentials, InodeId, NameHash, SessionId, ShardId};

const HOLDER: SessionId = SessionId(1);
const OTHER: SessionId = SessionId(2);

/// Leases a name to `HOLDER` at the shard that holds it.
fn lease(cluster: &Cluster, parent: InodeId, at: &str) -> Duration {
    let shard = cluster.shard(parent.shard());
    let key = LeaseKey::name(parent, NameHash::of(at.as_bytes()));
    shard.leases().grant(key, HOLDER, shard.leases().ticket(key), shard.clock.monotonic())
}

/// Renames `/d` to `d` in `parent` for a session, and returns how long that took.
async fn rename(cluster: &Cluster, parent: InodeId, session: SessionId) -> Result<Duration, ShardRefusal> {
    let verb = Rename {
        parent: InodeId::ROOT,
        name: name("d"),
        new_parent: parent,
        new_name: name("d"),
        flags: RenameFlags::Replace,
    };
    let encode = |_: &_| Bytes::new();
    let run = Execution {
        caller: &Credentials::root(),
        address: RequestAddress::Name(InodeId::ROOT, verb.name.hash()),
        makes: Makes::Nothing,
        record: Some(ReplyRecorder { session, slot: 0, number: 1, encode: &encode }),
        registrar: None,
    };
    let begun = Instant::now();
    cluster.shard(ShardId(0)).run(&verb, run).await.map(|_| begun.elapsed())
}

fn renamed(session: SessionId, leased: fn(&Cluster, InodeId) -> Duration) -> Duration {
    let took = Rc::new(Cell::new(Duration::ZERO));
    let result = Rc::clone(&took);
    Cluster::run(4, 1000, |cluster| async move {
        let moved = cluster.mkdir(InodeId::ROOT, "d", ShardId(1)).await;
        let parent = cluster.mkdir(InodeId::ROOT, "parent", ShardId(2)).await;
        cluster.mkdir(parent, "d", ShardId(3)).await;
        assert_eq!(leased(&cluster, parent), LEASE);
        result.set(rename(&cluster, parent, session).await.unwrap());
        assert_eq!(cluster.lookup(parent, "d").await, Some((moved, true)));
    });
    took.get()
}

/// Promise: a rename of a directory waits for leases of other sessions on the names that it changes, at the shard that
/// received it and at other shards, and not for leases of its own session.
#[test]
fn rename_over_shards_waits_for_leases_of_others() {
    let at_own: fn(&Cluster, InodeId) -> Duration = |cluster, _| lease(cluster, InodeId::ROOT, "d");
    let at_other: fn(&Cluster, InodeId) -> Duration = |cluster, parent| lease(cluster, parent, "d");
    for leased in [at_own, at_other] {
        let waited = renamed(OTHER, leased);
        assert!(waited >= LEASE - Duration::from_millis(100) && waited < LEASE * 3, "{waited:?}");
        let not_waited = renamed(HOLDER, leased);
        assert!(not_waited < LEASE / 2, "{not_waited:?}");
    }
}
