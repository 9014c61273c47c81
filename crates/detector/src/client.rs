//! Client that sends frames to the service over several connections. It bounds the frames in flight, and resends them
//! after a connection or the service has failed. Entry: [`Client::connect`].
//!
//! Invariants: the client keeps a frame until it is acknowledged at the requested level. It keeps scalars until they
//! are in the service's journal and their frames, if this client sent them, are acknowledged.

mod connection;
mod scalars;

use crate::frame::AckLevel;
use crate::hdf5::ElementType;
use crate::stream::answers::NO_FRAME;
use crate::stream::scalars::{ScalarRow, ScalarsHead};
use crate::stream::{
    BadMessage, BodyChecksum, ErrorCode, FinishedHead, Notice, NoticeCode, Ranges, StreamRefusal, StreamRole,
};
use crate::tls::ClientTls;
use parking_lot::{Condvar, Mutex};
use scalars::{Coded, SentScalars};
use std::collections::{BTreeMap, VecDeque};
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Upper limit for notices that the caller has not fetched; there may be one per frame.
const NOTICES_MAX: usize = 1024;
/// This many consecutive `protocol` errors, with nothing acknowledged in between, are not transmission damage.
const PROTOCOL_ERRORS: u32 = 10;

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

/// Derives the identity of a named client; it is the same for every connection to a run.
pub fn identity(run: &str, name: &str) -> [u8; 16] {
    xxhash_rust::xxh3::xxh3_128(format!("{run}\0{name}").as_bytes()).to_le_bytes()
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

/// One frame or several consecutive ones.
#[derive(Clone, Debug)]
pub struct Outgoing {
    pub number: u64,
    pub taken: u64,
    pub element: ElementType,
    pub sides: Vec<u32>,
    pub frames: u32,
    /// Name of the filter of pre-filtered chunks; empty for plain elements.
    pub filter: String,
    /// The plain elements as one part, or one part per chunk.
    pub parts: Vec<Vec<u8>>,
}

impl Outgoing {
    fn bytes(&self) -> usize {
        self.parts.iter().map(Vec::len).sum()
    }

    fn numbers(&self) -> std::ops::Range<u64> {
        self.number..self.number + u64::from(self.frames)
    }
}

/// Scalars of frames, by name. A missing value is `None`; all other values of one name have the same kind.
#[derive(Clone, Debug)]
pub struct Scalars {
    pub names: Vec<String>,
    pub rows: Vec<ScalarRow>,
}

/// Meaning of the END message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The source is complete.
    Source,
    /// Only the connections end; the run waits for its client to come back.
    Connection,
}

pub(crate) enum QueuedItem {
    Frames { out: Arc<Outgoing>, again: bool },
    Scalars(Arc<Coded>),
}

/// A client of one source of a run.
pub struct Client {
    shared: Arc<ClientShared>,
    threads: Vec<JoinHandle<()>>,
}

/// State shared by the connections.
pub(crate) struct ClientShared {
    pub options: ClientOptions,
    pub id: [u8; 16],
    pub state: Mutex<ClientState>,
    pub changed: Condvar,
}

#[derive(Default)]
pub(crate) struct ClientState {
    pub waiting: VecDeque<QueuedItem>,
    /// Frames sent or queued and not acknowledged at the requested level, by first number.
    pub kept: BTreeMap<u64, Arc<Outgoing>>,
    pub kept_bytes: usize,
    pub sent_scalars: SentScalars,
    pub acknowledged: [Ranges; 3],
    /// Frames that the service dropped or refused.
    pub over: Ranges,
    pub notices: VecDeque<Notice>,
    pub dropped: u64,
    /// Frames that the caller had to drop.
    pub lost: u64,
    pub welcomed: u16,
    /// Protocol version that the service last agreed to.
    pub version: u16,
    /// How often the caller has begun to wait until everything is acknowledged.
    pub flushes: u64,
    /// Set when no more frames come. Connections send END once nothing is queued and nothing is kept.
    pub ending: Option<Ending>,
    pub finished: Option<FinishedHead>,
    pub failed: Option<ClientError>,
    /// `protocol` errors since a frame was last acknowledged or given up.
    pub protocol_errors: u32,
    pub closed: bool,
}

impl Client {
    /// Connects, and starts the run if the options describe it.
    ///
    /// # Errors
    /// If the service cannot be reached within the retry time, or refuses.
    pub fn connect(options: ClientOptions) -> Result<Client, ClientError> {
        let connections = options.connections.max(1);
        let unreachable = |why: String| ClientError::Unreachable { address: options.address.clone(), why };
        if let Err(error) = options.address.to_socket_addrs() {
            return Err(unreachable(error.to_string()));
        }
        let shared = Arc::new(ClientShared {
            options: ClientOptions { connections, ..options.clone() },
            id: options.client.unwrap_or_else(varve_env::random::bytes),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let mut client = Client { shared, threads: Vec::new() };
        for number in 0..connections {
            let mine = Arc::clone(&client.shared);
            let started = std::thread::Builder::new()
                .name(format!("bring-{number}"))
                .spawn(move || connection::run(&mine, number))
                .map_err(|error| unreachable(error.to_string()))?;
            client.threads.push(started);
        }
        let welcomed = |state: &mut ClientState| (state.welcomed >= connections).then_some(());
        client.wait(options.retry + Duration::from_secs(10), welcomed)?;
        Ok(client)
    }

    fn wait<T>(&self, wait: Duration, mut done: impl FnMut(&mut ClientState) -> Option<T>) -> Result<T, ClientError> {
        let deadline = Instant::now() + wait;
        let mut state = self.shared.state.lock();
        loop {
            if let Some(done) = done(&mut state) {
                return Ok(done);
            }
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            if state.finished.is_some() {
                return Err(state.ended_without());
            }
            if self.shared.changed.wait_until(&mut state, deadline).timed_out() {
                return Err(ClientError::Late(wait));
            }
        }
    }

    /// Sends frames as soon as the window has space for them.
    ///
    /// # Errors
    /// If the client has failed, the frame number is invalid, or the window has no space within `wait`. The caller then
    /// keeps the frames.
    pub fn send(&self, out: Outgoing, wait: Duration) -> Result<(), ClientError> {
        // The highest number stands for "no frame", and -1 becomes it when read as unsigned.
        if out.number >= NO_FRAME - u64::from(out.frames) {
            return Err(ClientError::Number(out.number));
        }
        let bytes = out.bytes();
        let most = self.shared.options.window_bytes;
        let mut out = Some(out);
        self.wait(wait, |state| {
            if state.is_over() || (state.kept_bytes > 0 && state.kept_bytes + bytes > most) {
                return None;
            }
            let out = Arc::new(out.take()?);
            state.kept_bytes += bytes;
            state.kept.insert(out.number, Arc::clone(&out));
            state.waiting.push_back(QueuedItem::Frames { out, again: false });
            Some(())
        })?;
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Sends scalars as soon as the queue of scalars that are not in the service's journal has space.
    ///
    /// # Errors
    /// If the client has failed, the queue has no space within `wait`, or the values of a name have different kinds or
    /// a kind that the service does not support.
    pub fn scalars(&self, scalars: Scalars, wait: Duration) -> Result<(), ClientError> {
        /// Upper limit for queued messages, and for sent messages that are kept.
        const WAITING_MAX: usize = 4096;
        let head = ScalarsHead::of(&scalars.names, &scalars.rows)?;
        let scalars = Arc::new(Coded { head, rows: scalars.rows });
        scalars.check(self.shared.state.lock().version)?;
        self.wait(wait, |state| {
            let room = state.waiting.len().max(state.sent_scalars.len()) < WAITING_MAX && !state.is_over();
            room.then(|| state.waiting.push_back(QueuedItem::Scalars(Arc::clone(&scalars))))
        })?;
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Counts frames that the caller could not send.
    pub fn lost(&self, frames: u64) {
        self.shared.state.lock().lost += frames;
    }

    /// The frames of the run acknowledged at a level, which must not be above the client's own.
    pub fn acknowledged(&self, level: AckLevel) -> Ranges {
        self.shared.state.lock().acknowledged[level as usize].clone()
    }

    /// Whether a frame of the run is acknowledged at a level; see [`Client::acknowledged`].
    pub fn acknowledged_frame(&self, level: AckLevel, number: u64) -> bool {
        self.shared.state.lock().acknowledged[level as usize].contains(number)
    }

    /// Frames dropped by the service plus frames lost by the caller.
    pub fn dropped(&self) -> u64 {
        let state = self.shared.state.lock();
        state.dropped + state.lost
    }

    /// Returns the service's notices about single frames and removes them.
    pub fn notices(&self) -> Vec<Notice> {
        self.shared.state.lock().notices.drain(..).collect()
    }

    /// Waits until all frames are acknowledged at the client's level and all scalars are in the service's journal.
    /// Frames that share chunks with frames still to come are written now. Their chunks are written again when those
    /// frames come.
    ///
    /// # Errors
    /// If the wait times out, or the client has failed.
    pub fn settle(&self, wait: Duration) -> Result<(), ClientError> {
        self.flush();
        self.wait(wait, |state| state.is_settled().then_some(()))
    }

    /// Declares the source complete and waits for the end of the run.
    ///
    /// # Errors
    /// If the run does not end well, or not in time.
    pub fn finish(self, wait: Duration) -> Result<FinishedHead, ClientError> {
        self.end(Ending::Source, wait)
    }

    /// Ends the connections once all sent frames are durable, without declaring the source complete.
    ///
    /// # Errors
    /// If the wait times out, or the client has failed.
    pub fn leave(self, wait: Duration) -> Result<FinishedHead, ClientError> {
        self.end(Ending::Connection, wait)
    }

    fn flush(&self) {
        self.shared.state.lock().flushes += 1;
        self.shared.changed.notify_all();
    }

    fn end(self, ending: Ending, wait: Duration) -> Result<FinishedHead, ClientError> {
        self.shared.state.lock().ending = Some(ending);
        self.flush();
        self.wait(wait, ClientState::has_ended_well)
    }
}

impl Drop for Client {
    /// Closes the connections without declaring the source complete.
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a connection thread panicked");
            }
        }
    }
}

impl ClientState {
    /// Whether nothing is in flight.
    pub fn is_settled(&self) -> bool {
        self.waiting.is_empty() && self.kept.is_empty() && self.sent_scalars.is_empty()
    }

    /// Whether the run accepts nothing more from this client.
    fn is_over(&self) -> bool {
        self.failed.is_some() || self.finished.is_some()
    }

    /// The counts of a run that has ended with everything that this client sent.
    fn has_ended_well(&mut self) -> Option<FinishedHead> {
        self.finished.filter(|_| self.is_settled())
    }

    fn ended_without(&self) -> ClientError {
        let unsent = self.waiting.iter().filter(|item| matches!(item, QueuedItem::Scalars(_))).count();
        ClientError::Ended { frames: self.kept.len(), scalars: self.sent_scalars.len() + unsent }
    }

    pub fn acknowledge(&mut self, level: AckLevel, own: AckLevel, ranges: &[std::ops::Range<u64>]) {
        for range in ranges {
            self.acknowledged[level as usize].add(range.clone());
        }
        if level < own {
            return;
        }
        for range in ranges {
            // The first message that may reach into the range; messages do not overlap.
            let before = self.kept.range(..=range.start).next_back().map_or(range.start, |(number, _)| *number);
            self.settle_kept(level, before..range.end);
        }
    }

    /// Drops the messages that begin in `range` and whose frames are all acknowledged or given up.
    fn settle_kept(&mut self, level: AckLevel, range: std::ops::Range<u64>) {
        let (reached, over) = (&self.acknowledged[level as usize], &self.over);
        let is_settled = |out: &Outgoing| out.numbers().all(|number| reached.contains(number) || over.contains(number));
        let settled: Vec<u64> =
            self.kept.range(range).filter(|(_, out)| is_settled(out)).map(|(number, _)| *number).collect();
        for number in settled {
            if let Some(out) = self.kept.remove(&number) {
                self.kept_bytes -= out.bytes();
                self.protocol_errors = 0;
            }
        }
        self.sent_scalars.settle(&self.kept);
    }

    /// Whether reconnecting may help after this refusal.
    pub fn passes(&mut self, refusal: &StreamRefusal) -> bool {
        self.protocol_errors += u32::from(refusal.code == ErrorCode::Protocol);
        refusal.code.passes() && self.protocol_errors < PROTOCOL_ERRORS
    }

    /// Handles a notice about something that a connection sent.
    pub fn take_notice(&mut self, connection: u16, notice: Notice, own: AckLevel) {
        self.dropped += u64::from(notice.code == NoticeCode::Dropped && notice.frame != NO_FRAME);
        let before = self.kept.range(..=notice.frame).next_back().map(|(number, out)| (*number, out.numbers()));
        if let Some((number, numbers)) = before.filter(|(_, numbers)| numbers.contains(&notice.frame)) {
            match notice.code {
                NoticeCode::Dropped => self.over.add(notice.frame..notice.frame + 1),
                // A wrong message shape is refused for the whole message, under its first number.
                NoticeCode::Refused if notice.frame == number => self.over.add(numbers),
                NoticeCode::Refused => self.over.add(notice.frame..notice.frame + 1),
                // An earlier copy may already have been acknowledged, or will be.
                NoticeCode::Duplicate | NoticeCode::Damaged => {}
            }
            self.settle_kept(own, number..number + 1);
        }
        if notice.code == NoticeCode::Damaged {
            match self.kept.get(&notice.frame) {
                Some(out) => self.waiting.push_back(QueuedItem::Frames { out: Arc::clone(out), again: true }),
                // The notice concerns scalars.
                None if notice.frame == NO_FRAME => {
                    let unsure = self.sent_scalars.take_unsure(connection);
                    self.waiting.extend(unsure.into_iter().map(QueuedItem::Scalars));
                }
                None => {}
            }
        }
        if self.notices.len() < NOTICES_MAX {
            self.notices.push_back(notice);
        }
    }
}

#[cfg(test)]
mod tests;
