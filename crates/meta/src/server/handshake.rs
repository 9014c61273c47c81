//! The server's side of the handshake (`varve_wire::handshake`): who comes, whether they know the key, whether they
//! are admitted.

use super::local_stream::ShareMemory;
use super::sessions::{Admitted, Peer, Stay};
use super::strangers::STRANGERS_MAX;
use super::worker::Worker;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use varve_types::SessionId;
use varve_wire::frame::{self, FrameError, HEADER_BYTES};
use varve_wire::handshake::{Greeting, Hello, Side, Welcome};
use varve_world::random;

/// A handshake is two short messages; a peer that has not said its own by then is not a client.
pub const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);

/// Connections of one worker on which a client has said who it is. A client has one a thread to each worker; a thousand is
/// many hosts, and each costs a descriptor and some 20 KiB, and a mailbox 36 KiB of shared
/// memory.
const CONNECTIONS_MAX: usize = 1024;

/// A stranger's Hello takes some 80 bytes; more is not read before the key is proved.
const HELLO_BYTES_MAX: usize = 512;

#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    #[error("the handshake was not done within {} s", HANDSHAKE_DEADLINE.as_secs())]
    Deadline,
    #[error("the connection ended in the handshake")]
    Ended,
    #[error("the first frame is no Hello: {0}")]
    Garbage(FrameError),
    #[error("refused: {0}")]
    Refused(String),
    #[error("there is no room: {0}")]
    Crowded(String),
    #[error(
        "{STRANGERS_MAX} connections have not said who they are, and this one for longest: it goes to make room for others"
    )]
    SentAway,
    #[error("the connection failed in the handshake: {0}")]
    Io(#[from] std::io::Error),
}

/// Admits the peer or tells it why not.
pub async fn admit<R, W>(
    reader: &mut R,
    writer: &mut W,
    worker: &Worker,
    peer: Peer,
) -> Result<(Admitted, Stay), HandshakeError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + ShareMemory + Unpin,
{
    let shared = &worker.shared;
    let dialogue = async {
        let nonce = random::bytes();
        send(writer, &Greeting { version: varve_wire::VERSION, volume: shared.settings.id.0, nonce }).await?;
        let hello = match receive_hello(reader).await? {
            Ok(hello) => hello,
            Err(reason) => return refuse(writer, reason).await,
        };
        if !shared.key.verify(Side::Client, &hello.nonce, &nonce, &hello.proof) {
            let reason = format!(
                "the proof does not fit the key of volume {} ({}): is the client's copy of the key of another volume, \
                 or was the volume formatted again?",
                shared.settings.name, shared.settings.id
            );
            return refuse(writer, reason).await;
        }
        if worker.clients() >= CONNECTIONS_MAX {
            let reason = format!(
                "the server has {CONNECTIONS_MAX} connections of clients already: end mounts or programs that use the \
                 volume, or serve it with more --workers"
            );
            send(writer, &Welcome::Crowded { reason: reason.clone() }).await?;
            return Err(HandshakeError::Crowded(reason));
        }
        match shared.sessions.admit(SessionId(hello.session), hello.purpose, peer) {
            Ok(admitted) => {
                let proof = shared.key.prove(Side::Server, &hello.nonce, &nonce);
                let welcome = encoded(&shared.welcome(proof))?;
                if !(hello.mailbox && writer.send_with_mailbox(&welcome)?) {
                    send_encoded(writer, &welcome).await?;
                }
                Ok(admitted)
            }
            Err(reason) => refuse(writer, reason).await,
        }
    };
    tokio::time::timeout(HANDSHAKE_DEADLINE, dialogue).await.unwrap_or(Err(HandshakeError::Deadline))
}

async fn refuse<W, T>(writer: &mut W, reason: String) -> Result<T, HandshakeError>
where
    W: AsyncWrite + Unpin,
{
    send(writer, &Welcome::Refused { reason: reason.clone() }).await?;
    Err(HandshakeError::Refused(reason))
}

async fn send<W, M>(writer: &mut W, message: &M) -> Result<(), HandshakeError>
where
    W: AsyncWrite + Unpin,
    M: serde::Serialize,
{
    send_encoded(writer, &encoded(message)?).await
}

fn encoded(message: &impl serde::Serialize) -> Result<Vec<u8>, HandshakeError> {
    let mut out = Vec::with_capacity(256);
    frame::encode(message, &mut out).map_err(HandshakeError::Garbage)?;
    Ok(out)
}

async fn send_encoded<W: AsyncWrite + Unpin>(writer: &mut W, message: &[u8]) -> Result<(), HandshakeError> {
    writer.write_all(message).await?;
    writer.flush().await?;
    Ok(())
}

/// The peer's Hello; the inner error is a reason that the peer can be told.
async fn receive_hello<R>(reader: &mut R) -> Result<Result<Hello, String>, HandshakeError>
where
    R: AsyncRead + Unpin,
{
    let mut header = [0; HEADER_BYTES];
    read_all(reader, &mut header).await?;
    let len = frame::body_len(&header).map_err(HandshakeError::Garbage)?;
    if len > HELLO_BYTES_MAX {
        return Err(HandshakeError::Garbage(FrameError::Malformed(len, "too long for a Hello".into())));
    }
    let mut body = vec![0; len];
    read_all(reader, &mut body).await?;
    let decoded = frame::decode::<Hello>(&header, &body);
    // The version comes first in every version's Hello, so it can be read even where the rest has changed.
    let version = match &decoded {
        Ok(hello) => Some(hello.version),
        Err(FrameError::Malformed(..)) => postcard::take_from_bytes::<u16>(&body).ok().map(|(version, _)| version),
        Err(_) => None,
    };
    match (version, decoded) {
        (Some(version), _) if version != varve_wire::VERSION => Ok(Err(format!(
            "the server speaks version {} of the protocol and the client version {version}: use the same varve on both",
            varve_wire::VERSION
        ))),
        (_, Ok(hello)) => Ok(Ok(hello)),
        (_, Err(error)) => Err(HandshakeError::Garbage(error)),
    }
}

async fn read_all<R>(reader: &mut R, buffer: &mut [u8]) -> Result<(), HandshakeError>
where
    R: AsyncRead + Unpin,
{
    match reader.read_exact(buffer).await {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Err(HandshakeError::Ended),
        Err(error) => Err(error.into()),
    }
}
