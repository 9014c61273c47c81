//! Backing files that somebody other than Varve has cut.
//!
//! While its row is settled nobody changes a backing file's size, so one that is shorter than its row says has lost
//! something, and what is left must not pass for the file. It is looked at when it is opened, and when a read ends before
//! the size that the row had; reads that find what they want cost nothing. What the kernel reads by itself (passthrough)
//! is looked at when it is opened alone.
//!
//! Another client may begin to write, and cut the file, between the row's answer and the look at the file. So the row is
//! asked again, and only where it is what it was before the look, times and all, the file is refused.

use super::backing;
use super::content::{Content, OpenInode};
use crate::{Failure, FileSystem, OpenMode, Result};
use varve_types::{Credentials, Errno};
use varve_wire::Call;

/// Times that the row is asked again while others change it. A file that is changed so often is being written.
const ASKED_MAX: usize = 4;

impl OpenInode {
    /// Whether the row said that the file goes on at `end`, where its backing file does not.
    pub(super) fn ends_early(&self, end: u64) -> bool {
        let backing = self.backing.read();
        !backing.unsettled && end < backing.size_told
    }
}

impl FileSystem {
    /// An error where the backing file is shorter than its row says, and nothing under way explains it.
    pub(super) async fn check_whole(&self, open: &OpenInode, content: &mut Content) -> Result<()> {
        for _ in 0..ASKED_MAX {
            let Some(file) = open.file() else { return Ok(()) };
            let size = backing::stat(&file)?.size;
            if !open.ends_early(size) {
                return Ok(());
            }
            let before = content.attributes;
            // A truncate that was cut short is finished before the answer, which a question for attributes would not do.
            let call = |at| Call::Open { at, mode: OpenMode::Read, truncate: false };
            let reply = self.ask_open(&Credentials::root(), open.inode, call).await?;
            let told = reply.attributes.size;
            self.take_in(open, content, reply, false)?;
            if content.attributes == before && open.ends_early(size) {
                return Err(self.cut_short(open, size, told));
            }
        }
        Ok(())
    }

    fn cut_short(&self, open: &OpenInode, size: u64, told: u64) -> Failure {
        let name = match self.core.inodes.name(open.inode) {
            Some((_, name)) => format!("{name:?} (inode {})", open.inode),
            None => format!("inode {}", open.inode),
        };
        let path = self.core.config.store.backing_file(open.inode);
        let what = format!(
            "{name} has {told} bytes, of which only {size} are left in {}: something other than Varve has cut it; \
             restore that from a copy, or run `varve fsck` on the volume, which with --repair keeps what is left",
            path.display()
        );
        Failure::new(Errno::EIO, what)
    }
}
