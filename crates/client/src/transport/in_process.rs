//! The transport to a server in the same process: a request is passed to its worker as it is, and the calling thread
//! waits until the worker's thread has stored the reply. No thread waits for an [asynchronous
//! operation](crate::async_ops): the worker's thread resumes it with the reply.

use super::reply_slot::ReplySlot;
use super::{CallError, FindError, ServerWelcome, Transport};
use crate::async_ops;
use futures::future::{BoxFuture, FutureExt, ready};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use varve_env::clock::{Clock, Instant};
use varve_env::key_hash::KeyHashing;
use varve_env::spin::SpinBudget;
use varve_proto::handshake::Purpose;
use varve_proto::{Request, Response, WireShardMap};
use varve_types::{InvalidShardMap, MapServer, SessionId, ShardCount, ShardMap, WorkerPlace};

/// How often a waiting thread checks its deadline.
const WAIT_SLICE: Duration = Duration::from_secs(1);

/// A server in this process, which the caller has started.
pub trait InProcessServer: Send + Sync {
    /// Begins the session; the error is the reason of the server's refusal.
    fn join(&self, session: SessionId, purpose: Purpose) -> Result<Box<dyn InProcessSession>, String>;
}

/// A session at an in-process server; it ends when this is dropped.
pub trait InProcessSession: Send + Sync {
    /// The present shard map, which names only the server in this process.
    fn map(&self) -> WireShardMap;
    fn embedded(&self) -> bool;
    /// Announces that a worker will get a request soon: it may keep polling. Does not block.
    fn rouse(&self, worker: usize);
    /// Passes a request to a worker. `answered` is called once, on any thread, or dropped if there will be no reply.
    fn ask(&self, worker: usize, request: Request, answered: Box<dyn FnOnce(Response) + Send>);
}

pub struct InProcessTransport {
    in_process_server: Arc<dyn InProcessServer>,
    session: SessionId,
    purpose: Purpose,
    clock: Arc<dyn Clock>,
    in_process_session: Mutex<Option<Arc<dyn InProcessSession>>>,
    /// Shared by all waiting threads.
    spin_budget: Mutex<SpinBudget>,
    awaited: Awaiteds,
    /// The worker that was used last.
    last: AtomicUsize,
}

/// Replies without a waiting thread, by number, with their deadlines, which the driver of asynchronous operations
/// checks.
#[derive(Default)]
struct Awaiteds {
    made: AtomicU64,
    places: Mutex<HashMap<u64, (Instant, Arc<ReplySlot>), KeyHashing>>,
}

impl InProcessTransport {
    pub fn new(
        in_process_server: Arc<dyn InProcessServer>,
        session: SessionId,
        purpose: Purpose,
        clock: Arc<dyn Clock>,
    ) -> InProcessTransport {
        let (in_process_session, spin_budget, awaited, last) = Default::default();
        InProcessTransport {
            in_process_server,
            session,
            purpose,
            clock,
            in_process_session,
            spin_budget,
            awaited,
            last,
        }
    }

    fn find_blocking(&self) -> Result<ServerWelcome, FindError> {
        let mut in_process_session = self.in_process_session.lock();
        // The old session is dropped first: otherwise the server would have two connections of it.
        *in_process_session = None;
        let joined = self.in_process_server.join(self.session, self.purpose).map_err(FindError::Refused)?;
        let (map, embedded) = (joined.map(), joined.embedded());
        let shards = ShardCount::new(map.owners.len() as u16);
        let map = shards.ok_or(InvalidShardMap::Empty).and_then(|shards| map.to_map(shards));
        let map = map.map_err(|error| FindError::Refused(error.to_string()))?;
        // A map has at least one server.
        let server = map.servers()[0].number;
        *in_process_session = Some(Arc::from(joined));
        Ok(ServerWelcome { server, map, embedded })
    }

    /// Passes a request to its worker. Returns the reply slot; `waker` is woken if no thread waits.
    fn ask(&self, to: WorkerPlace, request: &Request, waker: Option<Waker>) -> Result<Arc<ReplySlot>, CallError> {
        let Some(in_process_session) = self.in_process_session.lock().clone() else {
            return Err(CallError::Lost { server: to.server, why: "it was closed".into() });
        };
        self.last.store(to.worker, Relaxed);
        let place = Arc::new(ReplySlot::new(waker));
        let laid = Laying { server: to.server, place: Arc::clone(&place) };
        in_process_session.ask(to.worker, request.clone(), Box::new(move |response| laid.down(response)));
        Ok(place)
    }

    fn call_blocking(&self, to: WorkerPlace, request: &Request, deadline: Instant) -> Result<Response, CallError> {
        let place = self.ask(to, request, None)?;
        self.spin(&place);
        loop {
            if let Some(ended) = place.wait_for(WAIT_SLICE) {
                return ended;
            }
            if self.clock.monotonic() >= deadline {
                return Err(CallError::Deadline);
            }
        }
    }

    /// Spins for the reply for a short time, within the spin budget.
    fn spin(&self, place: &ReplySlot) {
        let Some(mut spin) = self.spin_budget.lock().spin() else { return };
        loop {
            if place.is_laid() {
                return self.spin_budget.lock().succeeded();
            }
            if !spin.again() {
                return self.spin_budget.lock().failed();
            }
        }
    }
}

impl Transport for InProcessTransport {
    fn find(&self) -> BoxFuture<'_, Result<ServerWelcome, FindError>> {
        ready(self.find_blocking()).boxed()
    }

    fn greet<'a>(&'a self, _server: &'a MapServer) -> BoxFuture<'a, Result<ServerWelcome, FindError>> {
        ready(Err(FindError::Absent("only one server is in this process".into()))).boxed()
    }

    fn follow(&self, _map: &ShardMap) {}

    fn lose(&self, _server: u64) {}

    fn call<'a>(
        &'a self,
        to: WorkerPlace,
        request: &'a Request,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Response, CallError>> {
        if !async_ops::leaves() {
            return ready(self.call_blocking(to, request, deadline)).boxed();
        }
        async move { PendingCall::begin(self, to, request, deadline).await?.await }.boxed()
    }

    #[expect(clippy::disallowed_methods, reason = "callers pause between looks at what cannot call back")]
    fn pause(&self, wait: Duration) -> BoxFuture<'_, ()> {
        std::thread::sleep(wait);
        ready(()).boxed()
    }

    fn rouse(&self) {
        if let Some(in_process_session) = self.in_process_session.lock().clone() {
            in_process_session.rouse(self.last.load(Relaxed));
        }
    }

    fn close(&self) {
        *self.in_process_session.lock() = None;
    }

    fn end_late(&self) {
        let now = self.clock.monotonic();
        let late = |(deadline, _): &(Instant, _)| *deadline <= now;
        let places: Vec<_> = self.awaited.places.lock().extract_if(|_, waits| late(waits)).collect();
        for (_, (_, place)) in places {
            place.lay(Err(CallError::Deadline), async_ops::elsewhere);
        }
    }
}

/// A pending call of an asynchronous operation.
struct PendingCall<'a> {
    awaited: &'a Awaiteds,
    number: u64,
    place: Arc<ReplySlot>,
}

impl<'a> PendingCall<'a> {
    async fn begin(
        transport: &'a InProcessTransport,
        to: WorkerPlace,
        request: &Request,
        deadline: Instant,
    ) -> Result<PendingCall<'a>, CallError> {
        // The worker's inbox may be full, which blocks.
        async_ops::own_thread().await;
        let waker = std::future::poll_fn(|context| Poll::Ready(context.waker().clone())).await;
        let place = transport.ask(to, request, Some(waker))?;
        let awaited = &transport.awaited;
        let number = awaited.made.fetch_add(1, Relaxed);
        awaited.places.lock().insert(number, (deadline, Arc::clone(&place)));
        Ok(PendingCall { awaited, number, place })
    }
}

impl Future for PendingCall<'_> {
    type Output = Result<Response, CallError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.place.poll(context)
    }
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        self.awaited.places.lock().remove(&self.number);
    }
}

/// The right to store the reply; if it is dropped unused, there will be no reply.
struct Laying {
    server: u64,
    place: Arc<ReplySlot>,
}

impl Laying {
    fn down(self, response: Response) {
        self.place.lay(Ok(Box::new(response)), async_ops::bring);
    }
}

impl Drop for Laying {
    fn drop(&mut self) {
        let why = "the server in this process has ended".into();
        self.place.lay(Err(CallError::Lost { server: self.server, why }), async_ops::bring);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use varve_env::clock::RealClock;
    use varve_proto::handshake::Purpose;
    use varve_proto::{Call, CallId, Reply, WireCredentials};

    /// A test server that replies, never replies, or drops the request, depending on the worker.
    struct Moody(Mutex<Vec<Answered>>);

    type Answered = Box<dyn FnOnce(Response) + Send>;

    impl InProcessServer for Arc<Moody> {
        fn join(&self, _: SessionId, _: Purpose) -> Result<Box<dyn InProcessSession>, String> {
            Ok(Box::new(Arc::clone(self)))
        }
    }

    impl InProcessSession for Arc<Moody> {
        fn map(&self) -> WireShardMap {
            let workers = vec![varve_types::WorkerAddress::default(); 3];
            let server = MapServer { number: 1, boot_id: String::new(), workers };
            WireShardMap::from(&ShardMap::of_one_server(server, 1).unwrap())
        }

        fn rouse(&self, _worker: usize) {}

        fn embedded(&self) -> bool {
            true
        }

        fn ask(&self, worker: usize, request: Request, answered: Answered) {
            match worker {
                0 => {
                    let response = Response { id: request.id, result: Ok(Reply::Done) };
                    std::thread::spawn(move || answered(response));
                }
                1 => self.0.lock().push(answered),
                _ => {}
            }
        }
    }

    fn transport(clock: &Arc<RealClock>) -> InProcessTransport {
        let in_process_server = Arc::new(Arc::new(Moody(Mutex::default())));
        let transport = InProcessTransport::new(in_process_server, SessionId(7), Purpose::Work, clock.clone());
        let ServerWelcome { server, embedded, .. } = crate::block_on(transport.find()).unwrap();
        assert_eq!((server, embedded), (1, true));
        transport
    }

    fn place(worker: usize) -> WorkerPlace {
        WorkerPlace { server: 1, worker }
    }

    fn request() -> Request {
        let credentials = WireCredentials::from(varve_types::Credentials::root());
        let id = CallId { session: 7, slot: 1, number: 1 };
        Request { id, shard: 0, credentials, released: Vec::new(), call: Call::Sync }
    }

    /// Promise: a call ends with its reply, at its deadline, or when there will be no reply.
    #[test]
    fn blocking_call_completes() {
        let clock = Arc::new(RealClock::new());
        let transport = transport(&clock);
        let request = request();
        let soon = clock.monotonic().after(Duration::from_millis(10));
        let ask = |worker| transport.call_blocking(place(worker), &request, soon);
        assert_eq!(ask(0).unwrap().result, Ok(Reply::Done));
        assert_eq!(ask(1).unwrap_err(), CallError::Deadline);
        assert!(matches!(ask(2), Err(CallError::Lost { .. })));
        transport.close();
        assert!(matches!(ask(0), Err(CallError::Lost { .. })));
    }

    /// Promise: the same holds for a call without a waiting thread.
    #[test]
    fn async_call_completes() {
        let clock = Arc::new(RealClock::new());
        let transport = Arc::new(transport(&clock));
        let ask = |worker| {
            let (transport, (tell, ended)) = (Arc::clone(&transport), channel());
            let deadline = clock.monotonic().after(Duration::from_secs(3600));
            let whole = async move {
                let ended = transport.call(place(worker), &request(), deadline).await;
                tell.send(ended.map(|response| response.result)).unwrap();
            };
            async_ops::begin(whole, async_ops::Here::Leaves);
            ended
        };
        let long = Duration::from_secs(60);
        assert_eq!(ask(0).recv_timeout(long).unwrap(), Ok(Ok(Reply::Done)));
        assert!(matches!(ask(2).recv_timeout(long).unwrap(), Err(CallError::Lost { .. })));
        let unanswered = ask(1);
        transport.end_late();
        assert!(unanswered.try_recv().is_err(), "there is time yet");
        transport.awaited.places.lock().values_mut().for_each(|(deadline, _)| *deadline = clock.monotonic());
        transport.end_late();
        assert_eq!(unanswered.recv_timeout(long).unwrap(), Err(CallError::Deadline));
        assert!(transport.awaited.places.lock().is_empty());
    }
}
