//! A file system that only records which names exist. It shows the most that the kernel, `fuser` and this machine
//! allow: the ceiling that `varve bench --ceilings` compares the frontend with.
//!
//! It uses the same request loop, threads and kernel negotiation as a volume. Names are kept in memory. An inode number
//! is a hash of the parent's number and the name, so nothing else needs to be stored. Files can be created, written,
//! read (as zeroes), looked up, stat'ed and removed; directories can be made and removed. Listings are empty, and a
//! directory can be removed while names are in it. That is enough for mdtest, and no more.

use crate::error::Result;
use crate::frontend::{Wishes, bare_attr, negotiate, with_read_buffer};
use crate::options::MountOptions;
use crate::session::{self, CloseOutcome, MountSession};
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, KernelConfig, LockOwner,
    OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite,
    Request, TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use varve_client::Timeouts;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// More stripes than any test machine has threads, so that two threads rarely contend for one lock.
const STRIPES: usize = 64;
const ROOT: u64 = 1;
/// Smaller hashes would collide with the root or with the numbers that the kernel reserves.
const FIRST_INODE: u64 = 16;

#[derive(Clone, Copy)]
struct NullInode {
    directory: bool,
    mode: u16,
    size: u64,
}

/// Mounts the null file system at a directory.
///
/// `timeouts`: how long the kernel may cache replies; zero makes every operation a request.
///
/// # Errors
/// As [`crate::mount`].
pub fn mount(target: &Path, timeouts: Timeouts, options: &MountOptions) -> Result<MountSession> {
    session::start(NullFileSystem::new(timeouts), target, options, CloseOutcome::default(), None)
}

struct NullFileSystem {
    timeouts: Timeouts,
    stripes: [Mutex<HashMap<u64, NullInode>>; STRIPES],
}

impl NullFileSystem {
    fn new(timeouts: Timeouts) -> NullFileSystem {
        NullFileSystem { timeouts, stripes: std::array::from_fn(|_| Mutex::default()) }
    }

    fn stripe(&self, inode: u64) -> &Mutex<HashMap<u64, NullInode>> {
        &self.stripes[(inode >> 32) as usize % STRIPES]
    }

    fn get(&self, inode: u64) -> Option<NullInode> {
        match inode {
            ROOT => Some(NullInode { directory: true, mode: 0o777, size: 0 }),
            _ => self.stripe(inode).lock().get(&inode).copied(),
        }
    }

    fn attributes(&self, inode: u64) -> std::result::Result<FileAttr, Errno> {
        self.get(inode).map(|found| attr(inode, found)).ok_or(Errno::ENOENT)
    }

    fn make(&self, parent: INodeNo, name: &OsStr, new: NullInode) -> std::result::Result<FileAttr, Errno> {
        let inode = number(parent, name);
        match self.stripe(inode).lock().entry(inode) {
            std::collections::hash_map::Entry::Occupied(_) => Err(Errno::EEXIST),
            std::collections::hash_map::Entry::Vacant(place) => Ok(attr(inode, *place.insert(new))),
        }
    }

    fn remove(&self, parent: INodeNo, name: &OsStr, directory: bool) -> std::result::Result<(), Errno> {
        let inode = number(parent, name);
        let mut stripe = self.stripe(inode).lock();
        match stripe.get(&inode) {
            Some(found) if found.directory == directory => {
                stripe.remove(&inode);
                Ok(())
            }
            Some(_) if directory => Err(Errno::ENOTDIR),
            Some(_) => Err(Errno::EISDIR),
            None => Err(Errno::ENOENT),
        }
    }

    fn ttl(&self, kind: FileType) -> Duration {
        if kind == FileType::Directory { self.timeouts.directories } else { self.timeouts.files }
    }

    fn entry(&self, result: std::result::Result<FileAttr, Errno>, reply: ReplyEntry) {
        match result {
            Ok(attr) => reply.entry(&self.ttl(attr.kind), &attr, Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }
}

fn number(parent: INodeNo, name: &OsStr) -> u64 {
    xxh3_64_with_seed(name.as_bytes(), parent.0).max(FIRST_INODE)
}

fn attr(inode: u64, found: NullInode) -> FileAttr {
    FileAttr {
        ino: INodeNo(inode),
        size: found.size,
        blocks: found.size.div_ceil(512),
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: if found.directory { FileType::Directory } else { FileType::RegularFile },
        perm: found.mode,
        nlink: if found.directory { 2 } else { 1 },
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

fn done(result: std::result::Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

impl Filesystem for NullFileSystem {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        negotiate(config, &Wishes { passthrough: false, alone: true, idmap: false });
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attributes(number(parent, name)) {
            Err(Errno::ENOENT) if !self.timeouts.absent.is_zero() => {
                reply.entry(&self.timeouts.absent, &bare_attr(0, FileType::RegularFile), Generation(0));
            }
            found => self.entry(found, reply),
        }
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(ino.0) {
            Ok(attr) => reply.attr(&self.ttl(attr.kind), &attr),
            Err(errno) => reply.error(errno),
        }
    }

    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if let Some(found) = self.stripe(ino.0).lock().get_mut(&ino.0) {
            found.mode = mode.map_or(found.mode, |mode| mode as u16 & 0o7777);
            found.size = size.unwrap_or(found.size);
        }
        match self.attributes(ino.0) {
            Ok(attr) => reply.attr(&self.ttl(attr.kind), &attr),
            Err(errno) => reply.error(errno),
        }
    }

    fn mknod(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        let new = NullInode { directory: false, mode: mode as u16 & 0o7777, size: 0 };
        self.entry(self.make(parent, name, new), reply);
    }

    fn mkdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        let new = NullInode { directory: true, mode: mode as u16 & 0o7777, size: 0 };
        self.entry(self.make(parent, name, new), reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(self.remove(parent, name, false), reply);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(self.remove(parent, name, true), reply);
    }

    fn open(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn create(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let new = NullInode { directory: false, mode: mode as u16 & 0o7777, size: 0 };
        match self.make(parent, name, new) {
            Ok(attr) => reply.created(&self.timeouts.files, &attr, Generation(0), FileHandle(0), FopenFlags::empty()),
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let left = self.get(ino.0).map_or(0, |found| found.size.saturating_sub(offset));
        // The buffer still holds its initial zeroes, because nothing writes to it.
        with_read_buffer(left.min(size.into()) as usize, |zeroes| reply.data(zeroes));
    }

    fn write(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if let Some(found) = self.stripe(ino.0).lock().get_mut(&ino.0) {
            found.size = found.size.max(offset + data.len() as u64);
        }
        reply.written(data.len() as u32);
    }

    fn flush(&self, _request: &Request, _ino: INodeNo, _fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _request: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn readdir(&self, _request: &Request, _ino: INodeNo, _fh: FileHandle, _offset: u64, reply: ReplyDirectory) {
        reply.ok();
    }

    fn readdirplus(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _offset: u64,
        reply: fuser::ReplyDirectoryPlus,
    ) {
        reply.ok();
    }

    fn getxattr(&self, _request: &Request, _ino: INodeNo, _name: &OsStr, _size: u32, reply: fuser::ReplyXattr) {
        reply.error(Errno::ENODATA);
    }
}
