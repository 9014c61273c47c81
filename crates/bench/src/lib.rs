//! `varve bench`: workloads, their ceilings, the measurement and the report.
//!
//! A run measures several *targets* (a volume through its library, a mount, a plain directory) in turns, so that all of
//! them see the same conditions. In the same turns it measures the *ceilings*: the upper bounds of the transport and
//! the kernel on this machine. The result is a [`report::BenchReport`], which prints itself as mdtest's summary, as
//! JSON and as a page. Entry points: [`workloads::mdtest::run`] and [`workloads::stream::run`].
//!
//! A suite ([`suite::run`]) runs several workloads and hands over a [`run_file::RunFile`], which [`run_report`] shows,
//! [`run_compare`] compares, [`assertion`] checks, and [`load_plan`] reads.
//!
//! A run keeps all its files in one directory of each target. It removes that directory at its end, also after errors
//! and SIGINT.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a benchmark measures the real clock with real threads on real files; nothing here is ever simulated"
)]

pub mod assertion;
pub mod ceilings;
pub mod environment;
mod error;
pub mod import;
mod interrupt;
pub mod load_plan;
pub mod measure;
mod progress;
pub mod ranks;
pub mod report;
pub mod results;
pub mod run_compare;
pub mod run_file;
pub mod run_report;
pub mod suite;
pub mod target;
pub mod workloads;

pub use error::{Error, Result};
