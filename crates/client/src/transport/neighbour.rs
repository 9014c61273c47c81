//! The transport to a server in this very process: a request is handed to its worker as it is, and the calling thread
//! waits until the worker's thread has laid the answer down. Of an [errand](crate::errand) no thread waits: the worker's
//! takes it up with the answer.

use super::place::Place;
use super::{CallError, FindError, Server, Transport};
use crate::errand;
use futures::future::{BoxFuture, FutureExt, ready};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use varve_types::SessionId;
use varve_wire::handshake::Purpose;
use varve_wire::{Request, Response};
use varve_world::clock::{Clock, Moment};
use varve_world::key_hash::KeyHashing;
use varve_world::patience::Patience;

/// How often a waiting thread looks at its deadline.
const WAIT_SLICE: Duration = Duration::from_secs(1);

/// A server in this process, as whoever started it hands it in.
pub trait Neighbour: Send + Sync {
    /// Begins the session; the error is why the server does not want it.
    fn join(&self, session: SessionId, purpose: Purpose) -> Result<Box<dyn Seat>, String>;
}

/// A session at a neighbour; it ends when this is dropped.
pub trait Seat: Send + Sync {
    /// The worker that owns each shard, by shard.
    fn owners(&self) -> Vec<u16>;
    fn workers(&self) -> usize;
    fn embedded(&self) -> bool;
    /// A worker will be asked something soon: it may stay awake for that. Waits for nothing.
    fn rouse(&self, worker: usize);
    /// Has a worker answer. `answered` is called once, on any thread, or dropped where there will be no answer.
    fn ask(&self, worker: usize, request: Request, answered: Box<dyn FnOnce(Response) + Send>);
}

pub struct NeighbourTransport {
    neighbour: Arc<dyn Neighbour>,
    session: SessionId,
    purpose: Purpose,
    clock: Arc<dyn Clock>,
    seat: Mutex<Option<Arc<dyn Seat>>>,
    /// Of the threads that wait: they are alike.
    patience: Mutex<Patience>,
    awaited: Awaiteds,
    /// The worker asked last.
    last: AtomicUsize,
}

/// Answers that no thread waits for, by number, and until when they are waited for: for whoever looks at the clock.
#[derive(Default)]
struct Awaiteds {
    made: AtomicU64,
    places: Mutex<HashMap<u64, (Moment, Arc<Place>), KeyHashing>>,
}

impl NeighbourTransport {
    pub fn new(
        neighbour: Arc<dyn Neighbour>,
        session: SessionId,
        purpose: Purpose,
        clock: Arc<dyn Clock>,
    ) -> NeighbourTransport {
        let (seat, patience, awaited, last) = Default::default();
        NeighbourTransport { neighbour, session, purpose, clock, seat, patience, awaited, last }
    }

    fn find_now(&self, found: u64) -> Result<Arc<Server>, FindError> {
        let mut seat = self.seat.lock();
        // The session's old seat goes first: two would be two connections of it.
        *seat = None;
        let joined = self.neighbour.join(self.session, self.purpose).map_err(FindError::Refused)?;
        let (owners, workers, embedded) = (joined.owners(), joined.workers(), joined.embedded());
        *seat = Some(Arc::from(joined));
        Ok(Arc::new(Server { found, owners, workers, embedded }))
    }

    /// Hands a request to its worker; where the answer will be laid down, for `waker` if nobody waits.
    fn ask(&self, worker: usize, request: &Request, waker: Option<Waker>) -> Result<Arc<Place>, CallError> {
        let Some(seat) = self.seat.lock().clone() else { return Err(CallError::Lost("it was closed".into())) };
        self.last.store(worker, Relaxed);
        let place = Arc::new(Place::new(waker));
        let laid = Laying(Arc::clone(&place));
        seat.ask(worker, request.clone(), Box::new(move |response| laid.down(response)));
        Ok(place)
    }

    fn call_now(&self, worker: usize, request: &Request, deadline: Moment) -> Result<Response, CallError> {
        let place = self.ask(worker, request, None)?;
        self.look(&place);
        loop {
            if let Some(ended) = place.wait_for(WAIT_SLICE) {
                return ended;
            }
            if self.clock.monotonic() >= deadline {
                return Err(CallError::Deadline);
            }
        }
    }

    /// Looks for the answer for a short while, as far as that has been of use.
    fn look(&self, place: &Place) {
        let Some(mut look) = self.patience.lock().look() else { return };
        loop {
            if place.is_laid() {
                return self.patience.lock().succeeded();
            }
            if !look.again() {
                return self.patience.lock().failed();
            }
        }
    }
}

impl Transport for NeighbourTransport {
    fn find(&self, found: u64) -> BoxFuture<'_, Result<Arc<Server>, FindError>> {
        ready(self.find_now(found)).boxed()
    }

    fn call<'a>(
        &'a self,
        _server: &'a Server,
        worker: usize,
        request: &'a Request,
        deadline: Moment,
    ) -> BoxFuture<'a, Result<Response, CallError>> {
        if !errand::leaves() {
            return ready(self.call_now(worker, request, deadline)).boxed();
        }
        async move { Asked::begin(self, worker, request, deadline).await?.await }.boxed()
    }

    #[expect(clippy::disallowed_methods, reason = "callers pause between looks at what cannot call back")]
    fn pause(&self, wait: Duration) -> BoxFuture<'_, ()> {
        std::thread::sleep(wait);
        ready(()).boxed()
    }

    fn rouse(&self) {
        if let Some(seat) = self.seat.lock().clone() {
            seat.rouse(self.last.load(Relaxed));
        }
    }

    fn close(&self) {
        *self.seat.lock() = None;
    }

    fn end_late(&self) {
        let now = self.clock.monotonic();
        let late = |(deadline, _): &(Moment, _)| *deadline <= now;
        let places: Vec<_> = self.awaited.places.lock().extract_if(|_, waits| late(waits)).collect();
        for (_, (_, place)) in places {
            place.lay(Err(CallError::Deadline), errand::elsewhere);
        }
    }
}

/// A call of an errand.
struct Asked<'a> {
    awaited: &'a Awaiteds,
    number: u64,
    place: Arc<Place>,
}

impl<'a> Asked<'a> {
    async fn begin(
        transport: &'a NeighbourTransport,
        worker: usize,
        request: &Request,
        deadline: Moment,
    ) -> Result<Asked<'a>, CallError> {
        // The worker's inbox may be full.
        errand::own_thread().await;
        let waker = std::future::poll_fn(|context| Poll::Ready(context.waker().clone())).await;
        let place = transport.ask(worker, request, Some(waker))?;
        let awaited = &transport.awaited;
        let number = awaited.made.fetch_add(1, Relaxed);
        awaited.places.lock().insert(number, (deadline, Arc::clone(&place)));
        Ok(Asked { awaited, number, place })
    }
}

impl Future for Asked<'_> {
    type Output = Result<Response, CallError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.place.poll(context)
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.awaited.places.lock().remove(&self.number);
    }
}

/// The right to lay the answer down; dropped unused, there will be none.
struct Laying(Arc<Place>);

impl Laying {
    fn down(self, response: Response) {
        self.0.lay(Ok(Box::new(response)), errand::bring);
    }
}

impl Drop for Laying {
    fn drop(&mut self) {
        self.0.lay(Err(CallError::Lost("the server in this process has ended".into())), errand::bring);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use varve_wire::handshake::Purpose;
    use varve_wire::{Call, CallId, Reply, WireCredentials};
    use varve_world::clock::RealClock;

    /// Answers, says nothing, or forgets the question, by the worker that is asked.
    struct Moody(Mutex<Vec<Answered>>);

    type Answered = Box<dyn FnOnce(Response) + Send>;

    impl Neighbour for Arc<Moody> {
        fn join(&self, _: SessionId, _: Purpose) -> Result<Box<dyn Seat>, String> {
            Ok(Box::new(Arc::clone(self)))
        }
    }

    impl Seat for Arc<Moody> {
        fn owners(&self) -> Vec<u16> {
            vec![0]
        }

        fn workers(&self) -> usize {
            3
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

    fn transport(clock: &Arc<RealClock>) -> (NeighbourTransport, Arc<Server>) {
        let neighbour = Arc::new(Arc::new(Moody(Mutex::default())));
        let transport = NeighbourTransport::new(neighbour, SessionId(7), Purpose::Work, clock.clone());
        let server = crate::now(transport.find(1)).unwrap();
        (transport, server)
    }

    fn request() -> Request {
        let credentials = WireCredentials::from(varve_types::Credentials::root());
        let id = CallId { session: 7, slot: 1, number: 1 };
        Request { id, shard: 0, credentials, released: Vec::new(), call: Call::Sync }
    }

    /// Promise: a call ends with its answer, with its deadline, or when there will be no answer.
    #[test]
    fn a_call_ends() {
        let clock = Arc::new(RealClock::new());
        let (transport, server) = transport(&clock);
        assert!(server.embedded);
        let request = request();
        let soon = clock.monotonic().after(Duration::from_millis(10));
        let ask = |worker| transport.call_now(worker, &request, soon);
        assert_eq!(ask(0).unwrap().result, Ok(Reply::Done));
        assert_eq!(ask(1).unwrap_err(), CallError::Deadline);
        assert!(matches!(ask(2), Err(CallError::Lost(_))));
        transport.close();
        assert!(matches!(ask(0), Err(CallError::Lost(_))));
    }

    /// Promise: so does a call that no thread waits for.
    #[test]
    fn a_call_of_an_errand_ends() {
        let clock = Arc::new(RealClock::new());
        let (transport, server) = transport(&clock);
        let transport = Arc::new(transport);
        let ask = |worker| {
            let (transport, server, (tell, ended)) = (Arc::clone(&transport), Arc::clone(&server), channel());
            let deadline = clock.monotonic().after(Duration::from_secs(3600));
            let whole = async move {
                let ended = transport.call(&server, worker, &request(), deadline).await;
                tell.send(ended.map(|response| response.result)).unwrap();
            };
            errand::begin(whole, errand::Here::Leaves);
            ended
        };
        let long = Duration::from_secs(60);
        assert_eq!(ask(0).recv_timeout(long).unwrap(), Ok(Ok(Reply::Done)));
        assert!(matches!(ask(2).recv_timeout(long).unwrap(), Err(CallError::Lost(_))));
        let unanswered = ask(1);
        transport.end_late();
        assert!(unanswered.try_recv().is_err(), "there is time yet");
        transport.awaited.places.lock().values_mut().for_each(|(deadline, _)| *deadline = clock.monotonic());
        transport.end_late();
        assert_eq!(unanswered.recv_timeout(long).unwrap(), Err(CallError::Deadline));
        assert!(transport.awaited.places.lock().is_empty());
    }
}
