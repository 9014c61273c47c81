//! The server's side of the handshake (`varve_proto::handshake`): it identifies the peer, verifies that the peer holds
//! a key, and decides whether to admit it.

use super::clients::{ClientStay, Clients};
use super::keys::KeyStay;
use super::local_stream::ShareMemory;
use super::sessions::{Admitted, NotAdmitted, Peer, SessionGuard};
use super::worker::Worker;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use varve_env::random;
use varve_proto::frame::{self, FrameError, HEADER_BYTES};
use varve_proto::handshake::exchange::{Binding, ExchangeError, Responder};
use varve_proto::handshake::{Answer, Greeting, HELLO_BYTES_MAX, Hello, Nonce, Offer, VolumeKey, Welcome};
use varve_types::{SessionId, VolumeId};

/// Deadline for the last reply to a peer whose handshake has failed. The reply fits into the buffer of any socket that
/// is being read.
const TELL_DEADLINE: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    #[error("the handshake did not complete within {0:?}")]
    Deadline(Duration),
    #[error("the connection ended in the handshake, after {0} bytes of a message")]
    Ended(usize),
    #[error("the first frame is not a Hello message: {0}")]
    Garbage(FrameError),
    #[error("refused: {0}")]
    Refused(String),
    #[error("limit reached: {0}")]
    Crowded(String),
    #[error("too many unauthenticated connections ({0}), of which this is the oldest")]
    Evicted(usize),
    #[error("cannot encrypt the server's reply: {0}")]
    Unsealed(#[from] ExchangeError),
    #[error("the connection failed in the handshake: {0}")]
    Io(#[from] std::io::Error),
}

/// The resources of an admitted connection; released on drop.
pub struct Stays {
    pub key: KeyStay,
    _session: SessionGuard,
    _client: ClientStay,
}

/// Admits the peer, or sends it the reason for the refusal.
pub async fn admit<R, W>(
    reader: &mut R,
    writer: &mut W,
    worker: &Rc<Worker>,
    peer: Peer,
) -> Result<(Admitted, Stays), HandshakeError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + ShareMemory + Unpin,
{
    let deadline = worker.shared.limits.handshake;
    let dialogue = async {
        let nonce = random::bytes();
        send(writer, &greeting(worker, nonce)).await?;
        let hello = match receive_hello(reader).await? {
            Ok(hello) => hello,
            Err(reason) => return refuse(writer, reason).await,
        };
        let proved = match prove(worker, &hello, nonce, writer).await? {
            Ok(proved) => proved,
            Err(reason) => return refuse(writer, reason).await,
        };
        match judge(worker, &hello, &proved, peer) {
            Ok((admitted, stays)) => {
                welcome(writer, worker, proved).await?;
                Ok((admitted, stays))
            }
            Err(not_admitted) => {
                let (error, welcome) = not_admitted.into_answer();
                let (sealed, _) = proved.responder.finish(&welcome)?;
                send(writer, &Answer::Sealed(sealed)).await?;
                Err(error)
            }
        }
    };
    let ended = tokio::time::timeout(deadline, dialogue).await.unwrap_or(Err(HandshakeError::Deadline(deadline)));
    if let Err(error @ (HandshakeError::Garbage(_) | HandshakeError::Ended(1..) | HandshakeError::Deadline(_))) = &ended
    {
        // A peer that made a mistake can read the reason. The server does not wait for a peer that does not read.
        let answer = Answer::Refused { reason: error.to_string() };
        let _ = tokio::time::timeout(TELL_DEADLINE, send(writer, &answer)).await;
    }
    ended
}

pub(super) fn greeting(worker: &Worker, nonce: Nonce) -> Greeting {
    Greeting { version: varve_proto::VERSION, volume: worker.shared.settings.id.0, nonce }
}

/// A client that has proved its key, and the offer that it made under that key.
struct Proved {
    responder: Responder,
    offer: Offer,
    key: VolumeKey,
}

/// Verifies that the client holds the key that it names. The inner error is a reason that may be sent to the peer
/// unencrypted.
async fn prove<W: ShareMemory>(
    worker: &Worker,
    hello: &Hello,
    nonce: Nonce,
    writer: &W,
) -> Result<Result<Proved, String>, HandshakeError> {
    let shared = &worker.shared;
    if hello.volume != shared.settings.id.0 {
        let (served, meant) = (shared.settings.id, VolumeId(hello.volume));
        return Ok(Err(format!("the server serves volume {served}, not {meant}")));
    }
    if usize::from(hello.worker) != worker.index {
        return Ok(Err(format!("this is worker {} of the server, not worker {}", worker.index, hello.worker)));
    }
    let key = match shared.keys.find(hello.key).await {
        Ok(Some(key)) => key,
        // The reply and the work are the same as for a wrong key, so that nobody can learn which key ids exist.
        Ok(None) => VolumeKey(random::bytes()),
        Err(error) => return Ok(Err(format!("the server cannot read the key {}: {error}", hello.key))),
    };
    let binding = Binding {
        volume: hello.volume,
        key: hello.key,
        purpose: hello.purpose,
        session: hello.session,
        worker: hello.worker,
        channel: writer.channel(),
        nonce,
    };
    Ok(match Responder::accept(&key, &binding, &hello.sealed) {
        Ok((responder, offer)) => Ok(Proved { responder, offer, key }),
        Err(ExchangeError::Unauthentic) => Err(format!(
            "the proof does not fit the key of volume {} ({}): is the client's key of another volume, was it revoked, or was \
             the volume formatted again?",
            shared.settings.name, shared.settings.id
        )),
        Err(error) => Err(error.to_string()),
    })
}

/// Decides whether to admit a client that has proved its key.
fn judge(worker: &Rc<Worker>, hello: &Hello, proved: &Proved, peer: Peer) -> Result<(Admitted, Stays), NotAdmitted> {
    let shared = &worker.shared;
    if !shared.lease.is_valid() {
        // No reply could leave: the connection would end with the first one, and the client would connect again.
        let reason =
            "this server has not renewed its lease in time: try again, here or at another server of the volume";
        return Err(NotAdmitted::Crowded(reason.into()));
    }
    if !proved.offer.credential.is_empty() {
        let reason = "the client sends a user credential, which this server does not support";
        return Err(NotAdmitted::Refused(reason.into()));
    }
    let client = Clients::enter(worker, peer.principals(hello.key))?;
    let session = SessionId(hello.session);
    let (admitted, session) = shared.sessions.admit(session, hello.purpose, peer, hello.key)?;
    let key = shared.keys.enter(hello.key, proved.key.clone());
    Ok((admitted, Stays { key, _session: session, _client: client }))
}

async fn welcome<W>(writer: &mut W, worker: &Worker, proved: Proved) -> Result<(), HandshakeError>
where
    W: AsyncWrite + ShareMemory + Unpin,
{
    let (sealed, records) = proved.responder.finish(&worker.shared.welcome())?;
    let answer = encoded(&Answer::Sealed(sealed))?;
    if !(proved.offer.shm_slot && writer.send_with_shm_slot(&answer)?) {
        send_encoded(writer, &answer).await?;
    }
    writer.protect(records);
    Ok(())
}

impl NotAdmitted {
    fn into_answer(self) -> (HandshakeError, Welcome) {
        match self {
            NotAdmitted::Refused(reason) => (HandshakeError::Refused(reason.clone()), Welcome::Refused { reason }),
            NotAdmitted::Crowded(reason) => (HandshakeError::Crowded(reason.clone()), Welcome::Crowded { reason }),
        }
    }
}

async fn refuse<W, T>(writer: &mut W, reason: String) -> Result<T, HandshakeError>
where
    W: AsyncWrite + Unpin,
{
    send(writer, &Answer::Refused { reason: reason.clone() }).await?;
    Err(HandshakeError::Refused(reason))
}

async fn send<W, M>(writer: &mut W, message: &M) -> Result<(), HandshakeError>
where
    W: AsyncWrite + Unpin,
    M: serde::Serialize,
{
    send_encoded(writer, &encoded(message)?).await
}

pub(super) fn encoded(message: &impl serde::Serialize) -> Result<Vec<u8>, HandshakeError> {
    let mut out = Vec::with_capacity(256);
    frame::encode(message, &mut out).map_err(HandshakeError::Garbage)?;
    Ok(out)
}

async fn send_encoded<W: AsyncWrite + Unpin>(writer: &mut W, message: &[u8]) -> Result<(), HandshakeError> {
    writer.write_all(message).await?;
    writer.flush().await?;
    Ok(())
}

/// Receives the peer's Hello. The inner error is a reason that may be sent to the peer.
async fn receive_hello<R>(reader: &mut R) -> Result<Result<Hello, String>, HandshakeError>
where
    R: AsyncRead + Unpin,
{
    let mut header = [0; HEADER_BYTES];
    read_all(reader, &mut header, 0).await?;
    let len = frame::body_len(&header).map_err(HandshakeError::Garbage)?;
    if len > HELLO_BYTES_MAX {
        return Err(HandshakeError::Garbage(FrameError::Malformed(len, "too long for a Hello".into())));
    }
    let mut body = vec![0; len];
    read_all(reader, &mut body, HEADER_BYTES).await?;
    let decoded = frame::decode::<Hello>(&header, &body);
    // The version is the first field of the Hello in every version, so it can be read even if the rest has changed.
    let version = match &decoded {
        Ok(hello) => Some(hello.version),
        Err(FrameError::Malformed(..)) => postcard::take_from_bytes::<u16>(&body).ok().map(|(version, _)| version),
        Err(_) => None,
    };
    match (version, decoded) {
        (Some(version), _) if version != varve_proto::VERSION => Ok(Err(format!(
            "the server speaks version {} of the protocol and the client version {version}: use the same varve on both",
            varve_proto::VERSION
        ))),
        (_, Ok(hello)) => Ok(Ok(hello)),
        (_, Err(error)) => Err(HandshakeError::Garbage(error)),
    }
}

/// `before`: bytes of the message that were read earlier.
async fn read_all<R>(reader: &mut R, buffer: &mut [u8], before: usize) -> Result<(), HandshakeError>
where
    R: AsyncRead + Unpin,
{
    let mut filled = 0;
    while filled < buffer.len() {
        match reader.read(&mut buffer[filled..]).await? {
            0 => return Err(HandshakeError::Ended(before + filled)),
            count => filled += count,
        }
    }
    Ok(())
}
