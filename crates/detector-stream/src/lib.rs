//! The TCP protocol between detectors and the service. `formats/detector-stream.md` has the bytes. Heads are encoded
//! and decoded here without I/O; [`message`] and [`link`] transfer them over a byte stream.
//!
//! - [`client`] sends frames; [`control`] sends commands over HTTP.
//! - [`token`], [`tls`]: authentication and encryption, for both sides.
//!
//! Entry: [`ToService`], [`FromService`], [`client::Client::connect`].

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a process of its own with real threads, sockets and clocks, which no simulated cluster contains"
)]

pub mod answers;
mod bad_message;
pub mod client;
pub mod control;
pub mod frames;
pub mod hello;
pub mod link;
pub mod message;
mod read;
pub mod scalars;
mod socket;
pub mod tls;
mod to_service;
pub mod token;
mod version;

pub use answers::{Ack, ErrorCode, FinishedHead, FromService, Notice, NoticeCode, ShareHead, StreamRefusal, level_bit};
pub use bad_message::BadMessage;
pub use frames::FrameHead;
pub use hello::{StreamHello, StreamRole, StreamWelcome};
pub use message::{BodyChecksum, HEAD_BYTES_MAX, HEADER_BYTES, Header};
pub use scalars::ScalarsHead;
pub use socket::Socket;
pub use to_service::ToService;
pub use version::{KINDS_VERSION, NEWEST_VERSION, VERSION};

/// Upper limit for bodies. The limits of dataset specs keep frames and chunks below it.
pub const BODY_BYTES_MAX: u64 = 4 << 30;

#[cfg(test)]
mod tests;
