use super::*;
use futures::executor::block_on;
use futures::future::join_all;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc;

/// Promise: work runs on at most the given number of threads, and all of it has its result.
#[test]
fn threads_are_limited() {
    let pool = BlockingPool::new(3, 4);
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let work = (0..200_usize).map(|number| {
        let (running, most) = (Arc::clone(&running), Arc::clone(&most));
        pool.run(move || {
            most.fetch_max(running.fetch_add(1, SeqCst) + 1, SeqCst);
            std::thread::yield_now();
            running.fetch_sub(1, SeqCst);
            number
        })
    });
    let results = block_on(join_all(work));
    assert!(results.into_iter().map(Result::unwrap).eq(0..200));
    assert!(most.load(SeqCst) <= 3);
}

/// Promise: with a full queue, further work waits for a place.
#[test]
fn full_queue_makes_callers_wait() {
    let pool = BlockingPool::new(1, 1);
    let (release, released) = mpsc::channel::<()>();
    let (started, has_started) = mpsc::channel::<()>();
    let theirs = pool.clone();
    let first = std::thread::spawn(move || {
        block_on(theirs.run(move || {
            started.send(()).unwrap();
            released.recv().unwrap();
        }))
    });
    has_started.recv().unwrap();
    let mut queued = std::pin::pin!(pool.run(|| 2));
    let mut third = std::pin::pin!(pool.run(|| 3));
    let mut context = Context::from_waker(Waker::noop());
    assert!(queued.as_mut().poll(&mut context).is_pending());
    assert!(third.as_mut().poll(&mut context).is_pending());
    assert_eq!(pool.0.0.state.lock().queue.len(), 1, "the third has no place");
    release.send(()).unwrap();
    first.join().unwrap().unwrap();
    assert_eq!((block_on(queued), block_on(third)), (Ok(2), Ok(3)));
}

/// Promise: work that panics is an error for its caller, and the pool goes on.
#[test]
fn panic_ends_one_job() {
    let pool = BlockingPool::new(1, 8);
    assert_eq!(block_on(pool.run(|| panic!("a test"))), Err::<(), _>(PoolError));
    assert_eq!(block_on(pool.run(|| 1)), Ok(1));
}
