//! Calls that are answered at first sight, or as soon as the log has what they changed: most are, and need no future of
//! their own. A call for which that cannot be is as if it had not been looked at.

use super::super::metrics::Timed;
use super::super::sessions::Admitted;
use super::super::worker::Worker;
use super::case::{Answered, Case, Changed, Done};
use super::retries::Entered;
use super::{Answer, translate};
use crate::shards::{Refusal, Shard};
use std::rc::{Rc, Weak};
use std::time::Instant;
use varve_types::{InodeId, ShardId};
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
    let answered = match look(worker, &shard, caller, &mut request) {
        Ok(Look::Waits) => return Begun::Waits(request),
        Ok(Look::Changed(changed, entered)) => {
            let worker = Rc::downgrade(worker);
            return Begun::Changed(Underway {
                shard,
                changed,
                call: Held { worker, id, timed, served, _entered: entered },
            });
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
}

fn look(worker: &Rc<Worker>, shard: &Rc<Shard>, caller: &Admitted, request: &mut Request) -> Result<Look, Failure> {
    for inode in request.released.drain(..) {
        shard.release(caller.session, InodeId(inode));
    }
    let Request { id, credentials, call, .. } = request;
    let (id, call) = (*id, &*call);
    if !matches!(call, Call::Lookup { .. } | Call::GetAttributes { .. } | Call::Create { .. } | Call::Unlink { .. }) {
        return Ok(Look::Waits);
    }
    let credentials = super::check(caller, credentials.clone(), call)?;
    let case = Case { worker, shard, caller, credentials, id };
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
                _ => None,
            };
            done.map(|done| (done, entered))
        }
    };
    Ok(match done {
        None => Look::Waits,
        Some((Done::Seen(reply), _)) => Look::Seen(reply),
        Some((Done::Changed(changed), entered)) => Look::Changed(changed, entered),
    })
}

/// A call whose change was made, and is on its way to the log.
pub struct Underway {
    shard: Rc<Shard>,
    changed: Changed,
    call: Held,
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
    pub fn then(self, send: impl FnOnce(Answer) + 'static) {
        let Underway { shard, changed: Changed { body, batch, effects }, call } = self;
        let decided = stages::begin();
        let appended = move |shard: &Rc<Shard>, appended: Result<(), Refusal>| {
            stages::end(Stage::Log, decided);
            // The connection ends with the worker.
            let Some(worker) = call.worker.upgrade() else { return };
            if appended.is_err() || effects.is_empty() {
                return send(call.answer(&worker, shard, appended.map(|()| body)));
            }
            let shard = Rc::clone(shard);
            let own = Rc::clone(&worker);
            worker.spawn(async move {
                let performed = shard.perform(effects).await;
                send(call.answer(&own, &shard, performed.map(|()| body)));
            });
        };
        shard.when_appended(batch, Box::new(appended));
    }
}

impl Held {
    fn answer(self, worker: &Rc<Worker>, shard: &Rc<Shard>, done: Result<bytes::Bytes, Refusal>) -> Answer {
        let answered = done.map(Answered::Encoded).map_err(translate::failure);
        let answered = super::after_failure(worker, shard, Some(self.id), answered);
        stages::end(Stage::Served, self.served);
        super::conclude(worker, self.timed, shard.id(), self.id, answered)
    }
}
