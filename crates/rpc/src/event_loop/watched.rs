//! Descriptors that a loop waits for.

use super::LoopHandle;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use varve_env::readiness::{Ready, Watch};

/// The kernel's reports about a descriptor, and the tasks that wait for them.
pub struct Readiness {
    input: Cell<bool>,
    room: Cell<bool>,
    ends: Cell<bool>,
    reader: RefCell<Option<Waker>>,
    writer: RefCell<Option<Waker>>,
}

impl Readiness {
    pub fn report(&self, ready: Ready) {
        self.ends.set(self.ends.get() || ready.ends);
        if ready.input {
            self.input.set(true);
            self.reader.take().into_iter().for_each(Waker::wake);
        }
        if ready.room {
            self.room.set(true);
            self.writer.take().into_iter().for_each(Waker::wake);
        }
    }
}

/// A descriptor that a loop watches. It counts as ready until a call on it finds that it is not.
pub struct Watched {
    event_loop: LoopHandle,
    descriptor: OwnedFd,
    readiness: Rc<Readiness>,
    key: u64,
    /// The kernel reports room too. It would do so at each read of a Unix socket's peer, so only while output waits.
    reports_room: Cell<bool>,
}

impl LoopHandle {
    /// Watches `descriptor`. With [`Watch::Exclusive`] (clones of `/dev/fuse`), a caller that stops reading must drop the
    /// watch, because the loop would not sleep while there is input.
    ///
    /// # Errors
    /// If the kernel watches too many descriptors, or none of this kind.
    pub fn watch(&self, descriptor: OwnedFd, watch: Watch) -> io::Result<Watched> {
        let ready = || Cell::new(true);
        let (reader, writer, ends) = Default::default();
        let readiness = Rc::new(Readiness { input: ready(), room: ready(), ends, reader, writer });
        let key = self.0.number();
        self.0.watched.borrow_mut().insert(key, Rc::clone(&readiness));
        let reports_room = Cell::new(watch == Watch::InputAndRoom);
        let watched = Watched { event_loop: self.clone(), descriptor, readiness, key, reports_room };
        self.0.poller.watch(&watched.descriptor, key, watch)?;
        Ok(watched)
    }
}

impl AsFd for Watched {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Watched {
    pub fn event_loop(&self) -> &LoopHandle {
        &self.event_loop
    }

    /// Whether there may be input.
    pub fn has_input(&self) -> bool {
        self.readiness.input.get()
    }

    /// Whether there may be room.
    pub fn has_room(&self) -> bool {
        self.readiness.room.get()
    }

    /// Whether the peer sends nothing more, so that a read may find the end after the last bytes.
    pub fn ends(&self) -> bool {
        self.readiness.ends.get()
    }

    /// A read has found nothing.
    pub fn no_input(&self) {
        self.readiness.input.set(false);
    }

    /// A write has found no room.
    ///
    /// # Errors
    /// None that a correct caller can cause.
    pub fn no_room(&self) -> io::Result<()> {
        self.readiness.room.set(false);
        self.report_room(true)
    }

    /// Nothing waits to be written any more.
    ///
    /// # Errors
    /// None that a correct caller can cause.
    pub fn all_written(&self) -> io::Result<()> {
        self.report_room(false)
    }

    fn report_room(&self, reports: bool) -> io::Result<()> {
        if self.reports_room.replace(reports) == reports {
            return Ok(());
        }
        let watch = if reports { Watch::InputAndRoom } else { Watch::Input };
        self.event_loop.0.poller.change(&self.descriptor, self.key, watch)
    }

    pub fn poll_input(&self, context: &mut Context<'_>) -> Poll<()> {
        poll_side(&self.readiness.input, &self.readiness.reader, context)
    }

    pub fn poll_room(&self, context: &mut Context<'_>) -> Poll<()> {
        poll_side(&self.readiness.room, &self.readiness.writer, context)
    }

    pub async fn input(&self) {
        poll_fn(|context| self.poll_input(context)).await;
    }

    pub async fn room(&self) {
        poll_fn(|context| self.poll_room(context)).await;
    }
}

fn poll_side(ready: &Cell<bool>, waiting: &RefCell<Option<Waker>>, context: &mut Context<'_>) -> Poll<()> {
    if ready.get() {
        return Poll::Ready(());
    }
    let mut waiting = waiting.borrow_mut();
    match &mut *waiting {
        Some(waker) => waker.clone_from(context.waker()),
        none => *none = Some(context.waker().clone()),
    }
    Poll::Pending
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.event_loop.0.poller.forget(&self.descriptor);
        self.event_loop.0.watched.borrow_mut().remove(&self.key);
    }
}
