//! The transport to a server in the same process: a request is passed to its worker as it is, and the worker's thread
//! wakes the caller's loop with the reply.

use super::{CallError, FindError, ServerWelcome, Transport};
use crate::thread_loop::{self, unless_given_up};
use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::{LocalBoxFuture, ready};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use varve_env::clock::{Clock, Instant};
use varve_proto::handshake::Purpose;
use varve_proto::{Request, Response, WireShardMap};
use varve_types::{InvalidShardMap, MapServer, SessionId, ShardCount, ShardMap, WorkerPlace};

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
    /// Passes a request to a worker. Waits while the worker has too many. `answered` is called once, on any thread, or
    /// dropped if there will be no reply.
    fn ask(&self, worker: usize, request: Request, answered: Box<dyn FnOnce(Response) + Send>);
}

pub struct InProcessTransport {
    in_process_server: Arc<dyn InProcessServer>,
    session: SessionId,
    purpose: Purpose,
    clock: Arc<dyn Clock>,
    in_process_session: Mutex<Option<Arc<dyn InProcessSession>>>,
}

impl InProcessTransport {
    pub fn new(
        in_process_server: Arc<dyn InProcessServer>,
        session: SessionId,
        purpose: Purpose,
        clock: Arc<dyn Clock>,
    ) -> InProcessTransport {
        InProcessTransport { in_process_server, session, purpose, clock, in_process_session: Mutex::default() }
    }

    fn join(&self) -> Result<ServerWelcome, FindError> {
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

    async fn call_worker(&self, to: WorkerPlace, request: &Request, deadline: Instant) -> Result<Response, CallError> {
        let lost = |why: &str| CallError::Lost { server: to.server, why: why.into() };
        let session = self.in_process_session.lock().clone().ok_or_else(|| lost("it was closed"))?;
        let (reply, response) = oneshot::channel();
        // The caller may have left before the reply.
        session.ask(to.worker, request.clone(), Box::new(move |response| drop(reply.send(response))));
        let wait = deadline.since(self.clock.monotonic());
        let late = || (self.clock.monotonic() >= deadline).then_some(CallError::Deadline);
        let response = unless_given_up(response, wait, late).await?;
        response.map_err(|_| lost("the server in this process has ended"))
    }
}

impl Transport for InProcessTransport {
    fn find(&self) -> LocalBoxFuture<'_, Result<ServerWelcome, FindError>> {
        ready(self.join()).boxed_local()
    }

    fn greet<'a>(&'a self, _server: &'a MapServer) -> LocalBoxFuture<'a, Result<ServerWelcome, FindError>> {
        ready(Err(FindError::Absent("only one server is in this process".into()))).boxed_local()
    }

    fn follow(&self, _map: &ShardMap) {}

    fn lose(&self, _server: u64) {}

    fn call<'a>(
        &'a self,
        to: WorkerPlace,
        request: &'a Request,
        deadline: Instant,
    ) -> LocalBoxFuture<'a, Result<Response, CallError>> {
        self.call_worker(to, request, deadline).boxed_local()
    }

    fn pause(&self, wait: Duration) -> LocalBoxFuture<'_, ()> {
        thread_loop::pause(wait).boxed_local()
    }

    fn close(&self) {
        *self.in_process_session.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
    fn in_process_call_completes() {
        let clock = Arc::new(RealClock::new());
        let transport = transport(&clock);
        let request = request();
        let soon = clock.monotonic().after(Duration::from_millis(10));
        let ask = |worker| crate::block_on(transport.call(place(worker), &request, soon));
        assert_eq!(ask(0).unwrap().result, Ok(Reply::Done));
        assert_eq!(ask(1).unwrap_err(), CallError::Deadline);
        assert!(matches!(ask(2), Err(CallError::Lost { .. })));
        transport.close();
        assert!(matches!(ask(0), Err(CallError::Lost { .. })));
    }

    /// Promise: calls of one thread wait at the same time, and each ends by itself.
    #[test]
    fn calls_of_a_thread_wait_together() {
        let clock = Arc::new(RealClock::new());
        let (transport, request) = (transport(&clock), request());
        let soon = clock.monotonic().after(Duration::from_millis(50));
        let later = clock.monotonic().after(Duration::from_secs(60));
        let all = futures::future::join3(
            transport.call(place(1), &request, soon),
            transport.call(place(0), &request, later),
            transport.call(place(2), &request, later),
        );
        let (late, answered, dropped) = crate::block_on(all);
        assert_eq!(late, Err(CallError::Deadline));
        assert_eq!(answered.unwrap().result, Ok(Reply::Done));
        assert!(matches!(dropped, Err(CallError::Lost { .. })));
    }
}
