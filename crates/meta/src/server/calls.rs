//! Begins requests at a worker. Every request is one future. One that is ready when it is polled for the first time needs
//! neither a task nor memory of its own. The others go on in a task.

use super::dispatch::{self, DispatchReply};
use super::memory_budget::MemoryCharge;
use super::sessions::Admitted;
use super::worker::Worker;
use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use varve_proto::Request;

/// Places for requests that a worker keeps for reuse, of a few kilobytes each. More requests than this rarely wait at
/// the same time.
const SPARE_MAX: usize = 64;

/// Places for the futures of requests.
#[derive(Default)]
pub struct CallPlaces(RefCell<Vec<Box<dyn CallPlace>>>);

impl CallPlaces {
    fn take(&self) -> Box<dyn CallPlace> {
        self.0.borrow_mut().pop().unwrap_or_else(|| Box::new(Place { make: dispatch::answer, call: Box::pin(None) }))
    }

    fn give_back(&self, place: Box<dyn CallPlace>) {
        let mut spare = self.0.borrow_mut();
        if spare.len() < SPARE_MAX {
            spare.push(place);
        }
    }
}

/// A place for the future of one request, reused for the next one.
trait CallPlace {
    fn begin(&mut self, worker: Rc<Worker>, caller: Arc<Admitted>, request: Request);
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<DispatchReply>;
}

struct Place<M, F> {
    make: M,
    call: Pin<Box<Option<F>>>,
}

impl<M, F> CallPlace for Place<M, F>
where
    M: Fn(Rc<Worker>, Arc<Admitted>, Request) -> F,
    F: Future<Output = DispatchReply>,
{
    fn begin(&mut self, worker: Rc<Worker>, caller: Arc<Admitted>, request: Request) {
        self.call.set(Some((self.make)(worker, caller, request)));
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<DispatchReply> {
        let call = self.call.as_mut().as_pin_mut().expect("a place is polled between a request and its reply");
        let reply = ready!(call.poll(context));
        self.call.set(None);
        Poll::Ready(reply)
    }
}

/// A request that has begun.
pub enum Begun {
    Done(DispatchReply),
    Waits(PendingCall),
}

/// A request in progress: its reply, when it is polled to its end.
pub struct PendingCall {
    worker: Rc<Worker>,
    place: Option<Box<dyn CallPlace>>,
    _held: MemoryCharge,
}

impl Future for PendingCall {
    type Output = DispatchReply;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<DispatchReply> {
        let place = self.place.as_mut().expect("a request is polled until its reply");
        let reply = ready!(place.poll(context));
        if let Some(place) = self.place.take() {
            self.worker.calls.give_back(place);
        }
        Poll::Ready(reply)
    }
}

/// Runs a request of `bytes` bytes until it waits.
pub fn begin(worker: &Rc<Worker>, caller: &Arc<Admitted>, request: Request, bytes: usize) -> Begun {
    let mut place = worker.calls.take();
    place.begin(Rc::clone(worker), Arc::clone(caller), request);
    match place.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reply) => {
            worker.calls.give_back(place);
            Begun::Done(reply)
        }
        Poll::Pending => {
            let held = MemoryCharge::of(&worker.memory_held, bytes);
            Begun::Waits(PendingCall { worker: Rc::clone(worker), place: Some(place), _held: held })
        }
    }
}
