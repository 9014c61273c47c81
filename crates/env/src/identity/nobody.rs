//! The uid of users that the kernel cannot map here.

use std::sync::OnceLock;

/// `nobody` on every Linux system, and the uid that the kernel shows for users without a mapping here (a user namespace,
/// a file server that squashes uids), unless it is configured differently.
pub const NOBODY: u32 = 65534;

/// Whether this uid stands for all users without a mapping here. It must never count as a user: two files with it need
/// not have the same owner.
pub fn is_nobody(uid: u32) -> bool {
    static SHOWN: OnceLock<[u32; 2]> = OnceLock::new();
    let read = |path| std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(NOBODY);
    let shown = SHOWN.get_or_init(|| ["/proc/sys/kernel/overflowuid", "/proc/sys/fs/overflowuid"].map(read));
    uid == NOBODY || shown.contains(&uid)
}
