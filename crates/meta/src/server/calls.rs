//! Begins requests at a worker. Every request is one future. Most are ready when they are polled for the first time, or
//! when the batch of their change is sent in the same step; these need neither a task nor memory of their own. The
//! others go on in a task.

use super::dispatch::{self, DispatchReply};
use super::memory_budget::MemoryCharge;
use super::sessions::Admitted;
use super::worker::Worker;
use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
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

/// Runs a request of `bytes` bytes and calls `reply` with its reply, now or later.
pub fn begin(
    worker: &Rc<Worker>,
    caller: &Arc<Admitted>,
    request: Request,
    bytes: usize,
    reply: impl FnOnce(DispatchReply) + 'static,
) {
    let mut place = worker.calls.take();
    place.begin(Rc::clone(worker), Arc::clone(caller), request);
    let begun = worker.busy_poll.begin(|| place.poll(&mut Context::from_waker(std::task::Waker::noop())));
    if let Poll::Ready(answer) = begun {
        worker.calls.give_back(place);
        return reply(answer);
    }
    let charge = MemoryCharge::of(worker, bytes);
    let own = Rc::clone(worker);
    worker.spawn(async move {
        let answer = poll_fn(|context| place.poll(context)).await;
        drop(charge);
        own.calls.give_back(place);
        reply(answer);
    });
}
