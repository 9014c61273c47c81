use super::*;
use parking_lot::Mutex as Lock;
use varve_types::Timestamp;

/// A clock that follows tokio's paused one.
struct TokioClock(Lock<Option<tokio::time::Instant>>);

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        Timestamp::default()
    }

    fn monotonic(&self) -> Moment {
        let now = tokio::time::Instant::now();
        let origin = *self.0.lock().get_or_insert(now);
        Moment(now - origin)
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
fn a_change_waits_for_others() {
    run(async {
        let leases = leases();
        tokio::time::advance(LEASE * 2).await;
        let key = LeaseKey::attributes(DIRECTORY);
        assert_eq!(leases.grant(key, ONE, leases.ticket(key)), LEASE);
        let begin = tokio::time::Instant::now();
        drop(leases.hold(&[key], TWO).await);
        let waited = begin.elapsed();
        assert!(waited >= LEASE && waited <= LEASE + Duration::from_millis(5), "{waited:?}");
    });
}

/// A session's own leases do not hold it back.
#[test]
fn a_change_does_not_wait_for_itself() {
    run(async {
        let leases = leases();
        tokio::time::advance(LEASE * 2).await;
        let key = LeaseKey::name(DIRECTORY, NameHash(99));
        assert_eq!(leases.grant(key, ONE, leases.ticket(key)), LEASE);
        let begin = tokio::time::Instant::now();
        drop(leases.hold(&[key], ONE).await);
        assert!(begin.elapsed().is_zero());
    });
}

/// Promise: nor is what was read while the change was under way: it may be from before it.
#[test]
fn what_was_read_during_a_change_is_not_leased() {
    run(async {
        let leases = leases();
        tokio::time::advance(LEASE * 2).await;
        let key = LeaseKey::attributes(DIRECTORY);
        let hold = leases.hold(&[key], TWO).await;
        let ticket = leases.ticket(key);
        drop(hold);
        assert_eq!(leases.grant(key, ONE, ticket), Duration::ZERO);
        assert_eq!(leases.grant(key, ONE, leases.ticket(key)), LEASE);
    });
}

/// What was read before a change began is not leased after it, during it or when it has ended.
#[test]
fn a_stale_read_is_not_leased() {
    run(async {
        let leases = leases();
        tokio::time::advance(LEASE * 2).await;
        let key = LeaseKey::attributes(DIRECTORY);
        let before = leases.ticket(key);
        let hold = leases.hold(&[key], TWO).await;
        assert!(leases.grant(key, ONE, before).is_zero());
        assert!(leases.grant(key, ONE, leases.ticket(key)).is_zero(), "the change has not ended");
        drop(hold);
        assert!(leases.grant(key, ONE, before).is_zero());
        assert_eq!(leases.grant(key, ONE, leases.ticket(key)), LEASE);
    });
}

/// A server that has just taken a volume over waits for the leases it cannot know.
#[test]
fn a_new_owner_waits_one_term() {
    run(async {
        let leases = leases();
        let begin = tokio::time::Instant::now();
        drop(leases.hold(&[LeaseKey::attributes(DIRECTORY)], ONE).await);
        assert!(begin.elapsed() >= LEASE);
    });
}
