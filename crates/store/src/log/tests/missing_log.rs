//! Logs whose files were removed, and logs that only look so.

use super::*;

fn log_files(env: &TestEnv) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(env.path()).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "log")).collect()
}

fn remove_log_files(env: &TestEnv) {
    log_files(env).iter().for_each(|path| std::fs::remove_file(path).unwrap());
}

/// An epoch that was begun has a file.
#[test]
fn missing_log_is_refused() {
    let env = TestEnv::new();
    let mut owner = env.open(1, 0).unwrap();
    env.append(&mut owner, 1..4);
    drop(owner);
    remove_log_files(&env);
    let before = std::fs::read_dir(env.path()).unwrap().count();
    for epoch in 2..4 {
        let refused = env.open(epoch, 0).err().unwrap();
        assert!(matches!(refused, WalError::DataError(_)));
        let mark = begun_path(env.path(), 1);
        for what in ["shard 9 is gone", &mark.to_string(), "from a copy", "varve fsck --repair"] {
            assert!(refused.to_string().contains(what), "{refused}");
        }
        assert!(ReadOnlyLog::open(&env.config(), 0, 0).is_err());
    }
    assert_eq!(std::fs::read_dir(env.path()).unwrap().count(), before, "nothing was written");
}

/// The last file stays even after the content of tables was reclaimed. If the whole directory is gone, the tables show
/// that there was a log.
#[test]
fn missing_log_is_refused_after_reclaim() {
    let env = TestEnv::new();
    let mut owner = env.open(1, 0).unwrap();
    env.append(&mut owner, 1..4);
    drop(owner);
    let mut owner = env.open(2, 0).unwrap();
    env.append(&mut owner, 4..5);
    env.sync(&owner);
    owner.log.leave_file(0);
    reclaim::reclaim(&env.config(), 2).unwrap();
    assert!(!begun_path(env.path(), 1).exists() && begun_path(env.path(), 2).exists());
    assert_eq!(log_files(&env).len(), 1);
    drop(owner);
    remove_log_files(&env);
    assert!(env.open(3, 2).is_err());
    std::fs::remove_file(begun_path(env.path(), 2)).unwrap();
    let refused = env.open(3, 2).err().unwrap().to_string();
    assert!(refused.contains("lacks its files"), "{refused}");
}

/// A log of earlier builds has no marks, and a log that has begun may be empty: neither is refused.
#[test]
fn logs_without_marks_and_without_changes_are_opened() {
    let env = TestEnv::new();
    let mut owner = env.open(1, 0).unwrap();
    env.append(&mut owner, 1..4);
    drop(owner);
    std::fs::remove_file(begun_path(env.path(), 1)).unwrap();
    assert_eq!(env.open(2, 0).unwrap().sequences(), range(1..4));
    assert_eq!(env.open(3, 0).unwrap().sequences(), range(1..4));
    assert_eq!(env.open(4, 1).unwrap().sequences(), [0; 0]);
}

/// The rows after the torn place of a log are reported, as far as they are readable.
#[test]
fn torn_log_tail_is_reported() {
    let env = TestEnv::new();
    let reported = || torn_end(ShardId(9), env.path()).unwrap();
    let mut owner = env.open(1, 0).unwrap();
    env.append(&mut owner, 1..2);
    let torn = 64 + owner.log.appended();
    env.append(&mut owner, 2..5);
    drop(owner);
    assert!(reported().is_none(), "all of it is whole");
    // The group's header there is intact, the first batch is not.
    env.damage(&file_path(env.path(), 1, 0), torn + 48 + 40);
    let found = reported().unwrap();
    assert_eq!((found.path, found.offset), (file_path(env.path(), 1, 0).into(), torn + 48));
    let lost: Vec<_> = [3, 4].into_iter().flat_map(batch).map(|row| row.key).collect();
    assert_eq!(found.lost, lost);
    assert_eq!(env.open(2, 0).unwrap().sequences(), [1]);
    assert!(reported().is_none(), "it was cut off");
}
