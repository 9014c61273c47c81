use super::*;
use futures::channel::{mpsc, oneshot};
use std::os::unix::net::UnixStream;
use std::time::Instant as StdInstant;
use varve_env::clock::RealClock;
use varve_env::net;
use varve_env::readiness::Watch;

fn new_loop(spin: Duration) -> EventLoop {
    EventLoop::new(Arc::new(RealClock::new()), spin).unwrap()
}

fn loops() -> [EventLoop; 2] {
    [new_loop(Duration::ZERO), new_loop(SPIN_TIME)]
}

fn after(event_loop: &LoopHandle, millis: u64) -> Timer {
    event_loop.timer(event_loop.now().after(Duration::from_millis(millis)))
}

/// Promise: tasks run while the root waits, timers fire in order of their times, and dropped timers do not fire.
#[test]
fn timers_fire_in_order() {
    for event_loop in loops() {
        let order = Rc::new(RefCell::new(Vec::new()));
        for millis in [30, 10, 20] {
            let (order, timer) = (Rc::clone(&order), after(event_loop.handle(), millis));
            event_loop.handle().spawn(async move {
                timer.await;
                order.borrow_mut().push(millis);
            });
        }
        drop(after(event_loop.handle(), 1));
        event_loop.block_on(after(event_loop.handle(), 60));
        assert_eq!(*order.borrow(), [10, 20, 30]);
        assert!(event_loop.handle().0.timers.borrow().is_empty());
    }
}

/// Promise: a wake-up from another thread arrives, whether the loop spins or sleeps.
#[test]
fn other_threads_wake_the_loop() {
    for event_loop in loops() {
        let (mut to_thread, from_loop) = mpsc::channel::<oneshot::Sender<u32>>(1);
        let thread = std::thread::spawn(move || {
            for (number, sender) in futures::executor::block_on_stream(from_loop).enumerate() {
                if number % 100 == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                sender.send(number as u32).unwrap();
            }
        });
        event_loop.block_on(async {
            for number in 0..2_000 {
                let (sender, receiver) = oneshot::channel();
                to_thread.try_send(sender).unwrap();
                assert_eq!(receiver.await, Ok(number));
            }
        });
        drop(to_thread);
        thread.join().unwrap();
    }
}

/// Promise: a busy task neither keeps events from others nor timers from firing.
#[test]
fn busy_task_starves_nobody() {
    let event_loop = new_loop(Duration::ZERO);
    let handle = event_loop.handle().clone();
    handle.spawn(std::future::poll_fn(|context| {
        context.waker().wake_by_ref();
        Poll::Pending
    }));
    let (near, far) = UnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    let watched = handle.watch(near.into(), Watch::Input).unwrap();
    watched.no_input();
    let begun = StdInstant::now();
    event_loop.block_on(async {
        after(&handle, 5).await;
        net::send(&far, b"x").unwrap();
        watched.input().await;
    });
    assert!(begun.elapsed() < Duration::from_secs(5));
}

/// Promise: room is reported to who waits for it, and input to who reads.
#[test]
fn descriptors_wake_their_waiters() {
    for event_loop in loops() {
        let handle = event_loop.handle().clone();
        let (near, far) = UnixStream::pair().unwrap();
        let ends = [near, far].map(|end| {
            end.set_nonblocking(true).unwrap();
            handle.watch(end.into(), Watch::Input).unwrap()
        });
        let [near, far] = ends;
        const BYTES: usize = 4 << 20;
        let sending = async {
            let mut sent = 0;
            while sent < BYTES {
                near.room().await;
                match net::send(&near, &[7; 8192]).unwrap() {
                    Some(count) => sent += count,
                    None => near.no_room().unwrap(),
                }
            }
            near.all_written().unwrap();
            sent
        };
        let receiving = async {
            let mut bytes = Vec::new();
            while bytes.len() < BYTES {
                far.input().await;
                if net::receive(&far, &mut bytes, 4096).unwrap().is_none() {
                    far.no_input();
                }
            }
            bytes.len()
        };
        let (sent, received) = event_loop.block_on(async { futures::join!(sending, receiving) });
        assert!(sent >= BYTES && received >= BYTES);
    }
}

/// Promise: a loop without work uses no processor time, however long its spin budget is.
#[test]
fn idle_loop_sleeps() {
    let event_loop = new_loop(SPIN_TIME);
    let before = thread_time();
    event_loop.block_on(after(event_loop.handle(), 300));
    let spent = thread_time() - before;
    assert!(spent < Duration::from_millis(20), "{spent:?} of 300 ms");
}

fn thread_time() -> Duration {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(times.split(' ').next().unwrap().parse().unwrap())
}

/// Promise: the tasks of a loop that is dropped are dropped, and so is what they hold.
#[test]
fn dropped_loop_drops_its_tasks() {
    let event_loop = new_loop(Duration::ZERO);
    let held = Rc::new(());
    let (theirs, handle) = (Rc::clone(&held), event_loop.handle().clone());
    event_loop.handle().spawn(async move {
        let _held = (theirs, handle.clone());
        std::future::pending::<()>().await;
    });
    event_loop.block_on(after(event_loop.handle(), 1));
    assert_eq!(Rc::strong_count(&held), 2);
    drop(event_loop);
    assert_eq!(Rc::strong_count(&held), 1);
}

/// Promise: a task that blocks on its own loop is a mistake that is reported.
#[test]
#[should_panic(expected = "a task has blocked on the loop that runs it")]
fn nested_block_on_panics() {
    let event_loop = Rc::new(new_loop(Duration::ZERO));
    let task = Rc::clone(&event_loop);
    event_loop.handle().spawn(async move { task.block_on(async {}) });
    event_loop.block_on(yield_now());
}

/// Promise: a callback of the root future may block on the loop, whose tasks go on meanwhile, and loses no wake-up.
#[test]
fn callback_of_the_root_may_block() {
    for event_loop in loops() {
        let (wake, woken) = oneshot::channel();
        let timer = after(event_loop.handle(), 5);
        event_loop.handle().spawn(async move {
            timer.await;
            wake.send(7).unwrap();
        });
        let whole = futures::future::join(woken, async {
            event_loop.block_on(after(event_loop.handle(), 20));
            event_loop.block_on(async { 8 })
        });
        assert_eq!(event_loop.block_on(whole), (Ok(7), 8));
    }
}

/// Promise: the work before each wait comes after all woken tasks, and its own wake-ups are seen before the loop sleeps.
#[test]
fn work_before_a_wait_follows_the_tasks() {
    let event_loop = EventLoop::new(Arc::new(RealClock::new()), Duration::ZERO).unwrap();
    let (waiting, sent) = (Rc::new(Notified::default()), Rc::new(Cell::new(0)));
    let (collected, counted) = (Rc::clone(&waiting), Rc::clone(&sent));
    event_loop.handle().before_each_wait(move || {
        let wakers = collected.0.take();
        counted.set(counted.get() + usize::from(!wakers.is_empty()));
        wakers.iter().for_each(Waker::wake_by_ref);
        !wakers.is_empty()
    });
    let wait = || {
        let (waiting, mut polled) = (Rc::clone(&waiting), false);
        std::future::poll_fn(move |context| match std::mem::replace(&mut polled, true) {
            true => Poll::Ready(()),
            false => {
                waiting.0.borrow_mut().push(context.waker().clone());
                Poll::Pending
            }
        })
    };
    (0..3).for_each(|_| event_loop.handle().spawn(wait()));
    event_loop.block_on(wait());
    assert_eq!(sent.get(), 1, "all that waited were woken together");
}

#[derive(Default)]
struct Notified(RefCell<Vec<Waker>>);
