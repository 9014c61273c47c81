//! How much of a busy processor threads get beside each other.

/// How far a thread steps back: beside one that has not, it gets about a third of a processor that both want, and all of
/// one that nobody else wants.
const STEP_BACK: i32 = 5;

/// Lets this thread give way to others that want its processor. Linux keeps this for each thread by itself, and asks no
/// privilege for it. Threads that it starts later give way as well.
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
