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
    let world = World { directory: tempfile::tempdir().unwrap(), ..world };
    let config = LogConfig { directory: target.clone().into(), ..world.config() };
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
    std::fs::write(Path::new(&target).join("appended"), appended.to_string()).unwrap();
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
