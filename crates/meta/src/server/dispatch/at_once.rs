//! Calls that are answered at first sight, or as soon as the log has what they changed: most are, and need no future of
//! their own. A call for which that cannot be is as if it had not been looked at.

use super::super::metrics::Timed;
use super::super::sessions::Admitted;
use super::super::worker::Worker;
use super::case::{Answered, Case, Changed, Done};
use super::retries::Entered;
use super::{Answer, translate};
use crate::shards::{Placed, Refusal, Shard};
use std::rc::{Rc, Weak};
use std::time::Instant;
use varve_types::{Credentials, InodeId, ShardId};
use varve_wire::{Call, CallId, Failure, Reply, Request, Response};
use varve_world::stages::{self, Stage};

/// What became of a request at first sight.
pub enum Begun {
    Answered(Answer),
    Changed(Underway),
    /// To be answered by [`super::answer`].
    Waits(Request),
}

pub fn begin(worker: &Rc<Worker>, caller: &Admitted, mut request: Request) -> Begun {
    if let Call::Ping { payload } = &mut request.call
        && request.released.is_empty()
    {
        let payload = std::mem::take(payload);
        return Begun::Answered(Answer::Response(Response { id: request.id, result: Ok(Reply::Pong { payload }) }));
    }
    let (id, served) = (request.id, stages::begin());
    let timed = worker.metrics.begin(&request.call);
    let Some(shard) = worker.shard(ShardId(request.shard)) else { return Begun::Waits(request) };
    let looked = look(worker, &shard, caller, &mut request);
    let held = |entered| Held { worker: Rc::downgrade(worker), id, timed, served, _entered: entered };
    let answered = match looked {
        Ok(Look::Waits) => return Begun::Waits(request),
        Ok(Look::Changed(changed, entered)) => {
            return Begun::Changed(Underway { shard, call: held(entered), step: Step::Changed(changed) });
        }
        Ok(Look::Placed(placed, credentials, entered)) => {
            let placing = Placing { placed, caller: caller.clone(), credentials, call: request.call };
            return Begun::Changed(Underway { shard, call: held(entered), step: Step::Placed(Box::new(placing)) });
        }
        Ok(Look::Seen(reply)) => Ok(Answered::Reply(reply)),
        Err(failure) => Err(failure),
    };
    stages::end(Stage::Served, served);
    Begun::Answered(super::conclude(worker, timed, shard.id(), id, answered))
}

enum Look {
    Waits,
    Seen(Reply),
    Changed(Changed, Entered),
    Placed(Placed, Credentials, Entered),
}

fn look(worker: &Rc<Worker>, shard: &Rc<Shard>, caller: &Admitted, request: &mut Request) -> Result<Look, Failure> {
    for inode in request.released.drain(..) {
        shard.release(caller.session, InodeId(inode));
    }
    let Request { id, credentials, call, .. } = request;
    let (id, call) = (*id, &*call);
    if !may_be_done_at_once(call) {
        return Ok(Look::Waits);
    }
    let credentials = super::check(caller, credentials.clone(), call)?;
    let case = Case { worker, shard, caller, credentials, own_name: false, id };
    let seen = |reply: Option<Reply>| reply.map_or(Look::Waits, Look::Seen);
    let done = match call {
        Call::Lookup { parent, name } => return case.lookup_at_once(*parent, name).map(seen),
        Call::GetAttributes { at } => return case.get_attributes_at_once(at).map(seen),
        changes => {
            let Some(entered) = worker.in_flight.enter(id) else { return Err(Failure::Busy) };
            if shard.find_reply(caller.session, id.slot, id.number).is_some() {
                return Ok(Look::Waits);
            }
            super::check_room(worker, changes)?;
            let done = match changes {
                Call::Create { parent, name, node, mode, open } => {
                    case.create_at_once(*parent, name, node.clone(), *mode, *open)?
                }
                Call::Unlink { parent, name } => case.unlink_at_once(*parent, name)?,
                Call::MakeDirectory { parent, name, mode } => case.make_directory_at_once(*parent, name, *mode)?,
                Call::RemoveDirectory { parent, name } => case.remove_directory_at_once(*parent, name)?,
                _ => None,
            };
            done.map(|done| (done, entered))
        }
    };
    Ok(match done {
        None => Look::Waits,
        Some((Done::Seen(reply), _)) => Look::Seen(reply),
        Some((Done::Changed(changed), entered)) => Look::Changed(changed, entered),
        Some((Done::Placed(placed), entered)) => Look::Placed(placed, case.credentials, entered),
    })
}

fn may_be_done_at_once(call: &Call) -> bool {
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

/// A call that has made a change which is on its way to a log.
pub struct Underway {
    shard: Rc<Shard>,
    call: Held,
    step: Step,
}

enum Step {
    /// All of it is made.
    Changed(Changed),
    /// The rows of a fresh directory stand at its home; its name is still to be made.
    Placed(Box<Placing>),
}

/// A directory that is being made.
struct Placing {
    placed: Placed,
    caller: Admitted,
    credentials: Credentials,
    call: Call,
}

/// What is kept of a call until it may be answered. It hangs in its shard, which is its worker's.
struct Held {
    worker: Weak<Worker>,
    id: CallId,
    timed: Timed,
    served: Option<Instant>,
    _entered: Entered,
}

impl Underway {
    /// Has `send` take the answer when it may leave.
    pub fn then(self, worker: &Rc<Worker>, send: impl FnOnce(Answer) + 'static) {
        let Underway { shard, call, step } = self;
        match step {
            Step::Changed(changed) => call.answer_when_appended(worker, &shard, changed, send),
            Step::Placed(placing) => call.go_on_when_placed(worker, shard, placing, send),
        }
    }
}

impl Held {
    fn answer_when_appended(
        self,
        worker: &Rc<Worker>,
        shard: &Rc<Shard>,
        changed: Changed,
        send: impl FnOnce(Answer) + 'static,
    ) {
        let Changed { body, batch, effects, hold } = changed;
        let decided = stages::begin();
        let appended = move |shard: &Rc<Shard>, appended: Result<(), Refusal>| {
            stages::end(Stage::Log, decided);
            // The connection ends with the worker.
            let Some(worker) = self.worker.upgrade() else { return };
            let answer = move |worker: &Rc<Worker>, shard: &Rc<Shard>, done: Result<(), Refusal>| {
                let done = done.map(|()| Answered::Encoded(body)).map_err(translate::failure);
                drop(hold);
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
        worker.vigil.send(shard);
    }

    fn go_on_when_placed(
        self,
        worker: &Rc<Worker>,
        shard: Rc<Shard>,
        placing: Box<Placing>,
        send: impl FnOnce(Answer) + 'static,
    ) {
        let begun = stages::begin();
        let (home, batch) = placing.placed.awaits();
        let appended = move |_: &Rc<Shard>, appended: Result<(), Refusal>| {
            stages::end(Stage::Log, begun);
            let Some(worker) = self.worker.upgrade() else { return };
            let changed = appended.is_ok().then(|| placing.make_at_once(&worker, &shard, self.id)).flatten();
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
        home.when_appended(batch, Box::new(appended));
        worker.vigil.send(&home);
    }

    fn answer(self, worker: &Rc<Worker>, shard: &Rc<Shard>, answered: Result<Answered, Failure>) -> Answer {
        let answered = super::after_failure(worker, shard, Some(self.id), answered);
        stages::end(Stage::Served, self.served);
        super::conclude(worker, self.timed, shard.id(), self.id, answered)
    }
}

impl Placing {
    /// Makes the name without waiting; `None`: that cannot be.
    fn make_at_once(&self, worker: &Rc<Worker>, shard: &Rc<Shard>, id: CallId) -> Option<Changed> {
        let Call::MakeDirectory { parent, name, mode } = &self.call else { return None };
        let Placing { placed, caller, credentials, .. } = self;
        let case = Case { worker, shard, caller, credentials: credentials.clone(), own_name: false, id };
        case.make_placed_directory_at_once(*parent, name, *mode, placed)
    }

    /// The same, or takes the rows back. They were `appended`, or could not be.
    async fn make(
        self,
        worker: &Rc<Worker>,
        shard: &Rc<Shard>,
        id: CallId,
        appended: Result<(), Refusal>,
    ) -> Result<Answered, Failure> {
        let Placing { placed, caller, credentials, call } = self;
        let Call::MakeDirectory { parent, name, mode } = call else {
            unreachable!("nothing but a directory is placed before its name")
        };
        let case = Case { worker, shard, caller: &caller, credentials, own_name: false, id };
        case.make_placed_directory(parent, &name, mode, (placed, appended)).await
    }
}
