//! Totals of a directory over all its partitions. The directory's home collects them from the partitions' shards.
//!
//! A partition's row lists the partitions split off from it. The home therefore starts at partition 0 and asks each
//! partition after it has read the row of the partition that it was split off from. If that row shows the split, the
//! other half is live already, because the split commits by that row. If it does not, its counts still include the half
//! that will go. So each name is counted once, even when partitions split in the meantime.
//!
//! An unreadable partition does not make the others unreadable: paths still lead through the directory.

use super::execution::{Execution, Makes, RequestAddress};
use super::peers::{PeerCall, PeerReply, unexpected};
use super::refusal::ShardRefusal;
use super::shard::Shard;
use futures::stream::{FuturesUnordered, StreamExt};
use std::rc::Rc;
use varve_posix::{DirectoryNode, GetDirectory};
use varve_schema::{Key, PartitionRow, Row};
use varve_types::{Credentials, Errno, InodeId, PartitionIndex};

/// Limit on partitions of one directory asked in parallel. A server has fewer workers, and a store that must be read
/// for each partition gains little from more.
pub(super) const ASKED_AT_ONCE: usize = 16;

/// A shard's reply about its part of a directory.
enum DirectoryPart {
    Row(PartitionRow),
    Unread(PartitionIndex),
    Absent,
}

impl Shard {
    /// The directory `directory`, whose home is this shard, with the counts of all its readable partitions.
    pub async fn directory_totals(
        self: &Rc<Self>,
        caller: &Credentials,
        directory: InodeId,
    ) -> Result<DirectoryNode, ShardRefusal> {
        let run = Execution {
            caller,
            address: RequestAddress::Inode(directory),
            makes: Makes::Nothing,
            record: None,
            registrar: None,
        };
        let mut whole = self.run(&GetDirectory { directory }, run).await?;
        let mut open: Vec<PartitionIndex> = varve_posix::cut_off(PartitionIndex::FIRST, whole.depth).collect();
        let mut asked = FuturesUnordered::new();
        loop {
            while asked.len() < ASKED_AT_ONCE
                && let Some(index) = open.pop()
            {
                asked.push(self.partition_of_peer(directory, index));
            }
            let Some(answer) = asked.next().await else { return Ok(whole) };
            match answer? {
                DirectoryPart::Row(row) => {
                    whole.counts.add(&row);
                    open.extend(varve_posix::cut_off(row.index, row.depth));
                }
                DirectoryPart::Unread(index) => {
                    whole.counts.unread = true;
                    // In this case only the map lists the partitions split off from it.
                    open.extend(whole.map.iter().filter(|part| part.cut_from() == index && *part != index));
                }
                // The directory is being removed.
                DirectoryPart::Absent => {}
            }
        }
    }

    async fn partition_of_peer(
        &self,
        directory: InodeId,
        index: PartitionIndex,
    ) -> Result<DirectoryPart, ShardRefusal> {
        let shard = index.shard(directory.shard(), self.settings.shards);
        match self.peers.call(shard, PeerCall::Fetch(vec![Key::Partition(directory, index)])).await {
            PeerReply::Rows(mut rows) => Ok(match rows.pop().flatten() {
                Some(Row::Partition(row)) if row.index == index => DirectoryPart::Row(row),
                _ => DirectoryPart::Absent,
            }),
            PeerReply::Absent => Ok(DirectoryPart::Absent),
            PeerReply::Busy => Err(ShardRefusal::Busy),
            // Damage lost this part. A full or hung store fails the call instead: its rows still exist.
            PeerReply::Failed(cause) if cause.errno == Errno::EIO => {
                tracing::debug!("the totals of directory {directory} lack its part in shard {shard}: {}", cause.reason);
                Ok(DirectoryPart::Unread(index))
            }
            other => Err(unexpected(other, format_args!("shard {shard} did not answer for its part of a directory"))),
        }
    }
}
