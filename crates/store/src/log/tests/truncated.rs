//! Logs truncated below their synced position: after the last fsync, only the mark shows that.

use super::*;
use crate::log::format::SyncedMark;

/// One epoch with three fsynced groups, which begin at the returned offsets of its only file and end with it.
fn lived(env: &TestEnv) -> (StorePath, Vec<u64>) {
    let mut owner = env.open(1, 0).unwrap();
    let mut places = vec![64];
    for group in 0..3 {
        env.append(&mut owner, group * 3 + 1..group * 3 + 4);
        env.sync(&owner);
        places.push(64 + owner.log.appended());
    }
    (file_path(env.path(), 1, 0), places)
}

fn is_refused(env: &TestEnv, what: &str) {
    let before = std::fs::read_dir(env.path()).unwrap().filter(|entry| !is_fence(entry)).count();
    let refused = env.open(2, 0).err().unwrap_or_else(|| panic!("opened: {what}"));
    assert!(matches!(refused, WalError::DataError(_)), "{what}: {refused}");
    for advice in ["00000000.log", "damaged at byte", "from a copy", "varve fsck --repair"] {
        assert!(refused.to_string().contains(advice), "{what}: {refused}");
    }
    assert!(ReadOnlyLog::open(&env.config(), 0, 0).is_err(), "{what}");
    assert!(torn_end(ShardId(9), env.path()).is_err(), "{what}: it is no torn end");
    let damaged = read_intact(ShardId(9), env.path(), Some(0), &mut |_| {}).unwrap();
    assert_eq!(damaged.len(), 1, "{what}: {damaged:?}");
    let after = std::fs::read_dir(env.path()).unwrap().filter(|entry| !is_fence(entry)).count();
    assert_eq!(after, before, "{what}: nothing was ended or begun");
}

fn is_fence(entry: &std::io::Result<std::fs::DirEntry>) -> bool {
    entry.as_ref().unwrap().path().extension().is_some_and(|extension| extension == "fence")
}

/// Truncated at each boundary of groups, within groups, within their headers, to the file's header, within it, and to
/// nothing.
#[test]
fn log_truncated_below_its_mark_is_refused() {
    let env = TestEnv::new();
    let (file, places) = lived(&env);
    let bytes = std::fs::read(&file).unwrap();
    assert_eq!(bytes.len() as u64, places[3]);
    let within = places[..3].iter().flat_map(|place| [*place, place + 20, place + 48, place + 90]);
    for length in within.chain([0, 1, 63, places[3] - 1]) {
        std::fs::write(&file, &bytes[..length as usize]).unwrap();
        is_refused(&env, &format!("cut to {length} of {places:?}"));
    }
    // Not cut, but changed: in its last group, and in its header.
    for changed in [places[2] + 60, 20] {
        std::fs::write(&file, &bytes).unwrap();
        env.damage(&file, changed);
        is_refused(&env, &format!("changed at {changed}"));
    }
    std::fs::write(&file, &bytes).unwrap();
    assert_eq!(env.open(2, 0).unwrap().sequences(), range(1..10), "as it was");
}

/// The last of several files.
#[test]
fn missing_or_truncated_last_file_is_detected() {
    let env = TestEnv::new();
    env.two_files();
    let last = file_path(env.path(), 1, 1);
    let bytes = std::fs::read(&last).unwrap();
    for length in [bytes.len() - 1, 64, 10, 0] {
        std::fs::write(&last, &bytes[..length]).unwrap();
        assert!(env.open(2, 0).is_err(), "cut to {length}");
    }
    std::fs::remove_file(&last).unwrap();
    is_refused(&env, "gone");
}

/// A mark records no more than was known when it reached the disk, and may be empty: then the log is read as it was
/// before marks existed.
#[test]
fn old_missing_or_garbled_marks_are_not_damage() {
    let env = TestEnv::new();
    let (file, places) = lived(&env);
    let mark = begun_path(env.path(), 1);
    let whole = std::fs::read(&mark).unwrap();
    let written = SyncedMark { shard: 9, epoch: 1, synced: places[3] - 64 };
    assert_eq!(SyncedMark::decode(&whole), Ok(written));
    let older = |group: usize| SyncedMark { synced: places[group] - 64, ..written }.encode().to_vec();
    let garbled: Vec<u8> = whole.iter().map(|byte| byte ^ 0x55).collect();
    let others = SyncedMark { epoch: 7, ..written }.encode().to_vec();
    let cut = std::fs::read(&file).unwrap();
    let cut = &cut[..places[2] as usize + 70];
    for content in [older(2), older(1), older(0), Vec::new(), vec![0; 40], whole[..39].to_vec(), garbled, others] {
        std::fs::write(&mark, &content).unwrap();
        std::fs::write(&file, cut).unwrap();
        let found = env.open(2, 0).map(|owner| owner.sequences());
        assert_eq!(found.unwrap(), range(1..7), "{content:?}");
        for name in ["1.seal", "1.fence", "2.00000000.log", "2.begun"] {
            std::fs::remove_file(env.path().join(format!("000000000000000{name}"))).unwrap();
        }
        // The header was durable before the mark existed.
        std::fs::write(&file, &cut[..10]).unwrap();
        assert!(env.open(2, 0).is_err(), "{content:?}");
    }
}

/// Files removed because the tables hold all their content, and a mark older than the tables.
#[test]
fn reclaimed_files_are_not_reported_missing() {
    for old_mark in [false, true] {
        let env = TestEnv::new();
        let mut owner = env.open(1, 0).unwrap();
        let mark = begun_path(env.path(), 1);
        env.append(&mut owner, 1..4);
        env.sync(&owner);
        let old = std::fs::read(&mark).unwrap();
        env.append(&mut owner, 4..7);
        env.sync(&owner);
        owner.log.leave_file(0);
        reclaim::reclaim(&env.config(), 2).unwrap();
        assert!(!file_path(env.path(), 1, 0).exists());
        drop(owner);
        if old_mark {
            std::fs::write(&mark, old).unwrap();
        }
        let mut owner = env.open(2, 2).unwrap();
        assert_eq!(owner.sequences(), [0; 0]);
        env.append(&mut owner, 7..8);
        drop(owner);
        assert_eq!(env.open(3, 2).unwrap().sequences(), [7]);
    }
}

/// The removal of a mark costs nothing except its information.
#[test]
fn a_sync_does_not_need_the_mark() {
    let env = TestEnv::new();
    let mut owner = env.open(1, 0).unwrap();
    env.append(&mut owner, 1..2);
    env.sync(&owner);
    let mark = begun_path(env.path(), 1);
    let before = std::fs::read(&mark).unwrap();
    env.sync(&owner);
    std::fs::remove_file(&mark).unwrap();
    env.append(&mut owner, 2..3);
    env.sync(&owner);
    assert!(!mark.exists() && !before.is_empty());
    assert_eq!(env.crash_and_replay(owner, 1), [1, 2]);
}
