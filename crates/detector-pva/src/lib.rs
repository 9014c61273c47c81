//! Client of EPICS pvAccess that subscribes to one NTNDArray, as areaDetector's pva plugin serves it.
//!
//! Layers, each above the previous: [`bytes`] (numbers, sizes, texts), [`field`] (descriptions of types), [`value`]
//! (values and their updates), [`message`] (headers and segments), [`channel`] (the conversation of a subscription), and
//! [`nt_ndarray`] (frames). [`search`] finds the server of a PV. I/O is any [`std::io::Read`] and [`std::io::Write`], so everything runs in tests without a
//! socket. Entry: [`channel::Subscription::open`].
//!
//! Invariant: a peer cannot make this crate allocate more than it sends, besides a constant.
//!
//! The protocol is described in <https://docs.epics-controls.org/en/latest/pv-access/protocol.html>.

pub mod bytes;
pub mod channel;
pub mod field;
pub mod message;
pub mod nt_ndarray;
pub mod search;
pub mod value;

/// A peer sent bytes that are not pvAccess, or not an NTNDArray.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadPva(pub String);

pub(crate) fn bad<T>(why: impl Into<String>) -> Result<T, BadPva> {
    Err(BadPva(why.into()))
}

#[cfg(test)]
mod tests;
