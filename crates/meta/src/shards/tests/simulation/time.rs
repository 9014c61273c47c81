//! Simulated time: the clock of a runtime moves only while the simulation has nothing else to do.
//!
//! The runtime's own way of advancing a paused clock does not fit, because it does not know of the threads that read,
//! write and fsync files. So a thread looks several times per millisecond whether the runtime is parked, and moves the
//! clock by a step if it is. Steps grow while nothing happens
//! and no shard is being opened.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::Notify;
use varve_env::clock::{Clock, Instant};
use varve_types::Timestamp;

/// How long the runtime is parked before its clock moves: longer than a thread takes to continue after an fsync on a
/// file system in memory.
const IDLE_FOR: Duration = Duration::from_micros(150);

const STEP_MIN: Duration = Duration::from_millis(2);
/// Far below every time limit of the shards.
const STEP_MAX: Duration = Duration::from_millis(100);

/// The wall clock of a simulation begins here, in seconds.
const BEGIN: i64 = 1_000_000;

thread_local! {
    /// Counts events of the simulation on this thread.
    static EVENTS: Cell<u64> = const { Cell::new(0) };
    /// The number of [`FileWork`]s on this thread.
    static FILE_WORK: Cell<usize> = const { Cell::new(0) };
}

/// While this exists, the clock moves by short steps: file work is under way that takes long.
pub struct FileWork(());

impl FileWork {
    pub fn begin() -> FileWork {
        FILE_WORK.set(FILE_WORK.get() + 1);
        FileWork(())
    }
}

impl Drop for FileWork {
    fn drop(&mut self) {
        FILE_WORK.set(FILE_WORK.get() - 1);
    }
}

/// Notes that the simulation has done something: the next step of its clock is short.
pub fn note_event() {
    EVENTS.set(EVENTS.get() + 1);
}

/// The number of events so far, which orders them.
pub fn events() -> u64 {
    note_event();
    EVENTS.get()
}

/// The clocks of all shards of a simulation.
#[derive(Default)]
pub struct SimulatedClock {
    nanoseconds: AtomicU64,
}

impl Clock for SimulatedClock {
    fn now(&self) -> Timestamp {
        let since = self.monotonic().0;
        Timestamp { seconds: BEGIN + since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
    }

    fn monotonic(&self) -> Instant {
        Instant(Duration::from_nanos(self.nanoseconds.load(SeqCst)))
    }
}

/// Runs `main` on a runtime of its own with simulated time.
pub fn run<T>(clock: &SimulatedClock, main: impl Future<Output = T>) -> T {
    // Odd while the runtime is parked.
    let parked = Arc::new(AtomicU64::new(0));
    let (parks, unparks) = (Arc::clone(&parked), Arc::clone(&parked));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .on_thread_park(move || _ = parks.fetch_add(1, SeqCst))
        .on_thread_unpark(move || _ = unparks.fetch_add(1, SeqCst))
        .build()
        .unwrap();
    let (idle, ended) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
    let (found, end) = (Arc::clone(&idle), Arc::clone(&ended));
    // A blocking task of the runtime keeps it from advancing its clock by itself.
    runtime.spawn_blocking(move || watch(&parked, &found, &end));
    // Dropped before the runtime, which waits for its blocking tasks.
    let _ending = Ending(ended);
    runtime.block_on(async {
        let (mut time, mut main) = (pin!(advance(clock, &idle)), pin!(main));
        poll_fn(|context| {
            assert!(time.as_mut().poll(context).is_pending());
            main.as_mut().poll(context)
        })
        .await
    })
}

struct Ending(Arc<AtomicBool>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Reports each time that it finds the runtime parked.
fn watch(parked: &AtomicU64, idle: &Notify, ended: &AtomicBool) {
    while !ended.load(SeqCst) {
        let before = parked.load(SeqCst);
        std::thread::sleep(IDLE_FOR);
        if before % 2 == 1 && parked.load(SeqCst) == before {
            idle.notify_one();
        }
    }
}

async fn advance(clock: &SimulatedClock, idle: &Notify) {
    let (mut step, mut seen) = (STEP_MIN, EVENTS.get());
    loop {
        idle.notified().await;
        step = if EVENTS.get() == seen && FILE_WORK.get() == 0 { (step * 2).min(STEP_MAX) } else { STEP_MIN };
        seen = EVENTS.get();
        clock.nanoseconds.fetch_add(step.as_nanos() as u64, SeqCst);
        tokio::time::advance(step).await;
    }
}

/// Polls `future` once more whenever the task is woken, together with what `others` polls.
pub async fn beside<T>(future: impl Future<Output = T>, mut others: impl FnMut(&mut std::task::Context<'_>)) -> T {
    let mut future = pin!(future);
    poll_fn(move |context| match future.as_mut().poll(context) {
        Poll::Ready(result) => Poll::Ready(result),
        Poll::Pending => {
            others(context);
            Poll::Pending
        }
    })
    .await
}
