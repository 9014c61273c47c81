use super::*;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

fn pair() -> (UnixStream, UnixStream) {
    let (near, far) = UnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    (near, far)
}

fn found(poller: &Poller, wait: Duration) -> Vec<Ready> {
    let mut found = Vec::new();
    poller.wait(Some(wait), || false, |ready| found.push(ready)).unwrap();
    found
}

/// Promise: input is reported once when it arrives, room when it is asked for, and both when the peer is gone.
#[test]
fn ready_descriptors_are_reported() {
    let poller = Poller::new().unwrap();
    let (near, far) = pair();
    poller.watch(&near, 7, Watch::Input).unwrap();
    assert_eq!(found(&poller, Duration::ZERO), []);
    rustix::io::write(&far, b"x").unwrap();
    assert_eq!(found(&poller, Duration::from_secs(10)), [Ready { token: 7, input: true, room: false, ends: false }]);
    assert_eq!(found(&poller, Duration::ZERO), [], "an edge");
    poller.change(&near, 8, Watch::InputAndRoom).unwrap();
    assert_eq!(found(&poller, Duration::from_secs(10)), [Ready { token: 8, input: true, room: true, ends: false }]);
    drop(far);
    assert_eq!(found(&poller, Duration::from_secs(10)), [Ready { token: 8, input: true, room: true, ends: true }]);
    poller.forget(&near);
    assert_eq!(found(&poller, Duration::ZERO), []);
}

/// Promise: an alarm ends the wait, also one that rings just before it, and a finished wait leaves none behind.
#[test]
fn alarm_ends_the_wait() {
    let poller = Poller::new().unwrap();
    let alarm = Arc::clone(poller.alarm());
    let work = Arc::new(AtomicUsize::new(0));
    let theirs = Arc::clone(&work);
    const ROUNDS: usize = 2_000;
    let ringing = std::thread::spawn(move || {
        for _ in 0..ROUNDS {
            theirs.fetch_add(1, SeqCst);
            alarm.ring();
            std::thread::yield_now();
        }
    });
    let (begun, mut seen) = (Instant::now(), 0);
    while seen < ROUNDS {
        poller.wait(Some(Duration::from_secs(30)), || work.load(SeqCst) > seen, |_| {}).unwrap();
        seen = work.load(SeqCst);
    }
    ringing.join().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(25), "an alarm was lost");
}

/// Promise: a watched file wakes one of the threads that watch it exclusively.
#[test]
fn exclusive_watch_wakes_one_thread() {
    let (near, far) = pair();
    let woken = Arc::new(AtomicUsize::new(0));
    let near = Arc::new(near);
    let started = Arc::new(std::sync::Barrier::new(9));
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (near, woken, started) = (Arc::clone(&near), Arc::clone(&woken), Arc::clone(&started));
            std::thread::spawn(move || {
                let poller = Poller::new().unwrap();
                poller.watch(&*near, 1, Watch::Exclusive).unwrap();
                started.wait();
                if !found(&poller, Duration::from_millis(500)).is_empty() {
                    woken.fetch_add(1, SeqCst);
                    let _ = rustix::io::read(&*near, &mut [0_u8; 8]);
                }
            })
        })
        .collect();
    started.wait();
    std::thread::sleep(Duration::from_millis(200));
    rustix::io::write(&far, b"x").unwrap();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let woken = woken.load(SeqCst);
    assert!((1..8).contains(&woken), "{woken} threads woke for one byte");
}
