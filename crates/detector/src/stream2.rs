//! DECTRIS stream2: one ZeroMQ message a CBOR map, of kind start, image or end. What we read of it is in
//! `formats/stream2.md`.
//!
//! - [`cbor`] items of CBOR, without copying. [`message`] the three messages, decoded and, for the simulator, encoded.
//! - [`zmtp`] what PUSH and PULL sockets of ZeroMQ say to each other over TCP; [`push`] a detector's end.
//! - [`series`] a series of images as the description and the frames of a run.

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
