//! DECTRIS stream2: each ZeroMQ message is a CBOR map of type start, image or end. `formats/stream2.md` describes the
//! subset that is read.
//!
//! - [`cbor`]: CBOR items, without copying. [`message`]: the three messages, decoded and, for the simulator, encoded.
//! - [`zmtp`]: the TCP protocol of ZeroMQ's PUSH and PULL sockets. [`push`]: a detector's end.
//! - [`series`]: conversion of a series of images to the dataset spec and frames of a run.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a process of its own with real threads, sockets and clocks, which no simulated cluster contains"
)]

pub mod cbor;
mod date;
pub mod message;
pub mod push;
pub mod series;
pub mod zmtp;

pub use message::{BadStream2Message, SeriesStart, Stream2Image, Stream2Message};
pub use push::Push;
pub use series::Stream2Series;

#[cfg(test)]
mod tests;
