//! Administration of a volume whose server is stopped, and dumps of one that is served.
//!
//! [`mod@format`] creates a volume. [`fsck`] checks and repairs it. [`dump`] writes its metadata to a file and creates a
//! volume from such a file. [`paths`] finds the names of an inode. They read all rows at one instant ([`snapshot`]).
//! Meanwhile [`maintenance`] keeps servers away.

pub mod dump;
pub mod format;
pub mod fsck;
pub mod maintenance;
pub mod paths;
pub mod snapshot;
