//! Who stands in for a frontend's threads where answers are awaited and none of them attends. It looks seldom, but for
//! as long as callers meet briskly enough that nobody is left alone for longer than threads stand by.

use crate::background::TICK;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

/// How often it looks while callers meet: answers may be left alone twice as long.
const BRISK: Duration = Duration::from_millis(2);

/// As many looks take a [`TICK`].
const POLLS_A_TICK: u32 = (TICK.as_millis() / BRISK.as_millis()) as u32;

#[derive(Default)]
pub(crate) struct Watchdog {
    /// Asynchronous operations were begun since it looked last.
    begun: AtomicBool,
    /// It looks briskly.
    brisk: AtomicBool,
    looked: Mutex<WatchdogRound>,
}

#[derive(Default)]
struct WatchdogRound {
    /// At the look before, nobody attended, nor had anyone since that turn.
    free_since_turn: Option<u64>,
    /// Looks since it tended all.
    spins: u32,
    /// Brisk looks to come if callers no longer meet.
    brisk: u32,
}

/// What one look has found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WatchdogPoll {
    /// Answers are awaited that nobody attends to.
    pub left_alone: bool,
    /// It is time to tend all asynchronous operations.
    pub tends: bool,
    /// How soon it is to look again.
    pub rest: Duration,
}

impl Watchdog {
    /// An asynchronous operation is begun. Whether the spare is to be called, which rests as if there were none.
    pub fn begins(&self) -> bool {
        !self.begun.load(Relaxed) && !self.begun.swap(true, SeqCst) && !self.brisk.swap(true, SeqCst)
    }

    /// `free_since_turn`: the last turn of a reactor thread, if there is none now.
    pub(super) fn spin(&self, awaited: usize, free_since_turn: Option<u64>) -> WatchdogPoll {
        let mut looked = self.looked.lock();
        let before = std::mem::replace(&mut looked.free_since_turn, free_since_turn);
        let left_alone = awaited > 0 && free_since_turn.is_some() && before == free_since_turn;
        looked.brisk = match self.begun.swap(false, SeqCst) || awaited > 0 {
            true => POLLS_A_TICK,
            false => looked.brisk.saturating_sub(1),
        };
        if looked.brisk == 0 {
            self.brisk.store(false, SeqCst);
            // Who has begun before that does not call.
            if self.begun.load(SeqCst) {
                looked.brisk = POLLS_A_TICK;
            }
        }
        let brisk = looked.brisk > 0;
        self.brisk.fetch_or(brisk, SeqCst);
        looked.spins += 1;
        let tends = !brisk || looked.spins >= POLLS_A_TICK;
        if tends {
            looked.spins = 0;
        }
        WatchdogPoll { left_alone, tends, rest: if brisk { BRISK } else { TICK } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calm(watchdog: &Watchdog) {
        let spins = (0..).take_while(|_| watchdog.spin(0, None).rest == BRISK).count();
        assert!(spins <= POLLS_A_TICK as usize);
    }

    /// Promise: it is called once when callers meet, looks briskly from then on, and rests when they have gone.
    #[test]
    fn watchdog_polls_fast_under_concurrency() {
        let watchdog = Watchdog::default();
        assert_eq!(watchdog.spin(0, None), WatchdogPoll { left_alone: false, tends: true, rest: TICK });
        for _ in 0..2 {
            assert!(watchdog.begins() && !watchdog.begins(), "called once");
            let tends = (0..5 * POLLS_A_TICK).filter(|_| {
                assert!(!watchdog.begins(), "it looks already");
                let spin = watchdog.spin(1, None);
                assert_eq!(spin.rest, BRISK);
                spin.tends
            });
            assert_eq!(tends.count(), 5, "once a tick");
            calm(&watchdog);
        }
    }

    /// Promise: it stands in only where nobody has attended between two looks.
    #[test]
    fn watchdog_ignores_replies_without_reactor() {
        let watchdog = Watchdog::default();
        let stands_in = |awaited, free_since_turn| watchdog.spin(awaited, free_since_turn).left_alone;
        assert!(!stands_in(1, Some(7)), "since a moment ago");
        assert!(stands_in(1, Some(7)));
        assert!(!stands_in(0, Some(7)));
        assert!(!stands_in(1, Some(8)), "somebody has attended since");
        assert!(!stands_in(1, None), "somebody attends");
        assert!(!stands_in(1, Some(9)) && stands_in(1, Some(9)));
    }
}
