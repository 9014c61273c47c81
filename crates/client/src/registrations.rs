//! Files that the server has registered as open in this session, and their registration at the next server.
//!
//! The shard in a file's number keeps that the file is open. A new server does not know it. So before the first call to
//! a shard there, the client registers the shard's files, many in a message. Calls to other shards go on meanwhile, and
//! a background thread registers at the shards that no call asks ([`crate::FileSystem::register_late`]).

use crate::async_ops::waiting;
use crate::calls::{BUSY_WAIT, Core};
use crate::transport::{CallError, FoundServer};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;
use varve_env::clock::Instant;
use varve_proto::{self as wire, Call, OpenMode, OpenedBefore, REGISTERED_FILES_MAX, Request};
use varve_types::{Credentials, Errno, InodeId, ShardId};

/// The result of registering an open file at a server.
#[derive(PartialEq, Eq)]
enum RegisterOutcome {
    Done,
    /// The file cannot be registered, for example because it was removed.
    NotHere,
    /// The file is not registered, for a reason that may pass.
    Refused,
}

/// A file that is open in this session.
#[derive(Clone, Copy)]
struct OpenRegistration {
    mode: OpenMode,
    /// Before this time the server may still open the file for a call that was given up, so the release must not be
    /// sent.
    release_from: Instant,
}

#[derive(Default)]
pub(crate) struct SessionRegistrations {
    files: Mutex<HashMap<InodeId, OpenRegistration>>,
    lost: Mutex<LostRegistrations>,
    /// Whether a shard is in `lost`.
    any_lost: AtomicBool,
}

/// Open files that the present server does not know.
#[derive(Default)]
struct LostRegistrations {
    /// The number of the server.
    found: u64,
    shards: HashMap<ShardId, LostShard>,
    /// Open files that could not be registered yet, which the server therefore treats as closed.
    inodes: HashSet<InodeId>,
}

/// The registration of the files of a shard.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LostShard {
    Waits,
    UnderWay,
    /// The shard has not answered in time. Calls go on without.
    Late,
}

/// How long to wait for a server to register files that are open already: longer than a call waits there for its shard
/// to open.
pub(crate) const REGISTERED_MAX: Duration = Duration::from_secs(6);

/// After this time a server has opened a file or refused to: a call waits there for five seconds until its shard is
/// open, and for at most ten for its rows. If a client that gave up released the file earlier, the release could arrive
/// before the open, and the file would stay open for ever.
pub(crate) const OPENED_MAX: Duration = Duration::from_secs(16);

/// The turn to register the files of a shard; others wait for its end.
struct RegistrationTurn<'a> {
    registrations: &'a SessionRegistrations,
    found: u64,
    shard: ShardId,
    /// `None`: all are registered.
    end: Option<LostShard>,
}

impl Drop for RegistrationTurn<'_> {
    fn drop(&mut self) {
        let mut lost = self.registrations.lost.lock();
        // The next server may have been found meanwhile.
        if lost.found != self.found {
            return;
        }
        match self.end {
            Some(end) => drop(lost.shards.insert(self.shard, end)),
            None => drop(lost.shards.remove(&self.shard)),
        }
        self.registrations.any_lost.store(!lost.shards.is_empty(), Release);
    }
}

impl Core {
    /// Records that `inode` is open in this session. `taken_back`: as returned by [`Core::settle_releases`].
    pub fn register(&self, inode: InodeId, mode: OpenMode, taken_back: Option<Instant>) {
        let release_from = taken_back.unwrap_or(Instant(Duration::ZERO));
        let mut files = self.registrations.files.lock();
        let known = files.entry(inode).or_insert(OpenRegistration { mode, release_from });
        known.release_from = known.release_from.max(release_from);
        if known.mode != mode {
            known.mode = OpenMode::ReadWrite;
        }
    }

    /// Records that the last handle of `inode` is closed. The next request to the shard in its number carries the
    /// release, or the background sends it soon.
    pub fn unregister(&self, inode: InodeId) {
        let Some(opened) = self.registrations.files.lock().remove(&inode) else { return };
        match opened.release_from > self.clock.monotonic() {
            true => self.session.release_from(opened.release_from, inode.shard(), inode),
            false => self.session.release(inode.shard(), inode),
        }
    }

    /// A shard that has a file of this session registered as open.
    pub fn shard_of_an_open_file(&self) -> Option<ShardId> {
        self.registrations.files.lock().keys().next().map(|inode| inode.shard())
    }

    /// Records that `inode`, which the server may have as open in this session, could not be opened. `taken_back`: as
    /// returned by [`Core::settle_releases`]. `outcome_unknown`: the server may still open it.
    pub fn not_opened(&self, inode: InodeId, taken_back: Option<Instant>, outcome_unknown: bool) {
        let opened = outcome_unknown.then(|| self.opened_by());
        let Some(then) = taken_back.max(opened) else { return };
        if !self.registrations.files.lock().contains_key(&inode) {
            self.session.release_from(then, inode.shard(), inode);
        }
    }

    /// The server with this number knows of no open files. Must be called before the first call to it.
    pub fn lose_registrations(&self, found: u64) {
        let registrations = &self.registrations;
        let files = registrations.files.lock();
        let shards: HashMap<_, _> = files.keys().map(|inode| (inode.shard(), LostShard::Waits)).collect();
        let mut lost = registrations.lost.lock();
        registrations.any_lost.store(!shards.is_empty(), Release);
        *lost = LostRegistrations { found, shards, inodes: HashSet::new() };
    }

    /// Registers the open files on which `request` may depend, if `server` does not know them.
    pub async fn register_before(
        &self,
        request: &Request,
        server: &FoundServer,
        deadline: Instant,
    ) -> Result<(), CallError> {
        if !self.registrations.any_lost.load(Acquire) {
            return Ok(());
        }
        let written = written_by(&request.call).map(InodeId::shard);
        let shards = [Some(ShardId(request.shard)), written.filter(|shard| shard.0 != request.shard)];
        for shard in shards.into_iter().flatten() {
            Box::pin(waiting(self.register_at_shard(shard, server, deadline, LostShard::Waits))).await?;
        }
        Ok(())
    }

    /// Registers at shards whose files are not registered yet. Returns when the server was lost.
    pub async fn register_at_lost_shards(&self, stopped: impl Fn() -> bool) -> Result<(), CallError> {
        let server = self.server();
        let lost: Vec<_> = {
            let lost = self.registrations.lost.lock();
            let idle = lost.shards.iter().filter(|(_, state)| **state != LostShard::UnderWay);
            idle.map(|(shard, state)| (*shard, *state)).collect()
        };
        for (shard, state) in lost {
            if stopped() {
                return Ok(());
            }
            self.register_at_shard(shard, &server, self.registered_by(), state).await?;
        }
        Ok(())
    }

    /// Registers the files of `shard` if its state is `wanted`, or waits while another thread does so.
    async fn register_at_shard(
        &self,
        shard: ShardId,
        server: &FoundServer,
        deadline: Instant,
        wanted: LostShard,
    ) -> Result<(), CallError> {
        let mut wait = BUSY_WAIT;
        loop {
            {
                let mut lost = self.registrations.lost.lock();
                match lost.shards.get(&shard).filter(|_| lost.found == server.found) {
                    Some(state) if *state == wanted => {
                        lost.shards.insert(shard, LostShard::UnderWay);
                        break;
                    }
                    Some(LostShard::UnderWay) => {}
                    Some(_) | None => return Ok(()),
                }
            }
            if self.clock.monotonic() >= deadline {
                return Err(CallError::Deadline);
            }
            self.pause(wait.next()).await;
        }
        let registrations = &self.registrations;
        let mut turn = RegistrationTurn { registrations, found: server.found, shard, end: Some(LostShard::Waits) };
        let files: Vec<_> = {
            let files = registrations.files.lock();
            let here = files.iter().filter(|(inode, _)| inode.shard() == shard);
            here.map(|(inode, opened)| (*inode, opened.mode)).collect()
        };
        let by = self.registered_by().min(deadline);
        for files in files.chunks(REGISTERED_FILES_MAX) {
            match self.register_all(server, shard, files, by).await {
                Err(CallError::Deadline) => {
                    files.iter().for_each(|(inode, _)| self.not_registered_yet(*inode));
                    tracing::warn!(
                        "cannot register {} open files again, retrying; until then the server treats them as closed",
                        files.len()
                    );
                    turn.end = Some(LostShard::Late);
                    return Ok(());
                }
                registered => registered?,
            }
        }
        turn.end = None;
        Ok(())
    }

    /// Registers files of one shard with one message.
    async fn register_all(
        &self,
        server: &FoundServer,
        shard: ShardId,
        files: &[(InodeId, OpenMode)],
        deadline: Instant,
    ) -> Result<(), CallError> {
        let opened = |(inode, mode): &(InodeId, OpenMode)| OpenedBefore { inode: inode.0, writes: mode.writes() };
        let call = Call::Register { files: files.iter().map(opened).collect() };
        let turn = self.session.begin();
        let credentials = Credentials::root().into();
        let request = Request { id: turn.id(), shard: shard.0, credentials, released: Vec::new(), call };
        let mut wait = BUSY_WAIT;
        loop {
            let worker = server.worker_of(shard);
            let response = self.transport.call(server, worker, &request, deadline).await?;
            match response.result {
                Ok(_) => return Ok(()),
                Err(wire::CallFailure::NotOwner { map }) if server.learn(&map, shard, worker) == Ok(true) => continue,
                Err(wire::CallFailure::Errno(errno)) if errno == Errno::EPERM.number() => break,
                Err(refusal) => tracing::debug!(%shard, ?refusal, "cannot register open files again"),
            }
            if self.clock.monotonic() >= deadline {
                return Err(CallError::Deadline);
            }
            self.transport.pause(wait.next()).await;
        }
        drop(turn);
        self.register_each(server, files, deadline).await
    }

    /// Registers files one by one, as a client must whose user's rights are checked. Files that cannot be opened yet,
    /// for example because a shard's store fails, are left to the background.
    async fn register_each(
        &self,
        server: &FoundServer,
        files: &[(InodeId, OpenMode)],
        deadline: Instant,
    ) -> Result<(), CallError> {
        for (inode, mode) in files {
            match self.register_one(server, *inode, *mode, deadline).await? {
                RegisterOutcome::Done => {}
                RegisterOutcome::NotHere => tracing::warn!(%inode, "an open file no longer exists"),
                RegisterOutcome::Refused => {
                    let mut lost = self.registrations.lost.lock();
                    if lost.found == server.found {
                        lost.inodes.insert(*inode);
                    }
                }
            }
        }
        Ok(())
    }

    /// Files that may be open here and are not registered at the server.
    pub fn unregistered(&self) -> Vec<InodeId> {
        self.registrations.lost.lock().inodes.iter().copied().collect()
    }

    /// Registers `inode` at the server, if it is open. The caller must prevent its close before the reply. `false`: the
    /// server does not accept it now.
    pub async fn register_late(&self, inode: InodeId) -> Result<bool, CallError> {
        let server = self.server();
        let mode = self.registrations.files.lock().get(&inode).map(|opened| opened.mode);
        if let Some(mode) = mode {
            let asked = self.register_one(&server, inode, mode, self.registered_by()).await;
            if let Err(CallError::Deadline) = asked {
                self.not_registered_yet(inode);
            }
            if asked? == RegisterOutcome::Refused {
                return Ok(false);
            }
        }
        let mut lost = self.registrations.lost.lock();
        // The next server may have been found meanwhile.
        if lost.found == server.found {
            lost.inodes.remove(&inode);
        }
        Ok(true)
    }

    /// The deadline for the reply to a registration that is sent now.
    fn registered_by(&self) -> Instant {
        self.clock.monotonic().after(REGISTERED_MAX)
    }

    /// The time when a server has opened or refused a file that was requested before now.
    fn opened_by(&self) -> Instant {
        self.clock.monotonic().after(OPENED_MAX)
    }

    /// Records that the server may still register `inode`.
    fn not_registered_yet(&self, inode: InodeId) {
        let then = self.opened_by();
        if let Some(opened) = self.registrations.files.lock().get_mut(&inode) {
            opened.release_from = then;
        }
    }

    async fn register_one(
        &self,
        server: &FoundServer,
        inode: InodeId,
        mode: OpenMode,
        deadline: Instant,
    ) -> Result<RegisterOutcome, CallError> {
        let by_row = wire::Locator::Inode { inode: inode.0 };
        let mut places = vec![self.inodes.locator(inode)];
        if places[0] != by_row {
            places.push(by_row);
        }
        let mut registered = RegisterOutcome::NotHere;
        for at in places {
            match self.register_at(server, inode, at, mode, deadline).await? {
                RegisterOutcome::Done => return Ok(RegisterOutcome::Done),
                RegisterOutcome::NotHere => {}
                RegisterOutcome::Refused => registered = RegisterOutcome::Refused,
            }
        }
        Ok(registered)
    }

    async fn register_at(
        &self,
        server: &FoundServer,
        inode: InodeId,
        at: wire::Locator,
        mode: OpenMode,
        deadline: Instant,
    ) -> Result<RegisterOutcome, CallError> {
        let turn = self.session.begin();
        let mut wait = BUSY_WAIT;
        while self.clock.monotonic() < deadline {
            let shard = self.shard_at(&at);
            // The right to open was checked when the file was opened.
            let credentials = Credentials::root().into();
            let call = Call::Open { at: at.clone(), mode, truncate: false };
            let request = Request { id: turn.id(), shard: shard.0, credentials, released: Vec::new(), call };
            let worker = server.worker_of(shard);
            let response = self.transport.call(server, worker, &request, deadline).await?;
            match response.result {
                Ok(_) => return Ok(RegisterOutcome::Done),
                Err(wire::CallFailure::Moved { directory, map }) if self.routing.learn(InodeId(directory), &map) => {}
                Err(wire::CallFailure::NotOwner { map }) if server.learn(&map, shard, worker) == Ok(true) => {}
                Err(wire::CallFailure::Busy | wire::CallFailure::Moved { .. } | wire::CallFailure::NotOwner { .. }) => {
                    self.transport.pause(wait.next()).await;
                }
                Err(wire::CallFailure::NotHere) => return Ok(RegisterOutcome::NotHere),
                Err(wire::CallFailure::Server { message, .. }) => {
                    tracing::debug!(%inode, message, "cannot register an open file again");
                    return Ok(RegisterOutcome::Refused);
                }
                Err(refusal) => {
                    tracing::warn!(%inode, ?refusal, "cannot register an open file again");
                    return Ok(RegisterOutcome::NotHere);
                }
            }
        }
        Err(CallError::Deadline)
    }
}

/// The file that the session must have open for this call.
fn written_by(call: &Call) -> Option<InodeId> {
    match call {
        Call::WriteInline { at, .. }
        | Call::Promote { at, .. }
        | Call::MarkSizeStale { at, .. }
        | Call::RaiseSize { at, .. }
        | Call::RecordSize { at, .. } => match at {
            wire::Locator::Entry { inode, .. } | wire::Locator::Inode { inode } => Some(InodeId(*inode)),
        },
        _ => None,
    }
}
