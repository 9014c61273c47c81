//! The path of a request to its reply: call of the protocol → verb → shard → reply of the protocol. This module checks,
//! translates and routes a call; the verbs define what it does.

mod backing;
mod directories;
mod files;
mod names;
mod open_files;
mod placement;
mod request_handler;
mod retries;
mod room;
mod snapshots;
mod sync;
pub mod translate;

pub use retries::{InFlight, UnknownOutcomeCalls};

use super::metrics::{Outcome, Timed};
use super::opening::{OpenPurpose, takes_no_writes};
use super::sessions::Admitted;
use super::worker::{About, Worker};
use crate::shards::{CallOrigin, Shard};
use request_handler::{CompletedCall, RequestHandler};
use std::rc::Rc;
use std::sync::Arc;
use varve_env::stages::{self, Stage};
use varve_proto::{Call, CallFailure, CallId, Reply, Request, Response, ShardStatus, WireCredentials};
use varve_types::{Credentials, Errno, ShardId};

/// The reply to a request.
pub enum DispatchReply {
    Response(Response),
    /// A response that was encoded when the change was decided, in this attempt or when the call first came.
    Recorded {
        id: CallId,
        body: bytes::Bytes,
    },
}

/// Runs a request to its end.
pub async fn answer(worker: Rc<Worker>, caller: Arc<Admitted>, mut request: Request) -> DispatchReply {
    if let Call::Ping { payload } = &mut request.call
        && request.released.is_empty()
    {
        let payload = std::mem::take(payload);
        return DispatchReply::Response(Response { id: request.id, result: Ok(Reply::Pong { payload }) });
    }
    let _passage = stages::enter(Stage::Served);
    let timed = worker.metrics.begin(&request.call);
    let (id, shard) = (request.id, ShardId(request.shard));
    let answered = respond(&worker, &caller, request).await;
    conclude(&worker, timed, shard, id, answered)
}

/// Builds the reply to a call, logs a server error and counts the call.
fn conclude(
    worker: &Worker,
    timed: Timed,
    shard: ShardId,
    id: CallId,
    answered: Result<CompletedCall, CallFailure>,
) -> DispatchReply {
    let answer = match answered {
        Ok(CompletedCall::Reply(reply)) => DispatchReply::Response(Response { id, result: Ok(reply) }),
        Ok(CompletedCall::Encoded(body)) => DispatchReply::Recorded { id, body },
        Err(failure) => {
            if let CallFailure::Server { message, .. } = &failure {
                let suppressed = worker.error_log.due(About::Shard(shard), worker.shared.clock.monotonic());
                if let Some(suppressed) = suppressed {
                    tracing::error!("a call of session {:016x} failed{suppressed}: {message}", id.session);
                }
            }
            DispatchReply::Response(Response { id, result: Err(failure) })
        }
    };
    worker.metrics.end(
        timed,
        match &answer {
            DispatchReply::Response(response) => Outcome::of(response),
            DispatchReply::Recorded { .. } => Outcome::Done,
        },
    );
    answer
}

async fn respond(worker: &Rc<Worker>, caller: &Admitted, mut request: Request) -> Result<CompletedCall, CallFailure> {
    let id = ShardId(request.shard);
    // Apply the releases first: they must take effect whatever becomes of the call that carries them, because after its
    // reply the client may open the files again.
    worker.release(caller.session, id, &std::mem::take(&mut request.released))?;
    if let Call::Register { files } = &request.call {
        return open_files::register_again(worker, caller, id, files).map(CompletedCall::Reply);
    }
    if let Call::LocateShard | Call::MoveShard { .. } = &request.call {
        return Box::pin(placement::answer(worker, caller, &request)).await;
    }
    let syncs = matches!(request.call, Call::Sync);
    let shard = match worker.shard(id) {
        // A call that finds the shard failed waits until it is open again, like all later calls: nothing is decided
        // yet.
        Some(failed) if failed.has_failed() => {
            worker.reopen(&failed);
            None
        }
        shard => shard,
    };
    let shard = match shard {
        Some(shard) => shard,
        None if !worker.owns(id) => return Err(worker.not_owner()),
        // The future is boxed so that the future of a call that need not wait stays small.
        None => {
            let needless = syncs && has_nothing_in(worker, caller, id);
            let to = if needless { OpenPurpose::Change } else { wanted_to(&request.call) };
            match Box::pin(worker.wanted(id, to)).await {
                Ok(shard) => shard,
                Err(CallFailure::Server { .. }) if needless => return Ok(Reply::Done.into()),
                Err(failure) => {
                    if syncs && matches!(failure, CallFailure::Server { .. }) {
                        worker.slots.reported(id, caller.session);
                    }
                    return Err(failure);
                }
            }
        }
    };
    let _call = shard.begin_call(CallOrigin::Client);
    let changed = changes(&request.call).then_some(request.id);
    let frees = room::frees(&request.call);
    let answered = respond_at(worker, &shard, caller, request).await;
    if frees && answered.is_ok() {
        room::freed(worker);
    }
    let answered = after_failure(worker, &shard, changed, answered);
    if syncs {
        return Box::pin(sync::concluded(worker, caller, id, answered)).await;
    }
    if answered.is_err() && shard.is_read_only() && worker.shard(id).is_some() {
        // The shard was opened meanwhile, and its read-only recovery view is closed.
        return Err(CallFailure::Busy);
    }
    answered
}

/// The purpose for which the shard must be open. A shard without an owner can answer calls that only read, but not a
/// sync: nobody knows what is unsynced in it.
fn wanted_to(call: &Call) -> OpenPurpose {
    match call {
        Call::Sync => OpenPurpose::Sync,
        Call::Release | Call::Register { .. } | Call::ShardStatus => OpenPurpose::Change,
        Call::TakeSnapshot { .. }
        | Call::ReadSnapshot { .. }
        | Call::FindNames { .. }
        | Call::ReleaseSnapshot { .. } => OpenPurpose::Change,
        call if changes(call) => OpenPurpose::Change,
        _ => OpenPurpose::Read,
    }
}

/// Chooses the reply to a call whose shard may have failed during it, and reopens a failed shard. Whether a `changed`
/// call took effect is unknown until then. The client gets Busy once and sends the call again; it then gets the
/// recorded reply, or the call is decided anew, because a change that the opening did not find is lost for good. An
/// error of a store that takes no writes is returned immediately.
fn after_failure(
    worker: &Rc<Worker>,
    shard: &Rc<Shard>,
    changed: Option<CallId>,
    answered: Result<CompletedCall, CallFailure>,
) -> Result<CompletedCall, CallFailure> {
    let Err(CallFailure::Server { errno, .. }) = &answered else { return answered };
    if !shard.has_failed() {
        return answered;
    }
    worker.reopen(shard);
    let may_pass = !takes_no_writes(Errno::from_number(*errno));
    match changed {
        Some(id) if may_pass && worker.unknown_outcomes.is_first_of(id) => Err(CallFailure::Busy),
        _ => answered,
    }
}

/// Whether no change acknowledged to the caller can be unsynced in a shard that cannot be opened. An observer changes
/// nothing. The only client of a mount's own server has never had another server. The sync of such a caller concerns
/// the other shards.
fn has_nothing_in(worker: &Worker, caller: &Admitted, shard: ShardId) -> bool {
    caller.observer || (worker.shared.embedded && worker.slots.never_had(shard))
}

async fn respond_at(
    worker: &Rc<Worker>,
    shard: &Rc<Shard>,
    caller: &Admitted,
    request: Request,
) -> Result<CompletedCall, CallFailure> {
    let Request { id, credentials, call, .. } = request;
    let own_name = credentials.uid == 0;
    let credentials = check(caller, credentials, &call)?;
    let handler = RequestHandler { worker, shard, caller, credentials, own_name, id };
    if !changes(&call) {
        return handler.perform(call).await;
    }
    // The first attempt of the same call may still be in progress after its connection was lost. Its reply is valid
    // only when that attempt has ended.
    let Some(_entered) = worker.in_flight.enter(id) else {
        return Err(CallFailure::Busy);
    };
    if let Some(cause) = shard.failed() {
        return Err(translate::failed(cause));
    }
    if shard.is_recovering(caller.session, id.slot) {
        return Err(CallFailure::Busy);
    }
    if let Some(replied) = shard.find_reply(caller.session, id.slot, id.number) {
        return Box::pin(handler.replayed(&call, replied)).await;
    }
    room::check(worker, &call)?;
    handler.perform(call).await
}

/// Checks the rules that apply to every call. Returns the credentials that the call is made with.
fn check(caller: &Admitted, credentials: WireCredentials, call: &Call) -> Result<Credentials, CallFailure> {
    if caller.observer && changes(call) {
        return Err(errno(Errno::EROFS));
    }
    if !credentials.is_within_limits() {
        return Err(errno(Errno::EINVAL));
    }
    Ok(caller.forced.clone().unwrap_or_else(|| credentials.into()))
}

/// Whether a call changes the volume: such a call is refused to observers, and is executed once however often it is
/// sent.
fn changes(call: &Call) -> bool {
    match call {
        Call::Open { mode, truncate, .. } => *truncate || mode.writes(),
        Call::Create { .. }
        | Call::MakeDirectory { .. }
        | Call::ReviveDirectory { .. }
        | Call::Unlink { .. }
        | Call::RemoveDirectory { .. }
        | Call::Rename { .. }
        | Call::Link { .. }
        | Call::CreateUnnamed { .. }
        | Call::SetAttributes { .. }
        | Call::WriteInline { .. }
        | Call::Promote { .. }
        | Call::MarkSizeStale { .. }
        | Call::RecordSize { .. }
        | Call::RaiseSize { .. }
        | Call::SetXattr { .. }
        | Call::RemoveXattr { .. } => true,
        Call::Lookup { .. }
        | Call::List { .. }
        | Call::ListNames { .. }
        | Call::GetDirectory { .. }
        | Call::StatDirectory { .. }
        | Call::PartitionStatus { .. }
        | Call::GetAttributes { .. }
        | Call::ReadLink { .. }
        | Call::GetXattr { .. }
        | Call::ListXattrs { .. }
        | Call::Sync
        | Call::Release
        | Call::Register { .. }
        | Call::ShardStatus
        | Call::TakeSnapshot { .. }
        | Call::ReadSnapshot { .. }
        | Call::FindNames { .. }
        | Call::ReleaseSnapshot { .. }
        | Call::LocateShard
        | Call::MoveShard { .. }
        | Call::Ping { .. } => false,
    }
}

impl RequestHandler<'_> {
    fn status(&self) -> ShardStatus {
        let figures = self.shard.status();
        ShardStatus {
            shard: self.shard.id().0,
            epoch: figures.epoch.0,
            partitions_loaded: figures.partitions_loaded,
            cache_bytes: figures.cache_bytes,
            open_files: figures.open_files,
            log_bytes_unsynced: figures.log_bytes_unsynced,
            intents: figures.transactions_open,
            orphans: figures.backing_files_to_remove,
        }
    }

    /// The futures of the most frequent verbs are part of this one. The others are boxed: otherwise it would have 44 KB,
    /// which are moved for every call.
    async fn perform(&self, call: Call) -> Result<CompletedCall, CallFailure> {
        match call {
            Call::Lookup { parent, name } => self.lookup(parent, &name).await,
            Call::Create { parent, name, node, mode, open } => self.create(parent, &name, node, mode, open).await,
            Call::CreateUnnamed { parent, mode, linkable } => {
                Box::pin(self.create_unnamed(parent, mode, linkable)).await
            }
            Call::MakeDirectory { parent, name, mode } => self.make_directory(parent, &name, mode).await,
            Call::ReviveDirectory { parent, name } => Box::pin(self.revive_directory(parent, &name)).await,
            Call::Unlink { parent, name } => self.unlink(parent, &name).await,
            Call::RemoveDirectory { parent, name } => self.remove_directory(parent, &name).await,
            Call::Rename { parent, name, new_parent, new_name, flags } => {
                Box::pin(self.rename((parent, &name), (new_parent, &new_name), flags)).await
            }
            Call::Link { source, inode, parent, name } => Box::pin(self.link(source, inode, parent, &name)).await,
            Call::List { directory, from, bytes_max } => Box::pin(self.list(directory, from, bytes_max)).await,
            Call::ListNames { directory, from, bytes_max } => {
                Box::pin(self.list_names(directory, from, bytes_max)).await
            }
            Call::GetDirectory { directory } => Box::pin(self.get_directory(directory)).await,
            Call::StatDirectory { directory } => Box::pin(self.stat_directory(directory)).await,
            Call::PartitionStatus { directory } => Box::pin(self.partition_status(directory)).await,
            Call::GetAttributes { at } => self.get_attributes(at).await,
            Call::SetAttributes { at, set } => Box::pin(self.set_attributes(at, set)).await,
            Call::Open { at, mode, truncate } => Box::pin(self.open(at, mode, truncate)).await,
            Call::WriteInline { at, generation, data, mtime } => {
                Box::pin(self.write_inline(at, generation, data, mtime)).await
            }
            Call::Promote { at, generation, size } => Box::pin(self.promote(at, generation, size)).await,
            Call::MarkSizeStale { at, generation, at_least } => {
                Box::pin(self.mark_size_stale(at, generation, at_least)).await
            }
            Call::RaiseSize { at, generation, at_least } => Box::pin(self.raise_size(at, generation, at_least)).await,
            Call::RecordSize { at, generation, size, mtime } => {
                Box::pin(self.record_size(at, generation, size, mtime)).await
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
            Call::TakeSnapshot { number } => Box::pin(self.take_snapshot(number)).await,
            Call::ReadSnapshot { number, from, end, bytes_max } => {
                Box::pin(self.read_snapshot(number, from, end, bytes_max)).await
            }
            Call::FindNames { number, inode, from } => Box::pin(self.find_names(number, inode, from)).await,
            Call::ReleaseSnapshot { number } => self.release_snapshot(number),
            Call::Register { .. } | Call::LocateShard | Call::MoveShard { .. } => {
                unreachable!("answered in any state of the shard")
            }
        }
    }
}

fn errno(errno: Errno) -> CallFailure {
    CallFailure::Errno(errno.number())
}
