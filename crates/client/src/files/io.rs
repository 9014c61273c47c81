//! Reading, writing and syncing.

use super::content::ContentState;
use super::{FILE_BYTES_MAX, Handle, HandleIo, OpenHandle, OpenInode, WriteFlags, backing};
use crate::calls::{CallRefusal, Wait};
use crate::locate::unexpected;
use crate::{Failure, FileSystem, Operation, Result};
use futures::lock::MutexGuard;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use varve_env::disk::File;
use varve_proto::{Call, Reply};
use varve_types::{Errno, InodeId, Name, ShardId};

/// Maximum depth of directories above a file; a volume with more is damaged or changing too fast to follow.
const DEPTH_MAX: usize = 4096;

/// First and longest wait before another attempt to lock a file's content: contending calls hold it briefly.
const CONTENT_WAIT: Wait = Wait { first: Duration::from_micros(50), longest: Duration::from_millis(1) };

impl FileSystem {
    /// Returns the bytes read: fewer than requested only at the end of the file.
    pub async fn read(&self, handle: Handle, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.count(Operation::Read, async {
            let handle = self.files.handle(handle)?;
            if !handle.flags.readable() {
                return Err(Errno::EBADF.into());
            }
            let read = self.read_open(&handle.inode, offset, buffer).await?;
            self.counters().read(read);
            Ok(read)
        })
        .await
    }

    /// Reads into a page of the kernel's page cache. `EINVAL` for a passthrough file: the page would never see what
    /// other handles write. Only sendfile(2) and splice(2) come here, from a descriptor of which only the mappings are
    /// passed through; after `EINVAL` programs fall back to read.
    pub async fn read_page(&self, handle: Handle, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        if *self.files.handle(handle)?.handle_io.lock() == HandleIo::Passthrough {
            return Err(Errno::EINVAL.into());
        }
        self.read(handle, offset, buffer).await
    }

    pub(super) async fn read_open(&self, open: &OpenInode, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        if offset > FILE_BYTES_MAX {
            return Err(Errno::EINVAL.into());
        }
        // No file is longer, and the store would interpret a larger offset as negative.
        let len = buffer.len().min(usize::try_from(FILE_BYTES_MAX - offset).unwrap_or(usize::MAX));
        let buffer = &mut buffer[..len];
        let file = match open.file() {
            Some(file) => file,
            None => {
                let mut content = open.content.lock().await;
                self.confirm_for_read(open, &mut content).await?;
                match (&content.inline, open.file()) {
                    (Some(inline), _) => return Ok(inline.read(offset, buffer)),
                    (None, Some(file)) => file,
                    (None, None) => return Err(Errno::EBADF.into()),
                }
            }
        };
        let count = backing::read(&file, offset, buffer)?;
        if count < buffer.len() && open.ends_early(offset + count as u64) {
            let mut content = open.content.lock().await;
            self.check_size(open, &mut content).await?;
        }
        Ok(count)
    }

    /// Returns the bytes written: all of `data`, or fewer if the store is full. A handle opened with `O_APPEND` ignores
    /// `offset`.
    pub async fn write(&self, handle: Handle, offset: u64, data: &[u8]) -> Result<usize> {
        let append = self.files.handle(handle)?.flags.append;
        self.write_with(handle, offset, data, WriteFlags { append, ..WriteFlags::default() }).await
    }

    /// Writes according to `flags` instead of the handle's open flags. `offset` is ignored if `flags.append` is set.
    pub async fn write_with(&self, handle: Handle, offset: u64, data: &[u8], flags: WriteFlags) -> Result<usize> {
        let written = self.count(Operation::Write, async {
            let handle = self.files.handle(handle)?;
            let written = self.write_open(&handle, offset, data, flags).await?;
            self.counters().written(written);
            // After a write through its page cache the kernel sends the fsync itself.
            Ok((written, flags.sync && *handle.handle_io.lock() != HandleIo::Cached))
        });
        let (written, sync) = written.await?;
        if sync {
            self.fsync(handle, flags.data_only).await?;
        }
        Ok(written)
    }

    pub(super) async fn write_open(
        &self,
        handle: &OpenHandle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize> {
        let WriteFlags { append, mapped, .. } = flags;
        let open = &handle.inode;
        if !handle.flags.writable() {
            return Err(Errno::EBADF.into());
        }
        if data.is_empty() {
            return Ok(0);
        }
        if !mapped {
            open.set_mtime_ends();
        }
        if !append {
            check_end(offset, data.len() as u64)?;
            let backing = open.backing.read();
            if let (Some(file), true) = (&backing.file, backing.size_stale) {
                return self.write_backing(open, file, offset, data, mapped);
            }
        }
        let mut content = open.content.lock().await;
        content.writer = handle.writer(flags.keeps_set_id);
        let offset = if append { size_of(open, &content)? } else { offset };
        let end = check_end(offset, data.len() as u64)?;
        if !append {
            self.give_place(open, &mut content, end).await?;
        }
        self.make_room(open, &mut content, end).await?;
        if let Some(inline) = &mut content.inline {
            if append {
                inline.append(data)
            } else {
                inline.write(offset as usize, data)
            }
            self.inline_changed(open, &mut content).await?;
            return Ok(data.len());
        }
        self.mark_size_stale(open, &mut content, u64::MAX).await?;
        let file = open.file().ok_or(Errno::EBADF)?;
        if append {
            // Its end may have moved since: another client may append, too.
            let written = backing::append(&file, data)?;
            self.wrote(open, &file, backing::stat(&file)?.size.saturating_sub(written as u64), written);
            return Ok(written);
        }
        self.write_backing(open, &file, offset, data, mapped)
    }

    /// Writes to a backing file, and starts writeback of sequentially written data. `mapped`: as [`WriteFlags::mapped`].
    fn write_backing(
        &self,
        open: &OpenInode,
        file: &Arc<File>,
        offset: u64,
        data: &[u8],
        mapped: bool,
    ) -> Result<usize> {
        let written = match mapped {
            true => open.write_mapped(file, offset, data)?,
            false => backing::write(file, offset, data)?,
        };
        self.wrote(open, file, offset, written);
        Ok(written)
    }

    fn wrote(&self, open: &OpenInode, file: &Arc<File>, offset: u64, written: usize) {
        if let Some(window) = open.stream.lock().wrote(offset, written as u64) {
            self.files.write_behind.hand_over(file, window);
        }
    }

    /// Called before an operation at or beyond `end`: fixes the offset of appended bytes, behind the bytes of other
    /// clients.
    pub(super) async fn give_place(&self, open: &OpenInode, content: &mut ContentState, end: u64) -> Result<()> {
        let end = usize::try_from(end).unwrap_or(usize::MAX);
        match content.inline.as_ref().is_some_and(|inline| inline.awaits_place(end)) {
            true => self.write_back(open, content).await.map(|_| ()),
            false => Ok(()),
        }
    }

    /// Promotes inline content that will be `end` bytes long, or longer already, if that is too long for the row. The
    /// content of a file from the time of a larger inline limit may exceed what a row accepts now.
    pub(super) async fn make_room(&self, open: &OpenInode, content: &mut ContentState, end: u64) -> Result<()> {
        let Some(inline) = &content.inline else { return Ok(()) };
        let fits = end.max(inline.len() as u64) <= self.files.inline_limit() as u64;
        if fits { Ok(()) } else { self.promote(open, content, 0).await }
    }

    /// Called after inline content has changed: it is written back later, or at once if too many bytes wait.
    pub(super) async fn inline_changed(&self, open: &OpenInode, content: &mut ContentState) -> Result<()> {
        content.written_at = Some(open.set_mtime.lock().unwrap_or_else(|| self.core.clock.now()));
        let len = content.inline.as_ref().map_or(0, |inline| inline.len());
        let now = self.core.clock.monotonic();
        if self.files.mark_dirty(open.inode, len, now, self.core.config.dirty_bytes_max) {
            self.write_back(open, content).await?;
        }
        Ok(())
    }

    /// close(2) of one descriptor: writes small files back.
    pub async fn flush(&self, handle: Handle) -> Result<()> {
        self.count(Operation::Flush, async {
            let handle = self.files.handle(handle)?;
            handle.inode.set_mtime_ends();
            let mut content = self.content_in_time(&handle.inode).await?;
            self.write_back(&handle.inode, &mut content).await?;
            handle.inode.failures.lock().report(&handle.failures_known)
        })
        .await
    }

    /// Locks the content of a file, unless another call holds it until the deadline, as a call does that waits for a
    /// hanging store. A process that starts a program closes its open files, and that program may be the one that
    /// repairs the store.
    pub(super) async fn content_in_time<'a>(&self, open: &'a OpenInode) -> Result<MutexGuard<'a, ContentState>> {
        let (deadline, mut wait) = (self.core.deadline(), CONTENT_WAIT);
        loop {
            if let Some(content) = open.content.try_lock() {
                return Ok(content);
            }
            self.core.check_deadline(deadline, "another call on the same file waits for the store")?;
            self.core.pause(wait.next()).await;
        }
    }

    /// Returns when the file, its row and the rows of its ancestors are on disk.
    pub async fn fsync(&self, handle: Handle, data_only: bool) -> Result<()> {
        self.count(Operation::Fsync, async {
            let handle = self.files.handle(handle)?;
            handle.inode.set_mtime_ends();
            let synced = self.fsync_data(&handle.inode, data_only).await;
            handle.inode.failures.lock().report(&handle.failures_known)?;
            synced?;
            self.sync_rows(handle.inode.inode).await
        })
        .await
    }

    /// Syncs the content: in the row (which is not synced yet) or in the backing file. The size of a backing file stays
    /// stale if it was: its own size counts, which the store has synced with it, and the row's minimum is raised.
    pub(crate) async fn fsync_data(&self, open: &Arc<OpenInode>, data_only: bool) -> Result<()> {
        let mut content = open.content.lock().await;
        self.write_back(open, &mut content).await?;
        let Some(file) = open.file() else { return Ok(()) };
        // Before the sync: data written meanwhile need not be included.
        let size = backing::stat(&file)?.size;
        let synced = if data_only { file.sync_data() } else { file.sync_all() };
        if let Err(error) = synced {
            let failure = Failure::store("cannot sync a backing file", &error);
            // The kernel reports the error once for all handles of this client, which share one descriptor.
            open.failures.lock().add(failure.clone());
            return Err(failure);
        }
        self.raise(open, &mut content, size).await
    }

    /// Raises the row's minimum size: `size` bytes of the backing file, which this client writes, are on disk.
    async fn raise(&self, open: &OpenInode, content: &mut ContentState, size: u64) -> Result<()> {
        let grew = {
            let backing = open.backing.read();
            backing.size_stale && backing.at_least < size
        };
        if !grew {
            return Ok(());
        }
        let generation = content.generation;
        let call = |at| Call::RaiseSize { at, generation, at_least: size };
        match self.ask_open(&content.writer, open.inode, call).await {
            Ok(reply) => {
                open.note_reply(content, &reply);
                open.size_noted(&reply);
                Ok(())
            }
            // Removed, or changed by another client: the row's minimum stays lower than possible.
            Err(CallRefusal::Stale | CallRefusal::NotHere | CallRefusal::Moved { .. }) => Ok(()),
            Err(CallRefusal::Failure(failure)) if failure.errno == Errno::ESTALE => Ok(()),
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// Returns when the directory's rows and names are on disk.
    pub async fn fsync_directory(&self, inode: InodeId) -> Result<()> {
        self.count(Operation::Fsync, async {
            let mut shards = BTreeSet::new();
            let map = self.core.routing.map(inode);
            shards.extend(map.iter().map(|index| index.shard(inode.shard(), self.core.settings.shards)));
            self.sync_shards(shards, inode).await
        })
        .await
    }

    /// Syncs the row of a file and everything by which it is reached.
    async fn sync_rows(&self, inode: InodeId) -> Result<()> {
        self.sync_shards(BTreeSet::from([self.core.row_shard(inode)]), inode).await
    }

    /// Syncs `shards`, the entry of `inode`, and the rows and entries of its ancestors that are not known to be on
    /// disk.
    async fn sync_shards(&self, mut shards: BTreeSet<ShardId>, inode: InodeId) -> Result<()> {
        // With a sync interval of zero every reply was durable.
        if self.core.settings.sync_interval.is_zero() {
            return Ok(());
        }
        let core = &self.core;
        let moves = core.inodes.moves();
        let mut above: Vec<(InodeId, (InodeId, Name))> = Vec::new();
        let mut at = inode;
        while at != InodeId::ROOT {
            if above.len() > DEPTH_MAX {
                return Err(Errno::ELOOP.into());
            }
            if core.inodes.is_durable(at) {
                break;
            }
            let Some((parent, name)) = core.inodes.name(at) else {
                // Without a name there is no entry to sync. A directory's entry may then be in any shard, as may that
                // of a file that was found by its number.
                if at != inode || core.inodes.is_directory(at) || core.inodes.name_is_unknown(at) {
                    shards.extend(core.settings.shards.all());
                }
                break;
            };
            shards.insert(core.routing.shard_of(parent, name.hash()));
            if core.inodes.is_directory(at) {
                shards.insert(at.shard());
            }
            above.push((at, (parent, name)));
            at = parent;
        }
        for shard in shards {
            self.sync_shard(shard).await?;
        }
        for (directory, under) in above.iter().filter(|(at, _)| core.inodes.is_directory(*at)) {
            core.inodes.set_durable(*directory, under, moves);
        }
        Ok(())
    }

    /// Syncs the rows of `shard`.
    pub(crate) async fn sync_shard(&self, shard: ShardId) -> Result<()> {
        match self.core.ask_shard(shard, Call::Sync).await? {
            Reply::Done => Ok(()),
            other => Err(unexpected("Sync", &other)),
        }
    }

    /// Writes back everything, without recording sizes: handles remain usable.
    pub(crate) async fn write_back_all(&self) -> Result<()> {
        let mut first = Ok(());
        for open in self.files.all() {
            let mut content = open.content.lock().await;
            if let Err(failure) = self.write_back(&open, &mut content).await {
                // If the server is gone, every further file would wait as long.
                let gone = failure.errno == Errno::ETIMEDOUT;
                first = first.and(Err(failure));
                if gone {
                    break;
                }
            }
        }
        first
    }
}

/// The end of `len` bytes from `offset`, if a file can be that long.
pub(super) fn check_end(offset: u64, len: u64) -> Result<u64> {
    offset.checked_add(len).filter(|end| *end <= FILE_BYTES_MAX).ok_or(Errno::EFBIG.into())
}

/// The size of an open file.
pub(super) fn size_of(open: &OpenInode, content: &ContentState) -> Result<u64> {
    match (&content.inline, open.file()) {
        (Some(inline), _) => Ok(inline.len() as u64),
        (None, Some(file)) => Ok(backing::stat(&file)?.size),
        (None, None) => Err(Errno::EBADF.into()),
    }
}
