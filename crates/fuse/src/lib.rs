//! The FUSE frontend of Varve: a volume as a directory of this machine.
//!
//! [`mount`] is the one entry; [`unmount`](unmount::unmount) ends what it began, from any process. [`stats`] and [`info`]
//! ask a mount about itself. [`null`] is the ceiling that `varve bench` measures the frontend against.

mod attach;
mod detach;
mod errno;
mod error;
mod frontend;
mod invalidation;
mod mounts;
pub mod null;
mod options;
mod session;
pub mod unmount;
mod virtual_xattrs;

pub use attach::check_target;
pub use error::{Error, Result};
pub use mounts::source_of;
pub use options::{Access, MountOptions, OptionError, THREADS_MAX};
pub use session::{MountSession, Unmounter, mount};
pub use virtual_xattrs::{info, stats, timeouts};
