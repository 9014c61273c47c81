//! A file of the data workloads: plain or direct I/O on whole transfers.

use super::DIRECT_ALIGNMENT;
use rustix::fs::{Advice, Mode, OFlags};
use std::io;
use std::os::fd::{AsFd, IntoRawFd, OwnedFd};
use std::path::Path;

pub(super) struct DataFile {
    descriptor: OwnedFd,
}

impl DataFile {
    pub(super) fn create(path: &Path, direct: bool) -> io::Result<DataFile> {
        DataFile::open_with(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, direct)
    }

    pub(super) fn write(path: &Path, direct: bool) -> io::Result<DataFile> {
        DataFile::open_with(path, OFlags::RDWR, direct)
    }

    pub(super) fn read(path: &Path, direct: bool) -> io::Result<DataFile> {
        DataFile::open_with(path, OFlags::RDONLY, direct)
    }

    fn open_with(path: &Path, flags: OFlags, direct: bool) -> io::Result<DataFile> {
        let direct = if direct { OFlags::DIRECT } else { OFlags::empty() };
        let descriptor = rustix::fs::open(path, flags | direct | OFlags::CLOEXEC, Mode::from_raw_mode(0o644))?;
        Ok(DataFile { descriptor })
    }

    pub(super) fn write_at(&self, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match rustix::io::pwrite(self.descriptor.as_fd(), bytes, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => (bytes, offset) = (&bytes[written..], offset + written as u64),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Fills the whole buffer.
    pub(super) fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < buffer.len() {
            match rustix::io::pread(self.descriptor.as_fd(), &mut buffer[done..], offset + done as u64) {
                Ok(0) => return Err(io::Error::other(format!("it ends at byte {}", offset + done as u64))),
                Ok(read) => done += read,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.descriptor)?)
    }

    /// A hint: a file system that refuses it keeps its cache.
    pub(super) fn forget(&self) {
        let _ = rustix::fs::fadvise(&self.descriptor, 0, None, Advice::DontNeed);
    }

    /// Unlike a drop, returns the error of close(2): a file system that writes on close reports its errors there.
    pub(super) fn close(self) -> io::Result<()> {
        // SAFETY: the descriptor is owned and given up here, so it is closed exactly once.
        match unsafe { libc::close(self.descriptor.into_raw_fd()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// A buffer at a place that direct I/O accepts.
pub(super) struct AlignedBuffer {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl AlignedBuffer {
    pub(super) fn new(length: usize) -> AlignedBuffer {
        let alignment = DIRECT_ALIGNMENT as usize;
        let bytes = vec![0; length + alignment];
        let start = bytes.as_ptr().align_offset(alignment).min(alignment);
        AlignedBuffer { bytes, start, length }
    }

    pub(super) fn part(&mut self, length: usize) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + length.min(self.length)]
    }
}
