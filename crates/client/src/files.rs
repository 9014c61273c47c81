use crate::{FileSystem, OpenMode, Result};
use std::fs::File;
use std::sync::Arc;
use varve_types::{Credentials, Errno, InodeId};

/// An open file of this client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(pub u64);

/// What open(2) was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFlags {
    pub mode: OpenMode,
    /// `O_APPEND`: every write goes to the end.
    pub append: bool,
    /// `O_TRUNC`
    pub truncate: bool,
    /// `O_EXCL`, for [`FileSystem::create`].
    pub exclusive: bool,
}

impl OpenFlags {
    pub const READ: OpenFlags = OpenFlags { mode: OpenMode::Read, append: false, truncate: false, exclusive: false };
    pub const READ_WRITE: OpenFlags = OpenFlags { mode: OpenMode::ReadWrite, ..OpenFlags::READ };

    /// From open(2)'s flags. `None` where the access mode is none of the three.
    pub fn from_bits(bits: i32) -> Option<OpenFlags> {
        let mode = match bits & libc::O_ACCMODE {
            libc::O_RDONLY => OpenMode::Read,
            libc::O_WRONLY => OpenMode::Write,
            libc::O_RDWR => OpenMode::ReadWrite,
            _ => return None,
        };
        let has = |flag| bits & flag != 0;
        Some(OpenFlags {
            mode,
            append: has(libc::O_APPEND),
            truncate: has(libc::O_TRUNC),
            exclusive: has(libc::O_EXCL),
        })
    }

    pub fn writable(&self) -> bool {
        self.mode != OpenMode::Read
    }

    pub fn readable(&self) -> bool {
        self.mode != OpenMode::Write
    }
}

/// How the kernel should do the I/O of a handle.
#[derive(Clone, Debug)]
pub enum Io {
    /// Through its page cache. `keep`: pages from an earlier open are still right.
    Cached { keep: bool },
    /// Past its page cache.
    Direct,
    /// On the backing file itself; all passthrough opens of an inode share one descriptor. If the kernel refuses, the door
    /// calls [`FileSystem::decline_passthrough`] and goes on as `Cached { keep: false }`.
    Passthrough(Arc<File>),
}

#[derive(Clone, Debug)]
pub struct Opened {
    pub handle: Handle,
    pub io: Io,
}

/// lseek(2)'s questions about holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    Data,
    Hole,
}

impl FileSystem {
    pub async fn open(&self, caller: &Credentials, inode: InodeId, flags: OpenFlags) -> Result<Opened> {
        let _ = (caller, inode, flags);
        Err(Errno::ENOSYS.into())
    }

    /// The kernel refused to pass I/O of this handle through: from now on it comes here, and no open offers it again.
    pub fn decline_passthrough(&self, handle: Handle) {
        let _ = handle;
    }

    /// Bytes read: fewer than asked for only at the end of the file.
    pub async fn read(&self, handle: Handle, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let _ = (handle, offset, buffer);
        Err(Errno::ENOSYS.into())
    }

    /// Bytes written: all of `data`. An appending handle ignores `offset`.
    pub async fn write(&self, handle: Handle, offset: u64, data: &[u8]) -> Result<usize> {
        let _ = (handle, offset, data);
        Err(Errno::ENOSYS.into())
    }

    /// close(2) of one descriptor: small files are written back.
    pub async fn flush(&self, handle: Handle) -> Result<()> {
        let _ = handle;
        Err(Errno::ENOSYS.into())
    }

    /// Returns when the file, its row and the rows of its ancestors are on disk.
    pub async fn fsync(&self, handle: Handle, data_only: bool) -> Result<()> {
        let _ = (handle, data_only);
        Err(Errno::ENOSYS.into())
    }

    /// Returns when the directory's rows and names are on disk.
    pub async fn fsync_directory(&self, inode: InodeId) -> Result<()> {
        let _ = inode;
        Err(Errno::ENOSYS.into())
    }

    /// The last descriptor of the handle is closed.
    pub async fn release(&self, handle: Handle) {
        let _ = handle;
    }

    /// fallocate(2); `mode` is its flags. `EOPNOTSUPP` for those that shift content.
    pub async fn allocate(&self, handle: Handle, mode: i32, offset: u64, length: u64) -> Result<()> {
        let _ = (handle, mode, offset, length);
        Err(Errno::ENOSYS.into())
    }

    /// Where the next data or hole at or after `offset` begins; `ENXIO` beyond the end.
    pub async fn seek(&self, handle: Handle, offset: u64, whence: Whence) -> Result<u64> {
        let _ = (handle, offset, whence);
        Err(Errno::ENOSYS.into())
    }

    /// Bytes copied: fewer than asked for only at the end of `from`.
    pub async fn copy_range(
        &self,
        from: Handle,
        from_offset: u64,
        to: Handle,
        to_offset: u64,
        length: u64,
    ) -> Result<u64> {
        let _ = (from, from_offset, to, to_offset, length);
        Err(Errno::ENOSYS.into())
    }
}
