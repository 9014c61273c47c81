//! How a client connects, and its errors.

use crate::tls::ClientTls;
use crate::{BadMessage, BodyChecksum, StreamRefusal, StreamRole};
use std::time::Duration;
use varve_detector_dataset::frame::AckLevel;

#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// `HOST:PORT`.
    pub address: String,
    pub run: String,
    /// If empty, the client uses the token that a service of this user has published on this host, if any.
    pub token: String,
    /// `None`: the service listens without TLS.
    pub tls: Option<ClientTls>,
    /// JSON that starts the run if it does not exist; empty: the run is started by other means.
    pub start: String,
    pub role: StreamRole,
    pub source: u16,
    pub connections: u16,
    /// The client keeps a frame until it is acknowledged at this level.
    pub level: AckLevel,
    pub checksum: BodyChecksum,
    /// How long the service may let a frame wait for queue space before it drops the frame; `None`: for ever.
    pub patience: Option<Duration>,
    /// Upper limit for the bytes of kept frames; a single frame is always accepted.
    pub window_bytes: usize,
    /// How long a broken connection is retried. A service that neither replies nor accepts data counts as broken after
    /// the same time, but not before 5 s and no later than 30 s.
    pub retry: Duration,
    /// Client identity: a killed client that returns with the same bytes takes its former slot. `None`: a new client.
    pub client: Option<[u8; 16]>,
}

impl ClientOptions {
    pub fn new(address: &str, run: &str) -> ClientOptions {
        ClientOptions {
            address: address.into(),
            run: run.into(),
            token: String::new(),
            tls: None,
            start: String::new(),
            role: StreamRole::Frames,
            source: 0,
            connections: 1,
            level: AckLevel::Durable,
            checksum: BodyChecksum::Xxh3,
            patience: None,
            window_bytes: 256 << 20,
            retry: Duration::from_secs(60),
            client: None,
        }
    }
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    #[error("the service refuses: {0}")]
    Refused(#[from] StreamRefusal),
    #[error("cannot reach {address}: {why}")]
    Unreachable { address: String, why: String },
    #[error("no free connection to {address} for {waited:?}: {why}")]
    Full { address: String, waited: Duration, why: String },
    #[error("no reply within {0:?}")]
    Late(Duration),
    /// The run was ended by others. Counts the frames and messages of scalars that are not known to be in it.
    #[error(
        "the run has ended, and {frames} frames and {scalars} messages of scalars brought to it are not acknowledged: begin \
         another, with another name and file"
    )]
    Ended { frames: usize, scalars: usize },
    #[error("frame {0}: frames are numbered from 0 to 2^64 - 2; is it a negative number, read as unsigned?")]
    Number(u64),
    #[error(transparent)]
    Scalars(#[from] BadMessage),
}
