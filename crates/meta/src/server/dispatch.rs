//! From a request to its answer: wire call → verb → shard → wire reply. What a call means is decided elsewhere; here it
//! is checked, translated and routed.

mod at_once;
mod backing;
mod case;
mod directories;
mod files;
mod moments;
mod names;
mod retries;
mod sync;
pub mod translate;

pub use at_once::{Begun, begin};
pub use retries::{Doubts, InFlight};

use super::complaints::About;
use super::metrics::{Outcome, Timed};
use super::opening::{To, takes_no_writes};
use super::sessions::Admitted;
use super::worker::Worker;
use crate::shards::Shard;
use case::{Answered, Case};
use std::rc::Rc;
use varve_types::{Credentials, Errno, InodeId, ShardId};
use varve_wire::{Call, CallId, Failure, OpenMode, Reply, Request, Response, ShardStatus, WireCredentials};
use varve_world::stages::{self, Stage};

/// What goes back.
pub enum Answer {
    Response(Response),
    /// A response that was encoded when the change was decided, now or when the call first came.
    Recorded {
        id: CallId,
        body: bytes::Bytes,
    },
}

/// Runs a request to its end. Those that [`begin`] has not answered come here.
pub async fn answer(worker: Rc<Worker>, caller: Rc<Admitted>, request: Request) -> Answer {
    let _passage = stages::enter(Stage::Served);
    let timed = worker.metrics.begin(&request.call);
    let (id, shard) = (request.id, ShardId(request.shard));
    let answered = respond(&worker, &caller, request).await;
    conclude(&worker, timed, shard, id, answered)
}

/// What a call came to, as it is sent and counted.
fn conclude(worker: &Worker, timed: Timed, shard: ShardId, id: CallId, answered: Result<Answered, Failure>) -> Answer {
    let answer = match answered {
        Ok(Answered::Reply(reply)) => Answer::Response(Response { id, result: Ok(reply) }),
        Ok(Answered::Encoded(body)) => Answer::Recorded { id, body },
        Err(failure) => {
            if let Failure::Server { message, .. } = &failure {
                let untold = worker.complaints.due(About::Shard(shard), worker.shared.clock.monotonic());
                match untold {
                    Some(0) => tracing::error!("a call of session {:016x} failed: {message}", id.session),
                    Some(untold) => tracing::error!(
                        "a call of session {:016x} failed, as {untold} calls since it was last told: {message}",
                        id.session
                    ),
                    None => {}
                }
            }
            Answer::Response(Response { id, result: Err(failure) })
        }
    };
    worker.metrics.end(
        timed,
        match &answer {
            Answer::Response(response) => Outcome::of(response),
            Answer::Recorded { .. } => Outcome::Done,
        },
    );
    answer
}

async fn respond(worker: &Rc<Worker>, caller: &Admitted, mut request: Request) -> Result<Answered, Failure> {
    let id = ShardId(request.shard);
    // First, for they are told once: whatever becomes of the call that brings them, they are used when it is answered.
    for inode in request.released.drain(..) {
        worker.release(id, caller.session, InodeId(inode));
    }
    let syncs = matches!(request.call, Call::Sync);
    let shard = match worker.shard(id) {
        // Who finds that it has failed waits for it to be open again, as all do who come later: nothing is decided yet.
        Some(failed) if failed.has_failed() => {
            worker.reopen(&failed);
            None
        }
        shard => shard,
    };
    let shard = match shard {
        Some(shard) => shard,
        None if !worker.owns(id) => return Err(Failure::NotOwner),
        // In a box of its own, so that the calls that need not wait stay small.
        None => {
            let needless = syncs && has_nothing_in(worker, caller, id);
            let to = if needless { To::Change } else { wanted_to(&request.call) };
            match Box::pin(worker.wanted(id, to)).await {
                Ok(shard) => shard,
                Err(Failure::Server { .. }) if needless => return Ok(Reply::Done.into()),
                Err(failure) => {
                    if syncs && matches!(failure, Failure::Server { .. }) {
                        worker.opening.told(id, caller.session);
                    }
                    return Err(failure);
                }
            }
        }
    };
    let changed = changes(&request.call).then_some(request.id);
    let answered = respond_at(worker, &shard, caller, request).await;
    let answered = after_failure(worker, &shard, changed, answered);
    if syncs {
        return Box::pin(sync::concluded(worker, caller, id, answered)).await;
    }
    if answered.is_err() && shard.is_at_rest() && worker.shard(id).is_some() {
        // It was opened meanwhile, and what was read at rest is let go of.
        return Err(Failure::Busy);
    }
    answered
}

/// Whether a call can be answered by a shard that changes nothing. A sync cannot: nobody knows what is unsynced in a shard
/// that has no owner.
fn wanted_to(call: &Call) -> To {
    match call {
        Call::Sync => To::Sync,
        Call::Release | Call::ShardStatus => To::Change,
        Call::TakeMoment { .. } | Call::ReadMoment { .. } | Call::ForgetMoment { .. } => To::Change,
        call if changes(call) => To::Change,
        _ => To::Read,
    }
}

/// What the caller of a call is told of whose shard perhaps failed under it; the shard is opened again then. Whether a
/// `changed` call was made nobody knows before that: it is to be sent again, once, and is answered as it was recorded with
/// the change, or decided anew, for what the opening has not found will never be there. A store that takes no writes
/// is told of at once.
fn after_failure(
    worker: &Rc<Worker>,
    shard: &Rc<Shard>,
    changed: Option<CallId>,
    answered: Result<Answered, Failure>,
) -> Result<Answered, Failure> {
    let Err(Failure::Server { errno, .. }) = &answered else { return answered };
    if !shard.has_failed() {
        return answered;
    }
    worker.reopen(shard);
    let may_pass = !takes_no_writes(Errno::from_number(*errno));
    match changed {
        Some(id) if may_pass && worker.doubts.is_first_of(id) => Err(Failure::Busy),
        _ => answered,
    }
}

/// Whether nothing that the caller was acknowledged can be unsynced in a shard that cannot be opened: an observer changes
/// nothing, and the one client of a mount's own server has never had another. Their syncs are about the other shards.
fn has_nothing_in(worker: &Worker, caller: &Admitted, shard: ShardId) -> bool {
    caller.observer || (worker.shared.embedded && worker.never_had(shard))
}

async fn respond_at(
    worker: &Rc<Worker>,
    shard: &Rc<Shard>,
    caller: &Admitted,
    request: Request,
) -> Result<Answered, Failure> {
    let Request { id, credentials, call, .. } = request;
    let own_name = credentials.uid == 0;
    let credentials = check(caller, credentials, &call)?;
    let case = Case { worker, shard, caller, credentials, own_name, id };
    if !changes(&call) {
        return case.perform(call).await;
    }
    // The first try of the same call may still be under way, its connection lost. Only when it has ended is its answer
    // one that may leave.
    let Some(_entered) = worker.in_flight.enter(id) else {
        return Err(Failure::Busy);
    };
    if let Some(cause) = shard.failed() {
        return Err(translate::failed(cause));
    }
    if let Some(replied) = shard.find_reply(caller.session, id.slot, id.number) {
        return Box::pin(case.replayed(&call, replied)).await;
    }
    check_room(worker, &call)?;
    case.perform(call).await
}

/// What no call may do, whatever it is about. Returns in whose name it is made.
fn check(caller: &Admitted, credentials: WireCredentials, call: &Call) -> Result<Credentials, Failure> {
    if caller.observer && changes(call) {
        return Err(errno(Errno::EROFS));
    }
    if credentials.groups.len() > Credentials::GROUPS_MAX {
        return Err(errno(Errno::EINVAL));
    }
    Ok(caller.forced.clone().unwrap_or_else(|| credentials.into()))
}

/// What makes the volume larger needs room beneath. Asked only of a call that was not made before, for what was made stays
/// made.
fn check_room(worker: &Worker, call: &Call) -> Result<(), Failure> {
    match grows(call) && worker.shared.reserve.is_short() {
        true => Err(errno(Errno::ENOSPC)),
        false => Ok(()),
    }
}

/// Whether a call changes the volume: refused to observers, and answered once however often it is sent.
fn changes(call: &Call) -> bool {
    match call {
        Call::Open { mode, truncate, .. } => *truncate || *mode != OpenMode::Read,
        Call::Create { .. }
        | Call::MakeDirectory { .. }
        | Call::ReviveDirectory { .. }
        | Call::Unlink { .. }
        | Call::RemoveDirectory { .. }
        | Call::Rename { .. }
        | Call::Link { .. }
        | Call::SetAttributes { .. }
        | Call::WriteInline { .. }
        | Call::Promote { .. }
        | Call::UnsettleSize { .. }
        | Call::SettleSize { .. }
        | Call::RaiseSize { .. }
        | Call::SetXattr { .. }
        | Call::RemoveXattr { .. } => true,
        Call::Lookup { .. }
        | Call::List { .. }
        | Call::GetDirectory { .. }
        | Call::StatDirectory { .. }
        | Call::PartitionStatus { .. }
        | Call::GetAttributes { .. }
        | Call::ReadLink { .. }
        | Call::GetXattr { .. }
        | Call::ListXattrs { .. }
        | Call::Sync
        | Call::Release
        | Call::ShardStatus
        | Call::TakeMoment { .. }
        | Call::ReadMoment { .. }
        | Call::ForgetMoment { .. }
        | Call::Ping { .. } => false,
    }
}

/// Whether a call adds to the volume: refused while the store has no room but what is kept for removals.
fn grows(call: &Call) -> bool {
    match call {
        Call::WriteInline { data, .. } => !data.is_empty(),
        Call::Create { .. }
        | Call::MakeDirectory { .. }
        | Call::Link { .. }
        | Call::Promote { .. }
        | Call::SetXattr { .. } => true,
        _ => false,
    }
}

impl Case<'_> {
    fn status(&self) -> ShardStatus {
        let figures = self.shard.status();
        ShardStatus {
            shard: self.shard.id().0,
            epoch: figures.epoch.0,
            partitions_loaded: figures.partitions_loaded,
            cache_bytes: figures.cache_bytes,
            open_files: self.worker.shared.open_files.len() as u64,
            log_bytes_unsynced: figures.log_bytes_unsynced,
            intents: figures.transactions_open,
            orphans: figures.backing_files_to_remove,
        }
    }

    /// Each verb in a box of its own: together they would be a future of 44 KB, which is moved for every call.
    async fn perform(&self, call: Call) -> Result<Answered, Failure> {
        match call {
            Call::Lookup { parent, name } => Box::pin(self.lookup(parent, &name)).await,
            Call::Create { parent, name, node, mode, open } => {
                Box::pin(self.create(parent, &name, node, mode, open)).await
            }
            Call::MakeDirectory { parent, name, mode } => Box::pin(self.make_directory(parent, &name, mode)).await,
            Call::ReviveDirectory { parent, name } => Box::pin(self.revive_directory(parent, &name)).await,
            Call::Unlink { parent, name } => Box::pin(self.unlink(parent, &name)).await,
            Call::RemoveDirectory { parent, name } => Box::pin(self.remove_directory(parent, &name)).await,
            Call::Rename { parent, name, new_parent, new_name, flags } => {
                Box::pin(self.rename((parent, &name), (new_parent, &new_name), flags)).await
            }
            Call::Link { source, inode, parent, name } => Box::pin(self.link(source, inode, parent, &name)).await,
            Call::List { directory, from, bytes_max } => Box::pin(self.list(directory, from, bytes_max)).await,
            Call::GetDirectory { directory } => Box::pin(self.get_directory(directory)).await,
            Call::StatDirectory { directory } => Box::pin(self.stat_directory(directory)).await,
            Call::PartitionStatus { directory } => Box::pin(self.partition_status(directory)).await,
            Call::GetAttributes { at } => Box::pin(self.get_attributes(at)).await,
            Call::SetAttributes { at, set } => Box::pin(self.set_attributes(at, set)).await,
            Call::Open { at, mode, truncate } => Box::pin(self.open(at, mode, truncate)).await,
            Call::WriteInline { at, generation, data, mtime } => {
                Box::pin(self.write_inline(at, generation, data, mtime)).await
            }
            Call::Promote { at, generation, size } => Box::pin(self.promote(at, generation, size)).await,
            Call::UnsettleSize { at, generation, at_least } => {
                Box::pin(self.unsettle_size(at, generation, at_least)).await
            }
            Call::RaiseSize { at, generation, at_least } => Box::pin(self.raise_size(at, generation, at_least)).await,
            Call::SettleSize { at, generation, size, mtime } => {
                Box::pin(self.settle_size(at, generation, size, mtime)).await
            }
            Call::ReadLink { at } => Box::pin(self.read_link(at)).await,
            Call::GetXattr { at, name } => Box::pin(self.get_xattr(at, name)).await,
            Call::SetXattr { at, name, value, mode } => Box::pin(self.set_xattr(at, name, value, mode)).await,
            Call::ListXattrs { at } => Box::pin(self.list_xattrs(at)).await,
            Call::RemoveXattr { at, name } => Box::pin(self.remove_xattr(at, name)).await,
            Call::Sync => {
                Box::pin(self.shard.sync()).await.map_err(translate::failure)?;
                Ok(Reply::Done.into())
            }
            Call::Release => Ok(Reply::Done.into()),
            Call::ShardStatus => Ok(Reply::ShardStatus(self.status()).into()),
            Call::Ping { payload } => Ok(Reply::Pong { payload }.into()),
            Call::TakeMoment { number } => Box::pin(self.take_moment(number)).await,
            Call::ReadMoment { number, from, end, bytes_max } => {
                Box::pin(self.read_moment(number, from, end, bytes_max)).await
            }
            Call::ForgetMoment { number } => self.forget_moment(number),
        }
    }
}

fn errno(errno: Errno) -> Failure {
    Failure::Errno(errno.number())
}
