//! `varve bench`: workloads, the ceilings above them, how they are measured, and the report.
//!
//! A run measures several *targets* (a volume through its library, a mount, a plain directory) in turns, so that each
//! is seen next to the others under the same weather, and in the same turns the *ceilings*: what the transport and
//! the kernel allow at most on this machine. What leaves this crate is a [`report::BenchReport`], which prints itself
//! as mdtest's summary, as JSON and as a page. Entries: [`workloads::mdtest::run`] and [`workloads::stream::run`].
//!
//! Everything that a run makes lies in one directory of each target, and is removed at its end, after errors and
//! after SIGINT too.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a benchmark measures the real clock with real threads on real files; nothing here is ever simulated"
)]

pub mod ceilings;
pub mod environment;
mod error;
mod interrupt;
pub mod measure;
mod progress;
pub mod report;
pub mod target;
pub mod workloads;

pub use error::{Error, Result};
