//! The loop of one thread: an executor for its futures, the descriptors, timers and shared memory that they wait for.
//!
//! ```text
//!        +--> poll the root future, then the tasks that were woken
//!        |            | nothing is woken
//!        |            v
//!        +--- spin: look into shared memory and for events, for the spin budget
//!        |            | nothing came
//!        |            v
//!        +--- sleep in epoll_wait until an event, a timer, or a wake-up from another thread
//! ```
//!
//! Everything of a loop stays on its thread; only wakers may be used from other threads. Time for spinning is one
//! setting; zero where processors are scarce ([`default_spin`]).

mod timer;
mod watched;

pub use self::timer::Timer;
pub use self::watched::Watched;

use self::watched::Readiness;
use futures::future::LocalBoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use futures::task::{ArcWake, waker};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::io;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use varve_env::clock::{Clock, Instant};
use varve_env::key_hash::KeyHashing;
use varve_env::readiness::{Alarm, Poller, Ready};
use varve_env::spin::{SPIN_TIME, SpinBudget};

/// Turns with work between two looks at the kernel: a loop that is never idle still sees new connections and timers.
const TURNS_WITHOUT_EVENTS: u32 = 16;

/// Looks into shared memory between two looks at the kernel, which take ten times as long.
const LOOKS_WITHOUT_EVENTS: u32 = 16;

/// Looks in vain after which the loop looks into a piece of memory no more, until its connection moves again: the other side
/// uses the descriptor meanwhile. A connection that is used every few milliseconds stays.
const LOOKS_IN_VAIN_MAX: u32 = 4096;

/// A sleep counts as this many looks in vain: a loop that does not spin leaves memory that is not used, too.
const LOOKS_OF_A_SLEEP: u32 = 256;

/// Spinning time of this machine: none with one processor, where it would only delay the thread that it waits for.
pub fn default_spin() -> Duration {
    match std::thread::available_parallelism() {
        Ok(processors) if processors.get() > 1 => SPIN_TIME,
        _ => Duration::ZERO,
    }
}

/// Memory that a loop looks into while it spins, because no descriptor tells of a change.
pub trait Look {
    /// Handles what has come, and asks the other side to use the memory from now on. Returns whether there was anything.
    fn look(&self) -> bool;

    /// The loop is about to sleep: asks the other side to use a descriptor from now on. `false`: something came first.
    fn sleep(&self) -> bool;
}

/// The loop of a thread. When it is dropped, its tasks are.
pub struct EventLoop(LoopHandle);

/// The part of a loop that its tasks use.
#[derive(Clone)]
pub struct LoopHandle(Rc<Inner>);

struct Inner {
    clock: Arc<dyn Clock>,
    poller: Poller,
    spin: Duration,
    spin_budget: RefCell<SpinBudget>,
    watched: RefCell<HashMap<u64, Rc<Readiness>, KeyHashing>>,
    looks: RefCell<BTreeMap<u64, LookedInto>>,
    /// Looks while it span, over all waits: most end before the kernel would be asked.
    spins: Cell<u32>,
    timers: RefCell<BTreeMap<(Instant, u64), Waker>>,
    /// The last number of a descriptor, a look or a timer.
    numbered: Cell<u64>,
    tasks: RefCell<FuturesUnordered<LocalBoxFuture<'static, ()>>>,
    /// Tasks that were spawned since the tasks were polled last.
    spawned: RefCell<Vec<LocalBoxFuture<'static, ()>>>,
    root: Arc<Woken>,
    task: Arc<Woken>,
    runs: Cell<bool>,
    before_wait: RefCell<Option<Rc<dyn Fn() -> bool>>>,
}

/// Memory that the loop looks into while it spins.
struct LookedInto {
    memory: Weak<dyn Look>,
    in_vain: u32,
}

/// Something of the loop was woken, by any thread.
struct Woken {
    woken: AtomicBool,
    alarm: Arc<Alarm>,
}

impl Woken {
    fn new(alarm: &Arc<Alarm>) -> Arc<Woken> {
        Arc::new(Woken { woken: AtomicBool::new(false), alarm: Arc::clone(alarm) })
    }

    fn is_set(&self) -> bool {
        self.woken.load(SeqCst)
    }

    fn take(&self) -> bool {
        self.woken.load(Relaxed) && self.woken.swap(false, SeqCst)
    }
}

impl ArcWake for Woken {
    fn wake_by_ref(woken: &Arc<Woken>) {
        woken.woken.store(true, SeqCst);
        woken.alarm.ring();
    }
}

/// A root future within another one, as of a callback, takes the wake-ups of both: the outer one is polled again.
struct Rooted<'a> {
    event_loop: &'a Inner,
    is_within: bool,
}

impl Drop for Rooted<'_> {
    fn drop(&mut self) {
        self.event_loop.runs.set(self.is_within);
        if self.is_within {
            self.event_loop.root.woken.store(true, SeqCst);
        }
    }
}

/// Removes a [`Look`] from its loop when it is dropped.
pub struct LookGuard {
    event_loop: LoopHandle,
    memory: Weak<dyn Look>,
    key: u64,
}

impl LookGuard {
    /// Looks into the memory from now on, as long as something comes.
    pub fn wanted(&self) {
        let mut looks = self.event_loop.0.looks.borrow_mut();
        let looked = looks.entry(self.key).or_insert_with(|| LookedInto { memory: self.memory.clone(), in_vain: 0 });
        looked.in_vain = 0;
    }
}

impl Drop for LookGuard {
    fn drop(&mut self) {
        self.event_loop.0.looks.borrow_mut().remove(&self.key);
    }
}

impl EventLoop {
    /// # Errors
    /// If the process has no descriptors left.
    pub fn new(clock: Arc<dyn Clock>, spin: Duration) -> io::Result<EventLoop> {
        let poller = Poller::new()?;
        let (root, task) = (Woken::new(poller.alarm()), Woken::new(poller.alarm()));
        Ok(EventLoop(LoopHandle(Rc::new(Inner {
            clock,
            poller,
            spin,
            spin_budget: RefCell::default(),
            watched: RefCell::default(),
            looks: RefCell::default(),
            spins: Cell::default(),
            timers: RefCell::default(),
            numbered: Cell::default(),
            tasks: RefCell::default(),
            spawned: RefCell::default(),
            root,
            task,
            runs: Cell::default(),
            before_wait: RefCell::default(),
        }))))
    }

    pub fn handle(&self) -> &LoopHandle {
        &self.0
    }

    /// Runs the loop until `root` is done. A root future may do so again, for example within a callback.
    ///
    /// # Panics
    /// If a task of the loop calls it: a task must not wait for another one by blocking.
    pub fn block_on<F: Future>(&self, root: F) -> F::Output {
        let inner = &*self.0.0;
        assert!(inner.tasks.try_borrow_mut().is_ok(), "a task has blocked on the loop that runs it");
        let _rooted = Rooted { event_loop: inner, is_within: inner.runs.replace(true) };
        let mut root = pin!(root);
        let (root_waker, task_waker) = (waker(Arc::clone(&inner.root)), waker(Arc::clone(&inner.task)));
        inner.root.woken.store(true, SeqCst);
        let mut turns = 0_u32;
        loop {
            if inner.root.take()
                && let Poll::Ready(value) = root.as_mut().poll(&mut Context::from_waker(&root_waker))
            {
                return value;
            }
            inner.run_tasks(&task_waker);
            turns = turns.wrapping_add(1);
            if !inner.is_woken() {
                if !inner.finish_turn() {
                    inner.wait();
                }
            } else if turns.is_multiple_of(TURNS_WITHOUT_EVENTS) {
                inner.finish_turn();
                // A busy connection keeps the loop awake, and requests of others may come by memory alone.
                inner.look_into_memory();
                inner.look_for_events();
            }
        }
    }
}

/// Lets the loop's other tasks run. A task that always finds more work calls it now and then.
pub async fn yield_now() {
    let mut has_yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        // Tasks hold handles, and may spawn others when they are dropped.
        let inner = &*self.0.0;
        drop(inner.tasks.take());
        inner.spawned.take();
        inner.before_wait.take();
    }
}

impl LoopHandle {
    pub fn now(&self) -> Instant {
        self.0.clock.monotonic()
    }

    /// Runs `task` on the loop's thread, whenever the loop runs, until it is done or the loop is dropped.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.0.spawned.borrow_mut().push(Box::pin(task));
    }

    /// Looks into `memory` while the loop spins, whenever the guard says so, until it is dropped.
    pub fn look_into(&self, memory: Weak<dyn Look>) -> LookGuard {
        LookGuard { event_loop: self.clone(), memory, key: self.0.number() }
    }

    /// Calls `work` whenever all woken tasks have run, before the loop waits. It returns whether it did anything.
    pub fn before_each_wait(&self, work: impl Fn() -> bool + 'static) {
        *self.0.before_wait.borrow_mut() = Some(Rc::new(work));
    }
}

impl Inner {
    fn number(&self) -> u64 {
        self.numbered.set(self.numbered.get() + 1);
        self.numbered.get()
    }

    fn is_woken(&self) -> bool {
        self.root.is_set() || self.task.is_set() || !self.spawned.borrow().is_empty()
    }

    fn run_tasks(&self, waker: &Waker) {
        let spawned = std::mem::take(&mut *self.spawned.borrow_mut());
        if !self.task.take() && spawned.is_empty() {
            return;
        }
        let mut tasks = self.tasks.borrow_mut();
        tasks.extend(spawned);
        // A set that is polled for long yields, and wakes its waker.
        while let Poll::Ready(Some(())) = tasks.poll_next_unpin(&mut Context::from_waker(waker)) {}
    }

    fn finish_turn(&self) -> bool {
        let work = self.before_wait.borrow().clone();
        work.is_some_and(|work| work())
    }

    /// Waits for work: spins, then sleeps.
    fn wait(&self) {
        self.wake_timers();
        if self.is_woken() || self.spin() || !self.announce_sleep() {
            return;
        }
        let next = self.timers.borrow().first_key_value().map(|((at, _), _)| at.since(self.clock.monotonic()));
        let waited = self.poller.wait(next, || self.is_woken(), |ready| self.wake_ready(ready));
        waited.expect("a loop waits for descriptors that are open");
        self.wake_timers();
    }

    /// Whether something came while it spun.
    fn spin(&self) -> bool {
        if self.spin.is_zero() {
            return false;
        }
        let Some(mut spin) = self.spin_budget.borrow_mut().spin_for(self.spin) else { return false };
        loop {
            let memory = !self.looks.borrow().is_empty();
            let mut came = memory && self.look_into_memory();
            // A loop without descriptors is woken by other threads, which set a flag.
            let only_descriptors = !memory && !self.watched.borrow().is_empty();
            if only_descriptors || self.spins.get().is_multiple_of(LOOKS_WITHOUT_EVENTS) {
                self.look_for_events();
            }
            self.spins.set(self.spins.get().wrapping_add(1));
            came |= self.is_woken();
            if came {
                let mut budget = self.spin_budget.borrow_mut();
                if spin.cost_the_processor() {
                    budget.failed()
                } else {
                    budget.succeeded()
                }
                return true;
            }
            if !spin.again() {
                self.spin_budget.borrow_mut().failed();
                return false;
            }
        }
    }

    fn look_into_memory(&self) -> bool {
        let mut came = false;
        self.each_look(|key, look| {
            let found = look.look();
            came |= found;
            let in_vain = if found { 0 } else { 1 };
            if self.note_look(key, in_vain) && !look.sleep() {
                // It moves, and so is wanted again.
                look.look();
            }
        });
        came
    }

    /// Counts looks in vain, or something that came with 0. Returns whether the memory is looked into no more.
    fn note_look(&self, key: u64, in_vain: u32) -> bool {
        let mut looks = self.looks.borrow_mut();
        let Some(looked) = looks.get_mut(&key) else { return false };
        looked.in_vain = if in_vain == 0 { 0 } else { looked.in_vain + in_vain };
        let leaves = looked.in_vain >= LOOKS_IN_VAIN_MAX;
        if leaves {
            looks.remove(&key);
        }
        leaves
    }

    /// `false`: something came first, and was handled.
    fn announce_sleep(&self) -> bool {
        let mut sleeps = true;
        self.each_look(|key, look| {
            if look.sleep() {
                self.note_look(key, LOOKS_OF_A_SLEEP);
            } else {
                look.look();
                sleeps = false;
            }
        });
        sleeps && !self.is_woken()
    }

    /// A look may add and remove others.
    fn each_look(&self, mut visit: impl FnMut(u64, &dyn Look)) {
        let mut last = 0;
        loop {
            let looks = self.looks.borrow();
            let Some((key, looked)) = looks.range(last + 1..).next() else { return };
            last = *key;
            let look = looked.memory.upgrade();
            drop(looks);
            if let Some(look) = look {
                visit(last, &*look);
            }
        }
    }

    fn look_for_events(&self) {
        self.poller.look(|ready| self.wake_ready(ready)).expect("a loop looks at descriptors that are open");
        self.wake_timers();
    }

    fn wake_ready(&self, ready: Ready) {
        let readiness = self.watched.borrow().get(&ready.token).cloned();
        // A descriptor may have been dropped since the kernel reported it.
        if let Some(readiness) = readiness {
            readiness.report(ready);
        }
    }

    fn wake_timers(&self) {
        if self.timers.borrow().is_empty() {
            return;
        }
        let now = self.clock.monotonic();
        loop {
            let mut timers = self.timers.borrow_mut();
            let Some(first) = timers.first_entry().filter(|first| first.key().0 <= now) else { break };
            let waker = first.remove();
            drop(timers);
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests;
