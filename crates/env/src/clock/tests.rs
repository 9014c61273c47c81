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

/// The monotonic clock counts from the boot of the host, time in suspend included (/proc/uptime is that clock).
#[test]
fn monotonic_clock_counts_suspended_time() {
    let uptime = || -> f64 {
        let text = std::fs::read_to_string("/proc/uptime").unwrap();
        text.split(' ').next().unwrap().parse().unwrap()
    };
    let (before, now, after) = (uptime(), RealClock::new().monotonic(), uptime());
    // The file has hundredths, rounded down.
    assert!(before <= now.0.as_secs_f64() && now.0.as_secs_f64() < after + 0.02, "{before} {now:?} {after}");
}
