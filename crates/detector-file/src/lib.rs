//! The file of one detector run on disk, apart from the threads that write frames: its journal, the allocation of
//! addresses, commits, and recovery after a crash.
//!
//! - [`run_files`]: names of a run's files; [`store_error`]: errors of a full store.
//! - [`journal`]: the record of writes. [`allocate`], [`length`], [`space_reservation`]: addresses, the file's length,
//!   and space for the next commits.
//! - [`commit`]: safe publication to readers.
//! - [`compact`]: a smaller copy of a finished file.
//! - [`recover`]: a valid file from the journal and the bytes in the file. Entry: [`recover::recover`].
//! - [`report`]: time per stage, from the times in a file.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a process of its own with real threads, sockets and clocks, which no simulated cluster contains"
)]

pub mod allocate;
pub mod commit;
pub mod compact;
pub mod journal;
pub mod length;
pub mod recover;
pub mod report;
pub mod run_files;
pub mod space_reservation;
pub mod store_error;
