//! Open files.

use super::caller::Callers;
use super::convert::{file_attr, shorter_ttl};
use super::init::REQUEST_BYTES_MAX;
use super::passthrough::Registrations;
use super::{FuseFrontend, GENERATION};
use crate::numbers::NodeNumbers;
use fuser::{BackingId, FileHandle, FopenFlags, ReplyCreate, Request, WriteFlags as KernelWriteFlags};
use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use varve_client::{FileSystem, Handle, Io, NodeInfo, OpenFlags, OpenedFile, Result, Whence, WriteFlags, block_on};
use varve_env::disk::File;
use varve_types::{Errno, InodeId};

/// Largest copy of one copy_file_range(2): the reply's size field has 32 bits, and a call should end in reasonable
/// time. Callers repeat the call for the rest.
pub(super) const COPY_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// The reply to an open request.
pub(super) struct OpenReply {
    pub handle: FileHandle,
    pub flags: FopenFlags,
    pub backing: Option<Arc<BackingId>>,
}

pub(super) fn handle(fh: FileHandle) -> Handle {
    Handle(fh.0)
}

thread_local! {
    /// Read buffer of a thread, kept so that a read of 1 MiB need not zero a new buffer.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Runs `read` with a buffer of `size` bytes, at most the largest negotiated request.
pub(crate) fn with_buffer(size: usize, read: impl FnOnce(&mut [u8])) {
    let size = size.min(REQUEST_BYTES_MAX as usize);
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() < size {
            buffer.resize(size.next_power_of_two(), 0);
        }
        read(&mut buffer[..size]);
    });
}

/// The state that an open needs, on the thread where it completes.
pub(super) struct OpenContext {
    fs: Arc<FileSystem>,
    pub passthrough: Registrations,
}

impl OpenContext {
    pub fn of(fs: Arc<FileSystem>) -> OpenContext {
        OpenContext { fs, passthrough: Registrations::default() }
    }

    /// The reply to the kernel for a file that was just opened.
    pub fn opened(
        &self,
        inode: InodeId,
        flags: OpenFlags,
        OpenedFile { handle, io }: OpenedFile,
        register: impl FnOnce(&File) -> io::Result<BackingId>,
    ) -> OpenReply {
        // A read-only descriptor has no dirty data, so the kernel need not send FLUSH when it is closed.
        let quiet = if flags.writable() { FopenFlags::empty() } else { FopenFlags::FOPEN_NOFLUSH };
        // The kernel opens a backing file with the flags of this open, and would append for ever. So reads and writes
        // of an appending descriptor come to the frontend, and only its mappings are passed through. (sendfile(2) from
        // it would use the page cache, and is refused.)
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

/// The reply to a request that creates a file and opens it.
pub(super) fn created(
    numbers: NodeNumbers,
    files: &OpenContext,
    result: std::result::Result<(NodeInfo, OpenFlags, OpenedFile), fuser::Errno>,
    reply: ReplyCreate,
) {
    match result {
        Ok((node, opening, opened)) => {
            let answer = files.opened(node.inode, opening, opened, |file| reply.open_backing(file));
            let (ttl, attr) = (shorter_ttl(&node), file_attr(numbers, &node));
            let OpenReply { handle, flags, backing } = answer;
            match backing {
                Some(backing) => reply.created_passthrough(&ttl, &attr, GENERATION, handle, flags, &backing),
                None => reply.created(&ttl, &attr, GENERATION, handle, flags),
            }
        }
        Err(errno) => reply.error(errno),
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
    /// `register` registers a backing file with the kernel for passthrough.
    pub(super) fn open(
        &self,
        request: &Request,
        inode: InodeId,
        bits: i32,
        register: impl FnOnce(&File) -> io::Result<BackingId>,
    ) -> Result<OpenReply> {
        let flags = OpenFlags::from_bits(bits).ok_or(Errno::EINVAL)?;
        let opened = self.callers.run(request, |caller| block_on(self.fs.open(caller, inode, flags)))?;
        Ok(self.files.opened(inode, flags, opened, register))
    }

    /// `page`: the kernel reads into its page cache, rather than directly for a caller.
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
        // Pages written through a mapping go to their own offset, regardless of the flags of the handle that the kernel
        // uses to write them back.
        if how.contains(KernelWriteFlags::FUSE_WRITE_CACHE) {
            return self.write_pages(handle, offset, data);
        }
        if how.contains(KernelWriteFlags::FUSE_WRITE_KILL_SUIDGID) {
            block_on(self.fs.drop_set_id_of(handle, || self.callers.identified(request)))?;
        }
        block_on(self.fs.drop_capabilities_of(handle))?;
        // The kernel demands it of every writer without CAP_FSETID, if the file has set-id bits or not.
        let keeps_set_id = !matches!(self.callers, Callers::Ids { .. })
            && self.kills_set_id
            && !how.contains(KernelWriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let flags = WriteFlags { keeps_set_id, ..WriteFlags::from_bits(flags.0) };
        block_on(self.fs.write_with(handle, offset, data, flags))
    }

    /// Writes everything or fails: the kernel treats a partly written page as written, and reports success to fsync.
    fn write_pages(&self, handle: Handle, offset: u64, data: &[u8]) -> Result<usize> {
        let flags = WriteFlags { mapped: true, ..WriteFlags::default() };
        let mut done = 0;
        while done < data.len() {
            match block_on(self.fs.write_with(handle, offset + done as u64, &data[done..], flags))? {
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
            // The kernel handles the other values itself.
            _ => return Err(Errno::EINVAL.into()),
        };
        let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
        let found = block_on(self.fs.seek(handle, offset, whence))?;
        i64::try_from(found).map_err(|_| Errno::EOVERFLOW.into())
    }
}
