//! The fast path: calls that are answered at once, or as soon as the log has their change. Most calls take it and need
//! no future of their own. A call that cannot take it has no effect here and goes to [`super::answer`].

use super::super::leases::LeaseBarrier;
use super::super::metrics::Timed;
use super::super::sessions::Admitted;
use super::super::worker::Worker;
use super::request_handler::{Changed, CompletedCall, ImmediateResult, RequestHandler};
use super::retries::Entered;
use super::{DispatchReply, translate};
use crate::shards::{AwaitedReply, BegunElsewhere, CallInProgress, CallOrigin, PeerReply, Shard, ShardRefusal};
use std::rc::{Rc, Weak};
use std::time::Instant;
use varve_env::stages::{self, Stage};
use varve_proto::{Call, CallFailure, CallId, Reply, Request, Response};
use varve_types::{Credentials, ShardId};

/// The outcome of the fast path for one request.
pub enum FastPathOutcome {
    Answered(DispatchReply),
    Changed(FastPathCall),
    /// Not answered; [`super::answer`] must run it.
    Waits(Request),
}

pub fn begin(worker: &Rc<Worker>, caller: &Admitted, mut request: Request) -> FastPathOutcome {
    if let Call::Ping { payload } = &mut request.call
        && request.released.is_empty()
    {
        let payload = std::mem::take(payload);
        return FastPathOutcome::Answered(DispatchReply::Response(Response {
            id: request.id,
            result: Ok(Reply::Pong { payload }),
        }));
    }
    let (id, served) = (request.id, stages::begin());
    let timed = worker.metrics.begin(&request.call);
    let Some(shard) = worker.shard(ShardId(request.shard)) else { return FastPathOutcome::Waits(request) };
    let looked = look(worker, &shard, caller, &mut request);
    let held = |shard: &Shard, entered| {
        let _call = shard.begin_call(CallOrigin::Client);
        PendingReply { worker: Rc::downgrade(worker), id, timed, served, _entered: entered, _call }
    };
    let answered = match looked {
        Ok(FastPathResult::Waits) => return FastPathOutcome::Waits(request),
        Ok(FastPathResult::Changed(changed, entered)) => {
            let call = held(&shard, entered);
            return FastPathOutcome::Changed(FastPathCall { shard, call, step: FastStep::Changed(changed) });
        }
        Ok(FastPathResult::Begun { begun, barrier, reply, credentials, entered }) => {
            let call = held(&shard, entered);
            let begun = BegunCall { begun, barrier, caller: caller.clone(), credentials, call: request.call };
            let step = FastStep::Begun(Box::new(begun), reply);
            return FastPathOutcome::Changed(FastPathCall { shard, call, step });
        }
        Ok(FastPathResult::Seen(reply)) => Ok(CompletedCall::Reply(reply)),
        Err(failure) => Err(failure),
    };
    stages::end(Stage::Served, served);
    FastPathOutcome::Answered(super::conclude(worker, timed, shard.id(), id, answered))
}

enum FastPathResult {
    Waits,
    Seen(Reply),
    Changed(Changed, Entered),
    Begun {
        begun: BegunElsewhere,
        barrier: Option<LeaseBarrier>,
        reply: AwaitedReply,
        credentials: Credentials,
        entered: Entered,
    },
}

fn look(
    worker: &Rc<Worker>,
    shard: &Rc<Shard>,
    caller: &Admitted,
    request: &mut Request,
) -> Result<FastPathResult, CallFailure> {
    worker.release(caller.session, shard.id(), &std::mem::take(&mut request.released))?;
    let Request { id, credentials, call, .. } = request;
    let (id, call) = (*id, &*call);
    if !has_fast_path(call) {
        return Ok(FastPathResult::Waits);
    }
    let credentials = super::check(caller, credentials.clone(), call)?;
    let handler = RequestHandler { worker, shard, caller, credentials, own_name: false, id };
    let seen = |reply: Option<Reply>| reply.map_or(FastPathResult::Waits, FastPathResult::Seen);
    let done = match call {
        Call::Lookup { parent, name } => return handler.try_lookup(*parent, name).map(seen),
        Call::GetAttributes { at } => return handler.try_get_attributes(at).map(seen),
        changes => {
            let Some(entered) = worker.in_flight.enter(id) else { return Err(CallFailure::Busy) };
            if shard.is_recovering(caller.session, id.slot)
                || shard.find_reply(caller.session, id.slot, id.number).is_some()
            {
                return Ok(FastPathResult::Waits);
            }
            super::room::check(worker, changes)?;
            let done = match changes {
                Call::Create { parent, name, node, mode, open } => {
                    handler.try_create(*parent, name, node.clone(), *mode, *open)?
                }
                Call::Unlink { parent, name } => handler.try_unlink(*parent, name)?,
                Call::MakeDirectory { parent, name, mode } => handler.try_make_directory(*parent, name, *mode)?,
                Call::RemoveDirectory { parent, name } => handler.try_remove_directory(*parent, name)?,
                _ => None,
            };
            if done.is_some() && super::room::frees(changes) {
                super::room::freed(worker);
            }
            done.map(|done| (done, entered))
        }
    };
    Ok(match done {
        None => FastPathResult::Waits,
        Some((ImmediateResult::Seen(reply), _)) => FastPathResult::Seen(reply),
        Some((ImmediateResult::Changed(changed), entered)) => FastPathResult::Changed(changed, entered),
        Some((ImmediateResult::Begun { begun, reply, barrier }, entered)) => {
            FastPathResult::Begun { begun, barrier, reply, credentials: handler.credentials, entered }
        }
    })
}

fn has_fast_path(call: &Call) -> bool {
    matches!(
        call,
        Call::Lookup { .. }
            | Call::GetAttributes { .. }
            | Call::Create { .. }
            | Call::Unlink { .. }
            | Call::MakeDirectory { .. }
            | Call::RemoveDirectory { .. }
    )
}

/// A call whose change is on its way to a log.
pub struct FastPathCall {
    shard: Rc<Shard>,
    call: PendingReply,
    step: FastStep,
}

enum FastStep {
    /// The complete change is made.
    Changed(Changed),
    /// Another shard has done its part of the change.
    Begun(Box<BegunCall>, AwaitedReply),
}

/// A call that makes or removes a directory whose rows are in another shard of the worker.
struct BegunCall {
    begun: BegunElsewhere,
    barrier: Option<LeaseBarrier>,
    caller: Admitted,
    credentials: Credentials,
    call: Call,
}

/// The state of a call until its reply may be sent. It is stored in the call's shard, which belongs to the call's
/// worker.
struct PendingReply {
    worker: Weak<Worker>,
    id: CallId,
    timed: Timed,
    served: Option<Instant>,
    _entered: Entered,
    _call: CallInProgress,
}

impl FastPathCall {
    /// Calls `send` with the reply as soon as the reply may be sent.
    pub fn then(self, worker: &Rc<Worker>, send: impl FnOnce(DispatchReply) + 'static) {
        let FastPathCall { shard, call, step } = self;
        match step {
            FastStep::Changed(changed) => call.answer_when_appended(worker, &shard, changed, send),
            FastStep::Begun(begun, reply) => call.go_on_when_begun(worker, shard, (begun, reply), send),
        }
    }
}

impl PendingReply {
    fn answer_when_appended(
        self,
        worker: &Rc<Worker>,
        shard: &Rc<Shard>,
        changed: Changed,
        send: impl FnOnce(DispatchReply) + 'static,
    ) {
        let Changed { body, batch, effects, barrier } = changed;
        let decided = stages::begin();
        let appended = move |shard: &Rc<Shard>, appended: Result<(), ShardRefusal>| {
            stages::end(Stage::Log, decided);
            // If the worker is gone, so is the connection.
            let Some(worker) = self.worker.upgrade() else { return };
            let answer = move |worker: &Rc<Worker>, shard: &Rc<Shard>, done: Result<(), ShardRefusal>| {
                let done = done.map(|()| CompletedCall::Encoded(body)).map_err(translate::failure);
                drop(barrier);
                send(self.answer(worker, shard, done));
            };
            if appended.is_err() || effects.is_empty() {
                return answer(&worker, shard, appended);
            }
            let shard = Rc::clone(shard);
            let own = Rc::clone(&worker);
            worker.spawn(async move { answer(&own, &shard, shard.perform(effects, None).await) });
        };
        shard.when_appended(batch, Box::new(appended));
        worker.busy_poll.send(shard);
    }

    fn go_on_when_begun(
        self,
        worker: &Rc<Worker>,
        shard: Rc<Shard>,
        (mut begun, reply): (Box<BegunCall>, AwaitedReply),
        send: impl FnOnce(DispatchReply) + 'static,
    ) {
        let begun_at = stages::begin();
        let (elsewhere, own) = (worker.shard(begun.begun.shard()), Rc::clone(&shard));
        let replied = move |mut reply: PeerReply| {
            stages::end(Stage::Log, begun_at);
            let Some(worker) = self.worker.upgrade() else { return };
            match begun.try_go_on(&worker, &shard, self.id, &mut reply) {
                Some(changed) => self.answer_when_appended(&worker, &shard, changed, send),
                None => {
                    let own = Rc::clone(&worker);
                    worker.spawn(async move {
                        let done = begun.go_on(&own, &shard, self.id, reply).await;
                        send(self.answer(&own, &shard, done));
                    });
                }
            }
        };
        own.when_begun(reply, replied);
        if let Some(elsewhere) = elsewhere {
            worker.busy_poll.send(&elsewhere);
        }
    }

    fn answer(
        self,
        worker: &Rc<Worker>,
        shard: &Rc<Shard>,
        answered: Result<CompletedCall, CallFailure>,
    ) -> DispatchReply {
        let answered = super::after_failure(worker, shard, Some(self.id), answered);
        stages::end(Stage::Served, self.served);
        super::conclude(worker, self.timed, shard.id(), self.id, answered)
    }
}

impl BegunCall {
    /// Makes the change without waiting; `None` if that is impossible.
    fn try_go_on(
        &mut self,
        worker: &Rc<Worker>,
        shard: &Rc<Shard>,
        id: CallId,
        reply: &mut PeerReply,
    ) -> Option<Changed> {
        let BegunCall { begun, barrier, caller, credentials, call } = self;
        let handler = RequestHandler { worker, shard, caller, credentials: credentials.clone(), own_name: false, id };
        let changed = match call {
            Call::MakeDirectory { parent, name, mode } => {
                handler.try_make_begun_directory(*parent, name, *mode, (begun, reply))
            }
            Call::RemoveDirectory { parent, name } => handler.try_remove_begun_directory(*parent, name, (begun, reply)),
            _ => None,
        }?;
        Some(Changed { barrier: barrier.take(), ..changed })
    }

    /// Makes the change, or has the other shard take its part back.
    async fn go_on(
        self,
        worker: &Rc<Worker>,
        shard: &Rc<Shard>,
        id: CallId,
        reply: PeerReply,
    ) -> Result<CompletedCall, CallFailure> {
        let BegunCall { begun, barrier: _barrier, caller, credentials, call } = self;
        let handler = RequestHandler { worker, shard, caller: &caller, credentials, own_name: false, id };
        match call {
            Call::MakeDirectory { parent, name, mode } => {
                handler.make_begun_directory(parent, &name, mode, (begun, reply)).await
            }
            Call::RemoveDirectory { parent, name } => {
                handler.remove_begun_directory(parent, &name, (begun, reply)).await
            }
            _ => unreachable!("no other call begins in another shard"),
        }
    }
}
