//! One file a command: its arguments, what it does, what it prints.

pub mod completions;
pub mod format;
pub mod man;
pub mod stats;
