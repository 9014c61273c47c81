//! The detector service: N-dimensional frames in, one ordinary HDF5 file out, compressed in parallel by as many threads
//! as there are.
//!
//! - [`hdf5`] the file's bytes: pure, no I/O.
//! - [`filters`] compression in the framing of HDF5's registered filters.
//! - [`dataset_spec`] what is said of a run before it starts; [`frame`] what comes then.
//! - [`catalog`] what is known of a run's frames, pure, in [`column`]s; [`structure`] lays it out as groups and datasets,
//!   after a [`layout`] file where there is one.
//! - [`allocate`], [`journal`], [`commit`], `length`, `space_reservation`: addresses; what was written where; what
//!   readers see, and safely.
//! - [`report`] what the times in a file say of the stages.
//! - [`advise`] what to ask of a run, measured where it will be written.
//! - [`simulator`] makes frames as detectors do.
//! - [`service`] takes frames over TCP; [`client`] brings them, [`control`] asks it over HTTP.
//! - [`stream`] what detectors and the service say to each other over TCP.
//! - [`token`], [`tls`], [`host_check`]: who is let in, over what.
//! - [`writer`] puts them together. Entry: [`writer::Writer::create`]. After a crash: [`recover::recover`].

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a process of its own with real threads, sockets and clocks, which no simulated cluster contains"
)]

pub mod advise;
pub mod allocate;
pub mod catalog;
pub mod cbf;
pub mod client;
pub mod column;
pub mod commit;
pub mod control;
pub mod dataset_spec;
pub mod filters;
pub mod frame;
pub mod hdf5;
pub mod host_check;
pub mod journal;
pub mod layout;
mod length;
pub mod recover;
pub mod replay;
pub mod report;
pub mod service;
pub mod simulator;
mod space_reservation;
pub mod stream;
pub mod stream2;
pub mod structure;
pub mod tls;
pub mod token;
pub mod writer;
