//! Names: create, look up, link, rename, remove.

use crate::fixture::volume;
use rustix::fs::{AtFlags, CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

fn inode(path: impl AsRef<Path>) -> u64 {
    fs::symlink_metadata(path).unwrap().ino()
}

/// renameat2(2): replace, no-replace, exchange, and the refused cases.
#[test]
fn rename_flags_replace_keep_or_exchange() {
    let Some(volume) = volume() else { return };
    let (a, b, d, e) = (volume.join("a"), volume.join("b"), volume.join("d"), volume.join("e"));
    fs::write(&a, "a").unwrap();
    fs::write(&b, "b").unwrap();
    fs::create_dir(&d).unwrap();
    fs::create_dir(&e).unwrap();
    fs::write(e.join("child"), "").unwrap();
    let with = |from: &Path, to: &Path, flags| renameat_with(CWD, from, CWD, to, flags);

    assert_eq!(with(&a, &b, RenameFlags::NOREPLACE), Err(Errno::EXIST));
    with(&a, &b, RenameFlags::EXCHANGE).unwrap();
    assert_eq!((fs::read_to_string(&a).unwrap(), fs::read_to_string(&b).unwrap()), ("b".into(), "a".into()));
    let moved = inode(&a);
    fs::rename(&a, &b).unwrap();
    assert_eq!((inode(&b), fs::read_to_string(&b).unwrap()), (moved, "b".into()));
    assert_eq!(errno(fs::metadata(&a)), libc::ENOENT);
    with(&b, &a, RenameFlags::NOREPLACE).unwrap();
    // Between directories, over an empty one, not over a full one, not into itself, not across types.
    fs::rename(&a, d.join("a")).unwrap();
    assert_eq!(errno(fs::rename(&d, &e)), libc::ENOTEMPTY);
    assert_eq!(errno(fs::rename(&d, d.join("inside"))), libc::EINVAL);
    assert_eq!(errno(fs::rename(&d, e.join("child"))), libc::ENOTDIR);
    assert_eq!(errno(fs::rename(e.join("child"), &d)), libc::EISDIR);
    with(&d.join("a"), &e, RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read_to_string(&e).unwrap(), "b");
    fs::remove_file(d.join("a").join("child")).unwrap();
    fs::create_dir(volume.join("full")).unwrap();
    fs::write(volume.join("full").join("x"), "x").unwrap();
    fs::rename(volume.join("full"), d.join("a")).unwrap();
    assert_eq!(fs::read_to_string(d.join("a").join("x")).unwrap(), "x");
    volume.close();
}

/// RENAME_WHITEOUT leaves a character device 0:0, which every user may make, at the old name.
#[test]
fn whiteouts_are_made_and_left_by_renames() {
    let Some(volume) = volume() else { return };
    let (a, b) = (volume.join("a"), volume.join("b"));
    fs::write(&a, "a").unwrap();
    let moved = inode(&a);
    renameat_with(CWD, &a, CWD, &b, RenameFlags::WHITEOUT).unwrap();
    let is_whiteout = |path: &Path| {
        let found = fs::symlink_metadata(path).unwrap();
        found.file_type().is_char_device() && (found.rdev(), found.nlink()) == (0, 1)
    };
    assert!(is_whiteout(&a) && inode(&b) == moved);
    let both = RenameFlags::WHITEOUT | RenameFlags::NOREPLACE;
    assert_eq!(renameat_with(CWD, &b, CWD, &a, both), Err(Errno::EXIST));
    let neither = RenameFlags::WHITEOUT | RenameFlags::EXCHANGE;
    assert_eq!(renameat_with(CWD, &b, CWD, &a, neither), Err(Errno::INVAL));
    // Over the whiteout, between directories, and of a directory.
    renameat_with(CWD, &b, CWD, &a, RenameFlags::WHITEOUT).unwrap();
    assert!(is_whiteout(&b) && inode(&a) == moved);
    fs::create_dir_all(volume.join("d/sub")).unwrap();
    renameat_with(CWD, volume.join("d/sub"), CWD, volume.join("sub"), both).unwrap();
    assert!(is_whiteout(&volume.join("d/sub")) && volume.join("sub").is_dir());
    assert_eq!(fs::metadata(volume.join("d")).unwrap().nlink(), 2);
    assert_eq!(fs::read_dir(volume.join("d")).unwrap().count(), 1);
    fs::remove_file(volume.join("d/sub")).unwrap();
    fs::remove_dir(volume.join("d")).unwrap();
    if rustix::process::geteuid().is_root() {
        fs::set_permissions(volume.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let script = "import os, sys; os.setgid(2); os.setuid(2); os.mknod(sys.argv[1], 0o020000, os.makedev(0, 0))\n\
                      try: os.mknod(sys.argv[2], 0o020000, os.makedev(1, 3))\n\
                      except PermissionError: sys.exit(0)\n\
                      sys.exit(1)";
        let of_user = volume.join("of-user");
        let arguments = [script.as_ref(), of_user.as_os_str(), volume.join("null").as_os_str()].map(OsStr::to_owned);
        let status = std::process::Command::new("/usr/bin/python3").arg("-c").args(arguments).status().unwrap();
        assert!(status.success() && is_whiteout(&of_user));
    }
    volume.close();
}

/// open(2) with O_TMPFILE: a file without a name, which linkat(2) may name unless it was opened with O_EXCL.
#[test]
fn unnamed_file_gets_a_name_or_is_removed() {
    let Some(volume) = volume() else { return };
    fs::create_dir(volume.join("d")).unwrap();
    let unnamed = |more: i32| {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).mode(0o640).custom_flags(libc::O_TMPFILE | more).open(volume.join("d"))
    };
    let link = |file: &fs::File, to: &Path| {
        let from = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::linkat(CWD, from, CWD, to, AtFlags::SYMLINK_FOLLOW)
    };
    for length in [10usize, 100_000] {
        let mut file = unnamed(0).unwrap();
        file.write_all(&vec![7; length]).unwrap();
        let found = file.metadata().unwrap();
        assert_eq!((found.nlink(), found.len(), found.mode() & 0o777), (0, length as u64, 0o640));
        assert_eq!(fs::read_dir(volume.join("d")).unwrap().count(), 0);
        rustix::fs::fsetxattr(&file, "user.x", b"y", rustix::fs::XattrFlags::empty()).unwrap();
        file.sync_all().unwrap();
        let named = volume.join("named");
        link(&file, &named).unwrap();
        assert_eq!((file.metadata().unwrap().nlink(), inode(&named)), (1, found.ino()));
        file.write_all(b"more").unwrap();
        drop(file);
        let content = fs::read(&named).unwrap();
        assert!(content.len() == length + 4 && content.ends_with(b"\x07more"));
        fs::remove_file(&named).unwrap();
    }
    let exclusive = unnamed(libc::O_EXCL).unwrap();
    assert_eq!(link(&exclusive, &volume.join("never")), Err(Errno::NOENT));
    let mut left = unnamed(0).unwrap();
    left.write_all(&[1; 100_000]).unwrap();
    drop((exclusive, left));
    assert_eq!(fs::read_dir(volume.path()).unwrap().count(), 1);
    volume.close();
}

/// link(2), st_nlink, and a file that remains under its other name.
#[test]
fn hard_links_are_one_file() {
    let Some(volume) = volume() else { return };
    let (a, b, c) = (volume.join("a"), volume.join("b"), volume.join("dir/c"));
    fs::create_dir(volume.join("dir")).unwrap();
    fs::write(&a, "one").unwrap();
    fs::hard_link(&a, &b).unwrap();
    fs::hard_link(&b, &c).unwrap();
    assert_eq!((inode(&a), inode(&b)), (inode(&b), inode(&c)));
    assert_eq!(fs::metadata(&a).unwrap().nlink(), 3);
    fs::OpenOptions::new().append(true).open(&b).unwrap().write_all(b" two").unwrap();
    assert_eq!(fs::read_to_string(&c).unwrap(), "one two");
    assert_eq!(errno(fs::hard_link(&a, &c)), libc::EEXIST);
    assert_eq!(errno(fs::hard_link(volume.join("dir"), volume.join("dir2"))), libc::EPERM);
    // rename(2) of one name over another of the same file does nothing.
    fs::rename(&a, &b).unwrap();
    assert_eq!(fs::metadata(&a).unwrap().nlink(), 3);
    fs::remove_file(&a).unwrap();
    fs::remove_file(&b).unwrap();
    assert_eq!((fs::metadata(&c).unwrap().nlink(), fs::read_to_string(&c).unwrap()), (1, "one two".into()));
    volume.close();
}

/// A file without a name exists until its last close.
#[test]
fn an_unlinked_file_lives_until_it_is_closed() {
    let Some(volume) = volume() else { return };
    for length in [10usize, 100_000] {
        let path = volume.join("gone");
        let mut file = fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        file.write_all(&vec![7; length]).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(errno(fs::metadata(&path)), libc::ENOENT);
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        fs::write(&path, "another").unwrap();
        file.write_all(b"more").unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        let mut content = Vec::new();
        file.read_to_end(&mut content).unwrap();
        assert_eq!(content.len(), length + 4);
        assert!(content.ends_with(b"\x07more"));
        file.set_len(3).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 3);
        drop(file);
        assert_eq!(fs::read_to_string(&path).unwrap(), "another");
        fs::remove_file(&path).unwrap();
    }
    volume.close();
}

/// Directories are created, are not removed while they have entries, and have the right link count.
#[test]
fn directories_are_made_and_removed() {
    let Some(volume) = volume() else { return };
    let d = volume.join("d");
    fs::create_dir(&d).unwrap();
    assert_eq!(errno(fs::create_dir(&d)), libc::EEXIST);
    fs::create_dir(d.join("sub")).unwrap();
    assert_eq!(fs::metadata(&d).unwrap().nlink(), 3);
    assert_eq!(errno(fs::remove_dir(&d)), libc::ENOTEMPTY);
    assert_eq!(errno(fs::remove_file(&d)), libc::EISDIR);
    fs::remove_dir(d.join("sub")).unwrap();
    assert_eq!(fs::metadata(&d).unwrap().nlink(), 2);
    fs::write(d.join("f"), "").unwrap();
    assert_eq!(errno(fs::remove_dir(d.join("f"))), libc::ENOTDIR);
    assert_eq!(errno(fs::remove_dir(&d)), libc::ENOTEMPTY);
    fs::remove_file(d.join("f")).unwrap();
    fs::remove_dir(&d).unwrap();
    assert_eq!(errno(fs::metadata(&d)), libc::ENOENT);
    volume.close();
}

/// Symlinks, fifos, sockets and (as root) devices.
#[test]
fn special_files_keep_their_type() {
    let Some(volume) = volume() else { return };
    let long = "x/".repeat(2000);
    symlink(&long, volume.join("long")).unwrap();
    symlink("target", volume.join("link")).unwrap();
    fs::write(volume.join("target"), "reached").unwrap();
    assert_eq!(fs::read_link(volume.join("long")).unwrap(), Path::new(&long));
    assert_eq!(fs::read_to_string(volume.join("link")).unwrap(), "reached");
    assert_eq!(fs::symlink_metadata(volume.join("link")).unwrap().len(), 6);
    let mode = rustix::fs::Mode::from_raw_mode(0o640);
    rustix::fs::mknodat(CWD, volume.join("fifo"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert!(fs::metadata(volume.join("fifo")).unwrap().file_type().is_fifo());
    let socket = std::os::unix::net::UnixListener::bind(volume.join("socket")).unwrap();
    assert!(fs::metadata(volume.join("socket")).unwrap().file_type().is_socket());
    std::os::unix::net::UnixStream::connect(volume.join("socket")).unwrap();
    drop(socket);
    if rustix::process::geteuid().is_root() {
        let null = rustix::fs::makedev(1, 3);
        rustix::fs::mknodat(CWD, volume.join("null"), rustix::fs::FileType::CharacterDevice, mode, null).unwrap();
        let metadata = fs::metadata(volume.join("null")).unwrap();
        assert!(metadata.file_type().is_char_device() && metadata.rdev() == null);
        fs::write(volume.join("null"), "swallowed").unwrap();
        let odd = rustix::fs::makedev(0xabc, 0x12345);
        rustix::fs::mknodat(CWD, volume.join("block"), rustix::fs::FileType::BlockDevice, mode, odd).unwrap();
        assert_eq!(fs::metadata(volume.join("block")).unwrap().rdev(), odd);
    }
    // A fifo carries bytes between two threads.
    let path = volume.join("fifo");
    let writer = std::thread::spawn(move || fs::write(path, "through").unwrap());
    assert_eq!(fs::read_to_string(volume.join("fifo")).unwrap(), "through");
    writer.join().unwrap();
    volume.close();
}

/// Every byte but `/` and NUL can be in a name; 255 bytes fit and 256 do not.
#[test]
fn names_of_any_bytes_work() {
    let Some(volume) = volume() else { return };
    let mut wanted: Vec<Vec<u8>> = (1..=255u8).filter(|byte| *byte != b'/').map(|byte| vec![b'n', byte]).collect();
    wanted.extend([vec![0xff; 255], b"...".to_vec(), "ü漢🙂".as_bytes().to_vec()]);
    for name in &wanted {
        fs::write(volume.join(OsStr::from_bytes(name)), name).unwrap();
    }
    let mut found: Vec<Vec<u8>> =
        fs::read_dir(volume.path()).unwrap().map(|entry| entry.unwrap().file_name().as_bytes().to_vec()).collect();
    found.sort();
    wanted.sort();
    assert_eq!(found, wanted);
    for name in &wanted {
        assert_eq!(&fs::read(volume.join(OsStr::from_bytes(name))).unwrap(), name);
    }
    assert_eq!(errno(fs::write(volume.join("n".repeat(256)), "")), libc::ENAMETOOLONG);
    volume.close();
}

/// O_EXCL has one winner, also among threads.
#[test]
fn exclusive_creation_has_one_winner() {
    let Some(volume) = volume() else { return };
    for round in 0..20 {
        let path = volume.join(format!("race{round}"));
        let winners: usize = std::thread::scope(|scope| {
            let racers: Vec<_> = (0..4).map(|_| scope.spawn(|| fs::File::create_new(&path).is_ok())).collect();
            racers.into_iter().map(|racer| usize::from(racer.join().unwrap())).sum()
        });
        assert_eq!(winners, 1);
    }
    volume.close();
}
