//! The FUSE frontend: it translates each kernel request to a client call, and the result to a reply. It decides nothing
//! itself.
//!
//! - **Credentials:** [`caller`] determines them. The kernel checks permissions (`default_permissions`) against the
//!   attributes it has cached, so that access(2) and the directories of a path cost no request. The server checks them
//!   again, except for root's mount that serves root's volume itself.
//! - **umask:** applied by the kernel. FUSE_DONT_MASK serves file systems whose default ACLs replace the umask; Varve
//!   has none, so the frontend does not request the flag, and `mode` already includes the `umask` argument.
//! - **Interrupts:** a call runs to its end. A killed caller waits until its call is answered, at the latest at the
//!   client's deadline; after the first interrupt `fuser` asks the kernel not to send more. Undoing half a change would
//!   do more harm, and a retry gets the first reply anyway.
//! - **Locks** (fcntl(2), flock(2)): kept by the kernel, which is correct as long as a volume has one mount.
//! - **Panics:** fail one call; see [`crate::errno::answer`].
//! - **Names** hold any byte but `/` and NUL.

mod attributes;
mod caller;
mod convert;
mod directories;
mod files;
mod handles;
mod init;
mod names;
mod passthrough;
mod xattrs;

pub(crate) use convert::bare_attr;
pub(crate) use files::with_buffer as with_read_buffer;
pub use init::BACKGROUND_MAX;
pub(crate) use init::{Wishes, negotiate};
pub(crate) use passthrough::PassthroughCount;

use crate::errno::answer;
use crate::numbers::NodeNumbers;
use crate::options::{Access, MountOptions};
use crate::session::{CallsInProgress, CloseOutcome};
use caller::{Callers, identity};
use convert::{file_attr, kernel_ttl};
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, FileType, Filesystem, Generation, INodeNo,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek,
    ReplyOpen, ReplyPoll, ReplyStatfs, ReplyStatx, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;
use varve_client::{FileSystem, NodeInfo, block_on};
use varve_types::{Credentials, InodeId};

/// Inode ids are never reused, so every inode has the same generation.
const GENERATION: Generation = Generation(0);

pub(crate) struct FuseFrontend {
    fs: Arc<FileSystem>,
    numbers: NodeNumbers,
    files: Arc<files::OpenContext>,
    passthrough_wanted: bool,
    closed: CloseOutcome,
    callers: Callers,
    /// Whether all users may use the mount. Otherwise their ids are needed to refuse the others.
    for_everyone: bool,
    /// [`init::Granted::kills_set_id`]
    kills_set_id: bool,
    calls: CallsInProgress,
}

impl FuseFrontend {
    /// `trusted`: mount and volume are root's.
    pub fn new(fs: Arc<FileSystem>, options: &MountOptions, trusted: bool, closed: CloseOutcome) -> FuseFrontend {
        let files = Arc::new(files::OpenContext::of(Arc::clone(&fs)));
        let numbers = NodeNumbers::of_mount(options.inode32, fs.settings().shards);
        let callers = Callers::of_mount(trusted, fs.embedded(), fs.settings().owner_uid);
        let for_everyone = options.access == Access::Everyone;
        let (passthrough_wanted, calls) = (options.passthrough, CallsInProgress::default());
        let kills_set_id = false;
        FuseFrontend { fs, numbers, files, passthrough_wanted, closed, callers, for_everyone, kills_set_id, calls }
    }

    /// Counts the calls for whose replies most programs wait.
    pub fn calls(&self) -> &CallsInProgress {
        &self.calls
    }

    fn inode(&self, number: INodeNo) -> InodeId {
        self.numbers.inode(number)
    }

    /// [`answer`] for a request about an inode that may no longer exist.
    fn answer_of<T>(
        &self,
        request: &Request,
        what: &'static str,
        ino: INodeNo,
        call: impl FnOnce() -> varve_client::Result<T>,
    ) -> Result<T, Errno> {
        self.answer_waited(what, || self.fs.noticed(request.pid(), self.inode(ino), call()))
    }

    /// [`answer`] for a request that is counted.
    fn answer_waited<T>(&self, what: &'static str, call: impl FnOnce() -> varve_client::Result<T>) -> Result<T, Errno> {
        let _call = self.calls.enter();
        answer(what, call)
    }
}

fn entry(numbers: NodeNumbers, result: Result<NodeInfo, Errno>, reply: ReplyEntry) {
    match result {
        Ok(node) => {
            let (attributes_ttl, entry_ttl) = (kernel_ttl(node.attributes_ttl), kernel_ttl(node.entry_ttl));
            reply.entry_with_ttls(&attributes_ttl, &entry_ttl, &file_attr(numbers, &node), GENERATION);
        }
        Err(errno) => reply.error(errno),
    }
}

fn attributes(numbers: NodeNumbers, result: Result<NodeInfo, Errno>, reply: ReplyAttr) {
    match result {
        Ok(node) => reply.attr(&kernel_ttl(node.attributes_ttl), &file_attr(numbers, &node)),
        Err(errno) => reply.error(errno),
    }
}

fn done(result: Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

fn value(result: Result<Vec<u8>, Errno>, size: u32, reply: ReplyXattr) {
    match result {
        // A size of 0 requests the length of the value.
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(errno) => reply.error(errno),
    }
}

impl Filesystem for FuseFrontend {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let idmap = self.callers == Callers::Kernel && self.for_everyone;
        let alone = self.fs.embedded();
        let granted = negotiate(config, &Wishes { passthrough: self.passthrough_wanted, alone, idmap });
        if granted.direct_is_coherent {
            self.fs.direct_is_coherent();
        }
        if granted.kills_set_id {
            self.fs.kernel_kills_set_id();
        }
        self.kills_set_id = granted.kills_set_id;
        Ok(())
    }

    fn destroy(&mut self) {
        let closed = block_on(self.fs.shutdown()).map_err(|failure| failure.to_string());
        if let Err(failure) = &closed {
            tracing::error!("the volume could not be closed: {failure}");
        }
        // No other code sets it, and it is set once.
        self.closed.get_or_init(|| closed);
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if let Some(of) = handles::LookupByNumber::of(name) {
            return self.look_up_by_number(of, self.inode(parent), reply);
        }
        let parent = self.inode(parent);
        match self.answer_waited("lookup", || self.look_up_by(request, parent, name)) {
            Err(Errno::ENOENT) => {
                let ttl = kernel_ttl(self.fs.absent_ttl(parent, name.as_bytes()));
                match ttl.is_zero() {
                    true => reply.error(Errno::ENOENT),
                    // Inode 0 makes the kernel cache for `ttl` that the name does not exist.
                    false => reply.entry(&ttl, &bare_attr(0, FileType::RegularFile), GENERATION),
                }
            }
            result => entry(self.numbers, result, reply),
        }
    }

    fn forget(&self, _request: &Request, ino: INodeNo, nlookup: u64) {
        // Forget has no reply that could carry a failure; a panic is logged.
        let _ = answer("forget", || {
            self.fs.forget(self.inode(ino), nlookup);
            Ok(())
        });
    }

    fn getattr(&self, request: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let asked = || block_on(self.fs.attributes_by(request.pid(), &identity(request), self.inode(ino)));
        attributes(self.numbers, self.answer_of(request, "getattr", ino, asked), reply);
    }

    /// Requested by a statx(2) that asks for the birth time; the reply has all attributes.
    fn statx(&self, request: &Request, ino: INodeNo, _fh: Option<FileHandle>, _mask: u32, reply: ReplyStatx) {
        let asked = || block_on(self.fs.attributes_by(request.pid(), &identity(request), self.inode(ino)));
        match self.answer_of(request, "statx", ino, asked) {
            Ok(node) => reply.statx(&kernel_ttl(node.attributes_ttl), &file_attr(self.numbers, &node)),
            Err(errno) => reply.error(errno),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = varve_types::SetAttributes {
            mode: mode.map(varve_types::Mode::new),
            uid,
            gid,
            size,
            atime: atime.map(convert::set_time),
            mtime: mtime.map(convert::set_time),
            ctime: ctime.map(convert::requested_time),
        };
        let done = || self.set_attributes(request, self.inode(ino), set, fh.map(files::handle));
        attributes(self.numbers, self.answer_of(request, "setattr", ino, done), reply);
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        match self
            .answer_of(request, "readlink", ino, || block_on(self.fs.read_link(&identity(request), self.inode(ino))))
        {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(errno),
        }
    }

    fn mknod(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, rdev: u32, reply: ReplyEntry) {
        let result = answer("mknod", || {
            let node = convert::new_node(mode, rdev)?;
            let make = |caller: &Credentials| self.make_node(caller, self.inode(parent), name, mode, node.clone());
            match convert::sets_group_id(mode) {
                true => make(&self.callers.with_capabilities(request)),
                false => self.callers.run(request, make),
            }
        });
        entry(self.numbers, result, reply);
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        let make = |caller: &Credentials| self.make_directory(caller, self.inode(parent), name, mode);
        entry(self.numbers, answer("mkdir", || self.callers.run(request, make)), reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let unlink = |caller: &Credentials| self.unlink(caller, self.inode(parent), name);
        done(self.answer_waited("unlink", || self.callers.run(request, unlink)), reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let remove = |caller: &Credentials| self.remove_directory(caller, self.inode(parent), name);
        done(answer("rmdir", || self.callers.run(request, remove)), reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let make = |caller: &Credentials| self.make_symlink(caller, self.inode(parent), name, target);
        entry(self.numbers, answer("symlink", || self.callers.run(request, make)), reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let result = answer("rename", || {
            let (from, to) = ((self.inode(parent), name), (self.inode(newparent), newname));
            self.callers.run(request, |caller| self.rename(caller, from, to, flags))
        });
        done(result, reply);
    }

    fn link(&self, request: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let link = |caller: &Credentials| self.link(caller, self.inode(ino), self.inode(newparent), newname);
        let linked = || self.callers.run(request, link);
        let result = self.answer_of(request, "link", ino, linked);
        entry(self.numbers, result, reply);
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let opened = || self.open(request, self.inode(ino), flags.0, |file| reply.open_backing(file));
        match self.answer_of(request, "open", ino, opened) {
            Ok(files::OpenReply { handle, flags, backing: Some(backing) }) => {
                reply.opened_passthrough(handle, flags, &backing);
            }
            Ok(files::OpenReply { handle, flags, backing: None }) => reply.opened(handle, flags),
            Err(errno) => reply.error(errno),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let create = || self.create(request, self.inode(parent), name, mode, flags);
        files::created(self.numbers, &self.files, self.answer_waited("create", create), reply);
    }

    fn tmpfile(&self, request: &Request, parent: INodeNo, mode: u32, _umask: u32, flags: i32, reply: ReplyCreate) {
        let make = |caller: &Credentials| self.create_unnamed(caller, self.inode(parent), mode, flags);
        let result = answer("tmpfile", || match convert::sets_group_id(mode) {
            true => make(&self.callers.with_capabilities(request)),
            false => self.callers.run(request, make),
        });
        files::created(self.numbers, &self.files, result, reply);
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        files::with_buffer(size as usize, |buffer| {
            match answer("read", || self.read(files::handle(fh), offset, buffer, owner.is_none())) {
                Ok(length) => reply.data(&buffer[..length]),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn write(
        &self,
        request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = answer("write", || self.write(request, files::handle(fh), offset, data, write_flags, flags));
        match written {
            Ok(written) => reply.written(written as u32),
            Err(errno) => reply.error(errno),
        }
    }

    fn flush(&self, _request: &Request, _ino: INodeNo, fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        done(answer("flush", || block_on(self.fs.flush(files::handle(fh)))), reply);
    }

    fn fsync(&self, _request: &Request, _ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        done(answer("fsync", || block_on(self.fs.fsync(files::handle(fh), datasync))), reply);
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        done(answer("release", || self.release(files::handle(fh))), reply);
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let open = |caller: &Credentials| block_on(self.fs.open_directory_cached(caller, self.inode(ino)));
        match answer("opendir", || self.callers.run(request, open)) {
            Ok((handle, listing)) => reply.opened(FileHandle(handle.0), directories::open_flags(listing)),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(&self, _request: &Request, _ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        match answer("readdir", || self.list(fh, offset, &mut reply)) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        match answer("readdirplus", || self.list_plus(self.inode(ino), fh, offset, &mut reply)) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn releasedir(&self, _request: &Request, _ino: INodeNo, fh: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        let result = answer("releasedir", || {
            self.fs.close_directory(directories::handle(fh));
            Ok(())
        });
        done(result, reply);
    }

    fn fsyncdir(&self, _request: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        done(answer("fsyncdir", || block_on(self.fs.fsync_directory(self.inode(ino)))), reply);
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        match answer("statfs", || block_on(self.fs.statistics())) {
            Ok(of) => reply.statfs(
                of.blocks,
                of.blocks_free,
                of.blocks_available,
                of.files,
                of.files_free,
                of.block_bytes as u32,
                of.name_bytes_max,
                of.block_bytes as u32,
            ),
            Err(errno) => reply.error(errno),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let set = || self.callers.run(request, |caller| self.set_xattr(caller, self.inode(ino), name, value, flags));
        done(self.answer_of(request, "setxattr", ino, set), reply);
    }

    fn getxattr(&self, request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let got = || self.get_xattr(request, self.inode(ino), name);
        value(self.answer_of(request, "getxattr", ino, got), size, reply);
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let listed = || self.list_xattrs(&self.callers.identified(request), self.inode(ino));
        value(self.answer_of(request, "listxattr", ino, listed), size, reply);
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = || self.remove_xattr(request, self.inode(ino), name);
        done(self.answer_of(request, "removexattr", ino, removed), reply);
    }

    /// Never called: the kernel checks permissions itself (`default_permissions`).
    fn access(&self, _request: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    /// Files are always ready; after ENOSYS the kernel sends no more poll requests.
    fn poll(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _notifier: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        done(answer("fallocate", || block_on(self.fs.allocate(files::handle(fh), mode, offset, length))), reply);
    }

    fn lseek(&self, _request: &Request, _ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        match answer("lseek", || self.seek(files::handle(fh), offset, whence)) {
            Ok(position) => reply.offset(position),
            Err(errno) => reply.error(errno),
        }
    }

    fn copy_file_range(
        &self,
        _request: &Request,
        _ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        _ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let result = answer("copy_file_range", || {
            let length = len.min(files::COPY_BYTES_MAX);
            block_on(self.fs.copy_range(files::handle(fh_in), offset_in, files::handle(fh_out), offset_out, length))
        });
        match result {
            Ok(copied) => reply.written(copied as u32),
            Err(errno) => reply.error(errno),
        }
    }
}
