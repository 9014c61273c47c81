//! What is of unknown outcome: names and inodes that a change could have touched which ended in an error that does not
//! say that nothing was changed. It may have been made, or be made later.
//!
//! Nothing that is of unknown outcome is believed, by this client or by its frontend's kernel: each question for it
//! goes to the server. It stays so for the rest of the client's life, for nobody can say when the last moment has
//! passed at which the change could be made. What the kernel was told before is told back to it by the frontend
//! ([`FileSystem::next_unknown_outcome`]).
//!
//! Kept is no more than [`UNKNOWN_OUTCOMES_MAX`] of each kind; when there are more, everything is of unknown outcome.
//! While nothing is, a question costs the load of one word.

use crate::{Failure, FileSystem};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use varve_env::key_hash::KeyHashing;
use varve_types::{Credentials, InodeId, Name, NameHash};

/// Names of unknown outcome, and inodes, before everything is: more than all the threads of a mount leave behind in
/// minutes of trouble with a store that hangs, and less than 1 MiB.
const UNKNOWN_OUTCOMES_MAX: usize = 4096;

/// Unknown outcomes that the frontend has not told its kernel of. With more, what the kernel believed before is
/// believed until its hour is over.
const UNTOLD_MAX: usize = 4 * UNKNOWN_OUTCOMES_MAX;

/// Names of one inode under which it may be instead: a rename that failed is tried again under few others.
const PLACES_MAX: usize = 4;

/// What a frontend takes back from its kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnknownOutcome {
    /// What a name means, or that it means nothing.
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
    /// A frontend tells its kernel of unknown outcomes.
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
    /// Whether what the name means is of unknown outcome.
    pub fn of_name(&self, parent: InodeId, name: &[u8]) -> bool {
        self.any.load(Relaxed) && {
            let held = self.held.lock();
            held.everything || held.names.contains(&(parent, NameHash::of(name)))
        }
    }

    /// Whether the attributes of `inode` are of unknown outcome.
    pub fn of_inode(&self, inode: InodeId) -> bool {
        self.any.load(Relaxed) && {
            let held = self.held.lock();
            held.everything || held.inodes.contains_key(&inode)
        }
    }

    /// Other names under which `inode` may be.
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

    /// `place`: a name that it may have now.
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

    /// A change could have touched nobody knows what.
    fn add_everything(&self) {
        self.held.lock().believe_nothing();
        self.any.store(true, Relaxed);
    }

    /// The next doubt that the kernel is to be told of.
    fn take(&self) -> Option<UnknownOutcome> {
        self.held.lock().untold.pop_front()
    }

    /// To be told later: the place that it was taken from is free, or was taken meanwhile by one.
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
            tracing::warn!(
                "nothing that was asked once is believed any more: changes may be made late that cannot be followed"
            );
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
                "more changes than can be followed may be made late: names may be shown for up to an hour as they were \
                 before; unmount and mount again to see what is"
            );
        }
    }
}

impl FileSystem {
    /// The `failure` of a change that could have touched these names, and these inodes; `None` among them is one that is not
    /// known.
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

    /// The `failure` of a rename between two names, of what they meant. What the new one meant may have been nothing.
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

    /// How long the kernel may believe that there is no such name.
    pub fn absent_ttl(&self, parent: InodeId, name: &[u8]) -> Duration {
        match self.core.unknown_outcomes.of_name(parent, name) {
            true => Duration::ZERO,
            false => self.timeouts().absent,
        }
    }

    /// From now on, a frontend asks what has come of unknown outcome.
    pub fn subscribe_unknown_outcomes(&self) {
        self.core.unknown_outcomes.held.lock().heard = true;
    }

    /// What has come of unknown outcome, each thing once, for a frontend whose kernel was told before what to believe.
    /// A name comes when the server answers for it, for two reasons: before that the kernel can learn nothing better,
    /// and while it takes a name back it waits for whoever uses the directory, who would wait for the server. So this
    /// may wait, until the deadline of each shard that does not answer.
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

    /// Promise: what is of unknown outcome stays so, and is told once; nothing else is.
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

    /// Promise: unknown outcomes are bounded; beyond that everything is of unknown outcome, and what was believed of a
    /// name or inode is still told back.
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

    /// Promise: the last places of an inode are remembered, few and each once.
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
