//! Detects backing files that another program has truncated.
//!
//! A row records the size of its backing file. While a client writes the file, or after it died with the file open, the
//! row records the minimum size. A client that truncates the file updates the row first. So a backing file that is
//! shorter has lost data, and the rest must not be presented as the file. The size is checked when the file is opened,
//! and when a read ends before the size that the row reported; reads that find all their bytes cost nothing. Files that
//! the kernel reads itself (passthrough) are checked only when they are opened.
//!
//! Another client may begin to write, and truncate the file, between the row's reply and the check. So the row is
//! fetched again. The file is refused only if the row's attributes, times included, are as before, and the file is
//! still as short.

use super::backing;
use super::content::{ContentState, OpenInode};
use crate::{Failure, FileSystem, OpenMode, Result};
use varve_proto::Call;
use varve_types::{Credentials, Errno};

/// Number of times that the row is fetched again while others change it. A file that changes so often is being written.
const ASKED_MAX: usize = 4;

impl OpenInode {
    /// Whether the row reported bytes at `end`, where the backing file has none.
    pub(super) fn ends_early(&self, end: u64) -> bool {
        let backing = self.backing.read();
        end < backing.at_least
    }
}

impl FileSystem {
    /// Fails if the backing file is shorter than its row says, and no operation in progress explains it.
    pub(super) async fn check_size(&self, open: &OpenInode, content: &mut ContentState) -> Result<()> {
        for _ in 0..ASKED_MAX {
            let Some(file) = open.file() else { return Ok(()) };
            let size = backing::stat(&file)?.size;
            if !open.ends_early(size) {
                return Ok(());
            }
            let before = content.attributes;
            // An `Open` finishes an interrupted truncation before it replies; a request for attributes would not.
            let call = |at| Call::Open { at, mode: OpenMode::Read, truncate: false };
            let reply = self.ask_open(&Credentials::root(), open.inode, call).await?;
            self.take_in(open, content, &reply, false)?;
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
