//! Every decoder of bytes that come from a disk, a socket or a user, as functions that a fuzzer can call.
//!
//! The same [`targets`] run in two ways: by `cargo test`, with the corpus and a fixed number of mutations of it
//! ([`mutation`]); and by `make fuzz`, guided by coverage, for any length of time. A target must not panic, and must
//! not take more memory than its limit, whatever lengths the bytes claim ([`allocation`]).
//!
//! `corpus/<target>/` holds inputs that a target must always survive. `golden-…` files are valid and must be read,
//! because earlier versions have written them (messages, which are not stored, are of the present protocol version);
//! all other files are findings.

#![allow(
    clippy::disallowed_methods,
    reason = "a fuzzer is the outside: it writes bytes where decoders look for them, and measures"
)]

pub mod allocation;
pub mod mutation;
pub mod targets;
