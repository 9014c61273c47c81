use super::*;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

const ETCD: &str = "etcd://127.0.0.1:2379?ca=/etc/ca.pem&user=x&password-file=/etc/shadow";

fn recorded(address: &str) -> (tempfile::TempDir, VolumeDir) {
    let directory = tempfile::tempdir().unwrap();
    let cluster = directory.path().join("cluster");
    std::fs::create_dir(&cluster).unwrap();
    let file = cluster.join("registry.toml");
    std::fs::write(&file, format!("registry = \"{address}\"\n")).unwrap();
    for (path, mode) in [(directory.path(), 0o755), (&cluster, 0o755), (&file, 0o644)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let volume = VolumeDir::new(directory.path());
    (directory, volume)
}

fn give_to_another(directory: &std::path::Path) {
    for path in [directory.to_owned(), directory.join("cluster"), directory.join("cluster/registry.toml")] {
        chown(path, Some(2), Some(2)).unwrap();
    }
}

#[test]
fn recorded_registry_is_followed_in_an_own_volume() {
    let (_directory, volume) = recorded(ETCD);
    let found = RegistryAddress::of_volume(&volume, None).unwrap();
    assert_eq!(found, Some(ETCD.parse().unwrap()));
}

/// Its options name files, which the owner of the store could not read.
#[test]
fn etcd_that_another_user_recorded_is_not_asked() {
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        eprintln!("SKIPPED: only root can give files away");
        return;
    }
    let (directory, volume) = recorded(ETCD);
    give_to_another(directory.path());
    let refused = RegistryAddress::of_volume(&volume, None).unwrap_err();
    assert!(matches!(refused, RegistryChoiceError::OthersChoice { .. }), "{refused}");
    let asked: RegistryAddress = "etcd://127.0.0.1:2379".parse().unwrap();
    assert_eq!(RegistryAddress::of_volume(&volume, Some(&asked)).unwrap(), Some(asked), "the user trusts it");
    let (directory, volume) = recorded("store");
    give_to_another(directory.path());
    assert_eq!(RegistryAddress::of_volume(&volume, None).unwrap(), Some(RegistryAddress::Store));
}
