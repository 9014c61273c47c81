//! Directories whose rows a loss of power has taken while it left their entries.
//!
//! A mkdir over two shards writes the rows at the home first and the entry after, without an fsync between them, and
//! each shard has its own log: the entry can reach the disk alone. Then the directory is empty and has the attributes
//! that its entry carries; whatever was made in it came after its rows in the log of its home, and is lost with them.
//! So an entry that is read from the table, which is one that an earlier epoch may have left, is shown only when the
//! home has said that the rows are there. Entries of this epoch are resident, or came from the table after their rows
//! had been placed.

use super::peers::{PeerCall, PeerReply};
use super::refusal::Refusal;
use super::shard::Shard;
use crate::namespace::Seen;
use crate::tables::{Change, DirectoryRow, EntryBody, EntryRow, Key, PartitionRow, PartitionState, Row};
use std::rc::Rc;
use varve_types::{Attributes, InodeId, PartitionIndex, PartitionMap, ShardCount};

impl Shard {
    /// Nobody decides on the entry meanwhile, for it is not resident: it stays until this has returned.
    pub(super) async fn have_directory_restored(&self, parent: InodeId, entry: &EntryRow) -> Result<(), Refusal> {
        let EntryBody::Directory(attributes) = entry.body else { return Ok(()) };
        let inode = entry.inode;
        if inode.shard() == self.id {
            // One batch made the rows and the entry.
            return Ok(());
        }
        match self.peers.call(inode.shard(), PeerCall::RestoreDirectory { inode, parent, attributes }).await {
            PeerReply::Done => Ok(()),
            PeerReply::Busy => Err(Refusal::Busy),
            other => {
                let home = inode.shard();
                Err(Refusal::Failed(format!("home {home} did not say whether it has directory {inode}: {other:?}")))
            }
        }
    }

    /// Makes the rows of a directory of this shard if they are gone.
    pub(super) async fn restore_directory(
        self: &Rc<Self>,
        inode: InodeId,
        parent: InodeId,
        attributes: &Attributes,
    ) -> Result<(), Refusal> {
        let (directory, partition) = (Key::Directory(inode), Key::Partition(inode, PartitionIndex::FIRST));
        let batch = loop {
            self.fetch_here(&directory).await?;
            if matches!(self.seen_here(&self.state.borrow(), &directory).0, Seen::Present(_)) {
                return Ok(());
            }
            self.fetch_here(&partition).await?;
            let mut state = self.state.borrow_mut();
            match (self.seen_here(&state, &directory).0, self.seen_here(&state, &partition).0) {
                (Seen::Absent, Seen::Absent) => {}
                // Dropped from memory, or restored, meanwhile.
                (Seen::Unknown | Seen::Present(_), _) | (_, Seen::Unknown) => continue,
                (Seen::Absent, Seen::Present(_)) => {
                    let what =
                        format!("shard {}: directory {inode} has a partition and no row; run `varve fsck`", self.id);
                    return Err(Refusal::Failed(what));
                }
            }
            tracing::warn!("shard {}: directory {inode} lost its rows with the power, and is empty", self.id);
            for change in rows_of_empty(inode, parent, attributes, self.settings.shards) {
                self.apply(&mut state, change);
            }
            break state.open.number;
        };
        self.work.notify_one();
        self.appended(batch).await
    }
}

fn rows_of_empty(inode: InodeId, parent: InodeId, attributes: &Attributes, shards: ShardCount) -> [Change; 2] {
    let map = PartitionMap::whole(shards);
    let &Attributes { mode, uid, gid, atime, mtime, ctime, btime, .. } = attributes;
    let partition = PartitionRow {
        index: PartitionIndex::FIRST,
        depth: 0,
        state: PartitionState::Live,
        mode,
        uid,
        gid,
        entries: 0,
        subdirectories: 0,
        mtime,
        map: map.clone(),
    };
    let directory = DirectoryRow { parent, mode, uid, gid, atime, mtime, ctime, btime, map, xattrs: Vec::new() };
    [
        Change::Put(Key::Directory(inode), Row::Directory(directory)),
        Change::Put(Key::Partition(inode, PartitionIndex::FIRST), Row::Partition(partition)),
    ]
}
