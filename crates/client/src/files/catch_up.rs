//! Applies local changes to content that another client has moved meanwhile.

use super::OpenInode;
use super::backing;
use super::content::{BackingState, ContentState};
use super::inline::InlineBuffer;
use crate::{Failure, FileSystem, OpenMode, Result};
use std::sync::Arc;
use varve_env::disk::File;
use varve_proto::{Call, FileContent, NodeReply};
use varve_types::{Credentials, Errno};

impl FileSystem {
    /// The content moved while this client had a copy: fetches its new location, and puts unwritten bytes there. If
    /// that fails, the bytes are kept, and the next write-back tries again.
    pub(super) async fn catch_up(&self, open: &OpenInode, content: &mut ContentState) -> Result<()> {
        // The right to open was checked when the file was opened.
        let call = |at| Call::Open { at, mode: OpenMode::ReadWrite, truncate: false };
        let mut reply = self.ask_open(&Credentials::root(), open.inode, call).await?;
        self.core.register(open.inode, OpenMode::ReadWrite, None);
        if content.dirty() && matches!(reply.content, FileContent::Backing(_)) {
            reply = self.put_into_backing(open, content, reply.generation).await?;
        }
        self.take_in(open, content, reply, false)
    }

    /// Writes the changes that the row does not have to the backing file that another client made. No handle of this
    /// client may write the file before all of them are in it: older bytes would overwrite newer ones.
    async fn put_into_backing(
        &self,
        open: &OpenInode,
        content: &mut ContentState,
        generation: u32,
    ) -> Result<NodeReply> {
        let file = match open.file() {
            Some(file) => file,
            None => Arc::new(backing::open(&self.core, open.inode)?),
        };
        let kept = content.inline.as_ref().and_then(|inline| inline.changes()?.kept);
        let kept = kept.map_or(u64::MAX, |kept| kept as u64);
        let call = |at| Call::MarkSizeStale { at, generation, at_least: kept };
        // From here on the server counts this client as a writer of the file, until the client records the size.
        content.writer_gone = true;
        let reported = self.ask_open(&content.writer, open.inode, call).await?;
        let next = content.is_next(generation);
        if let Some(inline) = &mut content.inline {
            if next && begins_as_sent(&file, inline)? {
                // This client moved the content itself, but did not receive the reply.
                inline.written_back();
            }
            place(inline, &file)?;
        }
        content.writer_gone = false;
        content.inline = None;
        *open.backing.write() = BackingState { file: Some(file), size_stale: true, at_least: 0 };
        Ok(reported)
    }
}

/// Whether `file` begins with the content that the row was to move there.
fn begins_as_sent(file: &File, inline: &InlineBuffer) -> Result<bool> {
    let Some(sent) = inline.sent().filter(|sent| sent.moves) else { return Ok(false) };
    let mut found = vec![0; sent.bytes.len()];
    let count = backing::read(file, 0, &mut found)?;
    Ok(found[..count] == sent.bytes)
}

/// Applies the changes that the row does not have to `file`.
fn place(inline: &mut InlineBuffer, file: &File) -> Result<()> {
    let Some(changes) = inline.changes() else { return Ok(()) };
    if let Some(kept) = changes.kept
        && (kept as u64) < backing::stat(file)?.size
    {
        file.set_len(kept as u64).map_err(|error| Failure::store("cannot cut a backing file", &error))?;
    }
    for (at, bytes) in changes.written {
        whole(bytes, backing::write(file, at as u64, bytes)?)?;
    }
    backing::reach(file, changes.reached as u64)?;
    let appended = backing::append(file, changes.appended)?;
    let placed = whole(changes.appended, appended);
    // Counted once, however often the rest is retried.
    inline.appended_is_placed(appended);
    placed
}

/// Fails unless all of `data` was written.
fn whole(data: &[u8], written: usize) -> Result<()> {
    if written == data.len() { Ok(()) } else { Err(Errno::ENOSPC.into()) }
}
