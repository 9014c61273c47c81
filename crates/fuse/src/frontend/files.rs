//! Open files.

use super::FuseFrontend;
use super::caller::caller;
use super::init::REQUEST_BYTES_MAX;
use super::passthrough::Registrations;
use fuser::{BackingId, FileHandle, FopenFlags, Request, WriteFlags as KernelWriteFlags};
use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use varve_client::{FileSystem, Handle, Io, OpenFlags, OpenedFile, Result, Whence, WriteFlags, block_on};
use varve_env::disk::File;
use varve_types::{Credentials, Errno, InodeId};

/// One copy_file_range(2) copies at most so much: the answer's size has 32 bits, and a call should end before its
/// caller wonders. Callers ask again for the rest.
pub(super) const COPY_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// What the kernel is told about an open file.
pub(super) struct OpenReply {
    pub handle: FileHandle,
    pub flags: FopenFlags,
    pub backing: Option<Arc<BackingId>>,
}

pub(super) fn handle(fh: FileHandle) -> Handle {
    Handle(fh.0)
}

thread_local! {
    /// What a thread reads into, kept so that a read of 1 MiB need not zero that much anew.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Runs `read` with a buffer of `size` bytes, or of the largest request if the kernel asks for more than was agreed.
pub(crate) fn with_buffer(size: usize, read: impl FnOnce(&mut [u8])) {
    let size = size.min(REQUEST_BYTES_MAX as usize);
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() < size {
            buffer.resize(size.next_power_of_two(), 0);
        }
        read(&mut buffer[..size]);
    });
}

/// What opening needs, on whichever thread it ends.
pub(super) struct OpenContext {
    fs: Arc<FileSystem>,
    pub passthrough: Registrations,
}

impl OpenContext {
    pub fn of(fs: Arc<FileSystem>) -> OpenContext {
        OpenContext { fs, passthrough: Registrations::default() }
    }

    /// What the kernel is told of a file that was just opened.
    pub fn opened(
        &self,
        inode: InodeId,
        flags: OpenFlags,
        OpenedFile { handle, io }: OpenedFile,
        register: impl FnOnce(&File) -> io::Result<BackingId>,
    ) -> OpenReply {
        // Closing a descriptor that cannot write has nothing to write back, so the kernel need not say so.
        let quiet = if flags.writable() { FopenFlags::empty() } else { FopenFlags::FOPEN_NOFLUSH };
        // The kernel opens a backing file with the flags of the moment, and would append for ever. So what such a descriptor
        // reads and writes comes here, and only its mappings are passed through. (What it sends by sendfile(2) would come through
        // the page cache, and is refused.)
        let appends = match flags.append && flags.writable() {
            true => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES,
            false => FopenFlags::empty(),
        };
        let (io, backing) = match io {
            Io::Passthrough(ref file) => match self.passthrough.acquire(inode, handle, || register(file)) {
                Ok(backing) => (io, Some(backing)),
                Err(error) => {
                    tracing::info!(%error, "the kernel does not pass I/O through to backing files here");
                    (self.fs.decline_passthrough(handle), None)
                }
            },
            io => (io, None),
        };
        let appends = if backing.is_some() { appends } else { FopenFlags::empty() };
        OpenReply { handle: FileHandle(handle.0), flags: quiet | appends | open_flags(&io), backing }
    }
}

fn open_flags(io: &Io) -> FopenFlags {
    let kept = |keep| if keep { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() };
    match *io {
        Io::Cached { keep } => kept(keep),
        Io::Direct { keep } => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES | kept(keep),
        Io::Passthrough(_) => FopenFlags::empty(),
    }
}

impl FuseFrontend {
    /// `register` gives the kernel a backing file for passthrough.
    pub(super) fn open(
        &self,
        caller: &Credentials,
        inode: InodeId,
        bits: i32,
        register: impl FnOnce(&File) -> io::Result<BackingId>,
    ) -> Result<OpenReply> {
        let flags = OpenFlags::from_bits(bits).ok_or(Errno::EINVAL)?;
        let opened = block_on(self.fs.open(caller, inode, flags))?;
        Ok(self.files.opened(inode, flags, opened, register))
    }

    /// `page`: it is the kernel's page cache that reads, and not somebody past it.
    pub(super) fn read(&self, handle: Handle, offset: u64, buffer: &mut [u8], page: bool) -> Result<usize> {
        match page {
            true => block_on(self.fs.read_page(handle, offset, buffer)),
            false => block_on(self.fs.read(handle, offset, buffer)),
        }
    }

    pub(super) fn write(
        &self,
        request: &Request,
        handle: Handle,
        offset: u64,
        data: &[u8],
        how: KernelWriteFlags,
        flags: fuser::OpenFlags,
    ) -> Result<usize> {
        // Pages that were changed through a mapping go to their place, whatever the handle by which the kernel happens to
        // write them was opened for.
        if how.contains(KernelWriteFlags::FUSE_WRITE_CACHE) {
            return self.write_pages(handle, offset, data);
        }
        if how.contains(KernelWriteFlags::FUSE_WRITE_KILL_SUIDGID) {
            block_on(self.fs.drop_set_id_of(handle, || caller(request)))?;
        }
        block_on(self.fs.write_with(handle, offset, data, WriteFlags::from_bits(flags.0)))
    }

    /// All of it or an error: the kernel takes pages of which a part was written for written, and says so to who syncs them.
    fn write_pages(&self, handle: Handle, offset: u64, data: &[u8]) -> Result<usize> {
        let mut done = 0;
        while done < data.len() {
            match block_on(self.fs.write_with(handle, offset + done as u64, &data[done..], WriteFlags::default()))? {
                0 => return Err(Errno::ENOSPC.into()),
                written => done += written,
            }
        }
        Ok(done)
    }

    pub(super) fn release(&self, handle: Handle) -> Result<()> {
        self.files.passthrough.release(handle);
        block_on(self.fs.release(handle));
        Ok(())
    }

    pub(super) fn seek(&self, handle: Handle, offset: i64, whence: i32) -> Result<i64> {
        let whence = match whence {
            libc::SEEK_DATA => Whence::Data,
            libc::SEEK_HOLE => Whence::Hole,
            // The kernel answers the others itself.
            _ => return Err(Errno::EINVAL.into()),
        };
        let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
        let found = block_on(self.fs.seek(handle, offset, whence))?;
        i64::try_from(found).map_err(|_| Errno::EOVERFLOW.into())
    }
}
