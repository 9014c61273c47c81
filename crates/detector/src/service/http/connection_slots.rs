//! Who may ask over HTTP. Connections of which no whole request has come yet have room of their own, in which the oldest
//! makes way for the newest: who sends half a request, or nothing, keeps nobody else waiting.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Connections without a whole request: those who connect at once, and what of their bodies may be held, stay bounded.
const UNASKED_MAX: usize = 128;
/// A request is sent as soon as its connection stands, so this is long for who means it.
const UNASKED_LEAST: Duration = Duration::from_millis(250);
/// Requests that are being answered; some wait for the store, or for frames.
pub const ANSWERING_MAX: usize = 64;

pub struct ConnectionSlots {
    unasked: Mutex<IdleConnections>,
    left: Notify,
    answering: Arc<Semaphore>,
}

#[derive(Default)]
struct IdleConnections {
    next: u64,
    /// In the order in which they came.
    waiting: BTreeMap<u64, (Instant, Arc<Notify>)>,
}

impl IdleConnections {
    fn add(&mut self, evict: &Arc<Notify>) -> u64 {
        self.next += 1;
        self.waiting.insert(self.next, (Instant::now(), Arc::clone(evict)));
        self.next
    }
}

/// The place of a connection, until dropped.
pub struct ConnectionSlot {
    places: Arc<ConnectionSlots>,
    evict: Arc<Notify>,
    /// Among those without a whole request; `None` while one is being answered.
    number: Mutex<Option<u64>>,
}

/// While a request is being answered.
pub struct RequestInProgress<'p> {
    place: &'p ConnectionSlot,
    _permit: OwnedSemaphorePermit,
}

impl ConnectionSlots {
    pub fn new() -> Arc<ConnectionSlots> {
        let answering = Arc::new(Semaphore::new(ANSWERING_MAX));
        Arc::new(ConnectionSlots { unasked: Mutex::default(), left: Notify::new(), answering })
    }

    /// The place of a new connection, for which the one that has sent no whole request for longest goes, if need be.
    pub async fn enter(self: &Arc<Self>) -> ConnectionSlot {
        let evict = Arc::new(Notify::new());
        loop {
            let due = match self.make_room(&evict) {
                Ok(number) => {
                    return ConnectionSlot { places: Arc::clone(self), evict, number: Mutex::new(Some(number)) };
                }
                Err(due) => due,
            };
            // Either way there may be room then.
            let _ = tokio::time::timeout(due, self.left.notified()).await;
        }
    }

    /// The number of a new connection; how long until one may be evicted for it.
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
    /// Until this connection must make way.
    pub async fn evicted(&self) {
        self.evict.notified().await;
    }

    /// A whole request has come. `None` if too many are being answered.
    pub fn asked(&self) -> Option<RequestInProgress<'_>> {
        let permit = Arc::clone(&self.places.answering).try_acquire_owned().ok()?;
        if let Some(number) = self.number.lock().take() {
            self.places.leave(number);
        }
        Some(RequestInProgress { place: self, _permit: permit })
    }
}

impl Drop for RequestInProgress<'_> {
    /// The next request is waited for. Of these there may be as many above the limit as are answered at once.
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
