//! CPU priority of background threads relative to others.

/// Increment of a background thread's nice value. Competing with a thread at the default, it gets about a third of a
/// processor; without competition, all of it.
const STEP_BACK: i32 = 5;

/// Lowers the priority of this thread. Linux keeps the nice value per thread, and raising it needs no privilege.
/// Threads that it starts later inherit the priority.
pub fn give_way() {
    if let Err(error) = rustix::process::nice(STEP_BACK) {
        tracing::debug!(%error, "a thread of the background cannot give way to others");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn priority_applies_to_one_thread() {
        let niceness = || rustix::process::getpriority_process(None).unwrap();
        let before = niceness();
        let there = std::thread::spawn(move || {
            super::give_way();
            niceness()
        });
        assert_eq!(there.join().unwrap(), (before + super::STEP_BACK).min(19));
        assert_eq!(niceness(), before);
    }
}
