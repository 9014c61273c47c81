//! Writes and fsyncs that fail.

use super::*;

/// "After a write or fsync error the log moves its unsynced records to a new file": nothing is lost, and it goes on.
#[test]
fn a_failed_append_goes_on_in_a_new_file() {
    let world = World::new();
    let mut owner = world.open(1, 0).unwrap();
    world.append(&mut owner, 1..4);
    world.sync(&owner);
    world.append(&mut owner, 4..6);
    owner.log.state.lock().break_file();
    world.append(&mut owner, 6..8);
    assert!(file_path(world.path(), 1, 1).exists());
    world.sync(&owner);
    assert_eq!(owner.flushed_group(), 3);
    world.append(&mut owner, 8..9);
    assert_eq!(world.crash_and_replay(owner, 1), range(1..9));
}

/// The new file says where the one before it ended, also where the tables do not have that yet: the old one stays until they do,
/// and the new one is whole without it.
#[test]
fn a_file_after_a_failure_is_whole_without_the_one_before_it() {
    let world = World::new();
    let mut owner = world.open(1, 0).unwrap();
    for sequence in 1..4 {
        write(&owner.log, &batch(sequence)).unwrap();
        world.sync(&owner);
    }
    assert_eq!(
        (owner.flushed_group(), owner.log.unsynced_bytes()),
        (0, 0),
        "three groups are on disk, and in no table"
    );
    write(&owner.log, &batch(4)).unwrap();
    owner.log.state.lock().break_file();
    write(&owner.log, &batch(5)).unwrap();
    world.sync(&owner);
    world.hand_over(&mut owner, &batch(5));
    assert_eq!(owner.flushed_group(), 4);
    let reclaim = |replay_after| {
        let paths = reclaim::reclaimable(&world.config(), replay_after).unwrap();
        paths.iter().for_each(|path| reclaim::remove(path).unwrap());
        paths
    };
    assert!(reclaim(2).is_empty(), "the third group is in no table");
    assert_eq!(reclaim(3), [file_path(world.path(), 1, 0)]);
    drop(owner);
    assert_eq!(world.open(2, 3).unwrap().sequences(), [4, 5]);
}

/// The same for an fsync, which is never just repeated: the kernel may have dropped what it could not write.
#[test]
fn a_failed_fsync_goes_on_in_a_new_file() {
    let world = World::new();
    let mut owner = world.open(1, 0).unwrap();
    world.append(&mut owner, 1..4);
    world.sync(&owner);
    world.append(&mut owner, 4..6);
    owner.log.state.lock().break_file();
    world.sync(&owner);
    assert_eq!((owner.flushed_group(), owner.log.unsynced_bytes()), (2, 0));
    let file = file_path(world.path(), 1, 0);
    // The old file counts only up to the synced position: what the failed fsync left of the rest does not matter.
    let length = file.metadata().unwrap().len();
    world.damage(&file, length - 1);
    world.append(&mut owner, 6..7);
    assert_eq!(world.crash_and_replay(owner, 1), range(1..7));
}

/// "Else the shard is reopened": when no new file can be made either the log ends with the reason, and what was
/// appended before is replayed by the next owner. A child process runs it, under a limit on the size of its files.
#[test]
fn a_full_store_ends_the_log_and_loses_nothing() {
    const CHILD: &str = "VARVE_TEST_LOG_LIMITED";
    let world = World::new();
    let Some(target) = std::env::var_os(CHILD) else {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                &format!("{}::a_full_store_ends_the_log_and_loses_nothing", module_path!().split_once("::").unwrap().1),
            ])
            .env(CHILD, world.path())
            .stdout(std::process::Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
        let appended: u64 = std::fs::read_to_string(world.path().join("appended")).unwrap().parse().unwrap();
        assert!(appended > 20);
        assert_eq!(world.open(2, 0).unwrap().sequences(), range(1..appended + 1));
        return;
    };
    let world = World { _directory: tempfile::tempdir().unwrap(), ..world };
    let config = LogConfig { directory: std::path::PathBuf::from(&target).into(), ..world.config() };
    let (_, log) = take_over(&config, Claim { epoch: 1, replay_after: 0, flushed: 0 }).unwrap();
    let _entered = world.runtime.enter();
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
            world.runtime.block_on(writer.append(&batch(20))).unwrap();
            world.runtime.block_on(writer.flush()).unwrap();
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

/// Files that are missing are not taken for an empty log.
#[test]
fn missing_files_are_refused() {
    let world = World::new();
    world.two_files();
    std::fs::remove_file(file_path(world.path(), 1, 0)).unwrap();
    let opened = world.open(2, 0);
    assert!(opened.err().unwrap().to_string().contains("lacks its files"));
    assert_eq!(world.open(2, 1).unwrap().sequences(), [4], "which is fine once their groups are in tables");
}

/// One epoch whose second file was begun, never fsynced, and left when it failed: the third one took over. A batch in the first
/// file, and one in the third, or two.
fn taken_over(batches: u64) -> World {
    let world = World::new();
    let mut owner = world.open(1, 0).unwrap();
    world.append(&mut owner, 1..2);
    world.sync(&owner);
    owner.log.leave_file(0);
    owner.log.state.lock().break_file();
    for sequence in 2..batches + 2 {
        world.append(&mut owner, sequence..sequence + 1);
        world.sync(&owner);
    }
    world
}

/// Promise: what was fsynced after a failure is there, whatever the disk has kept of the file that failed before it was ever
/// fsynced, and nobody calls it damaged.
#[test]
fn a_file_that_was_never_fsynced_is_not_missed() {
    for (batches, marked) in [(1, true), (1, false), (2, true), (2, false)] {
        for content in [Vec::new(), vec![0; 64], vec![0x55; 500]] {
            let world = taken_over(batches);
            if !marked {
                std::fs::write(begun_path(world.path(), 1), []).unwrap();
            }
            std::fs::write(file_path(world.path(), 1, 1), &content).unwrap();
            let all = range(1..batches + 2);
            assert!(torn_end(ShardId(9), world.path()).unwrap().is_none());
            LogAtRest::open(&world.config(), 0, 0).unwrap();
            assert_eq!(world.open(2, 0).unwrap().sequences(), all, "{marked}, {} bytes", content.len());
            assert_eq!(world.open(3, 0).unwrap().sequences(), all, "sealed");
            let damaged = read_intact(ShardId(9), world.path(), Some(0), &mut |_| {}).unwrap();
            assert!(damaged.iter().all(|place| content.len() > 64 && place.path == file_path(world.path(), 1, 1)));
            let reclaimed = reclaim::reclaimable(&world.config(), 1).unwrap();
            assert!(reclaimed.starts_with(&[0, 1].map(|number| file_path(world.path(), 1, number))), "{reclaimed:?}");
        }
    }
}

/// Promise: a file whose header is not intact is damaged where its records are needed, though those after it are whole; one
/// whose records are all in tables is not, also where it is the first that is left.
#[test]
fn a_file_that_is_needed_is_missed_though_later_ones_are_whole() {
    for (broken, sealed) in [(0, false), (0, true), (1, false), (1, true)] {
        let world = World::new();
        let mut owner = world.open(1, 0).unwrap();
        for sequence in 1..4 {
            world.append(&mut owner, sequence..sequence + 1);
            world.sync(&owner);
            if sequence < 3 {
                owner.log.leave_file(0);
            }
        }
        drop(owner);
        if sealed {
            drop(world.open(2, 0).unwrap());
        }
        let path = file_path(world.path(), 1, broken);
        world.damage(&path, 20);
        let first = file_path(world.path(), 1, 0);
        let needed = format!("{} is damaged at byte 0", path.display());
        for epoch in 3..5 {
            let refused = world.open(epoch, 0).err().unwrap().to_string();
            assert!(refused.contains(&needed), "{broken}, {sealed}: {refused}");
            assert_eq!(seal_path(world.path(), 1).exists(), sealed, "nothing was ended");
        }
        assert!(sealed || LogAtRest::open(&world.config(), 0, 0).is_err());
        let damaged = read_intact(ShardId(9), world.path(), Some(0), &mut |_| {}).unwrap();
        assert!(matches!(&damaged[..], [place] if place.path == path), "{damaged:?}");
        if broken == 1 {
            std::fs::remove_file(&first).unwrap();
        }
        let covered = u64::from(broken) + 1;
        let damaged = read_intact(ShardId(9), world.path(), Some(covered), &mut |_| {}).unwrap();
        assert!(damaged.is_empty(), "{damaged:?}");
        LogAtRest::open(&world.config(), covered, covered).unwrap();
        assert_eq!(world.open(5, covered).unwrap().sequences(), range(covered + 1..4));
    }
}
