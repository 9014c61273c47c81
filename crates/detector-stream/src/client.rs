//! Client that sends frames to the service over several connections. It bounds the frames in flight, and resends them
//! after a connection or the service has failed. Entry: [`Client::connect`].
//!
//! Invariants: the client keeps a frame until it is acknowledged at the requested level. It keeps scalars until they
//! are in the service's journal and their frames, if this client sent them, are acknowledged.

mod connection;
mod options;
mod outgoing;
mod scalars;
mod state;

pub use options::{ClientError, ClientOptions};
pub use outgoing::{Outgoing, Scalars};

use crate::answers::NO_FRAME;
use crate::scalars::ScalarsHead;
use crate::{FinishedHead, Notice};
use parking_lot::{Condvar, Mutex};
use scalars::Coded;
use state::{ClientShared, ClientState, Ending, QueuedItem};
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use varve_detector_dataset::frame::AckLevel;
use varve_detector_dataset::ranges::Ranges;

/// Derives the identity of a named client; it is the same for every connection to a run.
pub fn identity(run: &str, name: &str) -> [u8; 16] {
    xxhash_rust::xxh3::xxh3_128(format!("{run}\0{name}").as_bytes()).to_le_bytes()
}

/// A client of one source of a run.
pub struct Client {
    shared: Arc<ClientShared>,
    threads: Vec<JoinHandle<()>>,
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

#[cfg(test)]
mod tests;
