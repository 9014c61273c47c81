//! The transport to a server in this very process: a request is handed to its worker as it is, and the calling thread
//! waits until the worker's thread has laid the answer down.

use super::{CallError, FindError, Server, Transport};
use futures::future::{BoxFuture, FutureExt, ready};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::Duration;
use varve_types::SessionId;
use varve_wire::handshake::Purpose;
use varve_wire::{Request, Response};
use varve_world::clock::{Clock, Moment};
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
}

impl NeighbourTransport {
    pub fn new(
        neighbour: Arc<dyn Neighbour>,
        session: SessionId,
        purpose: Purpose,
        clock: Arc<dyn Clock>,
    ) -> NeighbourTransport {
        let (seat, patience) = (Mutex::default(), Mutex::default());
        NeighbourTransport { neighbour, session, purpose, clock, seat, patience }
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

    fn call_now(&self, worker: usize, request: &Request, deadline: Moment) -> Result<Response, CallError> {
        let Some(seat) = self.seat.lock().clone() else { return Err(CallError::Lost("it was closed".into())) };
        let place = Arc::new(Place::default());
        let laid = Laying(Arc::clone(&place));
        seat.ask(worker, request.clone(), Box::new(move |response| laid.down(response)));
        self.look(&place);
        let mut answer = place.answer.lock();
        loop {
            match std::mem::take(&mut *answer) {
                Awaited::Here(response) => return Ok(*response),
                Awaited::Never => return Err(CallError::Lost("the server in this process has ended".into())),
                Awaited::Yet if self.clock.monotonic() >= deadline => return Err(CallError::Deadline),
                Awaited::Yet => {
                    place.changed.wait_for(&mut answer, WAIT_SLICE);
                }
            }
        }
    }

    /// Looks for the answer for a short while, as far as that has been of use.
    fn look(&self, place: &Place) {
        let Some(look) = self.patience.lock().look() else { return };
        loop {
            if !matches!(*place.answer.lock(), Awaited::Yet) {
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
        ready(self.call_now(worker, request, deadline)).boxed()
    }

    #[expect(clippy::disallowed_methods, reason = "callers pause between looks at what cannot call back")]
    fn pause(&self, wait: Duration) -> BoxFuture<'_, ()> {
        std::thread::sleep(wait);
        ready(()).boxed()
    }

    fn close(&self) {
        *self.seat.lock() = None;
    }
}

/// Where one answer is laid down.
#[derive(Default)]
struct Place {
    answer: Mutex<Awaited>,
    changed: Condvar,
}

#[derive(Default)]
enum Awaited {
    #[default]
    Yet,
    Here(Box<Response>),
    Never,
}

/// The right to lay the answer down; dropped unused, there will be none.
struct Laying(Arc<Place>);

impl Laying {
    fn down(self, response: Response) {
        self.set(Awaited::Here(Box::new(response)));
    }

    fn set(&self, awaited: Awaited) {
        let mut answer = self.0.answer.lock();
        if matches!(*answer, Awaited::Yet) {
            *answer = awaited;
            self.0.changed.notify_one();
        }
    }
}

impl Drop for Laying {
    fn drop(&mut self) {
        self.set(Awaited::Never);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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

    /// Promise: a call ends with its answer, with its deadline, or when there will be no answer.
    #[test]
    fn a_call_ends() {
        let clock = Arc::new(RealClock::new());
        let neighbour = Arc::new(Arc::new(Moody(Mutex::default())));
        let transport = NeighbourTransport::new(neighbour, SessionId(7), Purpose::Work, clock.clone());
        let server = crate::now(transport.find(1)).unwrap();
        assert!(server.embedded);
        let credentials = WireCredentials::from(varve_types::Credentials::root());
        let id = CallId { session: 7, slot: 1, number: 1 };
        let request = Request { id, shard: 0, credentials, released: Vec::new(), call: Call::Sync };
        let soon = clock.monotonic().after(Duration::from_millis(10));
        let ask = |worker| transport.call_now(worker, &request, soon);
        assert_eq!(ask(0).unwrap().result, Ok(Reply::Done));
        assert_eq!(ask(1).unwrap_err(), CallError::Deadline);
        assert!(matches!(ask(2), Err(CallError::Lost(_))));
        transport.close();
        assert!(matches!(ask(0), Err(CallError::Lost(_))));
    }
}
