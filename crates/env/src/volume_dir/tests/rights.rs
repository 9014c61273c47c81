//! Ownership and permissions of a volume's files.

use super::*;
use std::os::unix::fs::chown;

fn set_mode(path: impl AsRef<Path>, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Promise: a volume in which other users may replace files is refused, and the error gives the command that corrects
/// the mode.
#[test]
fn a_directory_that_others_may_write_is_refused() {
    for name in ["", "servers", "shards", "data"] {
        let (_directory, volume) = formatted();
        let place = volume.root().join(name);
        for mode in [0o777, 0o1777, 0o775, 0o757] {
            set_mode(&place, mode);
            let refused = volume.clone().held().unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
            let refused = refused.to_string();
            let advice = format!("chmod go-w {}", place.display().to_string().trim_end_matches('/'));
            assert!(refused.contains(&advice), "{refused}");
        }
        set_mode(&place, 0o755);
        volume.held().unwrap();
    }
}

#[test]
fn a_file_that_others_may_write_is_refused() {
    let (_directory, volume) = formatted();
    for mode in [0o666, 0o664, 0o646] {
        set_mode(volume.volume_file(), mode);
        let refused = volume.read_settings().unwrap_err().to_string();
        assert!(refused.contains("chmod go-w"), "{refused}");
    }
    set_mode(volume.volume_file(), 0o644);
    volume.read_settings().unwrap();
    let record = ServerRecord::of_this_process(&volume, false, Vec::new()).unwrap();
    volume.write_server_record(&volume.lock().unwrap(), &record).unwrap();
    set_mode(volume.server_file(), 0o666);
    let refused = volume.read_server_record().unwrap_err().to_string();
    assert!(refused.contains("servers/current.toml") && refused.contains("chmod go-w"), "{refused}");
}

/// Promise: a key that other users may read is not used, because anyone who can read the key can authenticate as any
/// user.
#[test]
fn a_key_that_others_may_read_is_refused() {
    let (_directory, volume) = formatted();
    for mode in [0o640, 0o604, 0o644, 0o610] {
        set_mode(volume.key_file(), mode);
        let refused = volume.read_key().unwrap_err().to_string();
        assert!(refused.contains("chmod 600"), "{refused}");
    }
    set_mode(volume.key_file(), 0o400);
    volume.read_key().unwrap();
}

/// Promise: files of a volume belong to the owner of its directory; files of another user, even root, are not read.
#[test]
fn files_of_another_user_are_refused() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: it makes files of other users, which takes root");
        return;
    }
    for other in [47111, 65534] {
        let (_directory, volume) = formatted();
        let record = ServerRecord::of_this_process(&volume, false, Vec::new()).unwrap();
        volume.write_server_record(&volume.lock().unwrap(), &record).unwrap();
        for path in [volume.volume_file(), volume.key_file(), volume.server_file(), volume.lock_file()] {
            chown(&path, Some(other), None).unwrap();
        }
        let refused = [
            volume.read_settings().unwrap_err().to_string(),
            volume.read_key().unwrap_err().to_string(),
            volume.read_server_record().unwrap_err().to_string(),
            volume.lock().unwrap_err().to_string(),
            volume.lock_for_reading().unwrap_err().to_string(),
        ];
        for refused in refused {
            assert!(refused.contains(&format!("belongs to user {other}")), "{refused}");
        }
    }
}

/// Promise: 65534 is the uid that the kernel shows for unmapped users, so it never counts as equal to a user.
#[test]
fn a_store_of_nobody_is_refused() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: it makes files of other users, which takes root");
        return;
    }
    let (_directory, volume) = formatted();
    for path in [volume.root(), volume.volume_file().path(), volume.key_file().path()] {
        chown(path, Some(65534), Some(65534)).unwrap();
    }
    for refused in [volume.owner().unwrap_err(), volume.read_key().unwrap_err(), volume.clone().held().unwrap_err()] {
        assert!(refused.to_string().contains("(nobody)"), "{refused}");
    }
}

/// Promise: a volume file whose owner differs from the directory's owner is refused: in root's mount, the owner decides
/// what set-user-id programs may do.
#[test]
fn an_owner_that_is_not_the_directorys_is_refused() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: it makes files of other users, which takes root");
        return;
    }
    for owner_uid in [0, 47112] {
        let directory = tempfile::tempdir().unwrap();
        let volume = VolumeDir::new(directory.path());
        volume.format(&VolumeSettings { owner_uid, ..settings() }, FormatOver::Nothing).unwrap();
        for path in [volume.root(), volume.volume_file().path(), volume.volume_file_copy().path()] {
            chown(path, Some(47111), Some(47111)).unwrap();
        }
        let refused = volume.read_settings().unwrap_err();
        assert!(matches!(refused, VolumeFileError::OtherOwner { found: 47111, .. }), "{refused}");
    }
}

/// Promise: the modes of files that a format creates do not depend on the umask. Runs in a separate process, because
/// the umask is per process.
#[test]
fn modes_do_not_depend_on_the_umask() {
    const ROOT: &str = "VARVE_TEST_UMASK_ROOT";
    if let Some(root) = std::env::var_os(ROOT) {
        let volume = VolumeDir::new(PathBuf::from(root));
        volume.format(&settings(), FormatOver::Nothing).unwrap();
        let record = ServerRecord::of_this_process(&volume, false, Vec::new()).unwrap();
        volume.write_server_record(&volume.lock().unwrap(), &record).unwrap();
        return;
    }
    for umask in ["000", "002", "022", "077", "777"] {
        for existing in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let root = directory.path().join("volume");
            if existing {
                std::fs::create_dir(&root).unwrap();
                set_mode(&root, 0o777);
            }
            let program = std::env::current_exe().unwrap();
            let script = format!("umask {umask}; exec \"$0\" --exact volume_dir::tests::rights::{TEST}");
            let mut child = Command::new("sh");
            let ran = child.arg("-c").arg(script).arg(program).env(ROOT, &root).output().unwrap();
            assert!(ran.status.success(), "{umask}: {}", String::from_utf8_lossy(&ran.stdout));
            let volume = VolumeDir::new(&root);
            let modes = [
                (volume.at_root(), 0o755),
                (volume.servers(), 0o755),
                (volume.shards(), 0o700),
                (volume.shard_log(ShardId(1)), 0o700),
                (volume.data(), 0o700),
                (volume.backing_directory(InodeId(1)), 0o700),
                (volume.volume_file(), 0o644),
                (volume.volume_file_copy(), 0o644),
                (volume.server_file(), 0o644),
                (volume.key_file(), 0o600),
                (volume.lock_file(), 0o600),
            ];
            for (path, mode) in modes {
                assert_eq!(path.metadata().unwrap().mode() & 0o777, mode, "{path} with umask {umask}");
            }
        }
    }
}

const TEST: &str = "modes_do_not_depend_on_the_umask";
