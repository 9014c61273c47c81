use super::*;
use parking_lot::Mutex as Lock;
use varve_types::Timestamp;

/// A clock that follows tokio's paused clock.
struct TokioClock(Lock<Option<tokio::time::Instant>>);

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        Timestamp::default()
    }

    fn monotonic(&self) -> Instant {
        let now = tokio::time::Instant::now();
        let origin = *self.0.lock().get_or_insert(now);
        Instant(now - origin)
    }
}

const ONE: SessionId = SessionId(1);
const TWO: SessionId = SessionId(2);
const DIRECTORY: InodeId = InodeId(77);

fn leases() -> Arc<Leases> {
    let clock = Arc::new(TokioClock(Lock::new(None)));
    let now = clock.monotonic();
    Arc::new(Leases::new(clock, now))
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        tokio::time::pause();
        test.await
    });
}

/// A change waits for the leases of other sessions, and never longer than one term.
#[test]
fn change_waits_for_leases_of_others() {
    run(async {
        let leases = leases();
        tokio::time::advance(LEASE * 2).await;
        let key = LeaseKey::attributes(DIRECTORY);
        assert_eq!(leases.grant(key, ONE, leases.ticket(key)), LEASE);
        let begin = tokio::time::Instant::now();
        drop(leases.barrier(&[key], TWO).await);
        let waited = begin.elapsed();
        assert!(waited >= LEASE && waited <= LEASE + Duration::from_millis(5), "{waited:?}");
    });
}

/// A session's own leases do not delay its changes.
#[test]
fn change_does_not_wait_for_own_lease() {
    run(async {
        let leases = leases();
        tokio::time::advance(LEASE * 2).await;
        let key = LeaseKey::name(DIRECTORY, NameHash(99));
        assert_eq!(leases.grant(key, ONE, leases.ticket(key)), LEASE);
        let begin = tokio::time::Instant::now();
        drop(leases.barrier(&[key], ONE).await);
        assert!(begin.elapsed().is_zero());
    });
}

/// Promise: data that was read during a change is not leased, because it may be from before the change.
#[test]
fn read_during_a_change_gets_no_lease() {
    run(async {
        let leases = leases();
        tokio::time::advance(LEASE * 2).await;
        let key = LeaseKey::attributes(DIRECTORY);
        let barrier = leases.barrier(&[key], TWO).await;
        let ticket = leases.ticket(key);
        drop(barrier);
        assert_eq!(leases.grant(key, ONE, ticket), Duration::ZERO);
        assert_eq!(leases.grant(key, ONE, leases.ticket(key)), LEASE);
    });
}

/// Data that was read before a change began is not leased after it began, neither during it nor after its end.
#[test]
fn stale_read_gets_no_lease() {
    run(async {
        let leases = leases();
        tokio::time::advance(LEASE * 2).await;
        let key = LeaseKey::attributes(DIRECTORY);
        let before = leases.ticket(key);
        let barrier = leases.barrier(&[key], TWO).await;
        assert!(leases.grant(key, ONE, before).is_zero());
        assert!(leases.grant(key, ONE, leases.ticket(key)).is_zero(), "the change has not ended");
        drop(barrier);
        assert!(leases.grant(key, ONE, before).is_zero());
        assert_eq!(leases.grant(key, ONE, leases.ticket(key)), LEASE);
    });
}

/// A server that has just taken over a volume waits for leases that it cannot know.
#[test]
fn new_server_waits_one_lease_term() {
    run(async {
        let leases = leases();
        let begin = tokio::time::Instant::now();
        drop(leases.barrier(&[LeaseKey::attributes(DIRECTORY)], ONE).await);
        assert!(begin.elapsed() >= LEASE);
    });
}
