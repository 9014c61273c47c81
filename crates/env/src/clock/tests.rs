use super::*;

/// A time before 1970 keeps its nanoseconds positive.
#[test]
fn times_before_1970_round_down() {
    let time = UNIX_EPOCH - Duration::new(1, 250_000_000);
    assert_eq!(timestamp(time), Timestamp { seconds: -2, nanoseconds: 750_000_000 });
    assert_eq!(timestamp(UNIX_EPOCH - Duration::from_secs(3)), Timestamp { seconds: -3, nanoseconds: 0 });
    assert_eq!(timestamp(UNIX_EPOCH + Duration::new(5, 7)), Timestamp { seconds: 5, nanoseconds: 7 });
}

/// The monotonic clock never goes back.
#[test]
fn monotonic_clock_never_goes_back() {
    let clock = RealClock::new();
    let first = clock.monotonic();
    let second = clock.monotonic();
    assert!(second >= first);
    assert_eq!(first.since(first.after(Duration::from_secs(1))), Duration::ZERO);
}
