use super::*;
use crate::identity::NOBODY;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

fn volume() -> (tempfile::TempDir, VolumeDir) {
    let directory = tempfile::tempdir().unwrap();
    let volume = VolumeDir::new(directory.path());
    (directory, volume)
}

fn refusal<T: std::fmt::Debug>(result: io::Result<T>, part: &str) {
    let error = result.unwrap_err().to_string();
    assert!(error.contains(part), "{error}");
}

/// Promise: an added key is listed and found by its id until it is revoked.
#[test]
fn a_key_is_valid_until_it_is_revoked() {
    let (_directory, volume) = volume();
    assert!(volume.host_keys().unwrap().is_empty() && volume.host_key(7).unwrap().is_none());
    let [one, other] = ["node-1", "node-2"].map(|name| volume.add_host_key(name).unwrap());
    assert_eq!(volume.host_keys().unwrap(), [one.clone(), other.clone()]);
    assert_eq!(volume.host_key(one.id).unwrap(), Some(one.clone()));
    assert_ne!(one.secret, other.secret);
    let file = volume.host_keys_directory().join(name_of_id(one.id));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o600);
    assert_eq!(volume.revoke_host_key("node-1").unwrap(), one);
    assert_eq!(volume.host_key(one.id).unwrap(), None);
    assert_eq!(volume.revoke_host_key(&format!("{:016x}", other.id)).unwrap(), other);
    refusal(volume.revoke_host_key("node-1"), "there is no key node-1");
}

/// Promise: names are unique and valid.
#[test]
fn a_name_is_had_once() {
    let (_directory, volume) = volume();
    volume.add_host_key("node").unwrap();
    refusal(volume.add_host_key("node"), "there is a key node already");
    for name in ["", ".", "../key", "a/b", "a b", "\u{1b}[2J", "-x", &"x".repeat(65)] {
        refusal(volume.add_host_key(name), "key name");
    }
}

/// Promise: links, files of other kinds, permissive modes and foreign content are refused, also if the volume's owner
/// created them.
#[test]
fn what_is_no_key_is_refused() {
    let (directory, volume) = volume();
    let key = volume.add_host_key("node").unwrap();
    let file = volume.host_keys_directory().join(name_of_id(key.id));
    let sound = fs::read(&file).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    refusal(volume.host_key(key.id), "open to other users");
    let aside = directory.path().join("aside");
    fs::rename(&file, &aside).unwrap();
    fs::set_permissions(&aside, fs::Permissions::from_mode(0o600)).unwrap();
    symlink(&aside, &file).unwrap();
    refusal(volume.host_key(key.id), "is a link");
    fs::remove_file(&file).unwrap();
    rustix::fs::mknodat(CWD, file.path(), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    refusal(volume.host_key(key.id), "is no file");
    fs::remove_file(&file).unwrap();
    for content in [&b""[..], b"id = 7", &sound[..sound.len() / 2], &[0xff; 100], &[b'x'; 9000]] {
        fs::write(&file, content).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(volume.host_key(key.id).is_err(), "{content:?}");
    }
    fs::remove_file(&file).unwrap();
    let renamed = volume.host_keys_directory().join(name_of_id(key.id ^ 1));
    fs::copy(&aside, &renamed).unwrap();
    refusal(volume.host_key(key.id ^ 1), "copied or renamed");
    let keys = volume.host_keys_directory();
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o755)).unwrap();
    refusal(volume.host_keys(), "open to other users");
    fs::rename(&keys, directory.path().join("elsewhere")).unwrap();
    symlink(directory.path().join("elsewhere"), &keys).unwrap();
    refusal(volume.host_keys(), "is no directory");
    refusal(volume.add_host_key("other"), "is no directory");
}

/// Promise: in a user's store, keys of another user are refused, as are keys of the overflow uid in a store of that
/// uid.
#[test]
fn a_key_is_the_owners_or_roots() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (directory, volume) = volume();
    let chown = |path: &Path, uid: u32| std::os::unix::fs::chown(path, Some(uid), None).unwrap();
    let key = volume.add_host_key("node").unwrap();
    let file = PathBuf::from(volume.host_keys_directory().join(name_of_id(key.id)));
    chown(directory.path(), 47111);
    chown(volume.host_keys_directory().path(), 47111);
    chown(&file, 47111);
    assert!(volume.host_key(key.id).unwrap().is_some());
    chown(&file, 47112);
    refusal(volume.host_key(key.id), "belongs to user 47112");
    chown(&file, 0);
    assert!(volume.host_key(key.id).unwrap().is_some());
    chown(directory.path(), NOBODY);
    chown(volume.host_keys_directory().path(), NOBODY);
    refusal(volume.host_key(key.id), "(nobody)");
}

/// Promise: a host's key file contains the key and the volume, never overwrites a file, and is read only if other users
/// cannot read it.
#[test]
fn a_key_file_is_the_hosts_own() {
    let (directory, volume) = volume();
    let key = volume.add_host_key("node").unwrap();
    let file = KeyFile { volume: VolumeId([5; 16]), key };
    let path = directory.path().join("node.key");
    file.write_new(&path).unwrap();
    assert_eq!(KeyFile::read(&path).unwrap(), file);
    refusal(file.write_new(&path), "exists");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o604)).unwrap();
    refusal(KeyFile::read(&path), "open to other users");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let link = directory.path().join("link");
    symlink(&path, &link).unwrap();
    refusal(KeyFile::read(&link), "is a link");
    let stored = volume.host_keys_directory().join(name_of_id(file.key.id));
    refusal(KeyFile::read(stored.path()), "names no volume");
}
