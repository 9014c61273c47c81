//! Open files.
//!
//! An [`OpenInode`] is shared by all handles of an inode. Its content is in memory while it fits the row. It is written
//! back at flush, close, fsync, getattr, or after the volume's sync interval. Larger content is in the backing file of
//! the store, which the client reads and writes directly.
//!
//! Invariants:
//! - An inode is registered with the server from before its first handle works until after its last one is closed.
//! - A backing file is written only while its row marks the size *stale*, so that the backing file's own size counts in
//!   every case. The row marks a size *authoritative* only when the store has it on disk ([`size_recording`]).
//! - Lock order: an inode's content (held across calls), then, each held briefly, the table of open inodes, an inode's
//!   counts, its backing file, and the state that calls share.

mod backing;
mod catch_up;
mod content;
mod failures;
mod fetch_order;
mod inline;
mod io;
mod large_file_prediction;
mod open;
mod pages;
mod set_times;
mod size_check;
mod size_recording;
mod space;
mod write_behind;

pub(crate) use backing::blocks as backing_blocks;
pub(crate) use content::OpenInode;
pub(crate) use fetch_order::FetchTicket;
pub(crate) use pages::Version;
pub use size_recording::StaleSizes;

use crate::{Failure, OpenMode, Result};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use varve_env::clock::Instant;
use varve_env::disk::File;
use varve_types::{Credentials, Errno, InodeId, VolumeSettings};

/// An open file of this client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(pub u64);

/// Linux's `__FMODE_EXEC`: the kernel opens the file to run it. open(2) removes the bit from the flags of a program and
/// openat2(2) refuses it, so only execve(2) sets it.
const FOR_EXECUTION: i32 = 0x20;

/// The flags of open(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFlags {
    pub mode: OpenMode,
    /// `O_APPEND`: every write goes to the end.
    pub append: bool,
    /// `O_TRUNC`
    pub truncate: bool,
    /// `O_EXCL`, for [`crate::FileSystem::create`].
    pub exclusive: bool,
    /// `O_DIRECT`. The kernel implements its semantics.
    pub direct: bool,
}

impl OpenFlags {
    pub const READ: OpenFlags =
        OpenFlags { mode: OpenMode::Read, append: false, truncate: false, exclusive: false, direct: false };
    pub const READ_WRITE: OpenFlags = OpenFlags { mode: OpenMode::ReadWrite, ..OpenFlags::READ };

    /// Converts open(2)'s flags. `None` if the access mode is none of the three.
    pub fn from_bits(bits: i32) -> Option<OpenFlags> {
        let mode = match bits & libc::O_ACCMODE {
            libc::O_RDONLY if bits & FOR_EXECUTION != 0 => OpenMode::Execute,
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
            direct: has(libc::O_DIRECT),
        })
    }

    pub fn writable(&self) -> bool {
        self.mode.writes()
    }

    pub fn readable(&self) -> bool {
        self.mode != OpenMode::Write
    }
}

/// Options of one write. fcntl(2) and pwritev2(2) can change them for each write, whatever the file was opened with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteFlags {
    /// `O_APPEND`: write at the end.
    pub append: bool,
    /// `O_DSYNC` or `O_SYNC`: on disk before the reply, unless the kernel syncs itself.
    pub sync: bool,
    /// `O_DSYNC` alone: like fdatasync(2).
    pub data_only: bool,
    /// Pages that were changed through a mapping, at some time since they were last written.
    pub mapped: bool,
    /// The writer is privileged: set-id bits stay.
    pub keeps_set_id: bool,
}

impl WriteFlags {
    /// From the file's current flags, which fcntl(2) can change.
    pub fn from_bits(bits: i32) -> WriteFlags {
        let has = |flag| bits & flag == flag;
        WriteFlags {
            append: has(libc::O_APPEND),
            sync: has(libc::O_DSYNC),
            data_only: !has(libc::O_SYNC),
            ..WriteFlags::default()
        }
    }
}

/// How the kernel must do the I/O of a handle.
#[derive(Clone, Debug)]
pub enum Io {
    /// Through its page cache. `keep`: pages from an earlier open are still valid.
    Cached { keep: bool },
    /// Past its page cache, which the kernel keeps coherent. Such handles may coexist with cached ones; those that
    /// cannot be read may also coexist with passthrough handles, because only a mapping uses the page cache. `keep`: as
    /// above, for mapped pages.
    Direct { keep: bool },
    /// On the backing file itself; all passthrough opens of an inode share one descriptor. If the kernel refuses, the
    /// frontend calls [`crate::FileSystem::decline_passthrough`] and uses the mode that it returns.
    Passthrough(Arc<File>),
}

#[derive(Clone, Debug)]
pub struct OpenedFile {
    pub handle: Handle,
    pub io: Io,
}

/// The two kinds of lseek(2) that search for data and holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    Data,
    Hole,
}

/// One handle.
pub(crate) struct OpenHandle {
    pub inode: Arc<OpenInode>,
    pub flags: OpenFlags,
    /// The credentials for writing content back.
    pub caller: Credentials,
    pub handle_io: Mutex<HandleIo>,
    /// The number of the file's [`Failures`](failures::Failures) that were reported to this handle.
    pub failures_known: AtomicU64,
}

impl OpenHandle {
    /// The credentials for writing content back that was written now.
    fn writer(&self, keeps_set_id: bool) -> Credentials {
        match keeps_set_id {
            true => self.caller.clone().with_fsetid(),
            false => self.caller.clone(),
        }
    }
}

/// [`Io`], as a handle stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandleIo {
    Cached,
    Direct,
    Passthrough,
}

impl From<&Io> for HandleIo {
    fn from(io: &Io) -> HandleIo {
        match io {
            Io::Cached { .. } => HandleIo::Cached,
            Io::Direct { .. } => HandleIo::Direct,
            Io::Passthrough(_) => HandleIo::Passthrough,
        }
    }
}

/// Maximum size of a file: the range of `off_t`.
pub(crate) const FILE_BYTES_MAX: u64 = i64::MAX as u64;

pub(crate) struct FileTable {
    inline_limit: usize,
    inodes: Mutex<HashMap<InodeId, Arc<OpenInode>>>,
    handles: RwLock<HashMap<u64, Arc<OpenHandle>>>,
    handles_made: AtomicU64,
    /// Inodes whose content waits for write-back, since when, and how many bytes it has.
    dirty: Mutex<HashMap<InodeId, (Instant, usize)>>,
    dirty_bytes: AtomicUsize,
    outdated: fetch_order::Outdated,
    replaced: catch_up::ReplacedFiles,
    size_queue: Mutex<size_recording::SizeQueue>,
    write_behind: write_behind::WriteBehind,
    pub(crate) prediction: large_file_prediction::LargeFilePredictor,
    /// The kernel refused a passthrough, and would refuse the next one too.
    passthrough_refused: AtomicBool,
    /// Number of handles so far that were passed through: their writes bypass the page cache.
    passed_through: AtomicU64,
    /// The kernel keeps its page cache coherent with direct I/O.
    direct_is_coherent: AtomicBool,
    pub(crate) kernel_kills_set_id: AtomicBool,
}

impl FileTable {
    pub fn new(settings: &VolumeSettings) -> FileTable {
        FileTable {
            inline_limit: settings.inline_limit as usize,
            inodes: Mutex::default(),
            handles: RwLock::default(),
            handles_made: AtomicU64::new(0),
            dirty: Mutex::default(),
            dirty_bytes: AtomicUsize::new(0),
            outdated: fetch_order::Outdated::default(),
            replaced: catch_up::ReplacedFiles::default(),
            size_queue: Mutex::default(),
            write_behind: write_behind::WriteBehind::default(),
            prediction: large_file_prediction::LargeFilePredictor::default(),
            passthrough_refused: AtomicBool::new(false),
            passed_through: AtomicU64::new(0),
            direct_is_coherent: AtomicBool::new(false),
            kernel_kills_set_id: AtomicBool::new(false),
        }
    }

    /// The open inode, if a handle of it exists.
    pub fn find(&self, inode: InodeId) -> Option<Arc<OpenInode>> {
        self.inodes.lock().get(&inode).cloned()
    }

    pub fn all(&self) -> Vec<Arc<OpenInode>> {
        self.inodes.lock().values().cloned().collect()
    }

    pub fn handle(&self, handle: Handle) -> Result<Arc<OpenHandle>> {
        let unknown = || Failure::new(Errno::EBADF, format!("there is no open file {}", handle.0));
        self.handles.read().get(&handle.0).cloned().ok_or_else(unknown)
    }

    /// Adds a handle to `inode`; [`FileTable::leave`] undoes it.
    fn enter(&self, inode: InodeId, writable: bool) -> Arc<OpenInode> {
        let mut inodes = self.inodes.lock();
        let open = inodes.entry(inode).or_insert_with(|| Arc::new(OpenInode::new(inode)));
        let mut counts = open.counts.lock();
        counts.handles += 1;
        counts.writers += usize::from(writable);
        drop(counts);
        Arc::clone(open)
    }

    /// Removes a handle. After the last one it calls `unregister`, before the inode can be entered again.
    fn leave(&self, open: &OpenInode, unregister: impl FnOnce()) {
        let mut inodes = self.inodes.lock();
        let mut counts = open.counts.lock();
        counts.handles -= 1;
        if counts.handles == 0 {
            drop(counts);
            self.outdated.note_reply(open.inode);
            inodes.remove(&open.inode);
            self.mark_clean(open.inode);
            unregister();
        }
    }

    fn insert(&self, handle: OpenHandle) -> Handle {
        let number = self.handles_made.fetch_add(1, Relaxed) + 1;
        self.handles.write().insert(number, Arc::new(handle));
        Handle(number)
    }

    fn remove(&self, handle: Handle) -> Option<Arc<OpenHandle>> {
        self.handles.write().remove(&handle.0)
    }

    /// Records that the content of `inode`, `bytes` long, waits for write-back. `true`: too many bytes wait.
    fn mark_dirty(&self, inode: InodeId, bytes: usize, now: Instant, bytes_max: usize) -> bool {
        let mut dirty = self.dirty.lock();
        let waiting = dirty.entry(inode).or_insert((now, 0));
        let before = std::mem::replace(&mut waiting.1, bytes);
        let total = self.dirty_bytes.load(Relaxed) + bytes - before;
        self.dirty_bytes.store(total, Relaxed);
        total > bytes_max
    }

    fn is_dirty(&self, inode: InodeId) -> bool {
        self.dirty.lock().contains_key(&inode)
    }

    /// Whether the content of any inode waits for write-back.
    pub fn has_dirty(&self) -> bool {
        !self.dirty.lock().is_empty()
    }

    fn mark_clean(&self, inode: InodeId) {
        let mut dirty = self.dirty.lock();
        if let Some((_, bytes)) = dirty.remove(&inode) {
            self.dirty_bytes.fetch_sub(bytes, Relaxed);
            self.outdated.note_reply(inode);
        }
    }

    /// Called before rows are requested.
    pub fn asking(&self) -> FetchTicket {
        self.outdated.asking()
    }

    /// Whether the row of a file, requested when `asked` was taken, may lack changes that this client has made.
    pub fn is_outdated(&self, inode: InodeId, asked: FetchTicket) -> bool {
        self.outdated.is(inode, asked)
    }

    /// Inodes that have waited for write-back since before `then`.
    fn dirty_since(&self, then: Instant) -> Vec<InodeId> {
        let dirty = self.dirty.lock();
        dirty.iter().filter(|(_, (since, _))| *since <= then).map(|(inode, _)| *inode).collect()
    }
}
