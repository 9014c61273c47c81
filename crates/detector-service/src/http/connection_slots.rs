//! Limits for HTTP connections. Connections that have not sent a complete request have slots of their own. When these
//! are full, the newest connection evicts the oldest, so that a client with an incomplete request or none blocks nobody
//! else.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Timeout for a TLS handshake, for the head of a request, and for its body.
pub const HEAD_WAIT: Duration = Duration::from_secs(10);
/// Limit for connections without a complete request; it bounds the number of connections and the memory for their
/// bodies.
const UNASKED_MAX: usize = 128;
/// Time that a connection has for its request before it can be evicted. Clients usually send a request right after
/// connecting.
const UNASKED_LEAST: Duration = Duration::from_millis(250);
/// Limit for requests in progress; some wait for the store or for frames.
pub const ANSWERING_MAX: usize = 64;

pub struct ConnectionSlots {
    unasked: Mutex<IdleConnections>,
    left: Notify,
    answering: Arc<Semaphore>,
}

#[derive(Default)]
struct IdleConnections {
    next: u64,
    /// In the order of their arrival.
    waiting: BTreeMap<u64, (Instant, Arc<Notify>)>,
}

impl IdleConnections {
    fn add(&mut self, evict: &Arc<Notify>) -> u64 {
        self.next += 1;
        self.waiting.insert(self.next, (Instant::now(), Arc::clone(evict)));
        self.next
    }
}

/// The slot of a connection, until dropped.
pub struct ConnectionSlot {
    places: Arc<ConnectionSlots>,
    evict: Arc<Notify>,
    /// Number among the connections without a complete request; `None` while a request is in progress.
    number: Mutex<Option<u64>>,
}

/// A request in progress, until dropped.
pub struct RequestInProgress<'p> {
    place: &'p ConnectionSlot,
    _permit: OwnedSemaphorePermit,
}

impl ConnectionSlots {
    pub fn new() -> Arc<ConnectionSlots> {
        let answering = Arc::new(Semaphore::new(ANSWERING_MAX));
        Arc::new(ConnectionSlots { unasked: Mutex::default(), left: Notify::new(), answering })
    }

    /// Returns a slot for a new connection. If necessary, it evicts the connection that has waited longest without a
    /// complete request.
    pub async fn enter(self: &Arc<Self>) -> ConnectionSlot {
        let evict = Arc::new(Notify::new());
        loop {
            let due = match self.make_room(&evict) {
                Ok(number) => {
                    return ConnectionSlot { places: Arc::clone(self), evict, number: Mutex::new(Some(number)) };
                }
                Err(due) => due,
            };
            // Both after the timeout and after the notification a slot may be free.
            let _ = tokio::time::timeout(due, self.left.notified()).await;
        }
    }

    /// Returns the number of a new connection, or the time until another one may be evicted for it.
    fn make_room(&self, evict: &Arc<Notify>) -> Result<u64, Duration> {
        let mut unasked = self.unasked.lock();
        if unasked.waiting.len() >= UNASKED_MAX
            && let Some(oldest) = unasked.waiting.first_entry()
        {
            let age = oldest.get().0.elapsed();
            if age < UNASKED_LEAST {
                return Err(UNASKED_LEAST - age);
            }
            oldest.remove().1.notify_one();
        }
        Ok(unasked.add(evict))
    }

    fn leave(&self, number: u64) {
        self.unasked.lock().waiting.remove(&number);
        self.left.notify_one();
    }
}

impl ConnectionSlot {
    /// Resolves when this connection is evicted.
    pub async fn evicted(&self) {
        self.evict.notified().await;
    }

    /// Notes that a complete request has arrived. `None` if too many requests are in progress.
    pub fn asked(&self) -> Option<RequestInProgress<'_>> {
        let permit = Arc::clone(&self.places.answering).try_acquire_owned().ok()?;
        if let Some(number) = self.number.lock().take() {
            self.places.leave(number);
        }
        Some(RequestInProgress { place: self, _permit: permit })
    }
}

impl Drop for RequestInProgress<'_> {
    /// Returns the connection to those without a request. Their number may exceed its limit by the number of requests
    /// in progress.
    fn drop(&mut self) {
        *self.place.number.lock() = Some(self.place.places.unasked.lock().add(&self.place.evict));
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        if let Some(number) = self.number.lock().take() {
            self.places.leave(number);
        }
    }
}
