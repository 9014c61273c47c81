//! Random histories of appends, syncs and crashes, checked against the log's guarantees.

use super::*;

#[derive(Clone, Debug)]
enum Step {
    /// Appends, and passes everything appended to the tables.
    Append(u8),
    /// Appends only.
    Hold(u8),
    Sync,
    /// Rows passed to the tables and fsynced become table files, and log files with nothing else are removed.
    Reclaim,
    /// Switches to a new file, as after a flush of the memtable.
    Leave,
    /// The disk refuses the file from now on.
    Break,
    /// The process dies; everything handed to the kernel stays.
    Kill,
    /// The power fails: unsynced bytes are cut off at some place, or one of them is changed.
    PowerCut(prop::sample::Index, bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (1..5u8).prop_map(Step::Append),
        3 => (1..5u8).prop_map(Step::Hold),
        3 => Just(Step::Sync),
        2 => Just(Step::Reclaim),
        1 => Just(Step::Leave),
        1 => Just(Step::Break),
        1 => Just(Step::Kill),
        1 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(place, cut)| Step::PowerCut(place, cut)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// After a death of the process all appended batches that are in no table are replayed; after a power failure, a
    /// prefix of them that includes all synced ones; in order, complete, none twice.
    #[test]
    fn random_histories_keep_the_guarantees(steps in proptest::collection::vec(step(), 1..30)) {
        let env = TestEnv::new();
        let mut epoch = 1;
        let mut owner = env.open(epoch, 0).unwrap();
        let (mut appended, mut synced) = (0, 0);
        // The last group and the last batch in tables; and the last batch that this owner took over, which its tables
        // have.
        let (mut tables, mut taken_over) = ((0, 0), 0);
        for step in steps {
            match step {
                Step::Append(count) => {
                    env.append(&mut owner, appended + 1..appended + 1 + u64::from(count));
                    appended += u64::from(count);
                }
                Step::Hold(count) => {
                    for sequence in appended + 1..=appended + u64::from(count) {
                        write(&owner.log, &batch(sequence)).unwrap();
                    }
                    appended += u64::from(count);
                }
                Step::Sync => {
                    env.sync(&owner);
                    synced = appended;
                }
                Step::Reclaim => {
                    let status = owner.writer.status().unwrap();
                    tables = (status.last_flushed_wal_id, status.last_flushed_seq.unwrap_or(taken_over));
                    reclaim::reclaim(&env.config(), tables.0).unwrap();
                }
                Step::Leave => owner.log.leave_file(0),
                Step::Break => owner.log.state.lock().break_file(),
                Step::Kill => {}
                Step::PowerCut(place, cut) => power_cut(&owner, place, cut),
            }
            if matches!(step, Step::Kill | Step::PowerCut(..)) {
                drop(owner);
                epoch += 1;
                owner = env.open(epoch, tables.0).unwrap();
                let found = owner.sequences();
                let last = tables.1 + found.len() as u64;
                prop_assert_eq!(&found, &range(tables.1 + 1..last + 1));
                prop_assert!(last >= synced, "{last} of {synced} synced batches");
                match step {
                    Step::Kill => prop_assert_eq!(last, appended),
                    _ => prop_assert!(last <= appended),
                }
                (appended, synced, taken_over) = (last, last, last);
            }
        }
    }
}

/// Cuts the newest file somewhere in its unsynced bytes, or changes one of them.
fn power_cut(owner: &LogOwner, place: prop::sample::Index, cut: bool) {
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
