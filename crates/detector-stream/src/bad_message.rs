//! The error of bytes that are not a message.

/// Why bytes are not a valid message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadMessage(pub String);

pub(crate) fn bad<T>(text: impl Into<String>) -> Result<T, BadMessage> {
    Err(BadMessage(text.into()))
}
