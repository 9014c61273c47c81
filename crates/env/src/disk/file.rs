//! An open file whose changes are recorded while its directory is recorded (see [`crate::power_loss`]).

use super::Location;
use super::journal::{self, DiskChange, DiskJournal, NodeId, SyncTarget};
use bytes::Bytes;
use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::{Metadata, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::SystemTime;

/// A file of the store. All durable changes of bytes go through this type.
#[derive(Debug)]
pub struct File {
    file: std::fs::File,
    recorded: Option<(Arc<DiskJournal>, NodeId)>,
}

/// Options for opening a file; see [`std::fs::OpenOptions`].
#[derive(Clone, Debug, Default)]
pub struct FileOptions {
    pub(super) read: bool,
    pub(super) write: bool,
    pub(super) create: bool,
    pub(super) create_new: bool,
    pub(super) truncate: bool,
    pub(super) mode: Option<u32>,
    no_follow: bool,
}

impl FileOptions {
    pub fn read(mut self, read: bool) -> FileOptions {
        self.read = read;
        self
    }

    pub fn write(mut self, write: bool) -> FileOptions {
        self.write = write;
        self
    }

    /// Creates the file if it is missing; truncates it if it exists.
    pub fn create_empty(mut self) -> FileOptions {
        (self.create, self.truncate) = (true, true);
        self
    }

    /// Creates the file if it is missing.
    pub fn create(mut self) -> FileOptions {
        self.create = true;
        self
    }

    /// Creates the file; an existing file is an error.
    pub fn create_new(mut self) -> FileOptions {
        self.create_new = true;
        self
    }

    /// The permission bits of a file that is created: exact below a store's directory, elsewhere subject to the
    /// process's umask.
    pub fn mode(mut self, mode: u32) -> FileOptions {
        self.mode = Some(mode);
        self
    }

    /// A link as the last component is an error. Below a store's directory no link is ever followed, with or without
    /// this option.
    pub fn no_follow(mut self) -> FileOptions {
        self.no_follow = true;
        self
    }

    pub(super) fn more_flags(&self) -> i32 {
        if self.no_follow { OFlags::NOFOLLOW.bits() as i32 } else { 0 }
    }

    pub(crate) fn access(&self) -> OFlags {
        match (self.read, self.write) {
            (true, true) => OFlags::RDWR,
            (false, true) => OFlags::WRONLY,
            _ => OFlags::RDONLY,
        }
    }

    pub(crate) fn creates(&self) -> bool {
        self.create || self.create_new
    }

    pub(crate) fn creates_new(&self) -> bool {
        self.create_new
    }

    pub(crate) fn truncates(&self) -> bool {
        self.truncate
    }

    pub(crate) fn mode_or(&self, other: u32) -> u32 {
        self.mode.unwrap_or(other)
    }

    pub fn open<L: Location + ?Sized>(self, location: &L) -> io::Result<File> {
        let path = location.shown();
        let Some(journal) = journal::of(path) else {
            return Ok(File { file: location.open_file(&self)?, recorded: None });
        };
        journal.change(|record| {
            let file = location.open_file(&self)?;
            let node = match record.node_at(path) {
                Some(node) => {
                    if self.truncate {
                        record.push(DiskChange::Resize { node, length: 0 });
                    }
                    node
                }
                None if self.creates() => record.create_file(path, self.mode_or(super::FILE_MODE)),
                None => return Err(io::Error::other(format!("{} is not in the journal", path.display()))),
            };
            Ok(File { file, recorded: Some((journal.clone(), node)) })
        })
    }
}

impl File {
    pub fn options() -> FileOptions {
        FileOptions::default()
    }

    /// Opens a file for reading.
    pub fn open<L: Location + ?Sized>(path: &L) -> io::Result<File> {
        File::options().read(true).open(path)
    }

    /// Opens a file for writing.
    pub fn open_to_write<L: Location + ?Sized>(path: &L) -> io::Result<File> {
        File::options().write(true).open(path)
    }

    /// One write(2); returns how many bytes of `data` were written.
    pub fn write_at(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        self.changing(
            || self.file.write_at(data, offset),
            |node, written| vec![DiskChange::Write { node, offset, bytes: Bytes::copy_from_slice(&data[..*written]) }],
        )
    }

    pub fn write_all_at(&self, mut data: &[u8], mut offset: u64) -> io::Result<()> {
        while !data.is_empty() {
            match self.write_at(data, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    data = &data[written..];
                    offset += written as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// One write(2) at the end of the file, atomic with regard to other appends; returns how many bytes of `data` were
    /// written.
    pub fn append(&self, data: &[u8]) -> io::Result<usize> {
        let appended = self.changing(
            || {
                let offset = self.file.metadata()?.len();
                let data = [io::IoSlice::new(data)];
                match rustix::io::pwritev2(&self.file, &data, u64::MAX, ReadWriteFlags::APPEND) {
                    Ok(written) => Ok((offset, written)),
                    // The store does not support RWF_APPEND.
                    Err(Errno::OPNOTSUPP) => Ok((offset, self.file.write_at(&data[0], offset)?)),
                    Err(error) => Err(error.into()),
                }
            },
            |node, (offset, written)| {
                vec![DiskChange::Write { node, offset: *offset, bytes: Bytes::copy_from_slice(&data[..*written]) }]
            },
        );
        appended.map(|(_, written)| written)
    }

    pub fn set_len(&self, length: u64) -> io::Result<()> {
        self.changing(|| self.file.set_len(length), |node, ()| vec![DiskChange::Resize { node, length }])
    }

    /// fallocate(2).
    pub fn allocate(&self, flags: FallocateFlags, offset: u64, length: u64) -> io::Result<()> {
        let zeroes = flags.intersects(FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE);
        let allocated = self.changing(
            || {
                rustix::fs::fallocate(&self.file, flags, offset, length)?;
                Ok(self.file.metadata()?.len())
            },
            |node, size| {
                let mut changes = vec![DiskChange::Extend { node, length: *size }];
                if zeroes {
                    changes.push(DiskChange::Zero { node, offset, length });
                }
                changes
            },
        );
        allocated.map(|_| ())
    }

    /// copy_file_range(2) from `source` into this file; returns how many bytes were copied.
    pub fn copy_range(&self, source: &File, from: u64, to: u64, length: usize) -> io::Result<usize> {
        self.changing(
            || {
                let copied = rustix::fs::copy_file_range(
                    &source.file,
                    Some(&mut from.clone()),
                    &self.file,
                    Some(&mut to.clone()),
                    length,
                )?;
                let mut bytes = Vec::new();
                if self.recorded.is_some() {
                    bytes.resize(copied, 0);
                    source.file.read_exact_at(&mut bytes, from)?;
                }
                Ok((copied, Bytes::from(bytes)))
            },
            |node, (_, bytes)| vec![DiskChange::Write { node, offset: to, bytes: bytes.clone() }],
        )
        .map(|(copied, _)| copied)
    }

    pub fn sync_all(&self) -> io::Result<()> {
        self.synced(|| self.file.sync_all())
    }

    /// As [`File::sync_all`], but without timestamps.
    pub fn sync_data(&self) -> io::Result<()> {
        self.synced(|| self.file.sync_data())
    }

    /// Starts writing a range to the disk without waiting for it. This makes nothing durable, so nothing is recorded.
    pub fn begin_writing(&self, offset: u64, length: u64) -> io::Result<()> {
        let signed = |value: u64| i64::try_from(value).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
        let (offset, length) = (signed(offset)?, signed(length)?);
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&self.file);
        // SAFETY: the descriptor is open while `self` lives, and the call touches no memory of this process.
        match unsafe { libc::sync_file_range(descriptor, offset, length, libc::SYNC_FILE_RANGE_WRITE) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }

    pub fn seek(&self, from: SeekFrom) -> io::Result<u64> {
        Ok(rustix::fs::seek(&self.file, from)?)
    }

    pub fn metadata(&self) -> io::Result<Metadata> {
        self.file.metadata()
    }

    pub fn set_permissions(&self, permissions: Permissions) -> io::Result<()> {
        self.file.set_permissions(permissions)
    }

    pub fn set_owner(&self, uid: u32, gid: u32) -> io::Result<()> {
        std::os::unix::fs::fchown(&self.file, Some(uid), Some(gid))
    }

    pub fn set_modified(&self, time: SystemTime) -> io::Result<()> {
        self.file.set_modified(time)
    }

    /// A file whose changes are not recorded: a pipe, a socket.
    pub fn unrecorded(file: std::fs::File) -> File {
        File { file, recorded: None }
    }

    /// Only for locking: writes to it are not recorded.
    pub fn into_lock(self) -> std::fs::File {
        self.file
    }

    fn changing<T>(
        &self,
        work: impl FnOnce() -> io::Result<T>,
        changes: impl FnOnce(NodeId, &T) -> Vec<DiskChange>,
    ) -> io::Result<T> {
        let Some((journal, node)) = &self.recorded else { return work() };
        journal.change(|record| {
            let done = work()?;
            changes(*node, &done).into_iter().for_each(|change| record.push(change));
            Ok(done)
        })
    }

    fn synced(&self, work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        match &self.recorded {
            None => work(),
            Some((journal, node)) => {
                journal.sync(SyncTarget::Node(*node));
                Ok(())
            }
        }
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Read for &File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&self.file).read(buffer)
    }
}

/// Writes parts in order, from the start of the file.
pub(super) struct SequentialWriter<'a> {
    file: &'a File,
    offset: u64,
}

impl<'a> SequentialWriter<'a> {
    pub(super) fn to(file: &'a File) -> SequentialWriter<'a> {
        SequentialWriter { file, offset: 0 }
    }
}

impl Write for SequentialWriter<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let written = self.file.write_at(data, self.offset)?;
        self.offset += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
