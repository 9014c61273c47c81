//! Opening and closing.

use super::content::{ContentState, HandleCounts};
use super::{FileTable, Handle, HandleIo, Io, OpenFlags, OpenHandle, OpenInode, OpenedFile};
use crate::locate::unexpected;
use crate::transport::CallError;
use crate::{Failure, FileSystem, OpenMode, Operation, Result};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use varve_proto::{Call, NodeReply, Reply};
use varve_types::{Credentials, InodeId};

impl FileSystem {
    pub async fn open(&self, caller: &Credentials, inode: InodeId, flags: OpenFlags) -> Result<OpenedFile> {
        self.count(Operation::Open, self.open_with(caller, inode, flags, true)).await
    }

    /// Opens without offering passthrough.
    pub(crate) async fn open_cached(&self, caller: &Credentials, inode: InodeId, flags: OpenFlags) -> Result<Handle> {
        Ok(self.open_with(caller, inode, flags, false).await?.handle)
    }

    pub(crate) async fn open_with(
        &self,
        caller: &Credentials,
        inode: InodeId,
        flags: OpenFlags,
        offer: bool,
    ) -> Result<OpenedFile> {
        if flags.writable() || flags.truncate {
            self.check_writable()?;
            self.changes_something();
        }
        let open = self.files.enter(inode, false);
        self.core.inodes.opened(inode);
        match self.open_entered(caller, &open, flags, offer).await {
            Ok(io) => Ok(OpenedFile { handle: self.add_handle(&open, flags, caller, &io), io }),
            Err(failure) => {
                self.leave(&open);
                // The file may have been truncated.
                Err(if flags.truncate { self.unknown_outcome(failure, &[], &[Some(inode)]) } else { failure })
            }
        }
    }

    fn add_handle(&self, open: &Arc<OpenInode>, flags: OpenFlags, caller: &Credentials, io: &Io) -> Handle {
        self.files.insert(OpenHandle {
            inode: Arc::clone(open),
            flags,
            caller: caller.clone(),
            handle_io: Mutex::new(io.into()),
            failures_known: AtomicU64::new(open.failures.lock().known_to_new()),
        })
    }

    async fn open_entered(
        &self,
        caller: &Credentials,
        open: &Arc<OpenInode>,
        flags: OpenFlags,
        offer: bool,
    ) -> Result<Io> {
        let mut content = self.content_in_time(open).await?;
        self.open_at_server(caller, open, &mut content, flags).await?;
        self.check_size(open, &mut content).await?;
        if content.writer_gone && !flags.writable() && open.counts.lock().writers == 0 {
            // The last writer died. If the size queue is full, the size stays stale.
            self.record_size_later(open, &content);
        }
        let io = self.choose_io(open, &content, flags, offer);
        if matches!(io, Io::Passthrough(_)) && flags.writable() {
            // The kernel writes without a request.
            content.writer = caller.clone();
            if let Err(failure) = self.mark_size_stale(open, &mut content, u64::MAX).await {
                self.not_passed_through(&mut open.counts.lock());
                return Err(failure);
            }
        }
        // Counted from here on, and not before: while this open may still fail, a handle that closes must not leave
        // recording the size to it. No thread records the size in between, because the content lock is held.
        open.counts.lock().writers += usize::from(flags.writable());
        Ok(io)
    }

    /// Opens and registers the file at the server, and stores the reply.
    async fn open_at_server(
        &self,
        caller: &Credentials,
        open: &OpenInode,
        content: &mut ContentState,
        flags: OpenFlags,
    ) -> Result<()> {
        let inode = open.inode;
        let taken_back = self.core.settle_releases(inode).await?;
        let mut losses = self.core.losses();
        let mut unwritten = None;
        let mut asked_at = self.core.clock.monotonic();
        let asked = async {
            if !flags.truncate {
                // The reply must include the writes of other handles. If the store refuses the write-back, a read-only
                // open is served from memory.
                match self.write_back(open, content).await {
                    Err(failure) if !flags.writable() => unwritten = Some(failure),
                    written => drop(written?),
                }
                losses = self.core.losses();
                asked_at = self.core.clock.monotonic();
            }
            let call = |at| Call::Open { at, mode: flags.mode, truncate: flags.truncate };
            Ok(self.ask_open(caller, inode, call).await?)
        };
        let reply = asked
            .await
            .inspect_err(|failure: &Failure| self.core.not_opened(inode, taken_back, failure.outcome_unknown))?;
        // Another client has moved the content, so it cannot be read before the local changes are there, too.
        if let Some(failure) = unwritten.filter(|_| reply.generation != content.generation) {
            let now = self.core.clock.monotonic();
            self.core.not_opened(inode, taken_back.max(Some(now)), false);
            return Err(failure);
        }
        self.core.register(inode, flags.mode.registered(), taken_back);
        self.register_if_lost(inode, flags.mode.registered(), losses).await?;
        self.take_in(open, content, &reply, flags.truncate)?;
        content.confirmed_at = asked_at;
        Ok(())
    }

    /// Opens the file without a handle and without a permission check; [`FileSystem::leave`] undoes it.
    pub(crate) async fn take_part(&self, inode: InodeId) -> Result<Arc<OpenInode>> {
        let open = self.files.enter(inode, false);
        self.core.inodes.opened(inode);
        let opened = async {
            let mut content = self.content_in_time(&open).await?;
            self.open_at_server(&Credentials::root(), &open, &mut content, OpenFlags::READ).await
        };
        match opened.await {
            Ok(()) => Ok(open),
            Err(failure) => {
                self.leave(&open);
                Err(failure)
            }
        }
    }

    /// Chooses one I/O mode per inode until its last close: passthrough only if all its handles use it, except for
    /// direct handles that cannot be mapped. A mapping of a direct handle makes the kernel refuse passthrough, which
    /// fails the open. The mapping itself is refused if a passthrough handle exists.
    fn choose_io(&self, open: &OpenInode, content: &ContentState, flags: OpenFlags, offer: bool) -> Io {
        let file = open.file();
        let mut counts = open.counts.lock();
        let offered = offer && self.offers_passthrough() && counts.lets_pass();
        match file {
            Some(file) if offered || counts.passthrough > 0 => {
                counts.passthrough += 1;
                self.files.passed_through.fetch_add(1, Relaxed);
                Io::Passthrough(file)
            }
            file => {
                let direct = (file.is_some() || flags.direct) && self.goes_past_pages(flags);
                counts.add(direct, flags);
                // Passthrough writes are not in the page cache: its pages are valid only if there were none.
                let never_passed = file.is_none() || self.files.passed_through.load(Relaxed) == 0 || counts.cached > 1;
                let alone = self.embedded() && never_passed;
                // An open that did not come from the kernel drops nothing.
                let keep = offer && self.core.inodes.pages_are_right(open.inode, content.version, alone);
                if direct { Io::Direct { keep } } else { Io::Cached { keep } }
            }
        }
    }

    /// Whether I/O of a large file that is not passed through bypasses the page cache. By default, writable files do
    /// not: a page that is changed through a mapping at the same time would write the old bytes back. With O_DIRECT
    /// that can happen in both modes, and files of any size bypass the cache. Otherwise, when such a write fails, the
    /// kernel truncates the file to the length that it knows, and so cuts off what other clients have appended since.
    fn goes_past_pages(&self, flags: OpenFlags) -> bool {
        let wanted = !self.embedded() && (flags.direct || !flags.writable());
        let wanted = self.core.config.direct_io.unwrap_or(wanted);
        wanted && self.files.direct_is_coherent.load(Relaxed)
    }

    pub(super) fn offers_passthrough(&self) -> bool {
        self.core.config.passthrough && !self.files.passthrough_refused.load(Relaxed)
    }

    fn not_passed_through(&self, counts: &mut HandleCounts) {
        counts.passthrough -= 1;
        self.files.passed_through.fetch_sub(1, Relaxed);
    }

    /// The I/O mode of a new file. It may become large, and going through the page cache copies its bytes once more. A
    /// file that is opened only for writing gains nothing from the cache.
    fn choose_io_of_new(&self, open: &OpenInode, flags: OpenFlags) -> Io {
        let gains_nothing = flags.mode == OpenMode::Write && self.files.direct_is_coherent.load(Relaxed);
        let direct = gains_nothing || flags.direct && self.goes_past_pages(flags);
        open.counts.lock().add(direct, flags);
        if direct { Io::Direct { keep: false } } else { Io::Cached { keep: false } }
    }

    /// Called if the frontend's kernel keeps its page cache coherent with [`Io::Direct`], which may then be chosen.
    pub fn direct_is_coherent(&self) {
        self.files.direct_is_coherent.store(true, Relaxed);
    }

    /// If registrations were lost since the open was sent, the open files may have been registered again without this
    /// file. `losses`: their number before the open.
    async fn register_if_lost(&self, inode: InodeId, mode: OpenMode, losses: u64) -> Result<()> {
        if self.core.losses() == losses {
            return Ok(());
        }
        let call = |at| Call::Open { at, mode, truncate: false };
        match self.core.ask_inode(&Credentials::root(), inode, call).await? {
            Reply::Node(_) => Ok(()),
            other => Err(unexpected("Open", &other)),
        }
    }

    /// Registers open files that the present server does not know yet.
    pub(crate) async fn register_late(&self) {
        self.core.register_at_lost_shards(|| self.background.is_stopped()).await;
        let mut refusing = HashSet::new();
        for inode in self.core.unregistered() {
            let shard = self.core.row_shard(inode);
            if refusing.contains(&shard) {
                continue;
            }
            if self.background.is_stopped() {
                return;
            }
            // Entered, so that the file is not closed, and released, before the server has registered it as open.
            let open = self.files.enter(inode, false);
            self.core.inodes.opened(inode);
            let registered = self.core.register_late(inode).await;
            self.leave(&open);
            match registered {
                Ok(true) => {}
                Ok(false) => {
                    refusing.insert(shard);
                }
                // The shard is busy.
                Err(CallError::Deadline) => {
                    refusing.insert(shard);
                }
                // The server is not reachable.
                Err(_) => return,
            }
        }
    }

    /// A handle of the file that a `Create` with `open` has just made in `directory`. `losses`: the number of losses of
    /// registrations before.
    pub(crate) async fn opened_by_create(
        &self,
        caller: &Credentials,
        directory: InodeId,
        made: &NodeReply,
        flags: OpenFlags,
        losses: u64,
    ) -> Result<OpenedFile> {
        let inode = InodeId(made.inode);
        let open = self.files.enter(inode, flags.writable());
        open.set_id.lock().made();
        self.core.inodes.opened(inode);
        self.core.register(inode, flags.mode, None);
        let mut content = open.content.lock().await;
        let taken = self.take_in(&open, &mut content, made, true);
        let grows = flags.writable() && taken.is_ok();
        // A passthrough file keeps O_DIRECT even if its writer clears the flag for a partial last block.
        let passes = grows && !flags.direct;
        let io = match passes && self.outgrows_early(caller, &open, &mut content, directory).await {
            true => self.choose_io(&open, &content, flags, true),
            false => self.choose_io_of_new(&open, flags),
        };
        *open.growing_in.lock() = grows.then_some(directory);
        drop(content);
        let registered = match taken {
            Ok(()) => self.register_if_lost(inode, flags.mode, losses).await,
            failed => failed,
        };
        let handle = self.add_handle(&open, flags, caller, &io);
        if let Err(failure) = registered {
            self.release(handle).await;
            return Err(failure);
        }
        Ok(OpenedFile { handle, io })
    }

    /// Called when the kernel refused to pass this handle's I/O through. From now on its I/O comes to the frontend, in
    /// the returned mode, and no open offers passthrough again.
    pub fn decline_passthrough(&self, handle: Handle) -> Io {
        self.files.passthrough_refused.store(true, Relaxed);
        let Ok(handle) = self.files.handle(handle) else { return Io::Cached { keep: false } };
        let direct = self.goes_past_pages(handle.flags);
        let io = if direct { Io::Direct { keep: false } } else { Io::Cached { keep: false } };
        if std::mem::replace(&mut *handle.handle_io.lock(), HandleIo::from(&io)) == HandleIo::Passthrough {
            let mut counts = handle.inode.counts.lock();
            self.not_passed_through(&mut counts);
            counts.add(direct, handle.flags);
        }
        io
    }

    /// Called when the last descriptor of the handle is closed.
    pub async fn release(&self, handle: Handle) {
        let Some(handle) = self.files.remove(handle) else { return };
        let work = async {
            self.close(&handle).await;
            Ok(())
        };
        // A release has no reply that could carry a failure; failures are logged where they happen.
        let counted: Result<()> = self.count(Operation::Release, work).await;
        debug_assert!(counted.is_ok(), "closing answers nothing");
    }

    async fn close(&self, handle: &OpenHandle) {
        let open = &handle.inode;
        let last_writer = {
            let mut counts = open.counts.lock();
            match *handle.handle_io.lock() {
                HandleIo::Passthrough => {
                    counts.passthrough -= 1;
                    if handle.flags.mode == OpenMode::ReadWrite {
                        open.may_be_mapped.store(true, Relaxed);
                    }
                }
                HandleIo::Direct => counts.mappable -= usize::from(handle.flags.readable()),
                HandleIo::Cached => counts.cached -= 1,
            }
            if handle.flags.writable() {
                self.files.outdated.note_reply(open.inode);
                counts.writers -= 1;
            }
            counts.writers == 0
        };
        if last_writer {
            let mut content = open.content.lock().await;
            if let Err(failure) = self.write_back(open, &mut content).await {
                if let Some(suppressed) = self.core.log_is_due("closed file", &failure) {
                    tracing::error!(inode = %open.inode, "cannot write back a closed file{suppressed}: {failure}");
                }
                // Unless another handle has the file open, and writes it back later.
                self.core.inodes.pages_are_lost(open.inode);
            }
            if open.counts.lock().writers == 0 {
                self.has_grown(open);
                if let Err(failure) = self.record_written_sizes(open, &mut content).await {
                    // The row still says that the backing file's own size counts, which is correct, but slower.
                    if let Some(suppressed) = self.core.log_is_due("size", &failure) {
                        let inode = open.inode;
                        tracing::warn!(%inode, "cannot record the size of a closed file{suppressed}: {failure}");
                    }
                }
            }
        }
        self.leave(open);
    }

    /// Removes a handle; after the last one the server is notified.
    pub(crate) fn leave(&self, open: &OpenInode) {
        self.files.leave(open, || self.core.unregister(open.inode));
        self.core.inodes.closed(open.inode);
    }
}

impl FileTable {
    /// Every handle, for a shutdown.
    pub(crate) fn handles(&self) -> Vec<Handle> {
        self.handles.read().keys().map(|number| Handle(*number)).collect()
    }
}
