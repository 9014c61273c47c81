//! How the C library's allocator gives memory back.

/// Allocations from this size on have pages of their own, and no more than this lies free at the end of an arena: below what
/// tables are read and written with, above what a request or an answer takes.
#[cfg(target_env = "gnu")]
const BYTES: libc::c_int = 256 * 1024;

/// Has large allocations go back to the system as soon as they are freed, in the whole process. glibc begins so, and with
/// each that is freed takes such sizes, up to 32 MiB, from its arenas from then on, where small rows come to lie around them
/// and keep their pages: a fifth of a server's memory (docs/measurements/2026-11-22-removals.md). To be called before there
/// are threads.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    for option in [libc::M_MMAP_THRESHOLD, libc::M_TRIM_THRESHOLD] {
        // SAFETY: it sets a number of the allocator, and no other thread sets one.
        if unsafe { libc::mallopt(option, BYTES) } == 0 {
            tracing::debug!(option, "the allocator takes no option");
        }
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use std::hint::black_box;

    const MIB: usize = 1024 * 1024;

    /// Promise: a large allocation has pages of its own also after a larger one was freed, so they go back to the system.
    #[test]
    fn what_is_large_is_given_back() {
        super::give_back();
        drop(black_box(Vec::<u8>::with_capacity(30 * MIB)));
        // SAFETY: it only counts.
        let mapped = || unsafe { libc::mallinfo2() }.hblkhd;
        let before = mapped();
        let large = black_box(Vec::<u8>::with_capacity(20 * MIB));
        // Other tests of this process have theirs meanwhile, smaller ones.
        assert!(mapped() >= before + 10 * MIB, "{before} bytes before, {} after", mapped());
        drop(large);
    }
}
