//! Decides which servers have stopped renewing, from what a watcher saw of them. It reads no clock and no registry.
//!
//! A server may be killed if it has not renewed for its lease and a tenth, on the watcher's own clock. Only durations are
//! compared, and the tenth is for clocks that run differently. The time counts from when the watcher had seen the last
//! renewal to when it began to look again, so a slow registry makes it longer, never shorter.
//!
//! If the registry or the store beneath it hangs, nobody can renew. A watcher learns that from its own renewals: when
//! one of them was late, it begins to count anew. So when all servers were late, none is killed.

use crate::map::ServerId;
use crate::registry::{Beat, Pulse};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use varve_env::clock::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has renewed, or its time is not over. A server that another member has just killed may have a lease too.
    Alive,
    /// It may be killed by taking this number.
    Silent(Beat),
    /// It was killed, and its lease has ended since.
    Dead,
}

#[derive(Debug)]
pub struct Detector {
    lease: Duration,
    watched: BTreeMap<ServerId, Watched>,
}

#[derive(Clone, Copy, Debug)]
struct Watched {
    pulse: Pulse,
    /// When the watcher had seen this for the first time.
    since: Instant,
}

impl Detector {
    pub fn new(lease: Duration) -> Detector {
        Detector { lease, watched: BTreeMap::new() }
    }

    /// How long a server may be silent.
    pub fn patience(&self) -> Duration {
        self.lease + self.lease / 10
    }

    /// From now on these servers are watched, and no others.
    pub fn watch(&mut self, servers: &BTreeSet<ServerId>) {
        self.watched.retain(|server, _| servers.contains(server));
    }

    /// The watcher began to look at `asked`, and by `seen` found that the last record of `server` is `pulse`.
    pub fn saw(&mut self, server: ServerId, pulse: Pulse, asked: Instant, seen: Instant) -> Verdict {
        let patience = self.patience();
        let watched = self.watched.entry(server).or_insert(Watched { pulse, since: seen });
        if watched.pulse != pulse {
            *watched = Watched { pulse, since: seen };
        }
        match pulse {
            _ if asked.since(watched.since) < patience => Verdict::Alive,
            Pulse::Beats(beat) => Verdict::Silent(beat.next()),
            Pulse::Killed(_) => Verdict::Dead,
        }
    }

    /// A renewal of the watcher itself was late: what it has seen may be the registry's fault.
    pub fn start_again(&mut self) {
        self.watched.clear();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::registry::KillReason;
    use std::sync::{Arc, Mutex};
    use varve_env::clock::Clock;
    use varve_types::Timestamp;

    /// A clock that stands still until it is moved.
    #[derive(Debug)]
    pub struct ManualClock(Mutex<Instant>);

    impl ManualClock {
        pub fn new() -> Arc<ManualClock> {
            Arc::new(ManualClock(Mutex::new(Instant(Duration::from_secs(1000)))))
        }

        pub fn pass(&self, time: Duration) {
            let mut now = self.0.lock().unwrap();
            *now = now.after(time);
        }
    }

    impl Clock for ManualClock {
        fn now(&self) -> Timestamp {
            Timestamp::default()
        }

        fn monotonic(&self) -> Instant {
            *self.0.lock().unwrap()
        }
    }

    const LEASE: Duration = Duration::from_secs(2);
    const OTHER: ServerId = ServerId(7);
    const KILLED: Pulse = Pulse::Killed(KillReason::Silent);

    fn at(ms: u64) -> Instant {
        Instant(Duration::from_millis(ms))
    }

    #[test]
    fn silent_server_is_found_after_its_lease_and_a_tenth() {
        let mut detector = Detector::new(LEASE);
        assert_eq!(detector.saw(OTHER, Pulse::Beats(Beat(3)), at(0), at(100)), Verdict::Alive);
        assert_eq!(detector.saw(OTHER, Pulse::Beats(Beat(3)), at(2299), at(2300)), Verdict::Alive);
        assert_eq!(detector.saw(OTHER, Pulse::Beats(Beat(3)), at(2300), at(2301)), Verdict::Silent(Beat(4)));
    }

    #[test]
    fn renewal_begins_the_time_anew() {
        let mut detector = Detector::new(LEASE);
        detector.saw(OTHER, Pulse::Beats(Beat(3)), at(0), at(0));
        assert_eq!(detector.saw(OTHER, Pulse::Beats(Beat(4)), at(5000), at(5000)), Verdict::Alive);
        assert_eq!(detector.saw(OTHER, Pulse::Beats(Beat(4)), at(7199), at(7199)), Verdict::Alive);
        assert_eq!(detector.saw(OTHER, Pulse::Beats(Beat(4)), at(7200), at(7200)), Verdict::Silent(Beat(5)));
    }

    /// A look that was begun early and answered late says nothing of the time in between.
    #[test]
    fn slow_look_does_not_count() {
        let mut detector = Detector::new(LEASE);
        detector.saw(OTHER, Pulse::Beats(Beat(3)), at(0), at(0));
        assert_eq!(detector.saw(OTHER, Pulse::Beats(Beat(3)), at(100), at(60_000)), Verdict::Alive);
    }

    #[test]
    fn late_watcher_counts_anew() {
        let mut detector = Detector::new(LEASE);
        detector.saw(OTHER, Pulse::Beats(Beat(3)), at(0), at(0));
        detector.start_again();
        assert_eq!(detector.saw(OTHER, Pulse::Beats(Beat(3)), at(60_000), at(60_000)), Verdict::Alive);
        assert_eq!(detector.saw(OTHER, Pulse::Beats(Beat(3)), at(62_200), at(62_200)), Verdict::Silent(Beat(4)));
    }

    #[test]
    fn killed_server_is_dead_once_its_lease_has_ended() {
        let mut detector = Detector::new(LEASE);
        detector.saw(OTHER, Pulse::Beats(Beat(3)), at(0), at(0));
        assert_eq!(detector.saw(OTHER, KILLED, at(5000), at(5000)), Verdict::Alive);
        assert_eq!(detector.saw(OTHER, KILLED, at(7199), at(7199)), Verdict::Alive);
        assert_eq!(detector.saw(OTHER, KILLED, at(7200), at(7200)), Verdict::Dead);
    }

    #[test]
    fn server_that_is_no_longer_watched_is_forgotten() {
        let mut detector = Detector::new(LEASE);
        detector.saw(OTHER, Pulse::Beats(Beat(3)), at(0), at(0));
        detector.watch(&BTreeSet::from([ServerId(8)]));
        assert_eq!(detector.saw(OTHER, Pulse::Beats(Beat(3)), at(60_000), at(60_000)), Verdict::Alive);
    }
}
