//! Calls between shards: this shard's channels to the others (`formats/peer.md` has the protocol).
//!
//! [`PeerChannels`] numbers the requests of this shard, names the terms that it knows, and checks what comes back. It
//! also admits the requests of other shards. [`Peers`] delivers: inside one server these are messages between workers,
//! between servers they will be frames, so they contain no shared memory.

pub use varve_schema::peer::{
    FileCall, FileReply, ForeignRow, PeerCall, PeerReply, PeerRequest, PeerResponse, ShardTerm, SplitAttempt,
    SplitState,
};

use super::received_ids::ReceivedIds;
use super::refusal::{Cause, ShardRefusal};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;
use varve_env::key_hash::KeyHashing;
use varve_types::{Epoch, Errno, PartitionMap, ShardCount, ShardId};

/// How long a shard waits for a reply. The called shard may have to be opened first, which replays its log, and may
/// then wait for its store, which counts as hung after 30 s.
pub const CALL_MAX: Duration = Duration::from_secs(90);

/// Whether messages within a process go through their bytes too, so that tests find what the bytes do not say.
const BY_BYTES: bool = cfg!(debug_assertions);

/// `Err`: the outcome is unknown.
pub type SentRequest<'a> = Pin<Box<dyn Future<Output = Result<PeerResponse, Cause>> + 'a>>;

pub type PeerFuture<'a> = Pin<Box<dyn Future<Output = PeerReply> + 'a>>;

/// Delivers requests to the other shards of the volume.
pub trait Peers {
    /// Sends a request once. Requests to one shard arrive in the order in which their futures are first polled.
    fn send(&self, request: PeerRequest) -> SentRequest<'_>;
}

/// Turns an unexpected reply, received while `doing`, into a refusal.
pub(super) fn unexpected(reply: PeerReply, doing: impl fmt::Display) -> ShardRefusal {
    match reply {
        PeerReply::Failed(cause) => refusal(cause, Some(doing)),
        other => ShardRefusal::Failed(Cause::from(format!("{doing}: {other:?}"))),
    }
}

/// The errno of a call whose outcome is unknown because its message was lost or its shard has a new owner.
pub const LOST: Errno = Errno::EAGAIN;

/// The refusal of a request that met `cause` in a call of another shard. After the loss of a message the request is
/// refused as busy: nothing is decided yet, and the client asks again under the same call id.
pub(super) fn refusal(cause: Cause, doing: Option<impl fmt::Display>) -> ShardRefusal {
    if cause.errno == LOST {
        tracing::debug!("the request is to be sent again: {cause}");
        return ShardRefusal::Busy;
    }
    ShardRefusal::Failed(match doing {
        Some(doing) => cause.met(doing),
        None => cause,
    })
}

/// The response to a request, as it reaches the caller.
pub(super) fn response(id: u64, from: ShardTerm, reply: PeerReply) -> PeerResponse {
    let response = PeerResponse { id, from, reply };
    match BY_BYTES.then(|| response.through_bytes()) {
        None => response,
        Some(Ok(response)) => response,
        Some(Err(error)) => PeerResponse { reply: PeerReply::Failed(error.to_string().into()), ..response },
    }
}

/// The fields of a request that a response must match.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub to: ShardId,
    id: u64,
    term: Option<Epoch>,
}

impl Asked {
    fn of(request: &PeerRequest) -> Asked {
        Asked { to: request.to, id: request.id, term: request.term }
    }
}

/// The channels of one shard to and from all others.
pub(super) struct PeerChannels {
    peers: Rc<dyn Peers>,
    own: ShardTerm,
    shards: ShardCount,
    /// This is a read-only view, whose requests have no term.
    only_reads: bool,
    channels: RefCell<HashMap<ShardId, Channel, KeyHashing>>,
    /// Notified when another shard turns out to have a new owner.
    new_terms: Notify,
    /// The later owner of this shard, as another shard has reported.
    superseded: Cell<Option<Epoch>>,
}

/// This shard's knowledge of another one.
#[derive(Default)]
struct Channel {
    term: Option<Epoch>,
    /// The id of the last request to it.
    sent: u64,
    /// The ids of requests from its term.
    received: ReceivedIds,
}

impl PeerChannels {
    pub fn new(peers: Rc<dyn Peers>, own: ShardTerm, shards: ShardCount, only_reads: bool) -> PeerChannels {
        let (channels, new_terms, superseded) = Default::default();
        PeerChannels { peers, own, shards, only_reads, channels, new_terms, superseded }
    }

    /// Calls another shard. The call is carried out at most once. Boxed, because few requests call another shard.
    pub fn call(&self, to: ShardId, call: PeerCall) -> PeerFuture<'_> {
        Box::pin(async move {
            if !call.only_reads() && self.term_of(to).is_none() {
                // A call that changes something names the term. Any response tells it.
                let reply = self.send(to, PeerCall::Fetch(Vec::new())).await;
                if self.term_of(to).is_none() {
                    return reply;
                }
            }
            let again = call.is_sent_again().then(|| call.clone());
            match (self.send(to, call).await, again) {
                (PeerReply::WrongTerm, Some(call)) => match self.send(to, call).await {
                    PeerReply::WrongTerm => PeerReply::Busy,
                    reply => reply,
                },
                (PeerReply::WrongTerm, None) => PeerReply::Busy,
                (reply, _) => reply,
            }
        })
    }

    async fn send(&self, to: ShardId, call: PeerCall) -> PeerReply {
        let request = match self.request(to, call) {
            Ok(request) => request,
            Err(cause) => return PeerReply::Failed(cause),
        };
        let asked = Asked::of(&request);
        match tokio::time::timeout(CALL_MAX, self.peers.send(request)).await {
            Ok(Ok(response)) => self.receive(asked, response),
            Ok(Err(cause)) => PeerReply::Failed(cause),
            Err(_) => {
                let reason = format!("shard {to} has not replied for {CALL_MAX:?}");
                PeerReply::Failed(Cause { errno: Errno::ETIMEDOUT, reason })
            }
        }
    }

    fn request(&self, to: ShardId, call: PeerCall) -> Result<PeerRequest, Cause> {
        let mut channels = self.channels.borrow_mut();
        let channel = channels.entry(to).or_default();
        channel.sent += 1;
        let from = ShardTerm { term: if self.only_reads { ShardTerm::NONE } else { self.own.term }, ..self.own };
        let request = PeerRequest { from, to, term: channel.term, id: channel.sent, deadline: CALL_MAX, call };
        match BY_BYTES {
            true => request.through_bytes().map_err(|error| Cause::from(format!("no call of shard {to}: {error}"))),
            false => Ok(request),
        }
    }

    /// The reply in a response.
    pub fn receive(&self, Asked { to, id, term }: Asked, response: PeerResponse) -> PeerReply {
        let PeerResponse { id: answered, from, reply } = response;
        // Not EIO, which would mean damage.
        let failed = |errno, reason: String| PeerReply::Failed(Cause { errno, reason: format!("shard {to} {reason}") });
        let unknown = |reason| failed(LOST, reason);
        if answered != id || from.shard != to {
            let reason = format!("replied as shard {} to request {answered}, not to {id}", from.shard);
            return failed(Errno::ETIMEDOUT, reason);
        }
        self.learn(from);
        match reply {
            PeerReply::Busy | PeerReply::WrongTerm => reply,
            PeerReply::Superseded(by) => {
                self.superseded.set(Some(by));
                unknown(format!("has been called by a later owner of shard {}, in epoch {}", self.own.shard, by.0))
            }
            PeerReply::Repeated => unknown(format!("has received request {id} before")),
            _ if term.is_some_and(|term| term != from.term) => {
                unknown(format!("replied in epoch {} to a call of another one", from.term.0))
            }
            reply if !self.fits(&reply.maps()) => {
                failed(Errno::ETIMEDOUT, "replied with a map of another volume".to_owned())
            }
            reply => reply,
        }
    }

    fn fits(&self, maps: &[&PartitionMap]) -> bool {
        maps.iter().all(|map| map.shards() == self.shards)
    }

    fn term_of(&self, shard: ShardId) -> Option<Epoch> {
        self.channels.borrow().get(&shard).and_then(|channel| channel.term)
    }

    /// Notes the term of another shard. `false`: a later one is known.
    fn learn(&self, from: ShardTerm) -> bool {
        if from.term == ShardTerm::NONE {
            return true;
        }
        let mut channels = self.channels.borrow_mut();
        let channel = channels.entry(from.shard).or_default();
        if channel.term.is_some_and(|known| known >= from.term) {
            return channel.term == Some(from.term);
        }
        (channel.term, channel.received) = (Some(from.term), ReceivedIds::default());
        self.new_terms.notify_waiters();
        true
    }

    // The called shard's side.

    /// Whether a request is to be carried out, else the reply to it.
    pub fn admit(&self, request: &PeerRequest) -> Result<(), PeerReply> {
        let PeerRequest { from, to, term, id, call, .. } = request;
        if *to != self.own.shard || from.shard.0 >= self.shards.get() || !self.fits(&call.maps()) {
            return Err(PeerReply::Failed(format!("a call of shard {} to shard {to} went astray", from.shard).into()));
        }
        let only_reads = call.only_reads();
        match term {
            Some(term) if *term == self.own.term => {}
            None if only_reads => {}
            _ => return Err(PeerReply::WrongTerm),
        }
        if from.term == ShardTerm::NONE {
            let changes = || PeerReply::Failed("a read-only view of a shard asks for a change".into());
            return only_reads.then_some(()).ok_or_else(changes);
        }
        if !self.learn(*from) {
            return Err(PeerReply::Superseded(self.term_of(from.shard).unwrap_or(from.term)));
        }
        let mut channels = self.channels.borrow_mut();
        match channels.entry(from.shard).or_default().received.note(*id) {
            true => Ok(()),
            false => Err(PeerReply::Repeated),
        }
    }

    pub fn respond(&self, id: u64, reply: PeerReply) -> PeerResponse {
        response(id, self.own, reply)
    }

    // Ends of terms.

    /// Whether `shard` has had a later owner than the one of `term`.
    pub fn is_over(&self, shard: ShardId, term: Epoch) -> bool {
        self.term_of(shard).is_some_and(|known| known > term)
    }

    /// Ready when `shard` turns out to have a later owner than the one of `term`.
    pub async fn over(&self, shard: ShardId, term: Epoch) {
        loop {
            let new_terms = self.new_terms.notified();
            if self.is_over(shard, term) {
                return;
            }
            new_terms.await;
        }
    }

    /// Ready when any shard turns out to have a new owner from now on.
    pub fn any_over(&self) -> impl Future<Output = ()> {
        self.new_terms.notified()
    }

    /// Why this shard has another owner by now, if a peer has reported one.
    pub fn superseded(&self) -> Option<Cause> {
        let by = self.superseded.get()?;
        Some(format!("shard {} has a later owner, of epoch {}", self.own.shard, by.0).into())
    }
}
