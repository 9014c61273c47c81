//! Clients: each asks the owner that it believes in, and asks again by the same id until it has an answer.

use super::Simulation;
use super::calls::{Answer, Call};
use super::draw::Draw;
use super::network::{BROKEN_AFTER, Place};
use super::owners::{CallId, Owner, Term};
use super::time::events;
use crate::shards::ShardRefusal;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::oneshot;
use varve_posix::Refusal;
use varve_types::{Errno, PartitionMap, SessionId, ShardId};

/// How long a client waits for a reply: longer than an owner that is stopped without losing its lease, and than a shard
/// waits for locks.
const REPLY_MAX: Duration = Duration::from_secs(12);

/// A client that has no answer by then never gets one.
const ANSWER_MAX: Duration = Duration::from_secs(300);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallResult {
    Answered(Answer),
    Refused(Errno),
    /// The file was not where the client expected it, or has other content. The call has no effect.
    Elsewhere,
    /// The client has given up: the call is carried out, or it is not.
    Unknown,
    /// There is no answer although all owners live and all links work.
    Stuck,
}

/// A call with its result.
#[derive(Clone, Debug)]
pub struct Done {
    pub call: Call,
    /// Numbers of events: a call that has ended before another began comes first.
    pub begun: u64,
    pub ended: u64,
    pub result: CallResult,
}

impl Done {
    /// A call in the directory that this call has made.
    pub fn follow_up(&self) -> Option<Call> {
        match (&self.call, &self.result) {
            (Call::MakeDirectory { name, .. }, CallResult::Answered(Answer::Inode(parent))) => {
                Some(Call::Create { parent: *parent, name: name.clone() })
            }
            _ => None,
        }
    }
}

pub struct Client {
    simulation: Rc<Simulation>,
    session: u64,
    /// The number of its last call.
    number: u64,
    /// Its map of the volume, which may be old.
    known: RefCell<Vec<Term>>,
    draw: Draw,
}

impl Client {
    pub fn new(simulation: &Rc<Simulation>, session: u64) -> Client {
        Client {
            simulation: Rc::clone(simulation),
            session,
            number: 0,
            known: RefCell::new(simulation.map.borrow().clone()),
            draw: simulation.draw.branch(10_000 + session),
        }
    }

    /// Runs a call until there is an answer, or until the client gives it up.
    pub async fn call(&mut self, call: Call) -> Done {
        self.number += 1;
        let begun = events();
        let gives_up = self.draw.percent(10);
        let result = match tokio::time::timeout(ANSWER_MAX, self.ask(&call, gives_up)).await {
            Ok(result) => result,
            Err(_) => CallResult::Stuck,
        };
        // A call that is given up may be carried out at any time of its round.
        let ended = if result == CallResult::Unknown { u64::MAX } else { events() };
        self.simulation.trace(format!("client {}: {call:?}: {result:?}", self.session));
        Done { call, begun, ended, result }
    }

    async fn ask(&mut self, call: &Call, gives_up: bool) -> CallResult {
        let mut map = PartitionMap::whole(self.simulation.settings.shards);
        loop {
            let shard = call.shard(&map);
            let known = self.known.borrow()[usize::from(shard.0)];
            let id = (self.session, self.number);
            let refusal = match self.simulation.request(Request { call: call.clone(), id, shard }, known.owner).await {
                Some(Ok(answer)) => return CallResult::Answered(answer),
                Some(Err(ShardRefusal::Rule(refusal))) => return refused(refusal),
                Some(Err(ShardRefusal::Moved { map: newer, .. })) => {
                    map.merge(&newer);
                    continue;
                }
                Some(Err(ShardRefusal::Busy)) => None,
                Some(Err(ShardRefusal::Failed(cause))) => Some(cause.reason),
                None => Some("no reply".into()),
            };
            if refusal.is_some() {
                if gives_up && !call.only_reads() {
                    return CallResult::Unknown;
                }
                self.known.borrow_mut()[usize::from(shard.0)] = self.simulation.term(shard);
            }
            tokio::time::sleep(Duration::from_millis(20) + self.draw.milliseconds(200)).await;
        }
    }
}

fn refused(refusal: Refusal) -> CallResult {
    match refusal {
        Refusal::Errno(errno) => CallResult::Refused(errno),
        Refusal::NotHere | Refusal::Stale(_) | Refusal::MustPromote => CallResult::Elsewhere,
        Refusal::Torn(_) => CallResult::Refused(Errno::EIO),
    }
}

/// A call on its way to a shard.
struct Request {
    call: Call,
    id: CallId,
    shard: ShardId,
}

impl Simulation {
    /// Carries a request to an owner, and the reply back. `None`: there was no reply.
    async fn request(self: &Rc<Self>, request: Request, owner: usize) -> Option<Result<Answer, ShardRefusal>> {
        let (from, to) = (Place::Client(request.id.0), Place::Owner(owner));
        let passage = self.network.passage(from, to);
        tokio::time::sleep(passage.delay).await;
        if passage.lost {
            tokio::time::sleep(BROKEN_AFTER).await;
            return None;
        }
        let owner = self.owner(owner);
        let (reply, replied) = oneshot::channel();
        let (simulation, process) = (Rc::clone(self), Rc::clone(&owner));
        owner.spawn(async move {
            let answer = simulation.serve(&process, &request).await;
            if simulation.may_reply(&process) {
                // The client may have given up.
                drop(reply.send(answer));
            }
        });
        let answer = tokio::time::timeout(REPLY_MAX, replied).await.ok()?.ok()?;
        tokio::time::sleep(passage.reply_delay).await;
        (!passage.reply_lost).then_some(answer)
    }

    /// Serves a request as a server does: a retry waits for the first attempt, and gets its reply.
    async fn serve(&self, owner: &Rc<Owner>, request: &Request) -> Result<Answer, ShardRefusal> {
        let Request { call, id, .. } = request;
        let Some((_, shard)) = owner.shard(request.shard) else {
            return Err(ShardRefusal::Failed(format!("owner {} does not have the shard", owner.number).into()));
        };
        if !owner.calls.borrow_mut().insert(*id) {
            return Err(ShardRefusal::Busy);
        }
        let _entered = Entered { owner: Rc::clone(owner), id: *id };
        if !call.only_reads() {
            if let Some(replied) = shard.find_reply(SessionId(id.0), 0, id.1) {
                return Ok(Answer::decode(&shard.reply_again(replied).await?));
            }
            if shard.is_recovering(SessionId(id.0), 0) {
                return Err(ShardRefusal::Busy);
            }
        }
        call.run(&shard, *id).await
    }
}

/// A call under way at an owner, until this is dropped.
struct Entered {
    owner: Rc<Owner>,
    id: CallId,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.owner.calls.borrow_mut().remove(&self.id);
    }
}
