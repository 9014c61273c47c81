//! The queue of closed files whose sizes are to be recorded: since when they wait, and which are due. It does no I/O.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use varve_env::clock::Instant;
use varve_types::{Credentials, InodeId};

/// Files whose sizes are recorded after one syncfs of the store's file system.
const ROUND_MAX: usize = 1024;

/// First and longest pause between attempts while the file is being written, here or by other clients.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// Wait before a failed file is tried again: its store may be reachable by then.
const AGAIN_AFTER: Duration = Duration::from_secs(2);

/// Closed files whose sizes are not recorded yet.
pub(crate) struct SizeQueue {
    files: HashMap<InodeId, ClosedFile>,
    /// Files that failed, by the number of their close: the oldest first.
    failed: BTreeMap<u64, InodeId>,
    waiting_max: usize,
    /// Closes and rounds so far.
    closes: u64,
    rounds: u64,
}

#[derive(Clone)]
pub struct ClosedFile {
    due: Instant,
    /// The number of this close: after a later one the file must be synced again.
    close: u64,
    asked: u32,
    /// The time when the server knows which other clients write it, if it did not know at the last request.
    known_from: Option<Instant>,
    /// The round in which it was tried last.
    tried: u64,
    pub generation: u32,
    pub writer: Credentials,
    may_be_mapped: bool,
}

/// A file that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    pub inode: InodeId,
    /// The kernel may have the file mapped for writing after its close.
    pub may_be_mapped: bool,
    close: u64,
}

/// Selects the files that are due in a round.
#[derive(Clone, Copy)]
pub enum RoundTurn {
    All,
    /// Those that are due by then.
    By(Instant),
    /// Those that were closed by then and are due or have failed.
    Late {
        closes: u64,
        now: Instant,
    },
}

/// A round, in which each file is tried once.
#[derive(Clone, Copy)]
pub struct Round(u64);

#[derive(Debug, PartialEq, Eq)]
pub enum EnqueueOutcome {
    Anew,
    Again,
    /// Queued; the oldest failed file was evicted.
    InPlaceOf(InodeId),
    Full,
}

/// The result of one attempt.
pub enum Outcome {
    /// Recorded, or not to be recorded for this close.
    Done,
    /// The server waits for other clients.
    Later,
    /// The server knows after this time which other clients there are.
    NotYet(Duration),
    /// May succeed when the trouble is over.
    Failed,
}

impl SizeQueue {
    pub fn new(waiting_max: usize) -> SizeQueue {
        SizeQueue { files: HashMap::new(), failed: BTreeMap::new(), waiting_max, closes: 0, rounds: 0 }
    }

    /// `may_be_mapped`: the kernel may have the file mapped for writing after its close.
    pub fn add(
        &mut self,
        inode: InodeId,
        due: Instant,
        generation: u32,
        writer: &Credentials,
        may_be_mapped: bool,
    ) -> EnqueueOutcome {
        let before = self.files.get(&inode);
        let may_be_mapped = may_be_mapped || before.is_some_and(|closed| closed.may_be_mapped);
        let waiting = before.map(|closed| (closed.due, closed.close));
        let mut added = if waiting.is_some() { EnqueueOutcome::Again } else { EnqueueOutcome::Anew };
        if waiting.is_none() && self.files.len() >= self.waiting_max {
            let Some((_, oldest)) = self.failed.pop_first() else { return EnqueueOutcome::Full };
            self.files.remove(&oldest);
            added = EnqueueOutcome::InPlaceOf(oldest);
        }
        if let Some((_, close)) = waiting {
            self.failed.remove(&close);
        }
        self.closes += 1;
        // A file that is closed repeatedly is recorded as early as one that is closed once.
        let due = waiting.map_or(due, |(before, _)| before.min(due));
        let writer = writer.clone();
        let close = self.closes;
        let closed = ClosedFile { due, close, asked: 0, known_from: None, tried: 0, generation, writer, may_be_mapped };
        self.files.insert(inode, closed);
        added
    }

    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Number of files that failed so far.
    pub fn failed(&self) -> usize {
        self.failed.len()
    }

    /// Number of files whose other writers the server did not know at the last request, and the time when it knows them
    /// all.
    pub fn unknown(&self) -> Option<(usize, Instant)> {
        let unknown = || self.files.values().filter_map(|closed| closed.known_from);
        Some((unknown().count(), unknown().max()?))
    }

    /// Number of closes so far, for [`RoundTurn::Late`].
    pub fn closes(&self) -> u64 {
        self.closes
    }

    /// Makes all files due.
    pub fn hurry(&mut self, now: Instant) {
        self.files.values_mut().for_each(|closed| closed.due = closed.due.min(now));
    }

    pub fn begin_round(&mut self) -> Round {
        self.rounds += 1;
        Round(self.rounds)
    }

    /// Some of the files that are due, those first that have waited longest, so that a failing file does not delay
    /// others.
    pub fn due(&self, turn: RoundTurn, round: Round) -> Vec<Due> {
        let is_due = |closed: &ClosedFile| match turn {
            RoundTurn::All => true,
            RoundTurn::By(now) => closed.due <= now,
            RoundTurn::Late { closes, now } => {
                closed.close <= closes && (closed.due <= now || self.failed.contains_key(&closed.close))
            }
        };
        let due = self.files.iter().filter(|(_, closed)| closed.tried < round.0 && is_due(closed));
        let mut due: Vec<_> = due.map(|(inode, closed)| (closed.tried, closed.close, *inode)).collect();
        due.sort_unstable();
        let due = due.into_iter().take(ROUND_MAX);
        due.map(|(_, close, inode)| Due { inode, close, may_be_mapped: self.files[&inode].may_be_mapped }).collect()
    }

    pub fn get(&self, due: Due) -> Option<&ClosedFile> {
        self.files.get(&due.inode).filter(|closed| closed.close == due.close)
    }

    /// Removes the file from the queue (`true`), or postpones it. Does nothing if it was closed again meanwhile.
    pub fn end(&mut self, due: Due, outcome: &Outcome, round: Round, now: Instant, pause: Duration) -> bool {
        let Some(closed) = self.files.get_mut(&due.inode).filter(|closed| closed.close == due.close) else {
            return false;
        };
        closed.tried = round.0;
        closed.known_from = None;
        match outcome {
            Outcome::Later => {
                closed.due = now.after((pause.max(PAUSE_MIN) * 2_u32.pow(closed.asked.min(16))).min(PAUSE_MAX));
                closed.asked += 1;
                self.failed.remove(&due.close);
                false
            }
            Outcome::NotYet(wait) => {
                closed.due = now.after(*wait);
                closed.known_from = Some(closed.due);
                self.failed.remove(&due.close);
                false
            }
            Outcome::Failed => {
                closed.due = now.after(AGAIN_AFTER);
                self.failed.insert(due.close, due.inode);
                false
            }
            Outcome::Done => {
                self.files.remove(&due.inode);
                self.failed.remove(&due.close);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(5);

    fn at(seconds: u64) -> Instant {
        Instant(Duration::from_secs(seconds))
    }

    fn queue(waiting_max: usize, files: u64) -> SizeQueue {
        let mut queue = SizeQueue::new(waiting_max);
        for inode in 1..=files {
            assert_eq!(queue.add(InodeId(inode), at(5), 0, &Credentials::root(), false), EnqueueOutcome::Anew);
        }
        queue
    }

    fn inodes(due: &[Due]) -> Vec<u64> {
        due.iter().map(|due| due.inode.0).collect()
    }

    /// Runs one round: each due file ends with the `outcome` for it.
    fn round(queue: &mut SizeQueue, turn: RoundTurn, now: Instant, outcome: impl Fn(u64) -> Outcome) -> Vec<u64> {
        let round = queue.begin_round();
        let mut tried = Vec::new();
        loop {
            let due = queue.due(turn, round);
            if due.is_empty() {
                return tried;
            }
            tried.extend(inodes(&due));
            for due in due {
                queue.end(due, &outcome(due.inode.0), round, now, PAUSE);
            }
        }
    }

    /// Promise: a file whose size could not be recorded stays queued, and is tried again, once per round, until it
    /// succeeds.
    #[test]
    fn failed_size_recording_is_retried() {
        let mut queue = queue(10, 3);
        let by = |seconds| (RoundTurn::By(at(seconds)), at(seconds));
        assert_eq!(round(&mut queue, by(4).0, by(4).1, |_| Outcome::Done), []);
        for time in [5, 8, 11, 14, 17, 20, 23] {
            let fails = |inode| if inode == 2 { Outcome::Failed } else { Outcome::Done };
            let expected: &[u64] = if time == 5 { &[1, 2, 3] } else { &[2] };
            assert_eq!(round(&mut queue, by(time).0, by(time).1, fails), expected);
            assert_eq!((queue.len(), queue.failed()), (1, 1));
            assert_eq!(round(&mut queue, by(time + 1).0, by(time + 1).1, |_| Outcome::Done), [], "not at once");
        }
        // A sync does not wait until it is due again.
        let late = RoundTurn::Late { closes: queue.closes(), now: at(23) };
        queue.add(InodeId(9), at(0), 0, &Credentials::root(), false);
        assert_eq!(round(&mut queue, late, at(23), |_| Outcome::Done), [2], "what was closed since may wait");
        assert_eq!((queue.len(), queue.failed()), (1, 0));
    }

    /// Promise: the queue is bounded. When it is full, the oldest failed file is evicted.
    #[test]
    fn oldest_failed_entry_is_evicted() {
        let mut queue = queue(3, 3);
        let add = |queue: &mut SizeQueue, inode| queue.add(InodeId(inode), at(5), 0, &Credentials::root(), false);
        assert_eq!(add(&mut queue, 4), EnqueueOutcome::Full);
        round(&mut queue, RoundTurn::All, at(5), |inode| if inode == 1 { Outcome::Later } else { Outcome::Failed });
        assert_eq!(add(&mut queue, 2), EnqueueOutcome::Again, "closed again, and so the youngest");
        assert_eq!(add(&mut queue, 4), EnqueueOutcome::InPlaceOf(InodeId(3)));
        assert_eq!(add(&mut queue, 5), EnqueueOutcome::Full, "2 has not failed since it was closed again");
        assert_eq!((queue.len(), queue.failed()), (3, 0));
    }

    /// Promise: a failing file does not delay others, and a file that waits for other clients is never given up: the
    /// server may rely on it to report the size in the end.
    #[test]
    fn retries_rotate_through_files() {
        let mut queue = queue(10, 3);
        for expected in [[1, 2, 3], [2, 3, 1], [3, 1, 2]] {
            let round = queue.begin_round();
            let due = queue.due(RoundTurn::All, round);
            assert_eq!(inodes(&due), expected);
            queue.end(due[0], &Outcome::Failed, round, at(5), PAUSE);
        }
        let mut now = 7;
        for wait in [5, 10, 20, 40, 80, 160, 300, 300] {
            assert_eq!(round(&mut queue, RoundTurn::By(at(now)), at(now), |_| Outcome::Later).len(), 3);
            assert_eq!(round(&mut queue, RoundTurn::By(at(now + wait - 1)), at(now), |_| Outcome::Done), []);
            now += wait;
        }
        assert_eq!((queue.len(), queue.failed()), (3, 0));
    }

    /// Promise: a size that the server cannot determine yet stays queued however often it is requested, and is never
    /// given up.
    #[test]
    fn undetermined_size_stays_queued() {
        let mut queue = queue(10, 2);
        let not_yet = |inode| Outcome::NotYet(Duration::from_secs(10 * inode));
        for _ in 0..10 {
            assert_eq!(round(&mut queue, RoundTurn::All, at(5), not_yet), [1, 2]);
            assert_eq!((queue.unknown(), queue.len(), queue.failed()), (Some((2, at(25))), 2, 0));
        }
        assert_eq!(round(&mut queue, RoundTurn::By(at(14)), at(14), |_| Outcome::Done), []);
        assert_eq!(round(&mut queue, RoundTurn::By(at(25)), at(25), |_| Outcome::Later), [1, 2]);
        assert_eq!((queue.unknown(), queue.len()), (None, 2));
    }
}
