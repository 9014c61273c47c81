//! Negotiates the connection's features with the kernel when a mount starts (FUSE_INIT).

use fuser::{InitFlags, KernelConfig};

/// The largest write and read request. Larger requests have no use: 256 pages are the kernel's own limit
/// (`fs.fuse.max_pages_limit`), and at 1 MiB the cost of a request is small beside that of copying its data.
pub(crate) const REQUEST_BYTES_MAX: u32 = 1024 * 1024;
/// Maximum of readahead and asynchronous direct I/O requests in flight; the kernel's default of 12 starves fast stores.
pub const BACKGROUND_MAX: u16 = 64;
/// Stacking depth of the file systems below a mount with passthrough: 1 means that the store itself must not be
/// stacked. With 2, nothing (such as an overlay) could be stacked on top of the mount.
const STACK_DEPTH_MAX: u32 = 1;

/// Flags that are requested wherever the kernel supports them, beside those of [`negotiate`].
///
/// FUSE_HANDLE_KILLPRIV_V2 avoids a request for the xattr `security.capability` before every write(2): 12 instead of 24
/// µs for a write of 4 KiB, and 1.4 instead of 12 µs with passthrough (measured on Linux 6.18). With it, Varve must
/// clear the set-id bits: the server does so when a size or owner changes, and before a write the kernel requests it by
/// a SETATTR that names no attribute (`setattr` in `frontend.rs`).
///
/// These flags are not requested, for these reasons:
///
/// - FUSE_ATOMIC_O_TRUNC: the OPEN request would truncate the file before the kernel checks that this is allowed.
///   `open(program, O_RDONLY | O_TRUNC)` of a running program would empty it, and then fail with ETXTBSY.
/// - FUSE_WRITEBACK_CACHE: the kernel would keep dirty pages and times of its own, and it refuses passthrough beside
///   it.
/// - FUSE_POSIX_LOCKS and FUSE_FLOCK_LOCKS: with one mount the kernel keeps locks itself.
/// - FUSE_DONT_MASK and FUSE_POSIX_ACL: Varve has no ACLs.
/// - FUSE_SPLICE_*: payloads are copied once either way.
/// - FUSE_ASYNC_DIO: the kernel would send the pieces of one direct write that is larger than a request at once, and
///   they arrive in any order. To append them in the right order, the kernel would have to know the end of the file. No
///   kernel knows it after other mounts write, or after a store truncates without a notification. The cost is that the
///   requests of a single thread past the page cache do not overlap: those of a large O_DIRECT write or read, and of
///   libaio.
const WANTED: &[InitFlags] = &[
    InitFlags::FUSE_ASYNC_READ,
    InitFlags::FUSE_BIG_WRITES,
    InitFlags::FUSE_MAX_PAGES,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    // A symlink's target never changes while its inode exists.
    InitFlags::FUSE_CACHE_SYMLINKS,
    // File handles: the kernel may ask for an inode by its number (`handles.rs`).
    InitFlags::FUSE_EXPORT_SUPPORT,
];

/// The features that a mount asks the kernel for.
pub(crate) struct Wishes {
    pub passthrough: bool,
    /// No other mount can change the volume, so cached pages stay valid even when the times of their file change.
    pub alone: bool,
    /// Id-mapped mounts (mount_setattr(2)). The kernel then names a caller only in requests that create files, so it
    /// must be the one who checks permissions.
    pub idmap: bool,
}

/// The features that the kernel has granted, as far as the frontend must know them.
pub(crate) struct Granted {
    /// The kernel keeps its page cache coherent with I/O that bypasses it. Kernels that do (since Linux 6.6) are those
    /// that allow such files to be mapped.
    pub direct_is_coherent: bool,
    /// The kernel says of each write(2) whether it takes the set-id bits (FUSE_HANDLE_KILLPRIV_V2).
    pub kills_set_id: bool,
}

pub(crate) fn negotiate(config: &mut KernelConfig, wishes: &Wishes) -> Granted {
    for flag in WANTED {
        request(config, *flag);
    }
    let kills_set_id = request(config, InitFlags::FUSE_HANDLE_KILLPRIV_V2);
    let direct_is_coherent = request(config, InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
    if !wishes.alone {
        request(config, InitFlags::FUSE_AUTO_INVAL_DATA);
    }
    if wishes.idmap {
        request(config, InitFlags::FUSE_ALLOW_IDMAP);
    }
    if wishes.passthrough && request(config, InitFlags::FUSE_PASSTHROUGH) {
        config.set_max_stack_depth(STACK_DEPTH_MAX).expect("the kernel's limit is 2");
    }
    config.set_max_write(REQUEST_BYTES_MAX).expect("below the session's buffer");
    config.set_max_background(BACKGROUND_MAX).expect("above zero");
    Granted { direct_is_coherent, kills_set_id }
}

fn request(config: &mut KernelConfig, flag: InitFlags) -> bool {
    let granted = config.add_capabilities(flag).is_ok();
    if !granted {
        tracing::debug!(?flag, "the kernel has no such capability");
    }
    granted
}
