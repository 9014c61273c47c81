//! Tools around the detector service: sources of frames, and advice.
//!
//! - [`simulator`]: simulated detector frames; [`replay`]: frames of an existing series; [`cbf`]: miniCBF images.
//! - [`weld`]: one file from several and their virtual dataset, chunk by chunk.
//! - [`metadata`]: metadata files of users, with arrays from HDF5, npy and TIFF files.
//! - [`advise`]: recommended settings, measured on the target directory. Entry: [`advise::advise`].

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a process of its own with real threads, sockets and clocks, which no simulated cluster contains"
)]

pub mod advise;
pub mod cbf;
pub mod metadata;
pub mod replay;
pub mod simulator;
pub mod weld;
