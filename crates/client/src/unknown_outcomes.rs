//! Tracks unknown outcomes: names and inodes of a change that failed with an error that does not exclude that it took
//! effect. The change may have been made, or may be made later.
//!
//! State with an unknown outcome is cached neither by this client nor by its frontend's kernel: each request for it
//! goes to the server. It stays so for the rest of the client's life, because there is no time after which the change
//! can no longer be made. The frontend invalidates what the kernel has cached before
//! ([`FileSystem::next_unknown_outcome`]).
//!
//! At most [`UNKNOWN_OUTCOMES_MAX`] of each kind are kept; when there are more, everything is treated as unknown. While
//! there are none, a check costs the load of one word.

use crate::{Failure, FileSystem};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use varve_env::key_hash::KeyHashing;
use varve_types::{Credentials, InodeId, Name, NameHash};

/// Names, and inodes, with unknown outcome, before everything is treated as unknown: more than all the threads of a
/// mount leave behind in minutes with a hanging store, and less than 1 MiB.
const UNKNOWN_OUTCOMES_MAX: usize = 4096;

/// Unknown outcomes that the frontend has not reported to its kernel. If there are more, the kernel's cached state
/// stays valid until its hour is over.
const UNTOLD_MAX: usize = 4 * UNKNOWN_OUTCOMES_MAX;

/// Alternative names of one inode: a failed rename is retried under few other names.
const PLACES_MAX: usize = 4;

/// Kernel state that a frontend must invalidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnknownOutcome {
    /// The inode of a name, or that the name does not exist.
    Name(InodeId, Name),
    /// The attributes of an inode.
    Attributes(InodeId),
}

#[derive(Default)]
pub(crate) struct UnknownOutcomes {
    any: AtomicBool,
    held: Mutex<OutcomeTable>,
}

#[derive(Default)]
struct OutcomeTable {
    /// A frontend reports unknown outcomes to its kernel.
    heard: bool,
    everything: bool,
    names: HashSet<(InodeId, NameHash), KeyHashing>,
    /// With the names that renames of unknown outcome would have given them.
    inodes: HashMap<InodeId, Vec<(InodeId, Name)>, KeyHashing>,
    untold: VecDeque<UnknownOutcome>,
    /// Unknown outcomes were left out of `untold`.
    overflowed: bool,
}

impl UnknownOutcomes {
    /// Whether the inode of the name is unknown.
    pub fn of_name(&self, parent: InodeId, name: &[u8]) -> bool {
        self.any.load(Relaxed) && {
            let held = self.held.lock();
            held.everything || held.names.contains(&(parent, NameHash::of(name)))
        }
    }

    /// Whether the attributes of `inode` are unknown.
    pub fn of_inode(&self, inode: InodeId) -> bool {
        self.any.load(Relaxed) && {
            let held = self.held.lock();
            held.everything || held.inodes.contains_key(&inode)
        }
    }

    /// Other names that `inode` may have.
    pub fn places(&self, inode: InodeId) -> Vec<(InodeId, Name)> {
        match self.any.load(Relaxed) {
            true => self.held.lock().inodes.get(&inode).cloned().unwrap_or_default(),
            false => Vec::new(),
        }
    }

    fn add_name(&self, parent: InodeId, name: &Name) {
        let mut held = self.held.lock();
        if held.everything || held.names.insert((parent, name.hash())) {
            held.announce(|| UnknownOutcome::Name(parent, name.clone()));
        }
        if held.names.len() >= UNKNOWN_OUTCOMES_MAX {
            held.believe_nothing();
        }
        self.any.store(true, Relaxed);
    }

    /// `place`: a name that the inode may have now.
    fn add_inode(&self, inode: InodeId, place: Option<(InodeId, &Name)>) {
        let mut held = self.held.lock();
        let known = held.inodes.contains_key(&inode);
        if known || held.inodes.len() < UNKNOWN_OUTCOMES_MAX {
            let places = held.inodes.entry(inode).or_default();
            if let Some((parent, name)) = place {
                places.retain(|other| *other != (parent, name.clone()));
                places.push((parent, name.clone()));
                if places.len() > PLACES_MAX {
                    places.remove(0);
                }
            }
        } else {
            held.believe_nothing();
        }
        if !known {
            held.announce(|| UnknownOutcome::Attributes(inode));
        }
        self.any.store(true, Relaxed);
    }

    /// Records a change that could have affected unknown names and inodes.
    fn add_everything(&self) {
        self.held.lock().believe_nothing();
        self.any.store(true, Relaxed);
    }

    /// The next unknown outcome to report to the kernel.
    fn take(&self) -> Option<UnknownOutcome> {
        self.held.lock().untold.pop_front()
    }

    /// Puts an outcome back, to be reported later. The slot that it was taken from is free, or was reused by one new
    /// outcome.
    fn put_back(&self, unknown_outcome: UnknownOutcome) {
        self.held.lock().untold.push_back(unknown_outcome);
    }

    fn untold(&self) -> usize {
        if self.any.load(Relaxed) { self.held.lock().untold.len() } else { 0 }
    }
}

impl OutcomeTable {
    fn believe_nothing(&mut self) {
        if !std::mem::replace(&mut self.everything, true) {
            tracing::warn!("too many changes with an unknown outcome: the client's caches are off");
            self.names = HashSet::default();
        }
    }

    fn announce(&mut self, unknown_outcome: impl FnOnce() -> UnknownOutcome) {
        if !self.heard {
            return;
        }
        if self.untold.len() < UNTOLD_MAX {
            return self.untold.push_back(unknown_outcome());
        }
        if !std::mem::replace(&mut self.overflowed, true) {
            tracing::warn!(
                "too many changes with an unknown outcome: names may be outdated for up to an hour; unmount and mount \
                 again to see the present ones"
            );
        }
    }
}

impl FileSystem {
    /// Records the `failure` of a change that could have affected these names and inodes; `None` is an inode that is
    /// not known.
    pub(crate) fn unknown_outcome(
        &self,
        failure: Failure,
        names: &[(InodeId, &Name)],
        inodes: &[Option<InodeId>],
    ) -> Failure {
        if failure.outcome_unknown {
            let unknown_outcomes = &self.core.unknown_outcomes;
            names.iter().for_each(|(parent, name)| unknown_outcomes.add_name(*parent, name));
            for inode in inodes {
                match inode {
                    Some(inode) => unknown_outcomes.add_inode(*inode, None),
                    None => unknown_outcomes.add_everything(),
                }
            }
        }
        failure
    }

    /// Records the `failure` of a rename between two names and of their inodes. The new name may not have existed.
    pub(crate) fn mark_rename_unknown(
        &self,
        failure: Failure,
        (parent, name, moved): (InodeId, &Name, Option<InodeId>),
        (new_parent, new_name, replaced): (InodeId, &Name, Option<InodeId>),
    ) -> Failure {
        if failure.outcome_unknown {
            let places = [(moved, (new_parent, new_name)), (replaced, (parent, name))];
            for (inode, place) in places {
                inode.into_iter().for_each(|inode| self.core.unknown_outcomes.add_inode(inode, Some(place)));
            }
        }
        let inodes = [moved, Some(parent), Some(new_parent)];
        self.unknown_outcome(failure, &[(parent, name), (new_parent, new_name)], &inodes)
    }

    /// How long the kernel may cache that a name does not exist.
    pub fn absent_ttl(&self, parent: InodeId, name: &[u8]) -> Duration {
        match self.core.unknown_outcomes.of_name(parent, name) {
            true => Duration::ZERO,
            false => self.timeouts().absent,
        }
    }

    /// Called by a frontend that will fetch unknown outcomes from now on.
    pub fn subscribe_unknown_outcomes(&self) {
        self.core.unknown_outcomes.held.lock().heard = true;
    }

    /// The new unknown outcomes, each once, for a frontend whose kernel may have cached the state before. A name is
    /// returned only when the server answers for it, for two reasons. Before that, the kernel cannot get newer state.
    /// And to invalidate a name, the kernel waits for every request in its directory, which in turn would wait for the
    /// server. So this call may block, until the deadline of each shard that does not answer.
    pub fn next_unknown_outcome(&self) -> Vec<UnknownOutcome> {
        let (core, mut reported, mut silent) = (&self.core, Vec::new(), HashSet::new());
        for _ in 0..core.unknown_outcomes.untold() {
            let Some(unknown_outcome) = core.unknown_outcomes.take() else { break };
            if let UnknownOutcome::Name(parent, name) = &unknown_outcome {
                let shard = core.routing.shard_of(*parent, name.hash());
                let answers = || {
                    let found = crate::block_on(core.look_up(&Credentials::root(), *parent, name));
                    !found.is_err_and(|failure| failure.outcome_unknown)
                };
                if silent.contains(&shard) || !answers() {
                    silent.insert(shard);
                    core.unknown_outcomes.put_back(unknown_outcome);
                    continue;
                }
            }
            reported.push(unknown_outcome);
        }
        reported
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: InodeId = InodeId::ROOT;

    fn name(number: usize) -> Name {
        Name::new(format!("name {number}").as_bytes()).unwrap()
    }

    fn heard() -> UnknownOutcomes {
        UnknownOutcomes {
            held: Mutex::new(OutcomeTable { heard: true, ..OutcomeTable::default() }),
            ..UnknownOutcomes::default()
        }
    }

    /// Promise: an unknown outcome stays unknown, and is reported once; nothing else is.
    #[test]
    fn unknown_outcome_is_reported_once() {
        let unknown_outcomes = heard();
        assert!(
            !unknown_outcomes.of_name(ROOT, name(1).as_bytes())
                && !unknown_outcomes.of_inode(ROOT)
                && unknown_outcomes.untold() == 0
        );
        for _ in 0..3 {
            unknown_outcomes.add_name(ROOT, &name(1));
            unknown_outcomes.add_inode(InodeId(7), None);
        }
        assert_eq!(unknown_outcomes.take(), Some(UnknownOutcome::Name(ROOT, name(1))));
        assert_eq!(unknown_outcomes.take(), Some(UnknownOutcome::Attributes(InodeId(7))));
        assert_eq!(unknown_outcomes.take(), None);
        assert!(unknown_outcomes.of_name(ROOT, name(1).as_bytes()) && unknown_outcomes.of_inode(InodeId(7)));
        assert!(
            !unknown_outcomes.of_name(ROOT, name(2).as_bytes())
                && !unknown_outcomes.of_name(InodeId(7), name(1).as_bytes())
        );
        assert!(!unknown_outcomes.of_inode(ROOT));
    }

    /// Promise: unknown outcomes are bounded; beyond the bound everything is treated as unknown, and cached names and
    /// inodes are still reported.
    #[test]
    fn too_many_unknown_outcomes_distrust_everything() {
        for many in [
            (|unknown_outcomes, number| unknown_outcomes.add_name(ROOT, &name(number))) as fn(&UnknownOutcomes, usize),
            |unknown_outcomes, number| unknown_outcomes.add_inode(InodeId(number as u64 + 100), None),
        ] {
            let unknown_outcomes = heard();
            (0..UNKNOWN_OUTCOMES_MAX - 1).for_each(|number| many(&unknown_outcomes, number));
            assert!(!unknown_outcomes.of_inode(InodeId(5)) && !unknown_outcomes.of_name(InodeId(5), b"other"));
            (0..2 * UNTOLD_MAX).for_each(|number| many(&unknown_outcomes, number));
            assert!(unknown_outcomes.of_inode(InodeId(5)) && unknown_outcomes.of_name(InodeId(5), b"other"));
            let held = unknown_outcomes.held.lock();
            assert!(held.names.is_empty() && held.inodes.len() <= UNKNOWN_OUTCOMES_MAX);
            assert!(held.untold.len() == UNTOLD_MAX && held.overflowed);
        }
        let unknown_outcomes = UnknownOutcomes::default();
        unknown_outcomes.add_everything();
        assert!(unknown_outcomes.of_inode(InodeId(5)) && unknown_outcomes.of_name(InodeId(5), b"other"));
    }

    /// Promise: the last locations of an inode are remembered, few and each once.
    #[test]
    fn locations_of_an_inode_are_bounded() {
        let unknown_outcomes = UnknownOutcomes::default();
        assert!(unknown_outcomes.places(InodeId(7)).is_empty());
        for number in [1, 2, 3, 3, 2, 4, 5] {
            unknown_outcomes.add_inode(InodeId(7), Some((ROOT, &name(number))));
        }
        assert_eq!(unknown_outcomes.places(InodeId(7)), [3, 2, 4, 5].map(|number| (ROOT, name(number))));
        assert!(unknown_outcomes.places(InodeId(8)).is_empty());
    }
}
