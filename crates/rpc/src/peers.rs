//! Connections to several servers at once. Each is made when a call needs it, and lost and found on its own.

use crate::client::Connection;
use crate::error::{CallError, Cause};
use crate::event_loop::{LoopHandle, Timer};
use crate::handshake::dial::DialError;
use bytes::Bytes;
use futures::future::LocalBoxFuture;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use varve_env::clock::Instant;
use varve_env::key_hash::KeyHashing;
use varve_env::random;

/// The first pause between two tries. It doubles up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(10);

/// A server that comes back is found within this time.
const RETRY_MAX: Duration = Duration::from_secs(1);

/// A connection that was lost sooner counts as a failed try.
const STEADY_AFTER: Duration = Duration::from_secs(2);

/// Callers that wait for a connection to one server.
const WAITING_MAX: usize = 4096;

const CLOSED: &str = "calls of this server have ended here";

/// Makes a connection. It may make calls on it before it returns it, for example to register open files at a server that
/// was restarted: no other call goes before those.
pub trait Dial {
    fn dial(&self) -> LocalBoxFuture<'static, Result<Connection, DialError>>;
}

impl<F: Fn() -> LocalBoxFuture<'static, Result<Connection, DialError>>> Dial for F {
    fn dial(&self) -> LocalBoxFuture<'static, Result<Connection, DialError>> {
        self()
    }
}

/// A server, whether or not there is a connection to it. Clones are the same one.
#[derive(Clone)]
pub struct Peer(Rc<PeerInner>);

struct PeerInner {
    event_loop: LoopHandle,
    dial: Rc<dyn Dial>,
    state: RefCell<LinkState>,
    waiting: RefCell<BTreeMap<u64, Waker>>,
    tickets: Cell<u64>,
}

enum LinkState {
    Down {
        failures: u32,
        next: Instant,
        last: Option<DialError>,
    },
    Dialling {
        last: Option<DialError>,
    },
    Up {
        connection: Rc<Connection>,
        failures: u32,
        since: Instant,
    },
    /// Nobody calls this server any more.
    Closed,
}

impl Peer {
    pub fn new(event_loop: &LoopHandle, dial: Rc<dyn Dial>) -> Peer {
        let state = LinkState::Down { failures: 0, next: event_loop.now(), last: None };
        let (state, (waiting, tickets)) = (RefCell::new(state), Default::default());
        Peer(Rc::new(PeerInner { event_loop: event_loop.clone(), dial, state, waiting, tickets }))
    }

    /// Sends `request` and returns the reply. Connects first if need be, as often as `deadline` allows. A call is sent
    /// at most once: if its connection breaks, its outcome is unknown.
    ///
    /// # Errors
    /// If there is no reply. The error says whether the call may have been carried out.
    pub async fn call(&self, request: Bytes, deadline: Instant) -> Result<Bytes, CallError> {
        loop {
            let timer = self.0.event_loop.timer(deadline);
            let connection = Connecting { peer: &self.0, ticket: None, timer }.await.map_err(CallError::NotSent)?;
            match connection.call(request.clone(), deadline).await {
                Err(CallError::NotSent(Cause::Lost(_))) => {}
                ended => return ended,
            }
        }
    }

    /// Ends the connection, and with it the calls in progress: those that were sent by an unknown outcome. No call is
    /// sent any more.
    pub fn close(&self) {
        let state = std::mem::replace(&mut *self.0.state.borrow_mut(), LinkState::Closed);
        if let LinkState::Up { connection, .. } = state {
            connection.close();
        }
        self.0.wake_waiting();
    }

    /// Whether there is a connection now.
    pub fn is_up(&self) -> bool {
        matches!(&*self.0.state.borrow(), LinkState::Up { connection, .. } if !connection.is_lost())
    }
}

impl PeerInner {
    /// The connection, if there is one. Sees to it that one is made otherwise.
    fn connection(self: &Rc<PeerInner>) -> Result<Option<Rc<Connection>>, Cause> {
        let mut state = self.state.borrow_mut();
        let now = self.event_loop.now();
        if let LinkState::Up { connection, failures, since } = &*state {
            if !connection.is_lost() {
                return Ok(Some(Rc::clone(connection)));
            }
            let steady = now.since(*since) >= STEADY_AFTER;
            let last = connection.lost().map(DialError::Unreachable);
            *state = down(if steady { 0 } else { *failures }, now, last);
        }
        match &*state {
            LinkState::Down { next, last: Some(DialError::Refused(why) | DialError::Untrusted(why)), .. }
                if now < *next =>
            {
                return Err(Cause::Refused(why.clone()));
            }
            LinkState::Down { failures, next, last } => {
                let (failures, next, last) = (*failures, *next, last.clone());
                *state = LinkState::Dialling { last };
                let peer = Rc::clone(self);
                self.event_loop.spawn(async move { peer.dial(failures, next).await });
            }
            LinkState::Closed => return Err(Cause::Lost(CLOSED.into())),
            LinkState::Dialling { .. } | LinkState::Up { .. } => {}
        }
        Ok(None)
    }

    async fn dial(self: Rc<PeerInner>, failures: u32, next: Instant) {
        self.event_loop.timer(next).await;
        if self.is_closed() {
            return;
        }
        let dialled = self.dial.dial().await;
        if self.is_closed() {
            return;
        }
        let now = self.event_loop.now();
        *self.state.borrow_mut() = match dialled {
            Ok(connection) => LinkState::Up { connection: Rc::new(connection), failures, since: now },
            Err(error) => {
                tracing::debug!("no connection to a server: {error}");
                down(failures, now, Some(error))
            }
        };
        self.wake_waiting();
    }

    fn is_closed(&self) -> bool {
        matches!(&*self.state.borrow(), LinkState::Closed)
    }

    fn wake_waiting(&self) {
        let waiting: Vec<Waker> = self.waiting.borrow().values().cloned().collect();
        waiting.into_iter().for_each(Waker::wake);
    }

    fn last_error(&self) -> String {
        let state = self.state.borrow();
        let (LinkState::Down { last, .. } | LinkState::Dialling { last }) = &*state else { return String::new() };
        last.as_ref().map_or_else(|| "the server does not answer".into(), DialError::to_string)
    }
}

/// One try more has failed: the next one is after a pause, of which a random half is left out so that clients of a
/// server do not come at the same time.
fn down(failures: u32, now: Instant, last: Option<DialError>) -> LinkState {
    let pause = RETRY_MIN.saturating_mul(1 << failures.min(16)).min(RETRY_MAX);
    let pause = pause / 2 + pause.mul_f64((random::number() >> 11) as f64 / (1_u64 << 54) as f64);
    LinkState::Down { failures: failures.saturating_add(1), next: now.after(pause), last }
}

/// Waits for a connection.
struct Connecting<'a> {
    peer: &'a Rc<PeerInner>,
    ticket: Option<u64>,
    timer: Timer,
}

impl Future for Connecting<'_> {
    type Output = Result<Rc<Connection>, Cause>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Connecting { peer, ticket, timer } = &mut *self;
        if let Some(connection) = peer.connection()? {
            return Poll::Ready(Ok(connection));
        }
        if Pin::new(timer).poll(context).is_ready() {
            return Poll::Ready(Err(Cause::Unreachable(peer.last_error())));
        }
        let mut waiting = peer.waiting.borrow_mut();
        if ticket.is_none() && waiting.len() >= WAITING_MAX {
            return Poll::Ready(Err(Cause::Overload(waiting.len())));
        }
        let ticket = *ticket.get_or_insert_with(|| {
            peer.tickets.set(peer.tickets.get() + 1);
            peer.tickets.get()
        });
        waiting.insert(ticket, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Connecting<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.peer.waiting.borrow_mut().remove(&ticket);
        }
    }
}

/// The servers that one thread calls, by whatever names them.
pub struct Peers<K> {
    event_loop: LoopHandle,
    peers: RefCell<HashMap<K, Peer, KeyHashing>>,
}

impl<K: Hash + Eq> Peers<K> {
    pub fn new(event_loop: &LoopHandle) -> Peers<K> {
        Peers { event_loop: event_loop.clone(), peers: RefCell::default() }
    }

    pub fn get(&self, key: &K) -> Option<Peer> {
        self.peers.borrow().get(key).cloned()
    }

    /// Adds a server, or replaces it by one at another address. Calls in progress at the old one go on.
    pub fn insert(&self, key: K, dial: Rc<dyn Dial>) -> Peer {
        let peer = Peer::new(&self.event_loop, dial);
        self.peers.borrow_mut().insert(key, peer.clone());
        peer
    }

    /// Removes a server. Calls in progress go on, unless it is [closed](Peer::close).
    pub fn remove(&self, key: &K) {
        let removed = self.peers.borrow_mut().remove(key);
        drop(removed);
    }
}
