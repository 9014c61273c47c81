//! Backing files that somebody other than Varve has cut.
//!
//! A row says how many bytes its backing file has, or, while somebody writes it or has died with it open, how many it has
//! at least; who cuts it tells the row first. So one that is shorter has lost something, and what is left must not pass
//! for the file. It is looked at when it is opened, and when a read ends before what the row said; reads that find what
//! they want cost nothing. What the kernel reads by itself (passthrough) is looked at when it is opened alone.
//!
//! Another client may begin to write, and cut the file, between the row's answer and the look at the file. So the row is
//! asked again, and only where it is what it was before the look, times and all, and the file is still as short, the file
//! is refused.

use super::backing;
use super::content::{ContentState, OpenInode};
use crate::{Failure, FileSystem, OpenMode, Result};
use varve_proto::Call;
use varve_types::{Credentials, Errno};

/// Times that the row is asked again while others change it. A file that is changed so often is being written.
const ASKED_MAX: usize = 4;

impl OpenInode {
    /// Whether the row said that the file goes on at `end`, where its backing file does not.
    pub(super) fn ends_early(&self, end: u64) -> bool {
        let backing = self.backing.read();
        end < backing.at_least
    }
}

impl FileSystem {
    /// An error where the backing file is shorter than its row says, and nothing under way explains it.
    pub(super) async fn check_size(&self, open: &OpenInode, content: &mut ContentState) -> Result<()> {
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
            self.take_in(open, content, reply, false)?;
            if content.attributes == before && open.ends_early(size) && backing::stat(&file)?.size == size {
                return Err(self.cut_short(open, size));
            }
        }
        Ok(())
    }

    pub(super) fn cut_short(&self, open: &OpenInode, size: u64) -> Failure {
        let reported = open.backing.read().at_least;
        let name = match self.core.inodes.name(open.inode) {
            Some((_, name)) => format!("{name:?} (inode {})", open.inode),
            None => format!("inode {}", open.inode),
        };
        let path = self.core.config.store.backing_file(open.inode);
        let what = format!(
            "{name} has {reported} bytes, of which only {size} are left in {}: something other than Varve has cut it; \
             restore that from a copy, or run `varve fsck` on the volume, which with --repair keeps what is left",
            path.display()
        );
        Failure::new(Errno::EIO, what)
    }
}
