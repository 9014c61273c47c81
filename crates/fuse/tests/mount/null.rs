//! The request loop on a real mount, with the null file system that only records names: the ceiling of `varve bench`,
//! and mounting and unmounting themselves.

use crate::fixture::{MountPoint, can_mount, is_mounted};
use rustix::mount::UnmountFlags;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::Command;
use varve_client::Timeouts;
use varve_fuse::unmount::{HolderUse, MountHolder};
use varve_fuse::{Access, Error, MountOptions, Unmounter, null};

fn options() -> MountOptions {
    let mut options = MountOptions::new("null");
    options.threads = 4;
    options
}

/// `--ceilings`: the three phases of mdtest, and writes, work on the null file system from several threads.
#[test]
fn names_are_created_found_and_removed() {
    if !can_mount() {
        return;
    }
    let point = MountPoint::new();
    let mounted = null::mount(point.path(), Timeouts::default(), &options()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let directory = point.join(format!("d{thread}"));
            scope.spawn(move || {
                fs::create_dir(&directory).unwrap();
                for i in 0..200 {
                    let path = directory.join(format!("file.{i}"));
                    let mut file = fs::File::create_new(&path).unwrap();
                    file.write_all(&[7; 100]).unwrap();
                    drop(file);
                    assert_eq!(fs::metadata(&path).unwrap().len(), 100);
                    assert_eq!(fs::File::create_new(&path).unwrap_err().kind(), ErrorKind::AlreadyExists);
                    fs::remove_file(&path).unwrap();
                    assert_eq!(fs::metadata(&path).unwrap_err().kind(), ErrorKind::NotFound);
                }
                fs::remove_dir(&directory).unwrap();
            });
        }
    });
    mounted.unmount().unwrap();
    assert!(!is_mounted(point.path()));
}

/// `varve umount` names the holders of a mount, and the mount is served until they release it.
#[test]
fn busy_mount_is_refused_with_its_users() {
    if !can_mount() {
        return;
    }
    let point = MountPoint::new();
    let mounted = null::mount(point.path(), Timeouts::default(), &options()).unwrap();
    let unmounter = mounted.unmounter();
    let file = fs::File::create(point.join("held")).unwrap();
    let Err(Error::Busy { holders, .. }) = unmounter.unmount() else { panic!("it is busy") };
    let own = std::process::id();
    let how = holders.iter().find_map(|holder| match holder {
        MountHolder::Process { pid, how, .. } if *pid == own => Some(*how),
        _ => None,
    });
    assert_eq!(how, Some(HolderUse::OpenFile), "{holders:?}");
    assert!(fs::metadata(point.join("held")).is_ok());
    drop(file);
    unmounter.unmount().unwrap();
    mounted.join().unwrap();
}

/// Renaming a directory moves the mounts below it; they are still unmounted when their processes are asked to.
#[test]
fn moved_mount_is_unmounted_at_its_new_path() {
    if !can_mount() {
        return;
    }
    let around = tempfile::tempdir().unwrap();
    let (before, after) = (around.path().join("before"), around.path().join("after"));
    for unmount in ALL {
        fs::create_dir_all(before.join("mnt")).unwrap();
        let mounted = null::mount(&before.join("mnt"), Timeouts::default(), &options()).unwrap();
        fs::rename(&before, &after).unwrap();
        let unmounter = mounted.unmounter();
        assert!(!unmounter.is_gone());
        unmount(&unmounter).unwrap();
        assert!(unmounter.is_gone());
        mounted.join().unwrap();
        assert!(!is_mounted(&after.join("mnt")));
        fs::remove_dir_all(&after).unwrap();
    }
}

fn mount_other(options: &[&str], at: &Path) {
    let mounted = Command::new("mount").args(options).arg(at).status().expect("mount(8)");
    assert!(mounted.success());
}

const ALL: [fn(&Unmounter) -> varve_fuse::Result<()>; 3] =
    [Unmounter::unmount, Unmounter::unmount_if_free, Unmounter::detach];

/// A mount over a mount, above it or in it belongs to another process: it is named, and must be unmounted first.
#[test]
fn covered_mount_is_unmounted_once_uncovered() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root may mount over a mount");
        return;
    }
    let around = tempfile::tempdir().unwrap();
    let (point, inside) = (around.path().join("mnt"), around.path().join("mnt/inside"));
    fs::create_dir(&point).unwrap();
    let mounted = null::mount(&point, Timeouts::default(), &options()).unwrap();
    fs::create_dir(&inside).unwrap();
    let unmounter = mounted.unmounter();
    for other in [&point, around.path(), &inside] {
        mount_other(&["-t", "tmpfs", "varve-test"], other);
        for unmount in ALL {
            let Err(Error::Busy { holders, .. }) = unmount(&unmounter) else { panic!("there is {}", other.display()) };
            assert_eq!(holders, [MountHolder::Mount(other.to_owned())]);
        }
        rustix::mount::unmount(other, UnmountFlags::empty()).unwrap();
        assert!(!unmounter.is_gone());
    }
    unmounter.unmount_if_free().unwrap();
    mounted.join().unwrap();
    assert!(!is_mounted(&point));
}

/// A mount that was bound to another location is unmounted there, too, and stays at its first location while it is busy
/// there.
#[test]
fn a_bound_mount_is_unmounted_everywhere() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root may bind");
        return;
    }
    for unmount in ALL {
        let (point, bound) = (MountPoint::new(), MountPoint::new());
        let mounted = null::mount(point.path(), Timeouts::default(), &options()).unwrap();
        mount_other(&["--bind", point.path().to_str().unwrap()], bound.path());
        let unmounter = mounted.unmounter();
        let file = fs::File::create(bound.join("held")).unwrap();
        assert!(matches!(unmounter.unmount(), Err(Error::Busy { target, .. }) if target == bound.path()));
        assert!(is_mounted(point.path()) && is_mounted(bound.path()));
        drop(file);
        unmount(&unmounter).unwrap();
        assert!(!is_mounted(point.path()) && !is_mounted(bound.path()));
        mounted.join().unwrap();
    }
}

/// An external unmount is noticed, and a later mount at the same path is left alone.
#[test]
fn external_unmount_ends_only_its_session() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root may mount again at once");
        return;
    }
    let point = MountPoint::new();
    let first = null::mount(point.path(), Timeouts::default(), &options()).unwrap();
    rustix::mount::unmount(point.path(), rustix::mount::UnmountFlags::empty()).unwrap();
    let second = null::mount(point.path(), Timeouts::default(), &options()).unwrap();
    first.join().unwrap();
    assert!(is_mounted(point.path()), "the end of the first session took the second mount away");
    second.unmount().unwrap();
}

/// A mount that is not joined does not outlive its owner.
#[test]
fn a_dropped_mount_is_gone() {
    if !can_mount() {
        return;
    }
    let point = MountPoint::new();
    drop(null::mount(point.path(), Timeouts::default(), &options()).unwrap());
    assert!(!is_mounted(point.path()));
}

/// `-o` reaches the kernel: type, source, flags and who may use the mount.
#[test]
fn mountinfo_shows_requested_options() {
    if !can_mount() {
        return;
    }
    let point = MountPoint::new();
    let mut options = options();
    options.parse(r"fsname=/some\,store,ro,nosuid,nodev,noexec,noatime,max_read=65536").unwrap();
    let mounted = null::mount(point.path(), Timeouts::default(), &options).unwrap();
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let path = point.path().canonicalize().unwrap();
    let line = table.lines().find(|line| line.contains(path.to_str().unwrap())).unwrap().to_owned();
    assert!(line.contains(" ro,nosuid,nodev,noexec,noatime "), "{line}");
    assert!(line.contains(" - fuse.varve /some,store "), "{line}");
    assert!(line.contains("default_permissions") && line.contains("max_read=65536"), "{line}");
    assert_eq!(line.contains("allow_other"), options.access == Access::Everyone, "{line}");
    assert_eq!(fs::write(point.join("x"), b"").unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    mounted.unmount().unwrap();
}

/// `auto_unmount`: the helper mounts and watches; an orderly unmount leaves nothing for it to do.
#[test]
fn auto_unmount_ends_cleanly() {
    if !can_mount() {
        return;
    }
    let point = MountPoint::new();
    let mut options = options();
    options.parse("auto_unmount").unwrap();
    let mounted = null::mount(point.path(), Timeouts::default(), &options).unwrap();
    fs::write(point.join("f"), "x").unwrap();
    mounted.unmount().unwrap();
    assert!(!is_mounted(point.path()));
}
