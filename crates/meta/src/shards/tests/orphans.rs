//! Files without a name that an earlier epoch left.

use super::cluster::{Cluster, PATIENCE, name};
use super::hanging::pass;
use crate::shards::Makes;
use crate::shards::effects::{REAPED_AT_ONCE, SESSIONS_RETURN};
use std::time::Duration;
use varve_posix::Unlink;
use varve_types::{InodeId, SessionId, ShardId};

/// Promise: files removed while they were open, and not claimed after a restart, are reaped in batches, however many
/// there are.
#[test]
fn leftover_orphans_are_reaped_in_batches() {
    const MANY: usize = 2 * REAPED_AT_ONCE + 10;
    let session = SessionId(7);
    Cluster::run(1, 10_000, |cluster| async move {
        for number in 0..MANY {
            let at = format!("{number}");
            let inode = cluster.create(InodeId::ROOT, &at).await.unwrap().inode;
            cluster.open_files(inode).open(session, inode, false);
            let unlink = Unlink { parent: InodeId::ROOT, name: name(&at) };
            cluster.at_name(InodeId::ROOT, &name(&at), Makes::Nothing, &unlink).await.unwrap();
        }
        cluster.open_files(InodeId::ROOT).end_session(session);
        cluster.reopen_after_crash().await;
        let shard = cluster.shard(ShardId(0));
        let left = || shard.state.borrow().orphans.len();
        assert_eq!(left(), MANY);
        let comes_to = async |number| {
            while left() > number {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let snapshots = cluster.snapshots(shard.id());
        let hung = snapshots.hang().await;
        pass(SESSIONS_RETURN).await;
        tokio::time::timeout(PATIENCE, comes_to(MANY - REAPED_AT_ONCE)).await.expect("the first go");
        // Time in which others could be reaped.
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(left(), MANY - REAPED_AT_ONCE);
        drop(hung);
        tokio::time::timeout(PATIENCE, comes_to(0)).await.expect("all go");
    });
}
