//! The detector service: N-dimensional frames in, one ordinary HDF5 file out, compressed in parallel by as many threads
//! and processes as there are.
//!
//! - [`hdf5`] the file's bytes: pure, no I/O.
//! - [`filters`] compression in the framing of HDF5's registered filters.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a process of its own with real threads, sockets and clocks, which no simulated cluster contains"
)]

pub mod filters;
pub mod hdf5;
