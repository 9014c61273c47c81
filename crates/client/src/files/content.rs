//! The content of an open inode: loaded from the row, written back to it, and promoted to a backing file.

use super::backing;
use super::catch_up::ShownBacking;
use super::failures::Failures;
use super::inline::{InlineBuffer, UnconfirmedWrite};
use super::pages::Version;
use super::write_behind::SequentialRun;
use super::{FileTable, OpenFlags};
use crate::calls::{BUSY_WAIT, CallRefusal};
use crate::locate::unexpected;
use crate::set_id::SetId;
use crate::{Failure, FileSystem, NodeInfo, OpenMode, Result};
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use varve_env::clock::Instant;
use varve_env::disk::File;
use varve_proto::{Call, FileContent, Locator, NodeReply, Reply, SizeState, WireKind};
use varve_types::{Attributes, Credentials, Errno, InodeId, LayoutGeneration, Timestamp};

/// Retries of a size change of a backing file because the content moved there meanwhile. That happens once in a file's
/// life.
const STALE_MAX: usize = 4;

/// The reason why a small file's content could not be moved into its row, or out of it, by the deadline.
const ALWAYS_REPLACED: &str = "other clients keep replacing the content of the same file";

/// Handles of an inode.
#[derive(Debug, Default)]
pub(crate) struct HandleCounts {
    pub handles: usize,
    pub writers: usize,
    /// Handles whose I/O goes through the frontend.
    pub cached: usize,
    /// Direct handles that can be read, and so be mapped.
    pub mappable: usize,
    /// Handles whose I/O the kernel does on the backing file.
    pub passthrough: usize,
}

impl HandleCounts {
    /// Adds a handle that is not passed through. `direct`: past the kernel's page cache.
    pub fn add(&mut self, direct: bool, flags: OpenFlags) {
        self.cached += usize::from(!direct);
        self.mappable += usize::from(direct && flags.readable());
    }

    /// Whether no handle prevents the kernel from passing others through.
    pub fn lets_pass(&self) -> bool {
        self.cached == 0 && self.mappable == 0
    }
}

/// One inode that has handles.
pub(crate) struct OpenInode {
    pub inode: InodeId,
    pub counts: Mutex<HandleCounts>,
    /// Held across calls that change the location or the content.
    pub content: futures::lock::Mutex<ContentState>,
    /// The backing file, once it exists; writers hold the lock shared while they write.
    pub backing: RwLock<BackingState>,
    pub failures: Mutex<Failures>,
    /// The sequential run of writes to its backing file.
    pub stream: Mutex<SequentialRun>,
    /// Set if this client has just made the file.
    pub made: Mutex<Option<FreshFile>>,
    pub set_id: Mutex<SetId>,
    pub shown: Mutex<Option<ShownBacking>>,
    /// The mtime that pages keep which were changed through a mapping.
    pub set_mtime: Mutex<Option<Timestamp>>,
    /// A handle was closed through which the kernel may still have the backing file mapped for writing.
    pub may_be_mapped: AtomicBool,
    /// The directory that the file was made in, while this client writes it and its final size is not known.
    pub growing_in: Mutex<Option<InodeId>>,
}

/// The state of a file when it was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreshFile {
    pub node: NodeInfo,
    pub at: Instant,
    /// The value of [`FileSystem::changes`] at that time.
    pub changes: u64,
}

#[derive(Default)]
pub(crate) struct BackingState {
    pub file: Option<Arc<File>>,
    /// The row says that this file's own size and mtime count, because this client marked them stale: it may be
    /// written.
    pub size_stale: bool,
    /// The minimum size of the file, as the row last reported it. A client that shortens the file first updates the
    /// row: [`size_check`](super::size_check).
    pub at_least: u64,
}

/// State under the lock that is held across calls.
pub(crate) struct ContentState {
    /// `None` until the first open has been answered, and once the content is in a backing file.
    pub inline: Option<InlineBuffer>,
    pub generation: u32,
    /// The attributes of the row's last reply.
    pub attributes: Option<Attributes>,
    /// Last write to the inline content that the row does not have.
    pub written_at: Option<Timestamp>,
    /// The credentials of the writer.
    pub writer: Credentials,
    /// The last writer of the backing file, here or elsewhere, left without recording its size.
    pub writer_gone: bool,
    /// The version of the file at its last open.
    pub version: Option<Version>,
    /// When the last reply was requested that shows that `inline` is the row's content, apart from local changes.
    pub confirmed_at: Instant,
}

impl OpenInode {
    pub fn new(inode: InodeId) -> OpenInode {
        let content = ContentState {
            inline: None,
            generation: 0,
            attributes: None,
            written_at: None,
            writer: Credentials::root(),
            writer_gone: false,
            version: None,
            confirmed_at: Instant(Duration::ZERO),
        };
        OpenInode {
            inode,
            counts: Mutex::default(),
            content: futures::lock::Mutex::new(content),
            backing: RwLock::default(),
            failures: Mutex::default(),
            stream: Mutex::default(),
            made: Mutex::new(None),
            set_id: Mutex::default(),
            shown: Mutex::new(None),
            set_mtime: Mutex::new(None),
            may_be_mapped: AtomicBool::new(false),
            growing_in: Mutex::new(None),
        }
    }

    pub fn file(&self) -> Option<Arc<File>> {
        self.backing.read().file.clone()
    }

    /// Whether this client has no changes of the file that its row lacks.
    pub fn quiet(&self, files: &FileTable) -> bool {
        let writers = self.counts.lock().writers;
        let size_stale = self.backing.read().size_stale;
        writers == 0 && !size_stale && !files.is_dirty(self.inode)
    }

    /// Whether reads return the content of `reply`: see [`ContentState::confirmed_by`].
    pub fn confirmed_by(&self, reply: &NodeReply) -> bool {
        self.file().is_some() || self.content.try_lock().is_some_and(|mut content| content.confirmed_by(reply))
    }

    /// Stores the row's state from a reply.
    pub(super) fn note_reply(&self, content: &mut ContentState, reply: &NodeReply) {
        content.generation = reply.generation;
        content.attributes = Some(reply.attributes.into());
        self.mode_noted(reply);
    }

    /// Stores the mode from a reply. The caller holds the content lock, so that an older reply cannot come after.
    fn mode_noted(&self, reply: &NodeReply) {
        self.set_id.lock().seen(Attributes::from(reply.attributes).mode);
    }

    /// Stores the backing file's minimum size from a reply.
    pub fn size_noted(&self, reply: &NodeReply) {
        if let FileContent::Backing(size) = reply.content {
            self.backing.write().at_least = match size {
                SizeState::Authoritative => reply.attributes.size,
                SizeState::Stale { at_least } | SizeState::WriterGone { at_least } => at_least,
            };
        }
    }

    /// The backing file, and whether it may be written.
    pub fn file_to_write(&self) -> Option<(Arc<File>, bool)> {
        let backing = self.backing.read();
        backing.file.clone().map(|file| (file, backing.size_stale))
    }
}

impl ContentState {
    pub fn dirty(&self) -> bool {
        self.inline.as_ref().is_some_and(|inline| inline.dirty().is_some())
    }

    /// Whether the inline content is the one of `reply`; if so, stores the reply's attributes.
    pub(super) fn confirmed_by(&mut self, reply: &NodeReply) -> bool {
        let confirmed = self.generation == reply.generation && matches!(reply.content, FileContent::Inline { .. });
        if confirmed {
            self.attributes = Some(reply.attributes.into());
        }
        confirmed
    }

    /// Shows changes that the row does not have. They may be lost, so the attributes must not be cached.
    fn lay_over(&self, node: &mut NodeInfo) {
        let Some(inline) = &self.inline else { return };
        node.attributes_ttl = Duration::ZERO;
        node.attributes.size = inline.len() as u64;
        if let Some(written_at) = self.written_at {
            node.attributes.mtime = written_at;
            node.attributes.ctime = node.attributes.ctime.max(written_at);
        }
    }

    /// Whether the content was replaced or moved exactly once since the row's last reply.
    pub(super) fn is_next(&self, generation: u32) -> bool {
        LayoutGeneration(self.generation).next() == LayoutGeneration(generation)
    }
}

/// How long the attributes of a new file may answer the kernel's first getattr.
const MADE_BELIEVED: Duration = Duration::from_millis(10);

impl FileSystem {
    /// The attributes of a file that this client has just made, if no operation since might have changed them. They are
    /// used once: the kernel requests them before it returns from the call that made the file.
    pub(crate) fn as_made(&self, inode: InodeId) -> Option<NodeInfo> {
        let open = self.files.find(inode)?;
        let made = open.made.lock().take()?;
        let fresh = self.core.clock.monotonic().since(made.at) <= MADE_BELIEVED;
        let untouched = self.changes.load(Relaxed) == made.changes && open.file().is_none();
        let written = self.files.is_dirty(inode)
            || open
                .content
                .try_lock()
                .is_none_or(|content| content.written_at.is_some() || content.attributes != Some(made.node.attributes));
        (fresh && untouched && !written).then_some(made.node)
    }

    /// Stores a new file's attributes, for [`FileSystem::as_made`].
    pub(crate) fn remember_made(&self, node: NodeInfo, changes: u64) {
        if let Some(open) = self.files.find(node.inode) {
            *open.made.lock() = Some(FreshFile { node, at: self.core.clock.monotonic(), changes });
        }
    }

    /// Called before any operation that changes names or attributes of files, except creation.
    pub(crate) fn changes_something(&self) {
        self.changes.fetch_add(1, Relaxed);
    }

    /// Sends a call about an open inode with `caller`'s credentials, and returns its node.
    pub(super) async fn ask_open(
        &self,
        caller: &Credentials,
        inode: InodeId,
        call: impl Fn(Locator) -> Call,
    ) -> std::result::Result<NodeReply, CallRefusal> {
        match self.core.ask_inode(caller, inode, call).await? {
            Reply::Node(node) => {
                self.core.inodes.set_by_inode(inode, node.by_inode);
                Ok(node)
            }
            other => Err(unexpected("a call about an open file", &other).into()),
        }
    }

    /// Stores the reply to an `Open`. If another client has replaced the content since the last reply, local changes
    /// are applied to the new content. `truncated`: by this open, so earlier local writes are gone.
    pub(super) fn take_in(
        &self,
        open: &OpenInode,
        content: &mut ContentState,
        reply: &NodeReply,
        truncated: bool,
    ) -> Result<()> {
        let unchanged = content.generation == reply.generation;
        let next = content.is_next(reply.generation);
        match &reply.content {
            FileContent::Inline { data } => {
                if open.file().is_some() {
                    return Err(Failure::new(Errno::EIO, "a file's content moved from its backing file into its row"));
                }
                if data.is_none() && reply.attributes.size > 0 {
                    return Err(Failure::new(Errno::EIO, "the server opened a small file without its content"));
                }
                let theirs = data.clone().unwrap_or_default();
                content.inline = Some(match content.inline.take() {
                    Some(mut mine) if mine.dirty().is_some() && !truncated => {
                        // After another client has replaced the content, it is unknown whether this write was included:
                        // applying it twice is better than losing it.
                        let is_ours = |sent: &UnconfirmedWrite| {
                            let mtime = Timestamp::from(reply.attributes.mtime);
                            next && !sent.moves && sent.bytes == theirs && sent.mtime.is_none_or(|sent| sent == mtime)
                        };
                        if unchanged {
                            mine
                        } else if mine.sent().is_some_and(is_ours) {
                            mine.written_back();
                            mine
                        } else {
                            mine.onto(theirs)
                        }
                    }
                    _ => InlineBuffer::clean(theirs),
                });
                if !content.dirty() {
                    content.written_at = None;
                    self.files.mark_clean(open.inode);
                }
            }
            FileContent::Backing(size) => {
                if open.file().is_none() {
                    let file = Arc::new(backing::open(&self.core, open.inode)?);
                    open.backing.write().file = Some(file);
                }
                // The server counts a client that truncates the file as a writer.
                content.writer_gone |=
                    truncated || matches!(size, SizeState::WriterGone { .. }) && self.may_record_size();
                open.backing.write().size_stale |= truncated && *size != SizeState::Authoritative;
                open.size_noted(reply);
                // Another client moved the content. The caller must move local changes that are not in the row.
                if truncated || !content.dirty() {
                    content.inline = None;
                    content.written_at = None;
                    self.files.mark_clean(open.inode);
                }
            }
            FileContent::None if reply.attributes.kind == WireKind::Directory => return Err(Errno::EISDIR.into()),
            FileContent::None => return Err(Errno::ENXIO.into()),
        }
        content.version = Version::of(reply);
        open.note_reply(content, reply);
        Ok(())
    }

    /// Writes inline changes back to the row. Returns the row's reply, if a request was sent.
    pub(super) async fn write_back(&self, open: &OpenInode, content: &mut ContentState) -> Result<Option<NodeReply>> {
        let deadline = self.core.deadline();
        loop {
            let Some(inline) = content.inline.as_ref().filter(|inline| inline.dirty().is_some()) else {
                return Ok(None);
            };
            if inline.sent().map_or(inline.len(), |sent| sent.bytes.len()) > self.files.inline_limit() {
                // Together with another client's content it is too long for the row.
                self.promote(open, content, 0).await?;
                return Ok(None);
            }
            match self.send_inline(open, content).await {
                Ok(reply) if !content.dirty() => return Ok(Some(reply)),
                // Changes made since are sent next.
                Ok(_) => {}
                Err(CallRefusal::Stale) => {
                    self.core.check_deadline(deadline, ALWAYS_REPLACED)?;
                    self.catch_up(open, content).await?;
                }
                Err(refusal) => return Err(refusal.into()),
            }
        }
    }

    /// Sends inline content to the row once. If an earlier send has an unknown outcome, it sends that content again.
    async fn send_inline(
        &self,
        open: &OpenInode,
        content: &mut ContentState,
    ) -> std::result::Result<NodeReply, CallRefusal> {
        let inline = content.inline.as_ref().ok_or(Failure::from(Errno::EBADF))?;
        let (data, mtime) = match inline.sent() {
            Some(sent) => (&sent.bytes[..], sent.mtime),
            None => (inline.bytes(), content.written_at),
        };
        let generation = content.generation;
        let call = |at| Call::WriteInline { at, generation, data: data.to_vec(), mtime: mtime.map(Into::into) };
        let asked = self.ask_open(&content.writer, open.inode, call).await;
        if let Some(inline) = &mut content.inline {
            match &asked {
                Ok(_) => inline.written_back(),
                Err(CallRefusal::Failure(failure)) if failure.outcome_unknown && inline.sent().is_none() => {
                    inline.mark_outcome_unknown(mtime, false);
                }
                Err(_) => {}
            }
        }
        let reply = asked?;
        open.note_reply(content, &reply);
        if !content.dirty() {
            content.written_at = None;
            self.files.mark_clean(open.inode);
        }
        Ok(reply)
    }

    /// Moves inline content to a backing file, which may then be written and is at least `length` bytes long.
    pub(super) async fn promote(&self, open: &OpenInode, content: &mut ContentState, length: u64) -> Result<()> {
        if content.inline.is_none() {
            return Ok(());
        }
        let making = self.begin_making(open.inode).await?;
        // Removes a backing file that the row does not refer to and never will.
        let given_up = |failure: Failure| {
            making.give_up(&self.core, open.inode);
            failure
        };
        let deadline = self.core.deadline();
        loop {
            // Another client may have moved the content by now; then its backing file is the content.
            self.catch_up(open, content).await.map_err(given_up)?;
            let Some(inline) = &content.inline else { return Ok(()) };
            if inline.sent().is_some_and(|sent| sent.bytes.len() <= self.files.inline_limit()) {
                // First the client must know whether the row has the content that was sent.
                match self.send_inline(open, content).await {
                    Ok(_) | Err(CallRefusal::Stale) => self.core.check_deadline(deadline, ALWAYS_REPLACED)?,
                    Err(refusal) => return Err(given_up(refusal.into())),
                }
                continue;
            }
            let attributes = content.attributes.ok_or(Errno::EIO)?;
            let (generation, size) = (content.generation, length.max(inline.len() as u64));
            making.fill(&self.core, open.inode, &attributes, inline.bytes(), size).map_err(given_up)?;
            let call = |at| Call::Promote { at, generation, size };
            match self.ask_open(&content.writer, open.inode, call).await {
                Ok(reply) => {
                    let file = Some(Arc::clone(&making.file));
                    *open.backing.write() = BackingState { file, size_stale: true, at_least: size };
                    open.note_reply(content, &reply);
                    content.inline = None;
                    content.written_at = None;
                    self.files.mark_clean(open.inode);
                    if let Some(directory) = open.growing_in.lock().take() {
                        self.files.prediction.outgrew(directory);
                    }
                    return Ok(());
                }
                Err(CallRefusal::Stale) => self.core.check_deadline(deadline, ALWAYS_REPLACED)?,
                Err(refusal) => {
                    let failure = Failure::from(refusal);
                    if !failure.outcome_unknown {
                        return Err(given_up(failure));
                    }
                    // The move may have been done, or be done later.
                    if let Some(inline) = &mut content.inline {
                        inline.mark_outcome_unknown(content.written_at, true);
                    }
                    return Err(failure);
                }
            }
        }
    }

    /// Waits, until the deadline, for other clients that move the content of the same file.
    async fn begin_making(&self, inode: InodeId) -> Result<backing::Making> {
        let (deadline, mut wait) = (self.core.deadline(), BUSY_WAIT);
        loop {
            if let Some(making) = backing::Making::begin(&self.core, inode)? {
                return Ok(making);
            }
            self.core.check_deadline(deadline, "another client makes the backing file of the same file")?;
            self.core.pause(wait.next()).await;
        }
    }

    /// Marks the size in the row as stale, and announces that the file may be truncated to `end` bytes.
    pub(super) async fn mark_size_stale(&self, open: &OpenInode, content: &mut ContentState, end: u64) -> Result<()> {
        for asked in 0..=STALE_MAX {
            let knows = {
                let backing = open.backing.read();
                backing.size_stale && backing.at_least <= end
            };
            // Another client may have raised the row's minimum since the last reply, so a truncation always sends a
            // request.
            if knows && (asked > 0 || end == u64::MAX) {
                return Ok(());
            }
            let generation = content.generation;
            let call = |at| Call::MarkSizeStale { at, generation, at_least: end };
            let writer = self.before_writes_of(&content.writer);
            match self.ask_open(&writer, open.inode, call).await {
                // If the server had to finish an interrupted truncation first, the reply has its result.
                Ok(reply) => {
                    open.note_reply(content, &reply);
                    content.writer_gone = false;
                    open.size_noted(&reply);
                    open.backing.write().size_stale = true;
                }
                Err(CallRefusal::Stale) => {
                    let call = |at| Call::Open { at, mode: OpenMode::ReadWrite, truncate: false };
                    let reply = self.ask_open(&Credentials::root(), open.inode, call).await?;
                    self.core.register(open.inode, OpenMode::ReadWrite, None);
                    self.take_in(open, content, &reply, false)?;
                }
                Err(refusal) => return Err(refusal.into()),
            }
        }
        Err(CallRefusal::Stale.into())
    }

    /// Attributes of an open inode, at least as new as this client's last change. A read that begins afterwards returns
    /// the content that they describe, or a newer one.
    pub(crate) async fn open_attributes(&self, caller: &Credentials, open: &Arc<OpenInode>) -> Result<NodeInfo> {
        let mut content = self.content_in_time(open).await?;
        // Written back rather than overlaid on the row, so that attributes shown now are the same after close.
        let reply = match self.write_back(open, &mut content).await {
            Ok(Some(reply)) => reply,
            Ok(None) => self.confirm(caller, open, &mut content).await?,
            // fsync and close report the failure to the writer.
            Err(failure) => {
                let reply = self.ask_attributes(caller, open).await?;
                if reply.generation != content.generation {
                    return Err(failure);
                }
                let mut node = self.open_node(open, &reply)?;
                content.lay_over(&mut node);
                return Ok(node);
            }
        };
        self.open_node(open, &reply)
    }

    /// The row of an open inode. The caller holds the content lock.
    pub(super) async fn ask_attributes(&self, caller: &Credentials, open: &OpenInode) -> Result<NodeReply> {
        let reply = self.get_attributes(caller, open.inode).await?;
        open.mode_noted(&reply);
        Ok(reply)
    }

    /// The node of `reply` with the size of its backing file.
    pub(super) fn open_node(&self, open: &OpenInode, reply: &NodeReply) -> Result<NodeInfo> {
        let mut node = self.node(reply, Duration::ZERO);
        let Some((file, size_stale)) = open.file_to_write() else { return Ok(node) };
        let stat = backing::stat(&file)?;
        node.blocks = stat.blocks;
        if size_stale {
            node.attributes.size = stat.size;
            node.attributes.mtime = stat.mtime;
            node.attributes.ctime = node.attributes.ctime.max(stat.mtime);
            node.attributes_ttl = Duration::ZERO;
        }
        self.backing_shown(open, &node.attributes, stat.ctime);
        Ok(node)
    }

    /// The server truncated or extended an open file; the local state follows. Returns the row that it has then.
    pub(super) async fn resized_by_server(
        &self,
        open: &OpenInode,
        content: &mut ContentState,
        mut reply: NodeReply,
    ) -> Result<NodeReply> {
        if content.generation == reply.generation {
            open.note_reply(content, &reply);
        } else {
            // The server replaced the content in the row, or resized it where another client had moved it.
            reply = self.catch_up(open, content).await?;
        }
        if open.file().is_some() {
            open.size_noted(&reply);
            content.writer_gone = true;
            if matches!(reply.content, FileContent::Backing(SizeState::Stale { .. })) {
                open.backing.write().size_stale = true;
            }
        }
        Ok(reply)
    }

    /// Writes back files that have waited for the sync interval.
    pub(crate) async fn write_back_old(&self) {
        let now = self.core.clock.monotonic().0;
        let Some(then) = now.checked_sub(self.core.settings.sync_interval) else { return };
        for inode in self.files.dirty_since(varve_env::clock::Instant(then)) {
            let Some(open) = self.files.find(inode) else { continue };
            // Another call holds the content, perhaps because the store hangs. It writes the content back, or the next
            // round does.
            let Some(mut content) = open.content.try_lock() else { continue };
            if let Err(failure) = self.write_back(&open, &mut content).await {
                if let Some(suppressed) = self.core.log_is_due("open file", &failure) {
                    tracing::warn!(%inode, "cannot write back a file{suppressed}: {failure}");
                }
                // If the server is gone, every further file would wait as long; the next tick tries again.
                let gone = failure.errno == Errno::ETIMEDOUT;
                open.failures.lock().add(failure);
                if gone {
                    return;
                }
            }
        }
    }
}

impl FileTable {
    pub(super) fn inline_limit(&self) -> usize {
        self.inline_limit
    }
}
