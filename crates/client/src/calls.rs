//! The path of one request: slot, worker, reply; and the retries if there is no reply, or if the reply is that the
//! server cannot serve the request now. [`servers`] follows the shard map and looks for lost servers.

mod servers;

use self::servers::KnownServers;
use crate::inodes::Inodes;
use crate::registrations::SessionRegistrations;
use crate::routing::Routing;
use crate::session::{ClientSession, SlotGuard, TakenBack};
use crate::transport::{CallError, FindError, Transport};
use crate::unknown_outcomes::UnknownOutcomes;
use crate::{ClientConfig, Counters, Failure, Result, RetryCause};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use varve_env::clock::{Clock, Instant};
use varve_env::rate_limited_log::{RateLimitedLog, Suppressed};
use varve_env::stages::{self, Stage};
use varve_proto::{self as wire, Call, Reply, Request};
use varve_types::{Credentials, Errno, InodeId, ShardId, VolumeSettings};

/// First and longest wait before a retry for rows that another change has locked. A change takes two fsyncs at most.
pub(crate) const BUSY_WAIT: Wait = Wait { first: Duration::from_micros(50), longest: Duration::from_millis(20) };

/// First and longest wait between attempts to find a lost server: a restart on the same host takes some 100 ms.
const SERVER_WAIT: Wait = Wait { first: Duration::from_millis(5), longest: Duration::from_millis(500) };

/// A backoff that doubles.
#[derive(Clone, Copy)]
pub(crate) struct Wait {
    pub first: Duration,
    pub longest: Duration,
}

impl Wait {
    pub fn next(&mut self) -> Duration {
        let wait = self.first;
        self.first = (self.first * 2).min(self.longest);
        wait
    }
}

/// A shard's refusal that the caller must handle. Refusals that a retry resolves were retried already.
pub(crate) enum CallRefusal {
    Failure(Failure),
    /// The partition moved. The client has already processed the new map; the call must be routed again.
    Moved {
        learned: bool,
    },
    NotHere,
    Stale,
    MustPromote,
    /// The server knows after this time which other clients write the file.
    WritersUnknown(Duration),
}

impl From<CallRefusal> for Failure {
    fn from(refusal: CallRefusal) -> Failure {
        match refusal {
            CallRefusal::Failure(failure) => failure,
            CallRefusal::Moved { .. } | CallRefusal::NotHere => Errno::ESTALE.into(),
            CallRefusal::MustPromote => Failure::new(Errno::EFBIG, "the content outgrows the file's row"),
            CallRefusal::Stale => Failure::new(Errno::ESTALE, "the file's content moved repeatedly"),
            CallRefusal::WritersUnknown(_) => {
                Failure::new(Errno::EAGAIN, "the server does not know the file's other writers yet")
            }
        }
    }
}

impl From<Failure> for CallRefusal {
    fn from(failure: Failure) -> CallRefusal {
        CallRefusal::Failure(failure)
    }
}

/// State that all calls share.
pub(crate) struct Core {
    pub config: ClientConfig,
    pub settings: VolumeSettings,
    pub clock: Arc<dyn Clock>,
    pub session: ClientSession,
    pub routing: Routing,
    pub inodes: Inodes,
    pub unknown_outcomes: UnknownOutcomes,
    pub counters: Counters,
    /// Errors that calls of users can cause, by kind of message.
    pub error_log: RateLimitedLog<(&'static str, Errno)>,
    pub transport: Box<dyn Transport>,
    servers: KnownServers,
    pub(crate) registrations: SessionRegistrations,
    closed: AtomicBool,
}

impl Core {
    /// Connects to a server. Fails at once if there is none; waits until the deadline for one that lives and takes no
    /// clients now.
    pub async fn start(
        config: ClientConfig,
        settings: VolumeSettings,
        clock: Arc<dyn Clock>,
        session: ClientSession,
        transport: Box<dyn Transport>,
    ) -> Result<Core> {
        let deadline = clock.monotonic().after(config.deadline);
        let (mut wait, mut logged) = (SERVER_WAIT, false);
        let welcome = loop {
            match transport.find().await {
                Ok(welcome) => break welcome,
                Err(FindError::Unready(reason)) if clock.monotonic() < deadline => {
                    if !std::mem::replace(&mut logged, true) {
                        tracing::warn!("no server takes this client yet, trying for {:?}: {reason}", config.deadline);
                    }
                    transport.pause(wait.next()).await;
                }
                Err(FindError::Absent(text) | FindError::Unready(text)) => {
                    return Err(Failure::new(Errno::EHOSTDOWN, text));
                }
                Err(FindError::Refused(text)) => return Err(Failure::new(Errno::EACCES, text)),
            }
        };
        transport.follow(&welcome.map);
        Ok(Core {
            routing: Routing::new(settings.shards),
            inodes: Inodes::default(),
            unknown_outcomes: UnknownOutcomes::default(),
            counters: Counters::default(),
            error_log: RateLimitedLog::default(),
            servers: KnownServers::new(welcome),
            registrations: SessionRegistrations::default(),
            closed: AtomicBool::new(false),
            config,
            settings,
            clock,
            session,
            transport,
        })
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    /// Ends all calls, present and future.
    pub fn close(&self) {
        self.closed.store(true, Relaxed);
        self.transport.close();
    }

    /// Whether a failure of this kind is to be logged now, and how many were not since the last one.
    pub fn log_is_due(&self, what: &'static str, failure: &Failure) -> Option<Suppressed> {
        self.error_log.due((what, failure.errno), self.clock.monotonic())
    }

    /// Whether the server answers within `wait`.
    pub async fn is_answered_within(&self, wait: Duration) -> bool {
        let deadline = self.clock.monotonic().after(wait);
        let mut call = Calling { deadline, ..self.begin(&Credentials::root()) };
        // This call is answered in any state of the shard.
        call.ask(ShardId(0), Call::LocateShard).await.is_ok()
    }

    pub fn deadline(&self) -> Instant {
        self.clock.monotonic().after(self.config.deadline)
    }

    /// Begins a call, from its first request to its reply, under one call id.
    pub fn begin(&self, credentials: &Credentials) -> Calling<'_> {
        Calling {
            core: self,
            turn: self.session.begin(),
            credentials: credentials.clone().into(),
            deadline: self.deadline(),
        }
    }

    /// Called before `inode` is opened: waits until no release of it is in flight. Withdraws a pending release, and
    /// returns the time from which it could have been sent.
    pub async fn settle_releases(&self, inode: InodeId) -> Result<Option<Instant>> {
        let deadline = self.deadline();
        let mut wait = BUSY_WAIT;
        loop {
            match self.session.take_back(inode) {
                TakenBack::Nothing => return Ok(None),
                TakenBack::Release(then) => return Ok(Some(then)),
                TakenBack::NotYet => {}
            }
            self.check_deadline(deadline, "the server has not answered the release of the closed file")?;
            self.pause(wait.next()).await;
        }
    }

    pub fn check_deadline(&self, deadline: Instant, why: &str) -> Result<()> {
        if self.clock.monotonic() < deadline {
            return Ok(());
        }
        Err(Failure::new(Errno::ETIMEDOUT, format!("gave up after {:?}: {why}", self.config.deadline)))
    }

    pub async fn pause(&self, wait: Duration) {
        self.transport.pause(wait).await;
    }

    /// The shard to ask for the inode or entry that `at` locates.
    pub fn shard_at(&self, at: &wire::Locator) -> ShardId {
        match at {
            wire::Locator::Entry { parent, name, .. } => {
                self.routing.shard_of(InodeId(*parent), varve_types::NameHash::of(name))
            }
            wire::Locator::Inode { inode } => InodeId(*inode).shard(),
        }
    }

    /// The shard of the row of `inode`, as far as the client knows.
    pub fn row_shard(&self, inode: InodeId) -> ShardId {
        self.shard_at(&self.inodes.locator(inode))
    }
}

/// A call in progress.
pub(crate) struct Calling<'a> {
    core: &'a Core,
    turn: SlotGuard<'a>,
    credentials: wire::WireCredentials,
    deadline: Instant,
}

impl Calling<'_> {
    /// Sends the call to `shard`, and sends it again under the same call id while the shard is busy or does not reply.
    pub async fn ask(&mut self, shard: ShardId, call: Call) -> std::result::Result<Reply, CallRefusal> {
        let core = self.core;
        let released = core.session.releases_to_send(shard);
        let credentials = self.credentials.clone();
        let request = Request { id: self.turn.id(), shard: shard.0, credentials, released, call };
        let answer = self.insist(shard, &request).await;
        core.session.releases_sent(shard, &request.released, answer.is_ok());
        // A call that was given up may still be executing, and a server that failed may have executed it or find it in
        // its log.
        match answer.map_err(Failure::outcome_unknown)? {
            Ok(reply) => Ok(reply),
            Err(wire::CallFailure::Errno(number)) => Err(CallRefusal::Failure(Errno::from_number(number).into())),
            Err(wire::CallFailure::Server { errno, message }) => {
                Err(CallRefusal::Failure(Failure::new(Errno::from_number(errno), message).outcome_unknown()))
            }
            Err(wire::CallFailure::Moved { directory, map }) => {
                core.counters.retry(RetryCause::Moved);
                Err(CallRefusal::Moved { learned: core.routing.learn(InodeId(directory), &map) })
            }
            Err(wire::CallFailure::NotHere) => Err(CallRefusal::NotHere),
            Err(wire::CallFailure::Stale { .. }) => Err(CallRefusal::Stale),
            Err(wire::CallFailure::MustPromote) => Err(CallRefusal::MustPromote),
            Err(wire::CallFailure::WritersUnknown { milliseconds }) => {
                Err(CallRefusal::WritersUnknown(Duration::from_millis(milliseconds.into())))
            }
            Err(wire::CallFailure::Busy | wire::CallFailure::NotOwner { .. }) => {
                unreachable!("insist() goes on asking while a shard is busy or its owner unknown")
            }
        }
    }

    async fn insist(&self, shard: ShardId, request: &Request) -> Result<std::result::Result<Reply, wire::CallFailure>> {
        let core = self.core;
        let (mut busy_wait, mut lost_wait) = (BUSY_WAIT, BUSY_WAIT);
        loop {
            if core.closed.load(Relaxed) {
                return Err(Failure::new(Errno::EIO, "this client has been shut down"));
            }
            // Both before the registrations: those that the map requires were noted before it was replaced.
            let changes = core.servers.changes();
            let place = core.place_of(shard);
            core.counters.requests.fetch_add(1, Relaxed);
            let passage = stages::enter(Stage::Call);
            let registered = core.register_before(request, self.deadline).await;
            let response = match registered {
                Ok(()) => core.transport.call(place, request, self.deadline).await,
                Err(error) => Err(error),
            };
            drop(passage);
            let cause = match response.map(|response| response.result) {
                Ok(Err(wire::CallFailure::Busy)) => {
                    let why = format!("other changes keep the rows busy, or shard {shard} is still being opened");
                    core.check_deadline(self.deadline, &why)?;
                    core.pause(busy_wait.next()).await;
                    RetryCause::Busy
                }
                Ok(Err(wire::CallFailure::NotOwner { map })) => {
                    core.check_deadline(self.deadline, &format!("no worker of the servers owns shard {shard}"))?;
                    match core.learn(&map, shard, place) {
                        Ok(true) => {}
                        Ok(false) => core.pause(busy_wait.next()).await,
                        Err(error) => return Err(Failure::new(Errno::EIO, format!("the server's reply: {error}"))),
                    }
                    RetryCause::NotOwner
                }
                Ok(result) => return Ok(result),
                Err(CallError::Lost { server, why }) => {
                    // A server that has ended may still be in the server record; then it is found and lost again at
                    // once.
                    core.check_deadline(self.deadline, &why)?;
                    Box::pin(core.find_again(server, changes, self.deadline, &why)).await?;
                    core.pause(lost_wait.next()).await;
                    RetryCause::Lost
                }
                Err(CallError::Deadline) => {
                    let text = format!("the server has not answered within {:?}", core.config.deadline);
                    return Err(Failure::new(Errno::ETIMEDOUT, text));
                }
                Err(CallError::Unsendable(why)) => return Err(Failure::new(Errno::EIO, why)),
            };
            core.counters.retry(cause);
        }
    }

    pub async fn pause(&self, wait: &mut Wait, why: &str) -> Result<()> {
        self.core.check_deadline(self.deadline, why).map_err(Failure::outcome_unknown)?;
        self.core.pause(wait.next()).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
