//! The FUSE frontend of Varve: it presents a volume as a directory of this machine.
//!
//! [`mount`] is the one entry; [`unmount`](unmount::unmount) ends a mount from any process. [`stats`] and [`info`] read
//! the state of a mount. [`null`] is the ceiling that `varve bench` compares the frontend with.

mod attach;
mod detach;
mod errno;
mod error;
mod frontend;
mod invalidation;
mod mounts;
pub mod null;
mod numbers;
mod options;
mod remount;
mod session;
pub mod unmount;
mod virtual_xattrs;

pub use attach::check_target;
pub use error::{Error, Result};
pub use frontend::BACKGROUND_MAX;
pub use mounts::source_of;
pub use options::{Access, MountOptions, OptionError, THREADS_MAX, is_remountable};
pub use remount::remount;
pub use session::{MountSession, Unmounter, mount};
pub use virtual_xattrs::{info, stats, timeouts};
