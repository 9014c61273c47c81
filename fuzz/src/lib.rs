//! Every decoder of bytes that come from a disk, a socket or a person, as functions that a fuzzer can call.
//!
//! The same [`targets`] are run in two ways: by `cargo test`, with the corpus and so many mutations of it
//! ([`mutation`]); and by `make fuzz`, guided by coverage, for as long as one likes. A target must not panic, and must
//! not take more memory than its limit, whatever lengths the bytes claim ([`allocation`]).
//!
//! `corpus/<target>/` holds what a target must always survive: `golden-…` are sound and must be read, for they are
//! bytes that versions before this one have written (messages, which nobody keeps: the present version of the protocol);
//! all other files are findings.

#![allow(
    clippy::disallowed_methods,
    reason = "a fuzzer is the outside: it writes bytes where decoders look for them, and measures"
)]

pub mod allocation;
pub mod mutation;
pub mod targets;
