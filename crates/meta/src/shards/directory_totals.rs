//! A directory as a whole: what all its partitions count together, asked of their shards by its home.
//!
//! A partition's row says which others were cut off it, so those are found from partition 0 down, and each is asked after
//! the row that it was cut off was read. Where that row has been cut, the other half is live already, for the cut is what
//! makes it so; where it has not yet, it counts what will go. So each name is counted once, whatever is split meanwhile.
//!
//! A partition that cannot be read takes no other with it: paths lead through the directory all the same.

use super::peers::{PeerCall, PeerReply};
use super::refusal::ShardRefusal;
use super::shard::{Execution, Makes, RequestAddress, Shard};
use crate::namespace::{self, DirectoryNode, GetDirectory};
use crate::tables::{Key, PartitionRow, Row};
use futures::stream::{FuturesUnordered, StreamExt};
use std::rc::Rc;
use varve_types::{Credentials, Errno, InodeId, PartitionIndex};

/// Partitions of one directory that are asked at once: the workers of a server are fewer, and a store that has to be read
/// for each gains little from more.
pub(super) const ASKED_AT_ONCE: usize = 16;

/// What a shard says of its part of a directory.
enum DirectoryPart {
    Row(PartitionRow),
    Unread(PartitionIndex),
    Absent,
}

impl Shard {
    /// `directory`, whose home this is, with the counts of all its partitions that can be read.
    pub async fn directory_totals(
        self: &Rc<Self>,
        caller: &Credentials,
        directory: InodeId,
    ) -> Result<DirectoryNode, ShardRefusal> {
        let run = Execution { caller, address: RequestAddress::Inode(directory), makes: Makes::Nothing, record: None };
        let mut whole = self.run(&GetDirectory { directory }, run).await?;
        let mut open: Vec<PartitionIndex> = namespace::cut_off(PartitionIndex::FIRST, whole.depth).collect();
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
                    open.extend(namespace::cut_off(row.index, row.depth));
                }
                DirectoryPart::Unread(index) => {
                    whole.counts.unread = true;
                    // What was cut off it is known from the map alone then.
                    open.extend(whole.map.iter().filter(|part| part.cut_from() == index && *part != index));
                }
                // Of a directory that is being removed.
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
            // What damage has taken. A store that is full, or hangs, is no reason to tell less than there is.
            PeerReply::Failed(cause) if cause.errno == Errno::EIO => {
                tracing::debug!("directory {directory} is told without its part in shard {shard}: {}", cause.reason);
                Ok(DirectoryPart::Unread(index))
            }
            other => Err(other.unexpected(format_args!("shard {shard} did not answer for its part of a directory"))),
        }
    }
}
