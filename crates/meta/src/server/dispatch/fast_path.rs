//! The fast path: calls that are answered at once, or as soon as the log has their change. Most calls take it and need
//! no future of their own. A call that cannot take it has no effect here and goes to [`super::answer`].

use super::super::metrics::Timed;
use super::super::sessions::Admitted;
use super::super::worker::Worker;
use super::request_handler::{Changed, CompletedCall, ImmediateResult, RequestHandler};
use super::retries::Entered;
use super::{DispatchReply, translate};
use crate::shards::{AwaitedReply, CallInProgress, CallOrigin, Placed, Shard, ShardRefusal};
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
        Ok(FastPathResult::Placed(placed, reply, credentials, entered)) => {
            let call = held(&shard, entered);
            let placing = FastPlacement { placed, caller: caller.clone(), credentials, call: request.call };
            let step = FastStep::Placed(Box::new(placing), reply);
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
    Placed(Placed, AwaitedReply, Credentials, Entered),
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
            super::check_room(worker, changes)?;
            let done = match changes {
                Call::Create { parent, name, node, mode, open } => {
                    handler.try_create(*parent, name, node.clone(), *mode, *open)?
                }
                Call::Unlink { parent, name } => handler.try_unlink(*parent, name)?,
                Call::MakeDirectory { parent, name, mode } => handler.try_make_directory(*parent, name, *mode)?,
                Call::RemoveDirectory { parent, name } => handler.try_remove_directory(*parent, name)?,
                _ => None,
            };
            done.map(|done| (done, entered))
        }
    };
    Ok(match done {
        None => FastPathResult::Waits,
        Some((ImmediateResult::Seen(reply), _)) => FastPathResult::Seen(reply),
        Some((ImmediateResult::Changed(changed), entered)) => FastPathResult::Changed(changed, entered),
        Some((ImmediateResult::Placed(placed, reply), entered)) => {
            FastPathResult::Placed(placed, reply, handler.credentials, entered)
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
    /// The rows of a new directory are at its home shard; its name is still to be made.
    Placed(Box<FastPlacement>, AwaitedReply),
}

/// A directory that is being created.
struct FastPlacement {
    placed: Placed,
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
            FastStep::Placed(placing, reply) => call.go_on_when_placed(worker, shard, (placing, reply), send),
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

    fn go_on_when_placed(
        self,
        worker: &Rc<Worker>,
        shard: Rc<Shard>,
        (placing, reply): (Box<FastPlacement>, AwaitedReply),
        send: impl FnOnce(DispatchReply) + 'static,
    ) {
        let begun = stages::begin();
        let (home, own) = (worker.shard(placing.placed.home()), Rc::clone(&shard));
        let appended = move |appended: Result<(), ShardRefusal>| {
            stages::end(Stage::Log, begun);
            let Some(worker) = self.worker.upgrade() else { return };
            let changed = appended.is_ok().then(|| placing.try_make(&worker, &shard, self.id)).flatten();
            match changed {
                Some(changed) => self.answer_when_appended(&worker, &shard, changed, send),
                None => {
                    let own = Rc::clone(&worker);
                    worker.spawn(async move {
                        let made = placing.make(&own, &shard, self.id, appended).await;
                        send(self.answer(&own, &shard, made));
                    });
                }
            }
        };
        own.when_placed(reply, appended);
        if let Some(home) = home {
            worker.busy_poll.send(&home);
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

impl FastPlacement {
    /// Makes the name without waiting; `None` if that is impossible.
    fn try_make(&self, worker: &Rc<Worker>, shard: &Rc<Shard>, id: CallId) -> Option<Changed> {
        let Call::MakeDirectory { parent, name, mode } = &self.call else { return None };
        let FastPlacement { placed, caller, credentials, .. } = self;
        let handler = RequestHandler { worker, shard, caller, credentials: credentials.clone(), own_name: false, id };
        handler.try_make_placed_directory(*parent, name, *mode, placed)
    }

    /// Makes the name, or removes the rows again. `appended` says whether the rows reached the log.
    async fn make(
        self,
        worker: &Rc<Worker>,
        shard: &Rc<Shard>,
        id: CallId,
        appended: Result<(), ShardRefusal>,
    ) -> Result<CompletedCall, CallFailure> {
        let FastPlacement { placed, caller, credentials, call } = self;
        let Call::MakeDirectory { parent, name, mode } = call else {
            unreachable!("nothing but a directory is placed before its name")
        };
        let handler = RequestHandler { worker, shard, caller: &caller, credentials, own_name: false, id };
        handler.make_placed_directory(parent, &name, mode, (placed, appended)).await
    }
}
