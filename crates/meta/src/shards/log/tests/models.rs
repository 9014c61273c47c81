//! Any history of appends, syncs and crashes against what a log promises.

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Append(u8),
    Sync,
    /// Leaves the file for a new one, as after a flush of the memtable.
    Leave,
    /// The disk refuses the file from now on.
    Break,
    /// The process dies; everything handed to the kernel stays.
    Kill,
    /// The power fails: what was not fsynced is cut at some place, or a byte of it is changed.
    PowerCut(prop::sample::Index, bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..5u8).prop_map(Step::Append),
        3 => Just(Step::Sync),
        1 => Just(Step::Leave),
        1 => Just(Step::Break),
        1 => Just(Step::Kill),
        1 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(place, cut)| Step::PowerCut(place, cut)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// After a death of the process all appended batches are replayed; after a power cut a prefix of them that holds
    /// all synced ones; in order, whole, none twice.
    #[test]
    fn histories_keep_what_was_promised(steps in proptest::collection::vec(step(), 1..30)) {
        let world = World::new();
        let mut epoch = 1;
        let mut owner = world.open(epoch, 0).unwrap();
        let (mut appended, mut synced) = (0, 0);
        for step in steps {
            match step {
                Step::Append(count) => {
                    world.append(&mut owner, appended + 1..appended + 1 + u64::from(count));
                    appended += u64::from(count);
                }
                Step::Sync => {
                    world.sync(&owner);
                    synced = appended;
                }
                Step::Leave => owner.log.leave_file(0),
                Step::Break => owner.log.state.lock().break_file(),
                Step::Kill => {}
                Step::PowerCut(place, cut) => power_cut(&owner, place, cut),
            }
            if matches!(step, Step::Kill | Step::PowerCut(..)) {
                drop(owner);
                epoch += 1;
                owner = world.open(epoch, 0).unwrap();
                let found = owner.sequences();
                prop_assert_eq!(&found, &range(1..found.len() as u64 + 1));
                prop_assert!(found.len() as u64 >= synced, "{} of {synced} synced batches", found.len());
                match step {
                    Step::Kill => prop_assert_eq!(found.len() as u64, appended),
                    _ => prop_assert!(found.len() as u64 <= appended),
                }
                appended = found.len() as u64;
                synced = appended;
            }
        }
    }
}

/// Cuts the newest file somewhere in its unsynced bytes, or changes one of them.
fn power_cut(owner: &Owner, place: prop::sample::Index, cut: bool) {
    let state = owner.log.state.lock();
    let (path, synced, end) = state.unsynced_of_file();
    drop(state);
    if synced == end {
        return;
    }
    let at = synced + place.index((end - synced) as usize) as u64;
    let mut bytes = std::fs::read(&path).unwrap();
    if cut {
        bytes.truncate(at as usize);
    } else {
        bytes[at as usize] ^= 0x10;
    }
    std::fs::write(path, bytes).unwrap();
}
