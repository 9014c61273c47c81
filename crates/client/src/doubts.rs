//! What is in doubt: names and inodes that a change could have touched which ended in an error that does not say that nothing
//! was changed. It may have been made, or be made later.
//!
//! Nothing that is in doubt is believed, by this client or by its door's kernel: each question for it goes to the server. It
//! stays so for the rest of the client's life, for nobody can say when the last moment has passed at which the change could
//! be made. What the kernel was told before is told back to it by the door ([`FileSystem::doubted`]).
//!
//! Kept is no more than [`DOUBTS_MAX`] of each kind; when there are more, everything is in doubt. While nothing is, a question
//! costs the load of one word.

use crate::{Failure, FileSystem};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use varve_types::{Credentials, InodeId, Name, NameHash};
use varve_world::key_hash::KeyHashing;

/// Names in doubt, and inodes, before everything is: more than all the threads of a mount leave behind in minutes of trouble
/// with a store that hangs, and less than 1 MiB.
const DOUBTS_MAX: usize = 4096;

/// Doubts that the door has not told its kernel of. With more, what the kernel believed before is believed until its hour is
/// over.
const UNTOLD_MAX: usize = 4 * DOUBTS_MAX;

/// Names of one inode under which it may be instead: a rename that failed is tried again under few others.
const PLACES_MAX: usize = 4;

/// What a door takes back from its kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// What a name means, or that it means nothing.
    Name(InodeId, Name),
    /// The attributes of an inode.
    Attributes(InodeId),
}

#[derive(Default)]
pub(crate) struct Doubts {
    any: AtomicBool,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    /// A door tells its kernel of doubts.
    heard: bool,
    everything: bool,
    names: HashSet<(InodeId, NameHash), KeyHashing>,
    /// With the names that renames in doubt would have given them.
    inodes: HashMap<InodeId, Vec<(InodeId, Name)>, KeyHashing>,
    untold: VecDeque<Doubt>,
    /// Doubts were left out of `untold`.
    overflowed: bool,
}

impl Doubts {
    /// Whether what the name means is in doubt.
    pub fn of_name(&self, parent: InodeId, name: &[u8]) -> bool {
        self.any.load(Relaxed) && {
            let held = self.held.lock();
            held.everything || held.names.contains(&(parent, NameHash::of(name)))
        }
    }

    /// Whether the attributes of `inode` are in doubt.
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
            held.tell(|| Doubt::Name(parent, name.clone()));
        }
        if held.names.len() >= DOUBTS_MAX {
            held.believe_nothing();
        }
        self.any.store(true, Relaxed);
    }

    /// `place`: a name that it may have now.
    fn add_inode(&self, inode: InodeId, place: Option<(InodeId, &Name)>) {
        let mut held = self.held.lock();
        let known = held.inodes.contains_key(&inode);
        if known || held.inodes.len() < DOUBTS_MAX {
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
            held.tell(|| Doubt::Attributes(inode));
        }
        self.any.store(true, Relaxed);
    }

    /// A change could have touched nobody knows what.
    fn add_everything(&self) {
        self.held.lock().believe_nothing();
        self.any.store(true, Relaxed);
    }

    /// The next doubt that the kernel is to be told of.
    fn take(&self) -> Option<Doubt> {
        self.held.lock().untold.pop_front()
    }

    /// To be told later: the place that it was taken from is free, or was taken meanwhile by one.
    fn put_back(&self, doubt: Doubt) {
        self.held.lock().untold.push_back(doubt);
    }

    fn untold(&self) -> usize {
        if self.any.load(Relaxed) { self.held.lock().untold.len() } else { 0 }
    }
}

impl Held {
    fn believe_nothing(&mut self) {
        if !std::mem::replace(&mut self.everything, true) {
            tracing::warn!(
                "nothing that was asked once is believed any more: changes may be made late that cannot be followed"
            );
            self.names = HashSet::default();
        }
    }

    fn tell(&mut self, doubt: impl FnOnce() -> Doubt) {
        if !self.heard {
            return;
        }
        if self.untold.len() < UNTOLD_MAX {
            return self.untold.push_back(doubt());
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
    pub(crate) fn doubt(&self, failure: Failure, names: &[(InodeId, &Name)], inodes: &[Option<InodeId>]) -> Failure {
        if failure.in_doubt {
            let doubts = &self.core.doubts;
            names.iter().for_each(|(parent, name)| doubts.add_name(*parent, name));
            for inode in inodes {
                match inode {
                    Some(inode) => doubts.add_inode(*inode, None),
                    None => doubts.add_everything(),
                }
            }
        }
        failure
    }

    /// The `failure` of a rename between two names, of what they meant. What the new one meant may have been nothing.
    pub(crate) fn doubt_rename(
        &self,
        failure: Failure,
        (parent, name, moved): (InodeId, &Name, Option<InodeId>),
        (new_parent, new_name, replaced): (InodeId, &Name, Option<InodeId>),
    ) -> Failure {
        if failure.in_doubt {
            let places = [(moved, (new_parent, new_name)), (replaced, (parent, name))];
            for (inode, place) in places {
                inode.into_iter().for_each(|inode| self.core.doubts.add_inode(inode, Some(place)));
            }
        }
        let inodes = [moved, Some(parent), Some(new_parent)];
        self.doubt(failure, &[(parent, name), (new_parent, new_name)], &inodes)
    }

    /// How long the kernel may believe that there is no such name.
    pub fn absent_ttl(&self, parent: InodeId, name: &[u8]) -> Duration {
        match self.core.doubts.of_name(parent, name) {
            true => Duration::ZERO,
            false => self.timeouts().absent,
        }
    }

    /// From now on, a door asks what has come in doubt.
    pub fn hear_doubts(&self) {
        self.core.doubts.held.lock().heard = true;
    }

    /// What has come in doubt, each thing once, for a door whose kernel was told before what to believe. A name comes when the
    /// server answers for it, for two reasons: before that the kernel can learn nothing better, and while it takes a name
    /// back it waits for whoever uses the directory, who would wait for the server. So this may wait, until the deadline of
    /// each shard that does not answer.
    pub fn doubted(&self) -> Vec<Doubt> {
        let (core, mut told, mut silent) = (&self.core, Vec::new(), HashSet::new());
        for _ in 0..core.doubts.untold() {
            let Some(doubt) = core.doubts.take() else { break };
            if let Doubt::Name(parent, name) = &doubt {
                let shard = core.routing.shard_of(*parent, name.hash());
                let answers = || {
                    let found = crate::now(core.look_up(&Credentials::root(), *parent, name));
                    !found.is_err_and(|failure| failure.in_doubt)
                };
                if silent.contains(&shard) || !answers() {
                    silent.insert(shard);
                    core.doubts.put_back(doubt);
                    continue;
                }
            }
            told.push(doubt);
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: InodeId = InodeId::ROOT;

    fn name(number: usize) -> Name {
        Name::new(format!("name {number}").as_bytes()).unwrap()
    }

    fn heard() -> Doubts {
        Doubts { held: Mutex::new(Held { heard: true, ..Held::default() }), ..Doubts::default() }
    }

    /// Promise: what is in doubt stays so, and is told once; nothing else is.
    #[test]
    fn what_is_in_doubt_is_told_once() {
        let doubts = heard();
        assert!(!doubts.of_name(ROOT, name(1).as_bytes()) && !doubts.of_inode(ROOT) && doubts.untold() == 0);
        for _ in 0..3 {
            doubts.add_name(ROOT, &name(1));
            doubts.add_inode(InodeId(7), None);
        }
        assert_eq!(doubts.take(), Some(Doubt::Name(ROOT, name(1))));
        assert_eq!(doubts.take(), Some(Doubt::Attributes(InodeId(7))));
        assert_eq!(doubts.take(), None);
        assert!(doubts.of_name(ROOT, name(1).as_bytes()) && doubts.of_inode(InodeId(7)));
        assert!(!doubts.of_name(ROOT, name(2).as_bytes()) && !doubts.of_name(InodeId(7), name(1).as_bytes()));
        assert!(!doubts.of_inode(ROOT));
    }

    /// Promise: doubts are bounded; beyond that everything is in doubt, and what was believed of a name or inode is still
    /// told back.
    #[test]
    fn with_too_many_doubts_everything_is_in_doubt() {
        for many in [(|doubts, number| doubts.add_name(ROOT, &name(number))) as fn(&Doubts, usize), |doubts, number| {
            doubts.add_inode(InodeId(number as u64 + 100), None)
        }] {
            let doubts = heard();
            (0..DOUBTS_MAX - 1).for_each(|number| many(&doubts, number));
            assert!(!doubts.of_inode(InodeId(5)) && !doubts.of_name(InodeId(5), b"other"));
            (0..2 * UNTOLD_MAX).for_each(|number| many(&doubts, number));
            assert!(doubts.of_inode(InodeId(5)) && doubts.of_name(InodeId(5), b"other"));
            let held = doubts.held.lock();
            assert!(held.names.is_empty() && held.inodes.len() <= DOUBTS_MAX);
            assert!(held.untold.len() == UNTOLD_MAX && held.overflowed);
        }
        let doubts = Doubts::default();
        doubts.add_everything();
        assert!(doubts.of_inode(InodeId(5)) && doubts.of_name(InodeId(5), b"other"));
    }

    /// Promise: the last places of an inode are remembered, few and each once.
    #[test]
    fn the_places_of_an_inode_are_few() {
        let doubts = Doubts::default();
        assert!(doubts.places(InodeId(7)).is_empty());
        for number in [1, 2, 3, 3, 2, 4, 5] {
            doubts.add_inode(InodeId(7), Some((ROOT, &name(number))));
        }
        assert_eq!(doubts.places(InodeId(7)), [3, 2, 4, 5].map(|number| (ROOT, name(number))));
        assert!(doubts.places(InodeId(8)).is_empty());
    }
}
