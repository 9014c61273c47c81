//! Failed writes and fsyncs.

use super::*;

/// "The log then writes these bytes again, into a new file": nothing is lost, and the log continues.
#[test]
fn failed_append_continues_in_a_new_file() {
    let env = TestEnv::new();
    let mut owner = env.open(1, 0).unwrap();
    env.append(&mut owner, 1..4);
    env.sync(&owner);
    env.append(&mut owner, 4..6);
    owner.log.state.lock().break_file();
    env.append(&mut owner, 6..8);
    assert!(file_path(env.path(), 1, 1).exists());
    env.sync(&owner);
    assert_eq!(owner.flushed_group(), 3);
    env.append(&mut owner, 8..9);
    assert_eq!(env.crash_and_replay(owner, 1), range(1..9));
}

/// The new file records the last group before it, even if the tables do not have that group yet: the old file stays
/// until they do, and the new one is complete without it.
#[test]
fn file_after_a_failure_is_self_contained() {
    let env = TestEnv::new();
    let mut owner = env.open(1, 0).unwrap();
    for sequence in 1..4 {
        write(&owner.log, &batch(sequence)).unwrap();
        env.sync(&owner);
    }
    assert_eq!(
        (owner.flushed_group(), owner.log.unsynced_bytes()),
        (0, 0),
        "three groups are on disk, and in no table"
    );
    write(&owner.log, &batch(4)).unwrap();
    owner.log.state.lock().break_file();
    write(&owner.log, &batch(5)).unwrap();
    env.sync(&owner);
    env.hand_over(&mut owner, &batch(5));
    assert_eq!(owner.flushed_group(), 4);
    let reclaim = |replay_after| {
        let paths = reclaim::reclaimable(&env.config(), replay_after).unwrap();
        paths.iter().for_each(|path| reclaim::remove(path).unwrap());
        paths
    };
    assert!(reclaim(2).is_empty(), "the third group is in no table");
    assert_eq!(reclaim(3), [file_path(env.path(), 1, 0)]);
    drop(owner);
    assert_eq!(env.open(2, 3).unwrap().sequences(), [4, 5]);
}

/// The same for an fsync, which is never just repeated: the kernel may have dropped the pages that it could not write.
#[test]
fn failed_fsync_continues_in_a_new_file() {
    let env = TestEnv::new();
    let mut owner = env.open(1, 0).unwrap();
    env.append(&mut owner, 1..4);
    env.sync(&owner);
    env.append(&mut owner, 4..6);
    owner.log.state.lock().break_file();
    env.sync(&owner);
    assert_eq!((owner.flushed_group(), owner.log.unsynced_bytes()), (2, 0));
    let file = file_path(env.path(), 1, 0);
    // The old file counts only up to the synced position: its bytes after the failed fsync do not matter.
    let length = file.metadata().unwrap().len();
    env.damage(&file, length - 1);
    env.append(&mut owner, 6..7);
    assert_eq!(env.crash_and_replay(owner, 1), range(1..7));
}

/// If no new file can be made either, the log ends with the reason, and the next owner replays the appended batches. A
/// child process runs this under a limit on the size of its files.
#[test]
fn a_full_store_ends_the_log_and_loses_nothing() {
    const CHILD: &str = "VARVE_TEST_LOG_LIMITED";
    let env = TestEnv::new();
    let Some(target) = std::env::var_os(CHILD) else {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                &format!("{}::a_full_store_ends_the_log_and_loses_nothing", module_path!().split_once("::").unwrap().1),
            ])
            .env(CHILD, env.path())
            .stdout(std::process::Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
        let appended: u64 = std::fs::read_to_string(env.path().join("appended")).unwrap().parse().unwrap();
        assert!(appended > 20);
        assert_eq!(env.open(2, 0).unwrap().sequences(), range(1..appended + 1));
        return;
    };
    let env = TestEnv { _directory: tempfile::tempdir().unwrap(), ..env };
    let config = LogConfig { directory: std::path::PathBuf::from(&target).into(), ..env.config() };
    let (_, log) = take_over(&config, Claim { epoch: 1, replay_after: 0, flushed: 0 }).unwrap();
    let _entered = env.runtime.enter();
    let log = Arc::new(log);
    let mut writer = LogWriter::start(log.clone());
    limit_file_size(10_000);
    let mut appended = 0;
    let failure = loop {
        match write(&log, &batch(appended + 1)) {
            Ok(_) => appended += 1,
            Err(failure) => break failure,
        }
        // Half of it synced, so that a new file has room once; then nothing.
        if appended == 20 {
            log.hand_over();
            env.runtime.block_on(writer.append(&batch(20))).unwrap();
            env.runtime.block_on(writer.flush()).unwrap();
        }
    };
    assert!(matches!(failure, WalError::Unavailable(_)));
    assert!(failure.to_string().contains("append to"), "{failure}");
    assert!(matches!(writer.status().unwrap_err().closed_reason, Some(WalError::Unavailable(_))));
    std::fs::write(std::path::Path::new(&target).join("appended"), appended.to_string()).unwrap();
}

fn limit_file_size(bytes: u64) {
    // SAFETY: both calls only change this process's own limits and its disposition of a signal.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
    }
}

/// Missing files do not count as an empty log.
#[test]
fn missing_files_are_refused() {
    let env = TestEnv::new();
    env.two_files();
    std::fs::remove_file(file_path(env.path(), 1, 0)).unwrap();
    let opened = env.open(2, 0);
    assert!(opened.err().unwrap().to_string().contains("lacks its files"));
    assert_eq!(env.open(2, 1).unwrap().sequences(), [4], "which is fine once their groups are in tables");
}

/// One epoch whose second file was begun, never fsynced, and left when it failed: the third one took over. The first
/// file has one batch, and the third one or two.
fn taken_over(batches: u64) -> TestEnv {
    let env = TestEnv::new();
    let mut owner = env.open(1, 0).unwrap();
    env.append(&mut owner, 1..2);
    env.sync(&owner);
    owner.log.leave_file(0);
    owner.log.state.lock().break_file();
    for sequence in 2..batches + 2 {
        env.append(&mut owner, sequence..sequence + 1);
        env.sync(&owner);
    }
    env
}

/// Promise: batches fsynced after a failure are kept, whatever the disk has kept of the failed file, which was never
/// fsynced, and nothing is reported as damaged.
#[test]
fn unsynced_file_is_not_reported_missing() {
    for (batches, marked) in [(1, true), (1, false), (2, true), (2, false)] {
        for content in [Vec::new(), vec![0; 64], vec![0x55; 500]] {
            let env = taken_over(batches);
            if !marked {
                std::fs::write(begun_path(env.path(), 1), []).unwrap();
            }
            std::fs::write(file_path(env.path(), 1, 1), &content).unwrap();
            let all = range(1..batches + 2);
            assert!(torn_end(ShardId(9), env.path()).unwrap().is_none());
            ReadOnlyLog::open(&env.config(), 0, 0).unwrap();
            assert_eq!(env.open(2, 0).unwrap().sequences(), all, "{marked}, {} bytes", content.len());
            assert_eq!(env.open(3, 0).unwrap().sequences(), all, "sealed");
            let damaged = read_intact(ShardId(9), env.path(), Some(0), &mut |_| {}).unwrap();
            assert!(damaged.iter().all(|place| content.len() > 64 && place.path == file_path(env.path(), 1, 1)));
            let reclaimed = reclaim::reclaimable(&env.config(), 1).unwrap();
            assert!(reclaimed.starts_with(&[0, 1].map(|number| file_path(env.path(), 1, number))), "{reclaimed:?}");
        }
    }
}

/// Promise: a file whose header is not intact is damage if its records are needed, even if the files after it are
/// intact. If all its records are in tables it is not, even if it is the first remaining file.
#[test]
fn missing_file_is_detected_before_intact_later_files() {
    for (broken, sealed) in [(0, false), (0, true), (1, false), (1, true)] {
        let env = TestEnv::new();
        let mut owner = env.open(1, 0).unwrap();
        for sequence in 1..4 {
            env.append(&mut owner, sequence..sequence + 1);
            env.sync(&owner);
            if sequence < 3 {
                owner.log.leave_file(0);
            }
        }
        drop(owner);
        if sealed {
            drop(env.open(2, 0).unwrap());
        }
        let path = file_path(env.path(), 1, broken);
        env.damage(&path, 20);
        let first = file_path(env.path(), 1, 0);
        let needed = format!("{} is damaged at byte 0", path.display());
        for epoch in 3..5 {
            let refused = env.open(epoch, 0).err().unwrap().to_string();
            assert!(refused.contains(&needed), "{broken}, {sealed}: {refused}");
            assert_eq!(seal_path(env.path(), 1).exists(), sealed, "nothing was ended");
        }
        assert!(sealed || ReadOnlyLog::open(&env.config(), 0, 0).is_err());
        let damaged = read_intact(ShardId(9), env.path(), Some(0), &mut |_| {}).unwrap();
        assert!(matches!(&damaged[..], [place] if place.path == path), "{damaged:?}");
        if broken == 1 {
            std::fs::remove_file(&first).unwrap();
        }
        let covered = u64::from(broken) + 1;
        let damaged = read_intact(ShardId(9), env.path(), Some(covered), &mut |_| {}).unwrap();
        assert!(damaged.is_empty(), "{damaged:?}");
        ReadOnlyLog::open(&env.config(), covered, covered).unwrap();
        assert_eq!(env.open(5, covered).unwrap().sequences(), range(covered + 1..4));
    }
}
