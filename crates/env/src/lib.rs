//! The only access to the environment: clock, random numbers, sockets, disk, the object store over a POSIX directory, and
//! the layout of a volume's directory.
//!
//! All other code reaches time, randomness and files through this crate (`clippy.toml` bans direct access), so that a
//! whole cluster can later run on one thread from one seed. This crate does not interpret the bytes it stores.

// This crate makes the system calls that the other crates must not make.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod cgroup;
pub mod clock;
pub mod disk;
pub mod flock;
pub mod identity;
pub mod key_hash;
pub mod mount_table;
pub mod net;
pub mod posix_store;
pub mod power_loss;
pub mod printable;
pub mod priority;
pub mod private_file;
pub mod process_metrics;
pub mod random;
pub mod rate_limited_log;
pub mod readiness;
pub mod reserve;
pub mod runtime_dir;
pub mod service_manager;
pub mod shm_slot;
pub mod spin;
pub mod stages;
pub mod stop_point;
pub mod store_path;
pub mod store_url;
pub mod toml_text;
pub mod trusted_path;
pub mod volume_dir;
