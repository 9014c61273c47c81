//! Operations that leave their thread while they wait, and go on at whichever thread brings what they wait for.
//!
//! To have an embedded server's answer taken by the thread that asked for it costs a change of threads, on the way that every
//! caller waits for. An asynchronous operation needs none: the worker's thread, which has the answer, takes the
//! asynchronous operation up where it stopped, to its end. Of a server in another process the answer is brought by
//! whoever [attends](crate::reactor), so that a frontend's threads can take more requests than there are threads.
//!
//! A thread that brings an answer has other things to do, and must not wait. What an asynchronous operation does
//! between two calls waits for nothing but memory; all else (a pause, a file, a call that may have to wait for room) is
//! done within [`waiting`] or after [`own_thread`], which cost nothing anywhere else. A panic ends the asynchronous
//! operation and not the thread.
//!
//! Only who [brings](bring) an answer takes the asynchronous operation up itself. Whoever else wakes one (a mutex that
//! it waited for wakes it while it is held by half) leaves it to a thread made for it.

use crate::calls::{BUSY_WAIT, Core};
use crate::{FileSystem, Result};
use futures::future::{BoxFuture, FutureExt};
use parking_lot::Mutex;
use std::any::Any;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::AcqRel, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Duration;
use varve_env::spin::SpinBudget;
use varve_types::InodeId;

/// Operations that may be asynchronous operations at a time: what has to wait meanwhile gets a thread each.
const UNDER_WAY_MAX: usize = 64;

/// Operations that count as meeting others after one that met another.
const CROWDED: usize = 64;

/// What the calling thread may do for what it polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Here {
    /// Nothing else is to be done: it waits for what is not ready.
    Waits,
    /// It polls an asynchronous operation, which waits without it.
    Leaves,
    /// It brings an answer, and must not wait.
    Brings,
}

thread_local! {
    static HERE: Cell<Here> = const { Cell::new(Here::Waits) };
    /// As what the thread takes up the asynchronous operation that it wakes next; `None`: it does not.
    static TAKES_UP: Cell<Option<Here>> = const { Cell::new(None) };
}

/// Asynchronous operations for which no thread could be made, to be tried again.
static LEFT: Mutex<Vec<Waker>> = Mutex::new(Vec::new());

/// Runs `work` as a thread that is `here`.
fn being<T>(here: Here, work: impl FnOnce() -> T) -> T {
    struct Before(Here);
    impl Drop for Before {
        fn drop(&mut self) {
            HERE.set(self.0);
        }
    }
    let _before = Before(HERE.replace(here));
    work()
}

/// Wakes what waits for an answer from a thread that must not wait.
pub(crate) fn bring(waker: Waker) {
    take_up(waker, Here::Brings);
}

fn take_up(waker: Waker, here: Here) {
    TAKES_UP.set(Some(here));
    waker.wake();
    TAKES_UP.set(None);
}

/// Has an asynchronous operation taken up by a thread made for it.
pub(crate) fn elsewhere(waker: Waker) {
    let theirs = waker.clone();
    let spawned = std::thread::Builder::new().name("varve-async-op".into());
    if let Err(error) = spawned.spawn(move || take_up(theirs, Here::Leaves)) {
        tracing::warn!(%error, "cannot start a thread for a blocking call; retrying");
        LEFT.lock().push(waker);
    }
}

/// Tries again to make threads for the asynchronous operations that wait for one.
pub(crate) fn take_up_left() {
    let left = std::mem::take(&mut *LEFT.lock());
    left.into_iter().for_each(elsewhere);
}

/// Whether what is polled here is an asynchronous operation, which is woken when its answer comes.
pub(crate) fn leaves() -> bool {
    HERE.get() != Here::Waits
}

/// Whether the thread brings an answer.
pub(crate) fn brings() -> bool {
    HERE.get() == Here::Brings
}

/// Ready on a thread that may wait.
pub(crate) fn own_thread() -> impl Future<Output = ()> + Send {
    OwnThread
}

/// Does `work`, which may wait, on a thread that may, and is no asynchronous operation there: its calls are waited for.
pub(crate) async fn waiting<T>(work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    poll_fn(|context| {
        ready!(Pin::new(&mut OwnThread).poll(context));
        being(Here::Waits, || work.as_mut().poll(context))
    })
    .await
}

struct OwnThread;

impl Future for OwnThread {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if !brings() {
            return Poll::Ready(());
        }
        elsewhere(context.waker().clone());
        Poll::Pending
    }
}

/// Counts what is under way that is an asynchronous operation or might be one.
#[derive(Default)]
pub(crate) struct AsyncOps {
    under_way: Arc<AtomicUsize>,
    /// Operations to come that count as meeting others.
    crowded: AtomicUsize,
    /// A change was announced, and has not come yet.
    announced: AtomicBool,
    /// With announcements: most that asks for a directory's attributes may be no change.
    spin_budget: Mutex<SpinBudget>,
}

struct UnderWay(Arc<AtomicUsize>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Met {
    Nobody,
    Others,
    TooMany,
}

impl AsyncOps {
    /// Begins an operation; which others it meets, if only lately.
    fn begin(&self) -> (UnderWay, Met) {
        if self.announced.load(Relaxed) && self.announced.swap(false, Relaxed) {
            self.spin_budget.lock().succeeded();
        }
        let others = self.under_way.fetch_add(1, Relaxed);
        let crowded = self.crowded.load(Relaxed);
        // Threads that meet here may count one operation as two or two as one.
        self.crowded.store(if others > 0 { CROWDED } else { crowded.saturating_sub(1) }, Relaxed);
        let met = match others {
            0 if crowded == 0 => Met::Nobody,
            ..UNDER_WAY_MAX => Met::Others,
            _ => Met::TooMany,
        };
        (UnderWay(Arc::clone(&self.under_way)), met)
    }

    /// Whether a change that may be about to begin is worth an announcement: while callers meet the worker is awake.
    fn announces(&self) -> bool {
        if self.crowded.load(Relaxed) > 0 || self.under_way() > 0 {
            return false;
        }
        let mut spin_budget = self.spin_budget.lock();
        if self.announced.swap(false, Relaxed) {
            spin_budget.failed();
        }
        let announces = spin_budget.spin().is_some();
        self.announced.store(announces, Relaxed);
        announces
    }

    fn under_way(&self) -> usize {
        self.under_way.load(Relaxed)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl FileSystem {
    /// Has `work` done and `done` called with its outcome, both on this thread as far as nothing has to be waited for, and then
    /// on another; where that would gain nothing, this thread waits. A panic of either is logged, and drops both.
    ///
    /// With a server in this process it gains while a caller is alone: with several the worker is what all of them wait for, and
    /// what is left to do in the client is better done beside it. With another process's it gains as soon as callers meet.
    pub fn async_op<T: 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
        done: impl FnOnce(Result<T>) + Send + 'static,
    ) {
        let (place, met) = self.async_ops.begin();
        let here = match (self.embedded(), met) {
            (true, Met::Nobody) => Some(Here::Leaves),
            // What would have to wait is not done here at all: others wait for this thread.
            (false, Met::Others) if self.core.reactor.is_kept() => Some(Here::Brings),
            _ => None,
        };
        if here == Some(Here::Brings) && self.core.reactor.watchdog.begins() {
            self.background.wake_async_op_driver();
        }
        let Some(here) = here else {
            let whole = AssertUnwindSafe(|| done(crate::block_on(work)));
            catch_unwind(whole).unwrap_or_else(|panic| panicked(&*panic));
            return drop(place);
        };
        let whole = async move {
            let _place = place;
            done(work.await);
        };
        begin(whole, here);
    }

    /// The kernel has been told the attributes of `inode`. Of a directory it asks for them before every change in it, so the
    /// worker wakes while the kernel gets there.
    pub fn kernel_has_attributes(&self, inode: InodeId) {
        let directory = inode == InodeId::ROOT || self.core.inodes.is_directory(inode);
        if directory && self.embedded() && self.async_ops.announces() {
            self.core.transport.rouse();
        }
    }

    /// Stands in where no thread of a frontend attends, ends asynchronous operations that have waited for too long, and
    /// sees to those for which there was no thread. Takes up none itself, which might hold it up. How soon it is to be
    /// done again.
    pub(crate) fn drive_async_ops(&self) -> Duration {
        let Core { transport, reactor, .. } = &self.core;
        let spin = reactor.watchdog_polls(transport.awaited());
        if spin.tends {
            transport.end_late();
            transport.close_surplus();
            take_up_left();
        }
        if spin.tends || spin.left_alone {
            transport.bring_answers(elsewhere);
        }
        spin.rest
    }

    /// Whether asynchronous operations are under way, for each of which somebody waits.
    pub fn has_async_ops(&self) -> bool {
        self.async_ops.under_way() > 0
    }

    /// Waits for the asynchronous operations that are under way: after an unmount by force there are some that nobody
    /// else waits for.
    pub(crate) async fn finish_async_ops(&self) {
        // Their own deadlines, which are looked at twice a second, are over before this one.
        let deadline = self.core.deadline().after(Duration::from_secs(2));
        let mut wait = BUSY_WAIT;
        while self.async_ops.under_way() > 0 {
            if let Err(failure) = self.core.check_deadline(deadline, "operations of an unmounted volume have not ended")
            {
                return tracing::warn!("{failure}");
            }
            self.core.transport.end_late();
            self.core.transport.bring_answers(elsewhere);
            self.core.pause(wait.next()).await;
        }
    }
}

/// Does `work` on this thread, which is `here`, until it waits.
pub(crate) fn begin(work: impl Future<Output = ()> + Send + 'static, here: Here) {
    let async_op = AsyncOp { work: Mutex::new(Some(work.boxed())), wakes: AtomicUsize::new(0) };
    Arc::new(async_op).go_on(here);
}

struct AsyncOp {
    /// Polled by one thread at a time: by the one that raised `wakes` from zero.
    work: Mutex<Option<BoxFuture<'static, ()>>>,
    /// Times that it was woken and has not been polled since; whoever adds to others' leaves the polling to them.
    wakes: AtomicUsize,
}

impl Wake for AsyncOp {
    fn wake(self: Arc<Self>) {
        match TAKES_UP.take() {
            Some(here) => self.go_on(here),
            None => elsewhere(Waker::from(self)),
        }
    }
}

impl AsyncOp {
    fn go_on(self: Arc<Self>, here: Here) {
        let mut seen = self.wakes.fetch_add(1, AcqRel) + 1;
        if seen > 1 {
            return;
        }
        let waker = Waker::from(Arc::clone(&self));
        loop {
            let mut work = self.work.lock();
            let Some(future) = work.as_mut() else { return };
            let polled = being(here, || {
                catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut Context::from_waker(&waker))))
            });
            if let Err(panic) = &polled {
                panicked(&**panic);
            }
            if !matches!(polled, Ok(Poll::Pending)) {
                let ended = work.take();
                drop(work);
                // What it drops may log, or end what it kept.
                return drop(catch_unwind(AssertUnwindSafe(|| drop(ended))));
            }
            drop(work);
            let woken = self.wakes.fetch_sub(seen, AcqRel);
            if woken == seen {
                return;
            }
            seen = woken - seen;
        }
    }
}

fn panicked(panic: &(dyn Any + Send)) {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    tracing::error!(panic = text.unwrap_or("of unknown kind"), "a call panicked; answered EIO");
}

#[cfg(test)]
mod tests;
