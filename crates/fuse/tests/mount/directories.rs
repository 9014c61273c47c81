//! Listings.

use crate::fixture::{Volume, can_mount, shell, volume};
use std::collections::HashSet;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirEntryExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A listing has every name once, for any number of partitions, with and without attributes.
#[test]
fn twenty_thousand_names_are_listed_once_each() {
    let Some(volume) = volume() else { return };
    const NAMES: usize = 20_000;
    let directory = volume.join("many");
    fs::create_dir(&directory).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let directory = &directory;
            scope.spawn(move || {
                for i in (thread..NAMES).step_by(4) {
                    fs::File::create_new(directory.join(format!("name-{i}"))).unwrap();
                }
            });
        }
    });
    let mut seen = HashSet::new();
    let mut inodes = HashSet::new();
    for entry in fs::read_dir(&directory).unwrap() {
        let entry = entry.unwrap();
        assert!(entry.file_type().unwrap().is_file());
        assert!(inodes.insert(entry.ino()), "{:?} has an inode twice", entry.file_name());
        assert!(seen.insert(entry.file_name()), "{:?} is shown twice", entry.file_name());
    }
    assert_eq!(seen.len(), NAMES);
    let mut counted = 0;
    for entry in fs::read_dir(&directory).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().ino(), entry.ino());
        counted += 1;
    }
    assert_eq!(counted, NAMES);
    let info = varve_fuse::info(&directory).unwrap();
    assert!(info.contains("\"partitions_total\":8"), "{info}");
    volume.close();
}

/// Subdirectories and hard links, whose attributes are in other rows, are listed with the right inode number and type;
/// so are `.` and `..`.
#[test]
fn entries_with_remote_attributes_are_listed() {
    let Some(volume) = volume() else { return };
    let top = volume.join("top");
    fs::create_dir(&top).unwrap();
    for i in 0..150 {
        fs::create_dir(top.join(format!("d{i}"))).unwrap();
        fs::write(top.join(format!("f{i}")), "x").unwrap();
        fs::hard_link(top.join(format!("f{i}")), top.join(format!("l{i}"))).unwrap();
    }
    let mut shown = 0;
    for entry in fs::read_dir(&top).unwrap() {
        let entry = entry.unwrap();
        let metadata = entry.metadata().unwrap();
        let name = entry.file_name().into_string().unwrap();
        assert_eq!(metadata.ino(), entry.ino(), "{name}");
        assert_eq!(metadata.is_dir(), name.starts_with('d'), "{name}");
        assert_eq!(entry.file_type().unwrap().is_dir(), name.starts_with('d'), "{name}");
        assert_eq!(metadata.nlink(), 2, "{name}");
        shown += 1;
    }
    assert_eq!(shown, 450);
    let dots = crate::fixture::shell("ls -ai \"$1\" | awk '$2 ~ /^[.][.]?$/ { print $1 }' | tr '\\n' ' '", &[&top]);
    let numbers = [&top, &volume.path().to_owned()].map(|path| fs::metadata(path).unwrap().ino());
    assert_eq!(dots.trim(), format!("{} {}", numbers[0], numbers[1]));
    volume.close();
}

/// telldir/seekdir, and a listing during concurrent changes: names that stay are listed exactly once.
#[test]
fn a_listing_survives_changes() {
    let Some(volume) = volume() else { return };
    let directory = volume.join("changing");
    fs::create_dir(&directory).unwrap();
    for i in 0..1500 {
        fs::write(directory.join(format!("stays{i}")), "").unwrap();
    }
    let mut listing = fs::read_dir(&directory).unwrap();
    let mut seen: Vec<_> = listing.by_ref().take(100).map(|entry| entry.unwrap().file_name()).collect();
    for i in 0..600 {
        fs::write(directory.join(format!("comes{i}")), "").unwrap();
    }
    seen.extend(listing.map(|entry| entry.unwrap().file_name()));
    let stays: Vec<_> = seen.iter().filter(|name| name.to_str().unwrap().starts_with("stays")).collect();
    assert_eq!(stays.iter().collect::<HashSet<_>>().len(), 1500);
    assert_eq!(stays.len(), 1500);
    crate::fixture::shell("rm -r \"$1\"", &[&directory]);
    assert!(!directory.exists());
    volume.close();
}

/// fsync of a directory, and statfs(2) of the underlying store.
#[test]
fn directories_are_synced_and_space_is_shown() {
    let Some(volume) = volume() else { return };
    fs::create_dir(volume.join("d")).unwrap();
    fs::write(volume.join("d/f"), "x").unwrap();
    fs::File::open(volume.join("d")).unwrap().sync_all().unwrap();
    let shown = rustix::fs::statvfs(volume.path()).unwrap();
    let beneath = rustix::fs::statvfs(volume.store.path()).unwrap();
    assert_eq!(shown.f_namemax, 255);
    assert_eq!(shown.f_blocks * shown.f_frsize, beneath.f_blocks * beneath.f_frsize);
    volume.close();
}

/// A directory that was removed while it is open is gone for its open descriptors, too: changes of its attributes fail
/// with ESTALE, it has no entries, and nothing can be created in it.
#[test]
fn removed_directory_is_gone_for_open_handles() {
    let Some(volume) = volume() else { return };
    let path = volume.join("d");
    fs::create_dir(&path).unwrap();
    let open = fs::File::open(&path).unwrap();
    assert!(open.metadata().unwrap().is_dir());
    fs::remove_dir(&path).unwrap();
    expect_gone(&open);
    drop(open);
    // ls(1) of a removed working directory shows nothing.
    fs::create_dir(&path).unwrap();
    assert_eq!(shell("cd \"$1\"; rmdir \"$1\"; ls -a", &[&path]), "");
    // A new directory with that name is another inode.
    fs::create_dir(&path).unwrap();
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
    volume.close();
}

/// Checks an open directory that was removed: it has no links, and lookups in it find nothing.
fn expect_gone(open: &fs::File) {
    let shown = open.metadata().unwrap();
    assert!(shown.is_dir());
    assert_eq!((shown.nlink(), shown.mode() & 0o7777), (0, 0o755));
    let within = format!("/proc/self/fd/{}", open.as_raw_fd());
    assert_eq!(fs::read_dir(&within).unwrap().count(), 0);
    let at = |name: &str| format!("{within}/{name}");
    let answers = [
        fs::symlink_metadata(at("f")).map(drop),
        fs::File::create_new(at("f")).map(drop),
        fs::File::open(at("f")).map(drop),
        fs::create_dir(at("d")),
        fs::remove_file(at("f")),
        fs::remove_dir(at("d")),
        std::os::unix::fs::symlink("x", at("s")),
    ];
    for (call, answer) in answers.into_iter().enumerate() {
        assert_eq!(answer.map_err(|error| error.raw_os_error()), Err(Some(libc::ENOENT)), "call {call}");
    }
    let changed = open.set_permissions(fs::Permissions::from_mode(0o700));
    assert_eq!(changed.unwrap_err().raw_os_error(), Some(libc::ESTALE));
}

/// The same for a directory that another mount has removed; and two concurrent removals of one tree both succeed.
#[test]
fn directory_removed_by_another_mount_is_gone() {
    if !can_mount() {
        return;
    }
    let (volume, other) = Volume::mounted_twice("");
    let path = volume.join("d");
    fs::create_dir(&path).unwrap();
    let open = fs::File::open(&path).unwrap();
    assert_eq!(open.metadata().unwrap().nlink(), 2);
    fs::remove_dir(other.join("d")).unwrap();
    // The removal waits until no client caches the name. The attributes were fetched after it, and are cached for as
    // long.
    let until = Instant::now() + Duration::from_secs(5);
    while open.metadata().unwrap().nlink() > 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    expect_gone(&open);
    drop(open);
    for tree in 0..2 {
        let tree = format!("tree-{tree}");
        for directory in 0..10 {
            let directory = volume.join(format!("{tree}/{directory}"));
            fs::create_dir_all(&directory).unwrap();
            (0..3).for_each(|file| drop(fs::File::create(directory.join(format!("{file}"))).unwrap()));
        }
        std::thread::scope(|scope| {
            let (ours, remove) = (volume.join(&tree), |path: PathBuf| shell("rm -rf \"$1\"", &[path.as_path()]));
            let ours = scope.spawn(move || remove(ours));
            remove(other.join(&tree));
            ours.join().unwrap();
        });
        assert!(!volume.join(&tree).exists() && !other.join(&tree).exists());
    }
    other.close();
    volume.close();
}

/// `ro`: every change is refused, and reads work.
#[test]
fn a_read_only_mount_refuses_changes() {
    if !can_mount() {
        return;
    }
    let volume = Volume::with_options("ro");
    assert_eq!(fs::write(volume.join("x"), "").unwrap_err().raw_os_error(), Some(libc::EROFS));
    assert_eq!(fs::create_dir(volume.join("x")).unwrap_err().raw_os_error(), Some(libc::EROFS));
    assert_eq!(fs::read_dir(volume.path()).unwrap().count(), 0);
    volume.close();
}

/// A user with read but without search permission on a directory can list its names, including those of open files,
/// even if the kernel requests attributes with them because other users look names up.
#[test]
fn read_permission_suffices_to_list_names() {
    if !can_mount() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can be somebody else");
        return;
    }
    let (volume, other) = Volume::mounted_twice("");
    fs::set_permissions(volume.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let directory = volume.join("d");
    fs::create_dir(&directory).unwrap();
    let open: Vec<_> = (0..3).map(|n| fs::File::create_new(directory.join(format!("f{n}"))).unwrap()).collect();
    fs::write(other.join("d").join("g"), b"").unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o744)).unwrap();
    let (dots_seen, look_up) = mpsc::channel();
    let (looked_up, go_on) = mpsc::channel();
    let reads = &directory;
    let list = move || {
        // The system call changes only this thread; libc's function would change the whole process.
        let set = unsafe { libc::syscall(libc::SYS_setresuid, 1111, 1111, 1111) };
        assert_eq!(set, 0);
        let opened = fs::File::open(reads).unwrap();
        let mut buffer = Vec::with_capacity(8192);
        let mut entries = rustix::fs::RawDir::new(&opened, buffer.spare_capacity_mut());
        let mut names = Vec::new();
        while let Some(entry) = entries.next() {
            names.push(entry.unwrap().file_name().to_str().unwrap().to_owned());
            if names.len() == 2 {
                dots_seen.send(()).unwrap();
                go_on.recv().unwrap();
            }
        }
        names.sort();
        names
    };
    let names = std::thread::scope(|scope| {
        let listing = scope.spawn(list);
        look_up.recv().unwrap();
        assert!(fs::metadata(directory.join("g")).unwrap().is_file());
        looked_up.send(()).unwrap();
        listing.join().unwrap()
    });
    assert_eq!(names, [".", "..", "f0", "f1", "f2", "g"]);
    drop(open);
    other.close();
    volume.close();
}
