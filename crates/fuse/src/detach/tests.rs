use super::*;
use crate::mounts;
use std::os::unix::fs::symlink;

/// A mount of the test machine other than the root, and its mount ID. The tests only read it.
fn proc_mount() -> (PathBuf, u32) {
    let table = mounts::table().expect("the table of mounts");
    let mount = mounts::at(&table, Path::new("/proc")).expect("/proc is mounted");
    (mount.target, mount.id)
}

#[test]
fn a_mount_point_is_found_by_its_number_alone() {
    let (target, id) = proc_mount();
    let point = MountPoint::open(&target, id).expect("it is there");
    assert!(point.path().join("self").exists());
    let other = MountPoint::open(&target, id + 1_000_000).err().expect("no such mount").to_string();
    assert!(other.contains("another mount, or none, is at /proc"), "{other}");
}

#[test]
fn links_on_the_way_to_a_mount_are_refused() {
    let (_, id) = proc_mount();
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path().canonicalize().unwrap();
    symlink("/", base.join("above")).unwrap();
    symlink("/proc", base.join("itself")).unwrap();
    for path in ["above/proc", "itself"] {
        let error = MountPoint::open(&base.join(path), id).err().expect(path);
        assert_eq!(error.raw_os_error(), Some(libc::ELOOP), "{path}: {error}");
        let error = detach(&base.join(path), Some(id), false).expect_err(path);
        assert_eq!(error.raw_os_error(), Some(libc::ELOOP), "{path}: {error}");
    }
}

#[test]
fn detach_refuses_what_is_not_the_known_mount() {
    let directory = tempfile::tempdir().unwrap();
    let plain = directory.path().canonicalize().unwrap().join("plain");
    std::fs::create_dir(&plain).unwrap();
    let (_, id) = proc_mount();
    for (target, id, words) in [
        (plain.as_path(), Some(id), "another mount, or none"),
        (plain.as_path(), None, "not known which mount"),
        (Path::new("/"), Some(id), "root directory"),
    ] {
        let error = detach(target, id, true).expect_err("refused").to_string();
        assert!(error.contains(words), "{}: {error}", target.display());
    }
}
