//! Follows changes that other clients make to the content of an open small file.
//!
//! Size and content are one snapshot: while the content is in the row, every reply of the row has the generation of the
//! content that its size belongs to. If that is not the generation of the copy in memory, the copy is replaced before
//! the size is reported. A copy that no reply has confirmed for [`CONFIRMED_FOR`] is confirmed before it is read.
//!
//! The frontend's kernel drops its pages by itself if a reply has another size or mtime than the one before. If both
//! are as before, the frontend is notified ([`FileSystem::next_replaced`]). The generation shows that content in the row
//! was replaced. The ctime of a backing file, which no program can set, shows that it may have been written.

use super::OpenInode;
use super::backing;
use super::content::{BackingState, ContentState};
use super::inline::InlineBuffer;
use crate::{Failure, FileSystem, OpenMode, Result};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use varve_env::disk::File;
use varve_proto::{Call, FileContent, NodeReply};
use varve_types::{Attributes, Credentials, Errno, InodeId, Timestamp};

/// How long a reply confirms the copy of a small file's content for reads. The kernel requests attributes, which confirm
/// it too, before it reads from its page cache; so this costs only programs that read without.
const CONFIRMED_FOR: Duration = Duration::from_secs(1);

/// Files whose pages wait to be dropped by the kernel. Beyond that, pages stay until the file is opened again.
const REPLACED_MAX: usize = 4096;

/// Open files whose content another client replaced without a change of size or mtime.
#[derive(Default)]
pub(super) struct ReplacedFiles(Mutex<HashSet<InodeId>>);

impl ReplacedFiles {
    fn add(&self, inode: InodeId) {
        let mut waiting = self.0.lock();
        if waiting.len() < REPLACED_MAX {
            waiting.insert(inode);
        }
    }
}

/// The state of a backing file when its attributes were last returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShownBacking {
    size: u64,
    mtime: Timestamp,
    /// The store's.
    ctime: Timestamp,
}

impl FileSystem {
    /// Called when `attributes` of an open file are returned, whose backing file has this `ctime`.
    pub(super) fn backing_shown(&self, open: &OpenInode, attributes: &Attributes, ctime: Timestamp) {
        let now = ShownBacking { size: attributes.size, mtime: attributes.mtime, ctime };
        let Some(before) = open.shown.lock().replace(now) else { return };
        let looks_unchanged = (before.size, before.mtime) == (now.size, now.mtime);
        if looks_unchanged && before.ctime != now.ctime && !self.embedded() {
            self.files.replaced.add(open.inode);
        }
    }

    /// The row of an open file. Afterwards the content has the returned size, or the file's backing file is open. The
    /// caller holds the content lock.
    pub(super) async fn confirm(
        &self,
        caller: &Credentials,
        open: &OpenInode,
        content: &mut ContentState,
    ) -> Result<NodeReply> {
        let asked = self.core.clock.monotonic();
        let reply = self.ask_attributes(caller, open).await?;
        if content.inline.is_some() && !content.confirmed_by(&reply) {
            return self.catch_up(open, content).await;
        }
        content.confirmed_at = asked;
        Ok(reply)
    }

    /// Called before inline content is read: confirms it, unless a reply did so within [`CONFIRMED_FOR`]. If no reply
    /// comes, the file is read as it was.
    pub(super) async fn confirm_for_read(&self, open: &OpenInode, content: &mut ContentState) -> Result<()> {
        let now = self.core.clock.monotonic();
        if self.embedded() || content.inline.is_none() || now.since(content.confirmed_at) < CONFIRMED_FOR {
            return Ok(());
        }
        match self.ask_attributes(&Credentials::root(), open).await {
            Ok(reply) if !content.confirmed_by(&reply) => return self.catch_up(open, content).await.map(drop),
            Ok(_) => content.confirmed_at = now,
            // The next reads need not wait as long.
            Err(_) => content.confirmed_at = self.core.clock.monotonic(),
        }
        Ok(())
    }

    /// Another client replaced or moved the content while this client had a copy: fetches it, or its new location, and
    /// puts unwritten bytes there. If that fails, the bytes are kept, and the next write-back tries again.
    pub(super) async fn catch_up(&self, open: &OpenInode, content: &mut ContentState) -> Result<NodeReply> {
        let writes = content.dirty() || open.counts.lock().writers > 0;
        let mode = if writes { OpenMode::ReadWrite } else { OpenMode::Read };
        let asked = self.core.clock.monotonic();
        // The right to open was checked when the file was opened.
        let call = |at| Call::Open { at, mode, truncate: false };
        let mut reply = self.ask_open(&Credentials::root(), open.inode, call).await?;
        self.core.register(open.inode, mode, None);
        if content.dirty() && matches!(reply.content, FileContent::Backing(_)) {
            reply = self.put_into_backing(open, content, reply.generation).await?;
        }
        let (before, generation) = (content.attributes, content.generation);
        self.take_in(open, content, &reply, false)?;
        content.confirmed_at = asked;
        let now = content.attributes;
        let looks_unchanged =
            before.zip(now).is_some_and(|(before, now)| (before.size, before.mtime) == (now.size, now.mtime));
        if generation != reply.generation && looks_unchanged {
            self.files.replaced.add(open.inode);
        }
        Ok(reply)
    }

    /// Open files whose cached pages the frontend's kernel must drop: their content was replaced, and no attribute shows
    /// it. Each once.
    pub fn next_replaced(&self) -> Vec<InodeId> {
        self.files.replaced.0.lock().drain().collect()
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
