//! The detector service writes N-dimensional frames to one ordinary HDF5 file per run and compresses them on all
//! available threads.
//!
//! - [`hdf5`]: encoding of the file; pure, no I/O.
//! - [`filters`]: compression in the framing of HDF5's registered filters.
//! - [`dataset_spec`]: specification of a run before it starts; [`frame`]: the frames of the run.
//! - [`catalog`]: state of a run's frames, pure, in [`column`]s; [`structure`] arranges it in groups and datasets,
//!   according to a [`layout`] file if there is one.
//! - [`allocate`], [`journal`], [`commit`], `length`, `space_reservation`: allocation of addresses, the record of
//!   writes, and safe publication to readers.
//! - [`report`]: time per stage, from the times in a file.
//! - [`advise`]: recommended settings, measured on the target directory.
//! - [`simulator`]: simulated detector frames.
//! - [`service`] receives frames over TCP; [`client`] sends them; [`control`] sends commands over HTTP.
//! - [`stream`]: the TCP protocol between detectors and the service.
//! - [`token`], [`tls`], [`host_check`]: authentication, encryption and protection from foreign web pages.
//! - [`writer`]: the complete writer. Entry: [`writer::Writer::create`]. After a crash: [`recover::recover`].

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
