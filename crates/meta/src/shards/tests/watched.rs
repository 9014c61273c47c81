//! Reports the tests in progress in this process, so that a test that never ends is named and not just cut off by a
//! time limit, which names nothing.

use parking_lot::Mutex;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Once;
use std::time::{Duration, Instant};

/// Longer than any watched test takes on the slowest machine, and shorter than the limits of `make test`.
const OVERDUE: Duration = Duration::from_secs(600);

struct UnderWay {
    number: u64,
    begun: Instant,
    what: String,
}

static UNDER_WAY: Mutex<(u64, Vec<UnderWay>)> = Mutex::new((0, Vec::new()));

/// Registers a test as in progress until it is dropped.
pub struct Watched {
    number: u64,
}

impl Watched {
    pub fn begin(what: impl Into<String>) -> Watched {
        static WATCHER: Once = Once::new();
        WATCHER.call_once(|| drop(std::thread::spawn(watch)));
        let mut under_way = UNDER_WAY.lock();
        under_way.0 += 1;
        let number = under_way.0;
        under_way.1.push(UnderWay { number, begun: Instant::now(), what: what.into() });
        Watched { number }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        UNDER_WAY.lock().1.retain(|one| one.number != self.number);
    }
}

fn watch() {
    while !is_overdue() {
        std::thread::sleep(Duration::from_secs(1));
    }
    // Bypasses the capture of test output: the test will not end, so its captured output would not be shown.
    let _ = std::io::stderr().write_all(report().as_bytes());
    std::process::abort();
}

fn is_overdue() -> bool {
    UNDER_WAY.lock().1.iter().any(|one| one.begun.elapsed() > OVERDUE)
}

fn report() -> String {
    let mut report = String::from("\nnot done in time; under way are\n");
    for one in &UNDER_WAY.lock().1 {
        let _ = writeln!(report, "  {:.1?}: {}", one.begun.elapsed(), one.what);
    }
    report.push_str("threads (name, where it waits in the kernel, its state and its times)\n");
    for thread in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let read = |file: &str| std::fs::read_to_string(thread.path().join(file)).unwrap_or_default();
        let _ = writeln!(report, "  {}, {}, {}", read("comm").trim(), read("wchan"), read("stat").trim());
    }
    report
}
