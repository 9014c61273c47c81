//! What is agreed with the kernel when a mount begins.

use fuser::{InitFlags, KernelConfig};

/// The largest write and read request. More has no use: 256 pages are the kernel's own limit
/// (`fs.fuse.max_pages_limit`), and at 1 MiB the request's own cost is lost in the copying.
pub(crate) const REQUEST_BYTES_MAX: u32 = 1024 * 1024;
/// Readahead and asynchronous direct I/O requests in flight; the kernel's default of 12 starves fast stores.
const BACKGROUND_MAX: u16 = 64;
/// How many file systems may be stacked below a mount with passthrough: the store itself may be none. With 2, nothing
/// (such as an overlay) could be stacked on top of the mount.
const STACK_DEPTH_MAX: u32 = 1;

/// Taken wherever the kernel has them.
///
/// FUSE_HANDLE_KILLPRIV_V2 spares a request for the xattr `security.capability` before every write(2): 12 instead of 24 µs
/// a write of 4 KiB, and 1.4 instead of 12 µs with passthrough (measured on Linux 6.18). The set-id bits are then ours
/// to clear: the server does so when a size or owner changes, and before a write the kernel asks by a SETATTR that
/// names no attribute (`setattr` in `door.rs`).
///
/// Left out on purpose: FUSE_ATOMIC_O_TRUNC (the kernel would have the file cut by the OPEN, before it looks whether that is
/// allowed: `open(program, O_RDONLY | O_TRUNC)` of a program that runs would empty it, and then fail with ETXTBSY);
/// FUSE_WRITEBACK_CACHE (the kernel would keep dirty pages and times of its own, and refuses
/// passthrough beside it), FUSE_POSIX_LOCKS and FUSE_FLOCK_LOCKS (one mount: the kernel keeps locks itself),
/// FUSE_DONT_MASK and FUSE_POSIX_ACL (no ACLs), FUSE_SPLICE_* (payloads are copied once either way),
/// FUSE_EXPORT_SUPPORT (an inode that nobody looked up cannot be found by its number alone).
///
/// FUSE_ASYNC_DIO is not among them: by it the pieces of one direct write that is larger than a request are sent at once, and come
/// in any order. To append them in theirs would take a kernel that knows where the file ends, which none does of what others
/// write, or a store cuts and does not say so. It costs a single thread the overlap of its requests past the page cache: those of
/// a large O_DIRECT write or read, and of libaio.
const WANTED: &[InitFlags] = &[
    InitFlags::FUSE_ASYNC_READ,
    InitFlags::FUSE_BIG_WRITES,
    InitFlags::FUSE_MAX_PAGES,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    // A symlink's target never changes while its inode lives.
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
];

/// `alone`: nobody else can change the volume, so cached pages stay right even when the times of their file change.
///
/// Answers whether the kernel keeps its page cache coherent with I/O that goes past it. The kernels that do (Linux 6.6)
/// are those that let such files be mapped.
pub(crate) fn negotiate(config: &mut KernelConfig, passthrough: bool, alone: bool) -> bool {
    for flag in WANTED {
        request(config, *flag);
    }
    let direct_is_coherent = request(config, InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
    if !alone {
        request(config, InitFlags::FUSE_AUTO_INVAL_DATA);
    }
    if passthrough && request(config, InitFlags::FUSE_PASSTHROUGH) {
        config.set_max_stack_depth(STACK_DEPTH_MAX).expect("the kernel's limit is 2");
    }
    config.set_max_write(REQUEST_BYTES_MAX).expect("below the session's buffer");
    config.set_max_background(BACKGROUND_MAX).expect("above zero");
    direct_is_coherent
}

fn request(config: &mut KernelConfig, flag: InitFlags) -> bool {
    let granted = config.add_capabilities(flag).is_ok();
    if !granted {
        tracing::debug!(?flag, "the kernel has no such capability");
    }
    granted
}
