//! The key exchange: `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s`, by the `snow` crate, as two state machines without I/O.
//!
//! ```text
//! client → server   psk, e        payload: Offer
//! server → client   e, ee         payload: Welcome
//! ```
//!
//! Both payloads are encrypted under the pre-shared key, the second one and all records also under the fresh secret
//! `ee`, so a key that is stolen later decrypts no earlier recording. The prologue ([`Binding`]) holds the server's
//! nonce, so the first message already proves that the client holds the key now, and the second proves that the server
//! does.

use super::{Channel, KeyId, Nonce, Offer, Purpose, VolumeKey, Welcome};
use crate::record::Records;
use serde::Serialize;
use serde::de::DeserializeOwned;
use snow::{Builder, HandshakeState};

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";

/// First in the prologue: separates this protocol from any other that uses the same pattern and key.
const PROTOCOL: &[u8] = b"varve metadata";

/// Bytes that a message of the exchange adds to its payload: an ephemeral public key and a tag.
pub const MESSAGE_OVERHEAD: usize = 32 + 16;

/// The largest message of the exchange, as Noise defines it.
pub const MESSAGE_BYTES_MAX: usize = 65_535;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// The two sides hold different keys, or differ in a value that was sent in the clear. Neither side can distinguish
    /// the two cases.
    #[error("the peer does not have the same key, or received other handshake data than this side sent")]
    Unauthentic,
    #[error("a handshake message of {0} bytes is outside of {MESSAGE_OVERHEAD} to {MESSAGE_BYTES_MAX}")]
    Size(usize),
    #[error("a handshake message is authentic, but not a message of this version: {0}")]
    Malformed(String),
    #[error("the key exchange failed: {0}")]
    Failed(String),
}

/// The values on which both sides must agree. They form the prologue of the exchange and are not sent by it: if any
/// value differs, the exchange fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    pub volume: [u8; 16],
    pub key: KeyId,
    pub purpose: Purpose,
    pub session: u64,
    pub worker: u16,
    pub channel: Channel,
    /// The server's nonce for this connection.
    pub nonce: Nonce,
}

impl Binding {
    /// Every field has a fixed length, which for the purpose its first byte tells, so no two bindings have the same
    /// bytes.
    fn prologue(&self) -> Vec<u8> {
        let mut bytes = PROTOCOL.to_vec();
        bytes.extend_from_slice(&crate::VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.volume);
        bytes.extend_from_slice(&self.key.0.to_le_bytes());
        match self.purpose {
            Purpose::Work => bytes.push(0),
            Purpose::Observe => bytes.push(1),
            Purpose::Administer => bytes.push(2),
            Purpose::Peer { server } => {
                bytes.push(3);
                bytes.extend_from_slice(&server.to_le_bytes());
            }
        }
        bytes.extend_from_slice(&self.session.to_le_bytes());
        bytes.extend_from_slice(&self.worker.to_le_bytes());
        bytes.push(match self.channel {
            Channel::Local => 0,
            Channel::Network => 1,
        });
        bytes.extend_from_slice(&self.nonce);
        bytes
    }
}

/// The client's side after it has sent its message.
pub struct Initiator(HandshakeState);

impl Initiator {
    /// Begins an exchange and returns the message for [`super::Hello::sealed`].
    pub fn begin(key: &VolumeKey, binding: &Binding, offer: &Offer) -> Result<(Initiator, Vec<u8>), ExchangeError> {
        let prologue = binding.prologue();
        let mut state = builder(key, &prologue)?.build_initiator().map_err(failed)?;
        let message = write(&mut state, offer)?;
        Ok((Initiator(state), message))
    }

    /// Reads the server's message. On success the server has proved that it holds the key, and the records can begin.
    pub fn finish(self, message: &[u8]) -> Result<(Welcome, Records), ExchangeError> {
        let Initiator(mut state) = self;
        let welcome = read(&mut state, message)?;
        Ok((welcome, Records::new(state.into_transport_mode().map_err(failed)?)))
    }
}

/// The server's side after it has read the client's message: the client has proved that it holds the key.
pub struct Responder(HandshakeState);

impl Responder {
    pub fn accept(key: &VolumeKey, binding: &Binding, message: &[u8]) -> Result<(Responder, Offer), ExchangeError> {
        let prologue = binding.prologue();
        let mut state = builder(key, &prologue)?.build_responder().map_err(failed)?;
        let offer = read(&mut state, message)?;
        Ok((Responder(state), offer))
    }

    /// Returns the message for [`super::Answer::Sealed`].
    pub fn finish(self, welcome: &Welcome) -> Result<(Vec<u8>, Records), ExchangeError> {
        let Responder(mut state) = self;
        let message = write(&mut state, welcome)?;
        Ok((message, Records::new(state.into_transport_mode().map_err(failed)?)))
    }
}

fn builder<'a>(key: &'a VolumeKey, prologue: &'a [u8]) -> Result<Builder<'a>, ExchangeError> {
    let params = PATTERN.parse().map_err(failed)?;
    Builder::new(params).prologue(prologue).and_then(|builder| builder.psk(0, &key.0)).map_err(failed)
}

fn write(state: &mut HandshakeState, payload: &impl Serialize) -> Result<Vec<u8>, ExchangeError> {
    let payload = postcard::to_stdvec(payload).map_err(|error| ExchangeError::Malformed(error.to_string()))?;
    let bytes = payload.len() + MESSAGE_OVERHEAD;
    if bytes > MESSAGE_BYTES_MAX {
        return Err(ExchangeError::Size(bytes));
    }
    let mut message = vec![0; bytes];
    let written = state.write_message(&payload, &mut message).map_err(failed)?;
    message.truncate(written);
    Ok(message)
}

fn read<M: DeserializeOwned>(state: &mut HandshakeState, message: &[u8]) -> Result<M, ExchangeError> {
    if !(MESSAGE_OVERHEAD..=MESSAGE_BYTES_MAX).contains(&message.len()) {
        return Err(ExchangeError::Size(message.len()));
    }
    let mut payload = vec![0; message.len()];
    let read = match state.read_message(message, &mut payload) {
        Ok(read) => read,
        Err(snow::Error::Decrypt | snow::Error::Dh) => return Err(ExchangeError::Unauthentic),
        Err(error) => return Err(failed(error)),
    };
    match postcard::take_from_bytes(&payload[..read]) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(ExchangeError::Malformed(format!("{} trailing bytes", rest.len()))),
        Err(error) => Err(ExchangeError::Malformed(error.to_string())),
    }
}

fn failed(error: snow::Error) -> ExchangeError {
    ExchangeError::Failed(format!("{error:?}"))
}

#[cfg(test)]
mod tests;
