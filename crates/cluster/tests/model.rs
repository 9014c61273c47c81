//! An exhaustive check of the protocol in small: one shard, its owner, and a watcher that takes it over, over a store
//! that may answer with an old state. Ticks pass between any two steps, so each process may be stopped anywhere for any
//! time.
//!
//! The store has the owner's chain of beats, the shard's log, and the seal that ends it. The owner writes one record; its
//! acknowledgement promises that the record counts.

use stateright::{Checker, HasDiscoveries, Model, Property};

/// Ticks of a lease, and of the time without a renewal after which the watcher kills.
const LEASE: u8 = 2;
const PATIENCE: u8 = 3;
/// Times and numbers above this are not told apart.
const MANY: u8 = 3;

/// The protocol, or one with a mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Right,
    /// The lease counts from the answer to the renewal.
    LeaseFromAnswer,
    /// The lease is checked before the append, not last.
    LeaseCheckedFirst,
    /// A create counts, even if later numbers exist.
    OldNumbersCount,
    /// The watcher waits for less than a lease.
    Impatient,
    /// The watcher counts from the beginning of its first look to the end of its last one.
    LooksCount,
}

/// Times are ages in ticks, and beats are counted back from the newest, so the state is small and never ends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    owner: Owner,
    watcher: Watcher,
    /// The newest number of the owner's chain is a kill.
    killed: bool,
    write: Write,
    /// The shard's log is sealed; whether the record is before the seal.
    sealed: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Owner {
    lease_left: u8,
    renewal: Option<Renewal>,
    ended: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Renewal {
    age: u8,
    /// The store's answer, on its way.
    taken: Option<bool>,
}

/// The one write of the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Write {
    None,
    Checked,
    Appended,
    Acknowledged,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Watcher {
    /// The last beat seen, as the number of renewals since, and when it was first seen.
    seen: Option<(u8, u8)>,
    look: Option<Look>,
    /// The number to take, as the number of renewals since the beat before it.
    kill: Option<u8>,
    serves: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Look {
    /// The time from seeing the last beat to the beginning of this look.
    waited: u8,
    age: u8,
    /// The beat in the store's answer, as the number of renewals since.
    found: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Tick,
    BeginRenewal,
    StoreRenewal,
    EndRenewal,
    CheckFirst,
    Append,
    Acknowledge,
    BeginLook,
    /// The store shows a beat with this many renewals since.
    StoreLook(u8),
    EndLook,
    StoreKill,
    Seal,
}

fn grow(age: &mut u8) {
    *age = MANY.min(*age + 1);
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let owner = Owner { lease_left: LEASE, renewal: None, ended: false };
        let watcher = Watcher { seen: None, look: None, kill: None, serves: false };
        vec![State { owner, watcher, killed: false, write: Write::None, sealed: None }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let State { owner, watcher, write, .. } = state;
        let mut may = |action, can: bool| {
            if can {
                actions.push(action);
            }
        };
        may(Action::Tick, true);
        may(Action::BeginRenewal, !owner.ended && owner.renewal.is_none());
        may(Action::StoreRenewal, owner.renewal.as_ref().is_some_and(|renewal| renewal.taken.is_none()));
        may(Action::EndRenewal, owner.renewal.as_ref().is_some_and(|renewal| renewal.taken.is_some()));
        let valid = !owner.ended && owner.lease_left > 0;
        let first = *self == Protocol::LeaseCheckedFirst;
        may(Action::CheckFirst, first && valid && *write == Write::None);
        may(Action::Append, if first { *write == Write::Checked } else { !owner.ended && *write == Write::None });
        may(Action::Acknowledge, *write == Write::Appended && (first || valid));
        let free = watcher.look.is_none() && watcher.kill.is_none() && !watcher.serves;
        may(Action::BeginLook, free && !state.killed);
        may(Action::EndLook, watcher.look.as_ref().is_some_and(|look| look.found.is_some()));
        may(Action::StoreKill, watcher.kill.is_some());
        may(Action::Seal, watcher.serves && state.sealed.is_none());
        if watcher.look.as_ref().is_some_and(|look| look.found.is_none()) {
            // It never shows an older state than before.
            let oldest = watcher.seen.map_or(MANY, |(since, _)| since);
            actions.extend((0..=oldest).map(Action::StoreLook));
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        let State { owner, watcher, killed, write, sealed } = &mut state;
        match action {
            Action::Tick => {
                owner.lease_left = owner.lease_left.saturating_sub(1);
                owner.renewal.iter_mut().for_each(|renewal| grow(&mut renewal.age));
                watcher.seen.iter_mut().for_each(|(_, age)| grow(age));
                // Only this mistake looks at it.
                if *self == Protocol::LooksCount {
                    watcher.look.iter_mut().for_each(|look| grow(&mut look.age));
                }
            }
            Action::BeginRenewal => owner.renewal = Some(Renewal { age: 0, taken: None }),
            Action::StoreRenewal => {
                owner.renewal.as_mut()?.taken = Some(!*killed);
                if !*killed {
                    watcher.seen.iter_mut().for_each(|(since, _)| grow(since));
                    watcher.kill.iter_mut().for_each(grow);
                    watcher.look.iter_mut().filter_map(|look| look.found.as_mut()).for_each(grow);
                }
            }
            Action::EndRenewal => {
                let Renewal { age, taken } = owner.renewal.take()?;
                match taken? {
                    true if *self == Protocol::LeaseFromAnswer => owner.lease_left = LEASE,
                    true => owner.lease_left = owner.lease_left.max(LEASE.saturating_sub(age)),
                    false => owner.ended = true,
                }
            }
            Action::CheckFirst => *write = Write::Checked,
            Action::Append => *write = Write::Appended,
            Action::Acknowledge => *write = Write::Acknowledged,
            Action::BeginLook => {
                let waited = watcher.seen.map_or(0, |(_, age)| age);
                watcher.look = Some(Look { waited, age: 0, found: None });
            }
            Action::StoreLook(since) => watcher.look.as_mut()?.found = Some(since),
            Action::EndLook => self.end_look(watcher)?,
            Action::StoreKill => {
                let since = watcher.kill.take()?;
                // Old numbers are removed, so a late create may succeed.
                let is_removed = since == MANY;
                watcher.serves = since == 0 || is_removed && *self == Protocol::OldNumbersCount;
                watcher.seen = None;
                *killed |= since == 0;
            }
            // A later append goes to a file that nobody reads.
            Action::Seal => *sealed = Some(matches!(write, Write::Appended | Write::Acknowledged)),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("a shard has one owner that may answer", |_, state: &State| {
                let answers = !state.owner.ended && state.owner.lease_left > 0;
                !(answers && state.watcher.serves)
            }),
            Property::always("acknowledged writes count", |_, state: &State| {
                state.write != Write::Acknowledged || state.sealed != Some(false)
            }),
            Property::sometimes("a silent owner is replaced", |_, state: &State| {
                state.write == Write::Acknowledged && state.sealed == Some(true)
            }),
        ]
    }
}

impl Protocol {
    fn end_look(self, watcher: &mut Watcher) -> Option<()> {
        let Look { waited, age, found } = watcher.look.take()?;
        let found = found?;
        let patience = if self == Protocol::Impatient { LEASE - 1 } else { PATIENCE };
        let counts = self == Protocol::LooksCount;
        match watcher.seen {
            Some((since, seen_for)) if since == found => {
                let silent = if counts { seen_for } else { waited };
                watcher.kill = (silent >= patience).then_some(since);
            }
            _ => watcher.seen = Some((found, if counts { age } else { 0 })),
        }
        Some(())
    }
}

/// The properties that a protocol breaks.
fn broken(protocol: Protocol) -> Vec<&'static str> {
    let checker = protocol.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    checker.discoveries().into_keys().filter(|name| *name != "a silent owner is replaced").collect()
}

#[test]
fn protocol_keeps_its_promises_in_every_state() {
    let checker = Protocol::Right.checker().spawn_bfs().join();
    checker.assert_properties();
    println!("{} states", checker.unique_state_count());
}

#[test]
fn mistakes_in_the_protocol_are_found() {
    let owners = "a shard has one owner that may answer";
    let writes = "acknowledged writes count";
    for (mistake, property) in [
        (Protocol::LeaseFromAnswer, owners),
        (Protocol::LeaseCheckedFirst, writes),
        (Protocol::OldNumbersCount, owners),
        (Protocol::Impatient, owners),
        (Protocol::LooksCount, owners),
    ] {
        let broken = broken(mistake);
        assert!(broken.contains(&property), "{mistake:?} breaks {broken:?}");
    }
}
