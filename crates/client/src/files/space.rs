//! Sizes and holes: truncate, fallocate, SEEK_DATA and SEEK_HOLE, copies between files.

use super::content::ContentState;
use super::io::{check_end, size_of};
use super::{FILE_BYTES_MAX, Handle, OpenFlags, OpenHandle, OpenInode, Whence, WriteFlags};
use crate::{Failure, FileSystem, NodeInfo, OpenMode, Operation, Result};
use rustix::fs::{FallocateFlags, SeekFrom};
use std::sync::Arc;
use varve_env::disk::File;
use varve_types::{Credentials, Errno, InodeId, SetAttributes, SetTime};

/// Bytes copied at a time where the store does not copy itself; also bounds how long a copy delays other calls.
const COPY_BYTES: usize = 128 * 1024;

/// Maximum bytes of one `copy_range`: a copy of terabytes could not be interrupted. Callers repeat the call.
const COPY_RANGE_BYTES_MAX: u64 = 64 * 1024 * 1024;

impl FileSystem {
    /// setattr with a size.
    pub(crate) async fn resize_and_set(
        &self,
        caller: &Credentials,
        inode: InodeId,
        size: u64,
        set: SetAttributes,
        handle: Option<Handle>,
    ) -> Result<NodeInfo> {
        if size > FILE_BYTES_MAX {
            return Err(Errno::EFBIG.into());
        }
        let handle = handle.and_then(|handle| self.files.handle(handle).ok());
        if let Some(handle) = handle.filter(|handle| handle.flags.writable() && handle.inode.inode == inode) {
            return self.resize_through(&handle, caller, size, set).await;
        }
        if size > self.files.inline_limit() as u64 {
            // Inline content must be promoted first, which requires an open file. The open checks the same permission.
            let flags = OpenFlags { mode: OpenMode::Write, ..OpenFlags::READ };
            let opened = self.open_cached(caller, inode, flags).await?;
            let resized = match self.files.handle(opened) {
                Ok(handle) => self.resize_through(&handle, caller, size, set).await,
                Err(failure) => Err(failure),
            };
            self.release(opened).await;
            return match resized {
                // The handle is closed by then.
                Ok(_) => self.attributes_of(caller, inode).await,
                failed => failed,
            };
        }
        match self.files.find(inode) {
            Some(open) => self.resize_at_server(&open, caller, set).await,
            None => {
                let reply = self.send_attributes(caller, inode, set).await?;
                Ok(self.node(&reply, std::time::Duration::ZERO))
            }
        }
    }

    /// ftruncate(2): the descriptor grants the permission.
    async fn resize_through(
        &self,
        handle: &OpenHandle,
        caller: &Credentials,
        size: u64,
        set: SetAttributes,
    ) -> Result<NodeInfo> {
        let open = &handle.inode;
        if !caller.keeps_set_id() {
            // Regardless of the user who opened it.
            Box::pin(self.drop_set_id_of_open(open, || caller.clone())).await?;
        }
        {
            open.set_mtime_ends();
            let mut content = self.content_in_time(open).await?;
            content.writer = handle.writer(caller.keeps_set_id());
            self.give_place(open, &mut content, u64::MAX).await?;
            if size > self.files.inline_limit() as u64 {
                // Promotes with the new length: a process that dies between two steps would leave a new time on an old
                // file.
                self.promote(open, &mut content, size).await?;
            }
            if let Some(inline) = &mut content.inline {
                inline.resize(size as usize);
                self.inline_changed(open, &mut content).await?;
            } else {
                self.mark_size_stale(open, &mut content, size).await?;
                let file = open.file().ok_or(Errno::EBADF)?;
                file.set_len(size).map_err(|error| Failure::store("cannot resize a backing file", &error))?;
            }
        }
        // A time of now is set by the resize itself.
        let mtime = set.mtime.filter(|mtime| *mtime != SetTime::Now);
        let rest = SetAttributes { size: None, mtime, ..set };
        if rest == SetAttributes::default() {
            self.open_attributes(caller, open).await
        } else {
            self.set_open_attributes(caller, open, rest).await
        }
    }

    /// truncate(2) by path of a file that is open in this client: the server checks the permission and does it.
    async fn resize_at_server(
        &self,
        open: &Arc<OpenInode>,
        caller: &Credentials,
        set: SetAttributes,
    ) -> Result<NodeInfo> {
        open.set_mtime_ends();
        let mut content = self.content_in_time(open).await?;
        self.write_back(open, &mut content).await?;
        let reply = self.send_attributes(caller, open.inode, set).await?;
        let reply = self.resized_by_server(open, &mut content, reply).await?;
        self.open_node(open, &reply)
    }

    /// fallocate(2) with its flags in `mode`. `EOPNOTSUPP` for flags that shift content.
    pub async fn allocate(&self, handle: Handle, mode: i32, offset: u64, length: u64) -> Result<()> {
        self.count(Operation::Allocate, async {
            let handle = self.files.handle(handle)?;
            if !handle.flags.writable() {
                return Err(Errno::EBADF.into());
            }
            if length == 0 {
                return Err(Errno::EINVAL.into());
            }
            let end = check_end(offset, length)?;
            let change = FallocateMode::of(mode)?;
            let open = &handle.inode;
            open.set_mtime_ends();
            let mut content = open.content.lock().await;
            content.writer = handle.caller.clone();
            self.give_place(open, &mut content, u64::MAX).await?;
            if content.inline.is_some() {
                // Another client may have made it longer or shorter.
                self.catch_up(open, &mut content).await?;
            }
            let reached = if change.reaches_beyond_the_end() { end } else { 0 };
            self.make_room(open, &mut content, reached).await?;
            if content.inline.is_some() {
                return self.allocate_inline(open, &mut content, change, offset, end).await;
            }
            self.mark_size_stale(open, &mut content, u64::MAX).await?;
            let file = open.file().ok_or(Errno::EBADF)?;
            let flags = FallocateFlags::from_bits_retain(mode as u32);
            file.allocate(flags, offset, length).map_err(|error| store_error("fallocate", error))
        })
        .await
    }

    async fn allocate_inline(
        &self,
        open: &OpenInode,
        content: &mut ContentState,
        change: FallocateMode,
        offset: u64,
        end: u64,
    ) -> Result<()> {
        let Some(inline) = &mut content.inline else { return Ok(()) };
        let clamp = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
        if change.zeroes {
            inline.zero(clamp(offset)..clamp(end));
        }
        let extends = change.extends && clamp(end) > inline.len();
        if extends {
            inline.reach(clamp(end));
        }
        if change.zeroes || extends {
            self.inline_changed(open, content).await?;
            // Like an explicit length: the allocated space outlives this process.
            self.write_back(open, content).await?;
        }
        Ok(())
    }

    /// The start of the next data or hole at or after `offset`; `ENXIO` beyond the end.
    pub async fn seek(&self, handle: Handle, offset: u64, whence: Whence) -> Result<u64> {
        self.count(Operation::Seek, async {
            let handle = self.files.handle(handle)?;
            let mut content = handle.inode.content.lock().await;
            self.confirm_for_read(&handle.inode, &mut content).await?;
            if let Some(file) = handle.inode.file() {
                // This moves the file position, which no other code uses: all I/O on backing files passes its offset.
                let from = match whence {
                    Whence::Data => SeekFrom::Data(offset),
                    Whence::Hole => SeekFrom::Hole(offset),
                };
                return file.seek(from).map_err(|error| store_error("lseek", error));
            }
            let size = size_of(&handle.inode, &content)?;
            match whence {
                _ if offset >= size => Err(Errno::ENXIO.into()),
                Whence::Data => Ok(offset),
                Whence::Hole => Ok(size),
            }
        })
        .await
    }

    /// Returns the bytes copied: fewer than requested at the end of `from`, or where callers must repeat the call.
    pub async fn copy_range(
        &self,
        from: Handle,
        from_offset: u64,
        to: Handle,
        to_offset: u64,
        length: u64,
    ) -> Result<u64> {
        self.count(Operation::CopyRange, async {
            let (from, to) = (self.files.handle(from)?, self.files.handle(to)?);
            // The kernel refuses a destination opened with O_APPEND.
            if !from.flags.readable() || !to.flags.writable() {
                return Err(Errno::EBADF.into());
            }
            let length = length.min(COPY_RANGE_BYTES_MAX);
            let (from_end, to_end) = (check_end(from_offset, length)?, check_end(to_offset, length)?);
            if from.inode.inode == to.inode.inode && from_offset < to_end && to_offset < from_end {
                return Err(Errno::EINVAL.into());
            }
            match self.copy_in_store(&from, from_offset, &to, to_offset, length).await? {
                Some(copied) => Ok(copied),
                None => self.copy_through_memory(&from, from_offset, &to, to_offset, length).await,
            }
        })
        .await
    }

    /// Lets the store copy between two backing files; `None` if one is not a backing file, or the store cannot copy.
    async fn copy_in_store(
        &self,
        from: &OpenHandle,
        from_offset: u64,
        to: &OpenHandle,
        to_offset: u64,
        length: u64,
    ) -> Result<Option<u64>> {
        let (Some(source), Some(target)) = (from.inode.file(), to.inode.file()) else { return Ok(None) };
        {
            let mut content = to.inode.content.lock().await;
            content.writer = to.caller.clone();
            self.mark_size_stale(&to.inode, &mut content, u64::MAX).await?;
        }
        let copied = copy_between(&source, from_offset, &target, to_offset, length)?;
        if let Some(copied) = copied
            && copied < length
            && from.inode.ends_early(from_offset + copied)
        {
            let mut content = from.inode.content.lock().await;
            self.check_size(&from.inode, &mut content).await?;
        }
        Ok(copied)
    }

    async fn copy_through_memory(
        &self,
        from: &OpenHandle,
        from_offset: u64,
        to: &OpenHandle,
        to_offset: u64,
        length: u64,
    ) -> Result<u64> {
        let mut buffer = vec![0; COPY_BYTES.min(usize::try_from(length).unwrap_or(COPY_BYTES))];
        let mut copied = 0;
        while copied < length {
            let wanted = buffer.len().min(usize::try_from(length - copied).unwrap_or(usize::MAX));
            let read = self.read_open(&from.inode, from_offset + copied, &mut buffer[..wanted]).await?;
            if read == 0 {
                break;
            }
            match self.write_open(to, to_offset + copied, &buffer[..read], WriteFlags::default()).await {
                Ok(written) => {
                    copied += written as u64;
                    if written < read {
                        break;
                    }
                }
                Err(_) if copied > 0 => break,
                Err(failure) => return Err(failure),
            }
        }
        Ok(copied)
    }
}

/// The operation that fallocate(2)'s flags select.
#[derive(Clone, Copy)]
struct FallocateMode {
    /// The size may grow.
    extends: bool,
    /// The range reads as zero afterwards.
    zeroes: bool,
    punches: bool,
}

impl FallocateMode {
    fn of(mode: i32) -> Result<FallocateMode> {
        const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE;
        const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
        let extends = mode & KEEP == 0;
        match mode & !KEEP {
            0 => Ok(FallocateMode { extends, zeroes: false, punches: false }),
            ZERO => Ok(FallocateMode { extends, zeroes: true, punches: false }),
            // A hole never changes the size, and callers must set KEEP_SIZE.
            PUNCH if !extends => Ok(FallocateMode { extends: false, zeroes: true, punches: true }),
            _ => Err(Errno::EOPNOTSUPP.into()),
        }
    }

    /// Whether space beyond the end is allocated, even if the size stays.
    fn reaches_beyond_the_end(&self) -> bool {
        !self.punches
    }
}

fn copy_between(from: &File, from_offset: u64, to: &File, to_offset: u64, length: u64) -> Result<Option<u64>> {
    let (mut from_offset, mut to_offset, mut left) = (from_offset, to_offset, length);
    while left > 0 {
        let portion = usize::try_from(left).unwrap_or(usize::MAX);
        match to.copy_range(from, from_offset, to_offset, portion) {
            Ok(0) => break,
            Ok(count) => {
                from_offset += count as u64;
                to_offset += count as u64;
                left -= count as u64;
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR) => {}
                _ if left < length => break,
                Some(libc::EXDEV | libc::EOPNOTSUPP | libc::EINVAL) => return Ok(None),
                _ => return Err(store_error("copy_file_range", error)),
            },
        }
    }
    Ok(Some(length - left))
}

fn store_error(what: &str, error: std::io::Error) -> Failure {
    match error.raw_os_error() {
        // These are regular results, not failures of the store.
        Some(libc::ENXIO) => Errno::ENXIO.into(),
        Some(libc::EOPNOTSUPP) => Errno::EOPNOTSUPP.into(),
        _ => Failure::store(&format!("{what} on a backing file failed"), &error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: fallocate's flags that shift content, and holes that would change the size, are refused.
    #[test]
    fn fallocate_flags() {
        assert!(FallocateMode::of(0).is_ok_and(|change| change.extends && !change.zeroes));
        let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        assert!(FallocateMode::of(hole).is_ok_and(|change| change.zeroes && !change.reaches_beyond_the_end()));
        for refused in
            [libc::FALLOC_FL_PUNCH_HOLE, libc::FALLOC_FL_COLLAPSE_RANGE, libc::FALLOC_FL_INSERT_RANGE, 1 << 20]
        {
            assert_eq!(FallocateMode::of(refused).err().map(|failure| failure.errno), Some(Errno::EOPNOTSUPP));
        }
    }
}
