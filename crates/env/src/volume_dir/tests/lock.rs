//! The volume's lock, and the holder that its errors name.

use super::*;

/// A volume in use is not formatted over, and the error names the process that uses it.
#[test]
fn the_lock_names_its_holder() {
    let (_directory, volume) = formatted();
    let lock = volume.lock().unwrap();
    assert!(volume.lock().unwrap_err().to_string().contains("an unidentified process"));
    let workers = vec![WorkerRecord { unix: Some("/run/v.0".into()), tcp: Some("127.0.0.1:7".into()) }];
    let record = ServerRecord::of_this_process(&volume, false, workers).unwrap();
    volume.write_server_record(&lock, &record).unwrap();
    assert_eq!(volume.read_server_record().unwrap().as_ref(), Some(&record));
    assert!(record.is_of_this_boot());
    let message = volume.lock().unwrap_err().to_string();
    assert!(message.contains(&format!("process {}", std::process::id())), "{message}");
    assert!(matches!(volume.format(&settings(), FormatOver::Volume), Err(VolumeFormatError::Locked(_))));
    volume.withdraw_server_record(&lock, ShutdownState::Nothing).unwrap();
    volume.withdraw_server_record(&lock, ShutdownState::Nothing).unwrap();
    assert_eq!(volume.read_server_record().unwrap(), None);
    assert!(volume.stopped_server_file().exists(), "its room is kept for the next one");
    drop(lock);
    volume.lock().unwrap();
}

/// A record that an earlier process left does not name the present holder; the state of processes of other hosts and
/// containers is unknown.
#[test]
fn lock_names_no_dead_process() {
    let (_directory, volume) = formatted();
    let lock = volume.lock().unwrap();
    let record = ServerRecord::of_this_process(&volume, true, vec![]).unwrap();
    let names = |record: ServerRecord| {
        volume.write_server_record(&lock, &record).unwrap();
        let message = volume.lock().unwrap_err().to_string();
        let named = message.contains(&format!("a mount, {} on host", record.process()));
        assert_ne!(named, message.contains("an unidentified process"), "{message}");
        assert_eq!(named, volume.read_holder().is_some(), "{message}");
        named
    };
    assert!(names(record.clone()));
    let mut child = Command::new("true").spawn().unwrap();
    let of_child = ServerRecord { pid: child.id(), ..record.clone() };
    // The child has ended, and its parent has not waited for it yet.
    waitid(WaitId::Pid(Pid::from_child(&child)), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
    assert!(!names(of_child.clone()));
    child.wait().unwrap();
    assert!(!names(of_child));
    assert!(!names(ServerRecord { pid: 0, ..record.clone() }));
    // In a container, the same pid is another process.
    let of_a_container = ServerRecord { pid: 0, pid_namespace: Some(1), ..record.clone() };
    assert_eq!(of_a_container.process(), "process 0 of another PID namespace");
    assert!(names(of_a_container));
    let of_earlier_boot = ServerRecord { boot_id: "another".into(), ..record };
    assert!(!names(of_earlier_boot.clone()));
    assert!(names(ServerRecord { host: "another".into(), ..of_earlier_boot }));
}

/// Servers that have joined share the lock, and exclude all others, who are told the name of one of them.
#[test]
fn joined_servers_share_the_lock() {
    let (_directory, volume) = formatted();
    let record = ServerRecord::of_this_process(&volume, false, vec![]).unwrap();
    let first = volume.lock_to_join().unwrap();
    volume.write_joined_record(&first, 7, &record).unwrap();
    first.share().unwrap();
    let second = volume.lock_to_join().unwrap();
    volume.write_joined_record(&second, 0xabc, &record).unwrap();
    second.share().unwrap();
    let numbers = || volume.read_server_records().unwrap().into_iter().map(|record| record.number).collect::<Vec<_>>();
    assert_eq!(numbers().len(), 2);
    let named = format!("a server, {} on host", record.process());
    assert!(volume.lock().unwrap_err().to_string().contains(&named));
    let refused = volume.lock_for_reading().unwrap_err();
    assert!(refused.is_held() && refused.to_string().contains(&named), "{refused}");
    volume.remove_joined_record(7).unwrap();
    drop(first);
    assert_eq!(numbers(), [Some("0000000000000abc".to_owned())]);
    assert!(volume.lock().is_err());
    volume.remove_joined_record(0xabc).unwrap();
    drop(second);
    let alone = volume.lock().unwrap();
    assert_eq!(volume.left_by_server(&alone).unwrap(), ShutdownState::OpenFiles, "they may have left open files");
    drop(alone);
    volume.lock_for_reading().unwrap();
}

/// Promise: while the process of a server that was taken for dead lives, another server can join, and others are told who
/// has the lock. Clients do not try it.
#[test]
fn stopped_joined_server_lets_others_join() {
    let (_directory, volume) = formatted();
    let record = ServerRecord::of_this_process(&volume, false, vec![]).unwrap();
    let stopped = volume.lock_to_join().unwrap();
    volume.write_joined_record(&stopped, 7, &record).unwrap();
    stopped.share().unwrap();
    volume.hide_joined_record(7).unwrap();
    assert_eq!(volume.read_server_records().unwrap(), []);
    let named = format!("a server, {} on host", record.process());
    for refused in [volume.lock().map(drop), volume.lock_for_reading().map(drop)] {
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(&named), "{refused}");
    }
    let second = volume.lock_to_join().unwrap();
    volume.write_joined_record(&second, 8, &record).unwrap();
    second.share().unwrap();
    assert_eq!(volume.read_server_records().unwrap().len(), 1);
    drop((stopped, second));
    volume.remove_joined_record(8).unwrap();
    volume.remove_joined_record(7).unwrap();
    assert!(volume.lock().is_ok());
}

/// A joined server that was killed leaves its record. The next exclusive holder of the lock removes it.
#[test]
fn records_of_dead_joined_servers_keep_nobody_away() {
    let (_directory, volume) = formatted();
    let lock = volume.lock_to_join().unwrap();
    let record = ServerRecord { pid: 0, ..ServerRecord::of_this_process(&volume, false, vec![]).unwrap() };
    volume.write_joined_record(&lock, 7, &record).unwrap();
    drop(lock);
    assert_eq!(volume.read_server_records().unwrap(), []);
    volume.lock_for_reading().unwrap();
    let alone = volume.lock().unwrap();
    assert_eq!(volume.left_by_server(&alone).unwrap(), ShutdownState::OpenFiles);
    assert!(!volume.servers().join("0000000000000007.toml").exists());
}

/// A process that starts immediately after a kill gets the lock, though the killed process has not ended: the kernel
/// frees its memory before it closes its files.
#[test]
fn the_lock_of_a_killed_process_is_waited_for() {
    const SCRIPT: &str = "import fcntl, mmap, sys
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_EX)
memory = mmap.mmap(-1, 1 << 29, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
for page in range(0, len(memory), mmap.PAGESIZE):
    memory[page] = 1
print('locked', flush=True)
sys.stdin.readline()";
    let (_directory, volume) = formatted();
    let lock = volume.lock().unwrap();
    let record = ServerRecord::of_this_process(&volume, false, vec![]).unwrap();
    let mut python = Command::new("python3");
    python.args(["-c", SCRIPT]).arg(volume.lock_file().path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = python.spawn().unwrap();
    volume.write_server_record(&lock, &ServerRecord { pid: child.id(), ..record }).unwrap();
    // The child waits for the lock.
    drop(lock);
    let mut said = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "locked\n");
    assert!(volume.lock().unwrap_err().to_string().contains(&format!("process {}", child.id())));
    child.kill().unwrap();
    volume.lock().unwrap();
    child.wait().unwrap();
}

/// Readers exclude servers but not each other; a server excludes readers.
#[test]
fn readers_share_the_lock() {
    let (_directory, volume) = formatted();
    volume.lock().unwrap();
    let readers = (volume.lock_for_reading().unwrap(), volume.lock_for_reading().unwrap());
    assert!(matches!(volume.lock(), Err(LockError::Read { .. })));
    drop(readers);
    let _lock = volume.lock().unwrap();
    assert!(matches!(volume.lock_for_reading(), Err(LockError::Held { .. })));
}

/// A user who cannot read the volume cannot keep its server off either: the lock file is inaccessible to other users,
/// also one that an earlier version created. The target of a link stays as it is.
#[test]
fn others_cannot_have_the_lock() {
    let (directory, volume) = formatted();
    let mode = |path: &Path| std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
    volume.lock().unwrap();
    assert_eq!(mode(volume.lock_file().path()), 0o600);
    std::fs::set_permissions(volume.lock_file(), Permissions::from_mode(0o644)).unwrap();
    volume.lock().unwrap();
    assert_eq!(mode(volume.lock_file().path()), 0o600);

    let other = directory.path().join("other");
    std::fs::write(&other, "").unwrap();
    std::fs::set_permissions(&other, Permissions::from_mode(0o644)).unwrap();
    std::fs::remove_file(volume.lock_file()).unwrap();
    std::os::unix::fs::symlink(&other, volume.lock_file()).unwrap();
    assert!(matches!(volume.lock(), Err(LockError::Io { .. })));
    std::fs::remove_file(volume.lock_file()).unwrap();
    std::fs::hard_link(&other, volume.lock_file()).unwrap();
    volume.lock().unwrap();
    assert_eq!(mode(&other), 0o644);
}

/// Removing the lock file, as a cleanup of old and empty files does, does not let a second server start.
#[test]
fn lock_survives_removal_of_its_file() {
    let (_directory, volume) = formatted();
    let lock = volume.lock().unwrap();
    std::fs::remove_file(volume.lock_file()).unwrap();
    assert!(matches!(volume.lock(), Err(LockError::Held { .. })));
    assert!(matches!(volume.lock_for_reading(), Err(LockError::Held { .. })));
    drop(lock);
    let reader = volume.lock_for_reading().unwrap();
    std::fs::remove_file(volume.lock_file()).unwrap();
    assert!(matches!(volume.lock(), Err(LockError::Read { .. })));
    drop(reader);
    volume.lock().unwrap();
    // If the key is removed too, the record of the server remains.
    let lock = volume.lock().unwrap();
    volume.write_server_record(&lock, &ServerRecord::of_this_process(&volume, false, vec![]).unwrap()).unwrap();
    std::fs::remove_file(volume.lock_file()).unwrap();
    std::fs::remove_file(volume.key_file()).unwrap();
    assert!(matches!(volume.lock(), Err(LockError::Held { .. })));
    // The same holds for a server in a container, whose processes are not visible here.
    let of_a_container =
        ServerRecord { pid_namespace: Some(1), ..ServerRecord::of_this_process(&volume, false, vec![]).unwrap() };
    volume.write_server_record(&lock, &of_a_container).unwrap();
    std::fs::remove_file(volume.lock_file()).unwrap();
    assert!(matches!(volume.lock(), Err(LockError::Held { .. })));
}
