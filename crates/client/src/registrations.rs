//! Files that servers have registered as open in this session, and their registration at the next server.
//!
//! The shard in a file's number keeps that the file is open. A server that opens the shard later does not know it. So
//! before the first call to a shard there, the client registers the shard's files, many in a message. Calls to other shards go on meanwhile, and
//! a background thread registers at the shards that no call asks ([`crate::FileSystem::register_late`]).

use crate::calls::{BUSY_WAIT, Core};
use crate::transport::CallError;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;
use varve_env::clock::Instant;
use varve_proto::{self as wire, Call, OpenMode, OpenedBefore, REGISTERED_FILES_MAX, Request};
use varve_types::{Credentials, Errno, InodeId, ShardId, ShardMap, WorkerPlace};

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
    /// Whether a shard waits for its registration.
    any_lost: AtomicBool,
    /// Number of times that shards have lost registrations.
    losses: AtomicU64,
}

/// Open files that the owner of their shard may not know.
#[derive(Default)]
struct LostRegistrations {
    shards: HashMap<ShardId, ShardLoss>,
    /// Open files that could not be registered yet, which the server therefore treats as closed.
    inodes: HashSet<InodeId>,
}

/// The last time that the owner of a shard forgot the open files, or another server became the owner.
#[derive(Clone, Copy)]
struct ShardLoss {
    /// The value of [`SessionRegistrations::losses`].
    number: u64,
    state: LostShard,
}

/// The registration of the files of a shard.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LostShard {
    Waits,
    UnderWay,
    /// The shard has not answered in time. Calls go on without.
    Late,
    Registered,
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
    loss: u64,
    shard: ShardId,
    end: LostShard,
}

impl Drop for RegistrationTurn<'_> {
    fn drop(&mut self) {
        let mut lost = self.registrations.lost.lock();
        // The shard may have been lost again meanwhile.
        if let Some(loss) = lost.of(self.shard, self.loss) {
            loss.state = self.end;
        }
        self.registrations.any_lost.store(lost.any(), Release);
    }
}

impl LostRegistrations {
    /// The state of `shard`, unless it was lost again after the loss with this number.
    fn of(&mut self, shard: ShardId, number: u64) -> Option<&mut ShardLoss> {
        self.shards.get_mut(&shard).filter(|loss| loss.number == number)
    }

    fn any(&self) -> bool {
        self.shards.values().any(|loss| loss.state != LostShard::Registered)
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

    /// For each server that has files of this session registered as open, one shard with such a file.
    pub fn shards_of_open_files(&self) -> Vec<ShardId> {
        let map = self.map();
        let files = self.registrations.files.lock();
        let shards = files.keys().map(|inode| inode.shard());
        if map.servers().len() == 1 {
            return shards.take(1).collect();
        }
        let by_server: HashMap<_, _> =
            shards.map(|shard| (map.owner(shard).map(|owner| owner.server), shard)).collect();
        by_server.into_values().collect()
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

    /// The shard map `known` is to be replaced by `next`: files that are open at shards which another server has opened
    /// are registered again. Must be called before the first call by the new map.
    pub fn lose_moved_registrations(&self, known: &ShardMap, next: &ShardMap) {
        self.lose_registrations(|shard| {
            let (before, after) = (known.owner(shard), next.owner(shard));
            let server = |place: WorkerPlace| place.server;
            // A shard without an owner is lost when it has one.
            known.term(shard) != next.term(shard) || after.is_some() && before.map(server) != after.map(server)
        });
    }

    /// The server may have ended this session: its shards know of no open files.
    pub fn lose_registrations_at(&self, server: u64) {
        let map = self.map();
        self.lose_registrations(|shard| map.owner(shard).is_some_and(|owner| owner.server == server));
    }

    fn lose_registrations(&self, is_lost: impl Fn(ShardId) -> bool) {
        let registrations = &self.registrations;
        let files = registrations.files.lock();
        let mut lost = registrations.lost.lock();
        let number = registrations.losses.fetch_add(1, AcqRel) + 1;
        let shards: HashSet<_> = files.keys().map(|inode| inode.shard()).chain(lost.shards.keys().copied()).collect();
        for shard in shards.into_iter().filter(|shard| is_lost(*shard)) {
            lost.shards.insert(shard, ShardLoss { number, state: LostShard::Waits });
        }
        // All files of a lost shard are registered again.
        let LostRegistrations { shards, inodes } = &mut *lost;
        inodes.retain(|inode| shards.get(&inode.shard()).is_none_or(|loss| loss.number != number));
        registrations.any_lost.store(lost.any(), Release);
    }

    /// Number of times that shards have lost registrations.
    pub fn losses(&self) -> u64 {
        self.registrations.losses.load(Acquire)
    }

    /// Registers the open files on which `request` may depend, if the owner of their shard does not know them.
    pub async fn register_before(&self, request: &Request, deadline: Instant) -> Result<(), CallError> {
        if !self.registrations.any_lost.load(Acquire) {
            return Ok(());
        }
        let written = written_by(&request.call).map(InodeId::shard);
        let shards = [Some(ShardId(request.shard)), written.filter(|shard| shard.0 != request.shard)];
        for shard in shards.into_iter().flatten() {
            Box::pin(self.register_at_shard(shard, deadline, LostShard::Waits)).await?;
        }
        Ok(())
    }

    /// Registers at shards whose files are not registered yet. A server that is lost does not keep the others from it.
    pub async fn register_at_lost_shards(&self, stopped: impl Fn() -> bool) {
        let lost: Vec<_> = {
            let lost = self.registrations.lost.lock();
            let due = |(_, loss): &(&ShardId, &ShardLoss)| matches!(loss.state, LostShard::Waits | LostShard::Late);
            lost.shards.iter().filter(due).map(|(shard, loss)| (*shard, loss.state)).collect()
        };
        let mut lost_servers = HashSet::new();
        for (shard, state) in lost {
            if stopped() {
                return;
            }
            if lost_servers.contains(&self.place_of(shard).server) {
                continue;
            }
            // The next call finds the server again, or another one.
            if let Err(CallError::Lost { server, .. }) =
                self.register_at_shard(shard, self.registered_by(), state).await
            {
                lost_servers.insert(server);
            }
        }
    }

    /// Registers the files of `shard` if its state is `wanted`, or waits while another thread does so.
    async fn register_at_shard(&self, shard: ShardId, deadline: Instant, wanted: LostShard) -> Result<(), CallError> {
        let mut wait = BUSY_WAIT;
        let loss = loop {
            {
                let mut lost = self.registrations.lost.lock();
                match lost.shards.get_mut(&shard) {
                    Some(loss) if loss.state == wanted => {
                        loss.state = LostShard::UnderWay;
                        break loss.number;
                    }
                    Some(ShardLoss { state: LostShard::UnderWay, .. }) => {}
                    Some(_) | None => return Ok(()),
                }
            }
            if self.clock.monotonic() >= deadline {
                return Err(CallError::Deadline);
            }
            self.pause(wait.next()).await;
        };
        let registrations = &self.registrations;
        let mut turn = RegistrationTurn { registrations, loss, shard, end: LostShard::Waits };
        let files: Vec<_> = {
            let files = registrations.files.lock();
            let here = files.iter().filter(|(inode, _)| inode.shard() == shard);
            here.map(|(inode, opened)| (*inode, opened.mode)).collect()
        };
        let by = self.registered_by().min(deadline);
        for files in files.chunks(REGISTERED_FILES_MAX) {
            match self.register_all(shard, loss, files, by).await {
                Err(CallError::Deadline) => {
                    files.iter().for_each(|(inode, _)| self.not_registered_yet(*inode));
                    tracing::warn!(
                        "cannot register {} open files again, retrying; until then the server treats them as closed",
                        files.len()
                    );
                    turn.end = LostShard::Late;
                    return Ok(());
                }
                registered => registered?,
            }
        }
        turn.end = LostShard::Registered;
        Ok(())
    }

    /// Registers files of one shard with one message.
    async fn register_all(
        &self,
        shard: ShardId,
        loss: u64,
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
            let place = self.place_of(shard);
            let response = self.transport.call(place, &request, deadline).await?;
            match response.result {
                Ok(_) => return Ok(()),
                Err(wire::CallFailure::NotOwner { map }) if self.learn(&map, shard, place) == Ok(true) => continue,
                Err(wire::CallFailure::Errno(errno)) if errno == Errno::EPERM.number() => break,
                Err(refusal) => tracing::debug!(%shard, ?refusal, "cannot register open files again"),
            }
            if self.clock.monotonic() >= deadline {
                return Err(CallError::Deadline);
            }
            self.transport.pause(wait.next()).await;
        }
        drop(turn);
        self.register_each(shard, loss, files, deadline).await
    }

    /// Registers files one by one, as a client must whose user's rights are checked. Files that cannot be opened yet,
    /// for example because a shard's store fails, are left to the background.
    async fn register_each(
        &self,
        shard: ShardId,
        loss: u64,
        files: &[(InodeId, OpenMode)],
        deadline: Instant,
    ) -> Result<(), CallError> {
        for (inode, mode) in files {
            match self.register_one(*inode, *mode, deadline).await? {
                RegisterOutcome::Done => {}
                RegisterOutcome::NotHere => tracing::warn!(%inode, "an open file no longer exists"),
                RegisterOutcome::Refused => {
                    let mut lost = self.registrations.lost.lock();
                    if lost.of(shard, loss).is_some() {
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
        let losses = self.losses();
        let mode = self.registrations.files.lock().get(&inode).map(|opened| opened.mode);
        if let Some(mode) = mode {
            let asked = self.register_one(inode, mode, self.registered_by()).await;
            if let Err(CallError::Deadline) = asked {
                self.not_registered_yet(inode);
            }
            if asked? == RegisterOutcome::Refused {
                return Ok(false);
            }
        }
        let mut lost = self.registrations.lost.lock();
        // The shard may have been lost again meanwhile.
        if self.losses() == losses {
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
            match self.register_at(inode, at, mode, deadline).await? {
                RegisterOutcome::Done => return Ok(RegisterOutcome::Done),
                RegisterOutcome::NotHere => {}
                RegisterOutcome::Refused => registered = RegisterOutcome::Refused,
            }
        }
        Ok(registered)
    }

    async fn register_at(
        &self,
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
            let place = self.place_of(shard);
            let response = self.transport.call(place, &request, deadline).await?;
            match response.result {
                Ok(_) => return Ok(RegisterOutcome::Done),
                Err(wire::CallFailure::Moved { directory, map }) if self.routing.learn(InodeId(directory), &map) => {}
                Err(wire::CallFailure::NotOwner { map }) if self.learn(&map, shard, place) == Ok(true) => {}
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
