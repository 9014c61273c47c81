//! Calls of asynchronous operations: each has its connection to itself until its response is there.

use super::super::connection::ServerConnection;
use super::super::reply_slot::ReplySlot;
use super::{CallError, Pool, check_answers, lost};
use crate::async_ops;
use parking_lot::Mutex;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Acquire};
use std::task::{Poll, Waker};
use varve_env::clock::Instant;
use varve_proto::{CallId, Response};

struct AwaitedCall {
    id: CallId,
    deadline: Instant,
    connection: ServerConnection,
    pool: Arc<Pool>,
    place: Arc<ReplySlot>,
    /// It was there at an earlier look for old calls.
    seen: bool,
}

#[derive(Default)]
pub(super) struct AwaitedCalls {
    calls: Mutex<Vec<AwaitedCall>>,
    count: AtomicUsize,
}

impl AwaitedCalls {
    /// The response to the request `id`, which was sent on `connection`.
    pub async fn answer(
        &self,
        connection: ServerConnection,
        pool: Arc<Pool>,
        id: CallId,
        deadline: Instant,
    ) -> Result<Response, CallError> {
        let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
        let place = Arc::new(ReplySlot::new(Some(waker)));
        // Counted first, for whoever takes it away counts it off.
        self.count.fetch_add(1, AcqRel);
        self.calls.lock().push(AwaitedCall { id, deadline, connection, pool, place: Arc::clone(&place), seen: false });
        poll_fn(|context| place.poll(context)).await
    }

    pub fn count(&self) -> usize {
        self.count.load(Acquire)
    }

    /// Lays down the responses that have come, one after the other: whoever is held up by an asynchronous operation has
    /// none of the others'. How many those were.
    pub fn bring(&self, take_up: fn(Waker)) -> usize {
        let (mut brought, mut at) = (0, 0);
        while let Some((call, received)) = self.next(&mut at) {
            let AwaitedCall { id, connection, pool, place, .. } = call;
            let server = pool.place.server;
            let response = received.map_err(|error| lost(server, &error));
            let ended = response.and_then(|response| check_answers(&response, id, server).map(|()| Box::new(response)));
            if ended.is_ok() {
                // First: what the asynchronous operation asks next may go the same way.
                pool.give_back(connection);
            }
            brought += 1;
            place.lay(ended, take_up);
        }
        brought
    }

    /// The next call from `at` on that has its response, or none to come. Nothing while another thread looks.
    fn next(&self, at: &mut usize) -> Option<(AwaitedCall, io::Result<Response>)> {
        let mut calls = self.calls.try_lock()?;
        while let Some(call) = calls.get_mut(*at) {
            if let Some(received) = call.connection.receive_at_hand().transpose() {
                self.count.fetch_sub(1, AcqRel);
                return Some((calls.swap_remove(*at), received));
            }
            *at += 1;
        }
        None
    }

    /// Ends the calls whose deadlines and servers are so. Their asynchronous operations are taken up by threads of their
    /// own.
    pub fn end_where(&self, ends: impl Fn(Instant, u64) -> bool, error: impl Fn(u64) -> CallError) {
        let ends = |call: &mut AwaitedCall| ends(call.deadline, call.pool.place.server);
        let ended: Vec<_> = self.calls.lock().extract_if(.., ends).collect();
        self.count.fetch_sub(ended.len(), AcqRel);
        for call in ended {
            call.place.lay(Err(error(call.pool.place.server)), async_ops::elsewhere);
        }
    }

    /// Whether a call waits that was there when this was last asked.
    pub fn any_old(&self) -> bool {
        let mut calls = self.calls.lock();
        calls.iter_mut().fold(false, |any, call| any | std::mem::replace(&mut call.seen, true))
    }
}
