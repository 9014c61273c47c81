//! One file per command: its arguments, its work and its output.

pub mod bench;
pub mod cluster;
pub mod completions;
pub mod detector;
pub mod doctor;
pub mod dump;
pub mod format;
pub mod fsck;
pub mod info;
pub mod key;
pub mod load;
pub mod man;
pub mod mount;
pub mod mount_helper;
pub mod path;
pub mod plan;
pub mod record;
pub mod report;
pub mod serve;
mod served;
pub mod stats;
pub mod status;
pub mod umount;
pub mod volume;
