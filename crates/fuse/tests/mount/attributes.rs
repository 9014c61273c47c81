//! Mode, owner, times, extended attributes.

use crate::fixture::{Volume, can_mount, shell, volume};
use rustix::fs::{AtFlags, CWD, StatxFlags, Timespec, Timestamps, XattrFlags, statx, utimensat};
use rustix::io::Errno;
use std::ffi::CString;
use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// statx(2) shows the birth time, which nothing changes, of files and directories.
#[test]
fn statx_shows_the_birth_time() {
    let Some(volume) = volume() else { return };
    let begun = SystemTime::now() - Duration::from_secs(1);
    let (file, directory) = (volume.join("f"), volume.join("d"));
    fs::write(&file, "small").unwrap();
    fs::create_dir(&directory).unwrap();
    let born = |path: &Path| fs::metadata(path).unwrap().created().unwrap();
    let before = [born(&file), born(&directory), born(volume.path())];
    assert!(before[..2].iter().all(|born| (begun..=SystemTime::now()).contains(born)), "{before:?}");
    fs::write(&file, vec![1; 100_000]).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    fs::rename(&file, directory.join("f")).unwrap();
    assert_eq!([born(&directory.join("f")), born(&directory), born(volume.path())], before);
    // The other attributes come with the same reply.
    let flags = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let found = statx(CWD, directory.join("f"), AtFlags::STATX_FORCE_SYNC, flags).unwrap();
    let basic = fs::metadata(directory.join("f")).unwrap();
    assert_eq!((found.stx_size, u32::from(found.stx_mode)), (100_000, basic.mode()));
    assert_eq!((found.stx_ino, found.stx_nlink, found.stx_blocks), (basic.ino(), 1, basic.blocks()));
    assert_eq!((found.stx_mtime.tv_sec, i64::from(found.stx_mtime.tv_nsec)), (basic.mtime(), basic.mtime_nsec()));
    if rustix::process::geteuid().is_root() {
        let odd = rustix::fs::makedev(0xabc, 0x12345);
        let kind = rustix::fs::FileType::BlockDevice;
        rustix::fs::mknodat(CWD, volume.join("block"), kind, rustix::fs::Mode::empty(), odd).unwrap();
        let found = statx(CWD, volume.join("block"), AtFlags::STATX_FORCE_SYNC, flags).unwrap();
        assert_eq!((found.stx_rdev_major, found.stx_rdev_minor), (0xabc, 0x12345));
    }
    volume.close();
}

/// chmod(2), chown(2), and the umask of the caller.
#[test]
fn modes_and_owners_are_set() {
    let Some(volume) = volume() else { return };
    let path = volume.join("f");
    shell("umask 027; touch \"$1\"; mkdir \"$1.d\"", &[&path]);
    assert_eq!(mode(&path), 0o640);
    assert_eq!(mode(&volume.join("f.d")), 0o750);
    for wanted in [0o000, 0o777, 0o4755, 0o2755, 0o1644] {
        fs::set_permissions(&path, Permissions::from_mode(wanted)).unwrap();
        assert_eq!(mode(&path), wanted);
    }
    let before = fs::metadata(&path).unwrap();
    if rustix::process::geteuid().is_root() {
        chown(&path, Some(1234), Some(5678)).unwrap();
        let after = fs::metadata(&path).unwrap();
        assert_eq!((after.uid(), after.gid()), (1234, 5678));
        assert!((after.ctime(), after.ctime_nsec()) > (before.ctime(), before.ctime_nsec()));
        symlink("f", volume.join("link")).unwrap();
        std::os::unix::fs::lchown(volume.join("link"), Some(42), None).unwrap();
        assert_eq!(fs::symlink_metadata(volume.join("link")).unwrap().uid(), 42);
        assert_eq!(fs::metadata(&path).unwrap().uid(), 1234);
    }
    volume.close();
}

/// A time that was set stays when the file is opened for writing and closed again, even if the kernel may write to a
/// backing file without a request.
#[test]
fn mtime_survives_open_without_write() {
    let Some(volume) = volume() else { return };
    let path = volume.join("large");
    fs::write(&path, vec![7; 200_000]).unwrap();
    // The size is recorded before the time is set, and again after.
    std::thread::sleep(Duration::from_millis(200));
    let time = Timespec { tv_sec: 1_000_000, tv_nsec: 5 };
    utimensat(CWD, &path, &Timestamps { last_access: time, last_modification: time }, AtFlags::empty()).unwrap();
    drop(File::options().append(true).open(&path).unwrap());
    std::thread::sleep(Duration::from_millis(200));
    // Read from the volume: the kernel caches the time that it set.
    let shown = statx(CWD, &path, AtFlags::STATX_FORCE_SYNC, StatxFlags::MTIME).unwrap().stx_mtime;
    assert_eq!((shown.tv_sec, shown.tv_nsec), (1_000_000, 5));
    volume.close();
}

/// utimensat(2) to the nanosecond, before 1970 and after 2038, by path and by descriptor; and the operations that
/// change times.
#[test]
fn times_are_kept_to_the_nanosecond() {
    let Some(volume) = volume() else { return };
    let path = volume.join("f");
    fs::write(&path, "x").unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
    assert!((fs::metadata(&path).unwrap().mtime() - now).abs() < 60);
    for (seconds, nanoseconds) in
        [(1, 999_999_999), (-1, 500_000_001), (-86_400 * 365, 7), (1 << 33, 123_456_789), (0, 0)]
    {
        let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        let times = Timestamps { last_access: time, last_modification: time };
        utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
        let shown = fs::metadata(&path).unwrap();
        assert_eq!((shown.atime(), shown.atime_nsec()), (seconds, nanoseconds));
        assert_eq!((shown.mtime(), shown.mtime_nsec()), (seconds, nanoseconds));
    }
    let file = File::options().write(true).open(&path).unwrap();
    file.set_modified(UNIX_EPOCH + Duration::new(5, 5)).unwrap();
    assert_eq!((file.metadata().unwrap().mtime(), file.metadata().unwrap().mtime_nsec()), (5, 5));
    (&file).write_all(b"later").unwrap();
    drop(file);
    assert!((fs::metadata(&path).unwrap().mtime() - now).abs() < 60, "a write sets mtime");
    let directory = volume.join("d");
    fs::create_dir(&directory).unwrap();
    let old = Timespec { tv_sec: 10, tv_nsec: 0 };
    let times = Timestamps { last_access: old, last_modification: old };
    utimensat(CWD, &directory, &times, AtFlags::empty()).unwrap();
    assert_eq!(fs::metadata(&directory).unwrap().mtime(), 10);
    fs::write(directory.join("child"), "").unwrap();
    assert!((fs::metadata(&directory).unwrap().mtime() - now).abs() < 60, "a new name sets its directory's mtime");
    volume.close();
}

/// The reply to mkdir(2) has the times that are stored, also where the directory's rows are in another shard.
#[test]
fn times_of_a_new_directory_stay() {
    let Some(volume) = volume() else { return };
    for number in 0..16 {
        let path = volume.join(format!("d{number}"));
        fs::create_dir(&path).unwrap();
        let times = |flags| {
            let shown = statx(CWD, &path, flags, StatxFlags::BASIC_STATS).unwrap();
            [shown.stx_atime, shown.stx_mtime, shown.stx_ctime].map(|time| (time.tv_sec, time.tv_nsec))
        };
        assert_eq!(times(AtFlags::STATX_DONT_SYNC), times(AtFlags::STATX_FORCE_SYNC));
    }
    volume.close();
}

/// A store through a mapping changes mtime and ctime, also when the file was closed before, and its size recorded.
#[test]
fn mapped_write_changes_times_after_close() {
    let Some(volume) = volume() else { return };
    let path = volume.join("large");
    fs::write(&path, vec![7; 200_000]).unwrap();
    let times = || {
        let shown = fs::metadata(&path).unwrap();
        [(shown.mtime(), shown.mtime_nsec()), (shown.ctime(), shown.ctime_nsec())]
    };
    let file = File::options().read(true).write(true).open(&path).unwrap();
    // SAFETY: the address is chosen by the kernel, and the mapping is used within its length until it is unmapped.
    let mapped = unsafe {
        let (read_write, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        libc::mmap(std::ptr::null_mut(), 200_000, read_write, shared, std::os::fd::AsRawFd::as_raw_fd(&file), 0)
    };
    assert_ne!(mapped, libc::MAP_FAILED);
    drop(file);
    // Longer than the size of a closed file waits to be recorded in this volume.
    std::thread::sleep(Duration::from_millis(1500));
    let mut before = times();
    for _ in 0..2 {
        // SAFETY: as above.
        unsafe {
            mapped.cast::<u8>().add(5).write_volatile(8);
            assert_eq!(libc::msync(mapped, 200_000, libc::MS_SYNC), 0);
        }
        let after = times();
        assert!(after[0] > before[0] && after[1] > before[1], "{before:?} {after:?}");
        before = after;
        std::thread::sleep(Duration::from_millis(50));
    }
    // SAFETY: as above.
    assert_eq!(unsafe { libc::munmap(mapped, 200_000) }, 0);
    assert_eq!(times(), before);
    volume.close();
}

/// A time outside the range of `fuser`'s clock does not stop the mount.
#[test]
fn the_earliest_time_is_survived() {
    let Some(volume) = volume() else { return };
    let path = volume.join("f");
    fs::write(&path, "x").unwrap();
    for seconds in [i64::MIN, i64::MIN + 1, i64::MAX] {
        let time = Timespec { tv_sec: seconds, tv_nsec: 1 };
        let times = Timestamps { last_access: time, last_modification: time };
        utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
    }
    assert_eq!(fs::read(&path).unwrap(), b"x");
    volume.close();
}

/// Extended attributes can be set, replaced, listed, removed, and queried for their size.
#[test]
fn extended_attributes_are_kept() {
    let Some(volume) = volume() else { return };
    let path = volume.join("f");
    fs::write(&path, "x").unwrap();
    let get = |name: &str, room: usize| {
        let mut value = vec![0; room];
        let length = rustix::fs::getxattr(&path, name, &mut value)?;
        value.truncate(length);
        Ok::<_, Errno>(value)
    };
    rustix::fs::setxattr(&path, "user.a", b"one", XattrFlags::CREATE).unwrap();
    assert_eq!(rustix::fs::setxattr(&path, "user.a", b"x", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(rustix::fs::setxattr(&path, "user.b", b"x", XattrFlags::REPLACE), Err(Errno::NODATA));
    rustix::fs::setxattr(&path, "user.b", b"", XattrFlags::empty()).unwrap();
    rustix::fs::setxattr(&path, "user.a", b"three", XattrFlags::REPLACE).unwrap();
    assert_eq!(get("user.a", 100).unwrap(), b"three");
    assert_eq!(get("user.b", 100).unwrap(), b"");
    assert_eq!(get("user.a", 3), Err(Errno::RANGE));
    assert_eq!(get("user.none", 100), Err(Errno::NODATA));
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: two NUL-terminated strings; with a size of 0 nothing is written.
    let size = unsafe { libc::getxattr(name.as_ptr(), c"user.a".as_ptr(), std::ptr::null_mut(), 0) };
    assert_eq!(size, 5, "a size of nothing asks for the length");
    let large = vec![3; 40_000];
    rustix::fs::setxattr(&path, "user.large", &large, XattrFlags::empty()).unwrap();
    assert!(get("user.large", 65_536).unwrap() == large);
    let mut list = vec![0; 1000];
    let length = rustix::fs::listxattr(&path, &mut list).unwrap();
    let mut names: Vec<_> = list[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
    names.sort();
    assert_eq!(names, [&b"user.a"[..], b"user.b", b"user.large"], "what the mount tells of itself is not listed");
    rustix::fs::removexattr(&path, "user.a").unwrap();
    assert_eq!(rustix::fs::removexattr(&path, "user.a"), Err(Errno::NODATA));
    // On a directory, and kept through rename and link.
    fs::create_dir(volume.join("d")).unwrap();
    rustix::fs::setxattr(volume.join("d"), "user.d", b"dir", XattrFlags::empty()).unwrap();
    fs::rename(&path, volume.join("d/g")).unwrap();
    let mut value = [0; 8];
    assert_eq!(rustix::fs::getxattr(volume.join("d/g"), "user.b", &mut value), Ok(0));
    assert_eq!(rustix::fs::getxattr(volume.join("d"), "user.d", &mut value), Ok(3));
    assert_eq!(rustix::fs::setxattr(volume.join("d"), "varve.info", b"", XattrFlags::empty()), Err(Errno::PERM));
    volume.close();
}

/// A write by an unprivileged user clears the set-id bits; a write by root does not (write(2), inode(7)).
#[test]
fn set_id_bits_are_cleared_by_writes_of_others() {
    let Some(volume) = volume() else { return };
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can be somebody else");
        return;
    }
    for length in [10usize, 500_000] {
        let path = volume.join(format!("f{length}"));
        fs::write(&path, vec![1; length]).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"root").unwrap();
        assert_eq!(mode(&path), 0o6777, "root's write leaves them");
        for change in ["printf x >> \"$1\"", "printf x 1<> \"$1\"", "truncate -s 5 \"$1\"", ": > \"$1\""] {
            fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
            let script = format!("setpriv --reuid=12345 --regid=12345 --clear-groups sh -ec '{change}' sh \"$1\"");
            shell(&script, &[&path]);
            assert_eq!(mode(&path), 0o777, "{change}, {length} bytes");
        }
        fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
        chown(&path, Some(77), Some(77)).unwrap();
        assert_eq!(mode(&path), 0o777, "chown, {length} bytes");
    }
    volume.close();
}

/// Permissions are those of the caller's user, group and supplementary groups.
#[test]
fn permissions_follow_the_caller() {
    let Some(volume) = volume() else { return };
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can be somebody else");
        return;
    }
    fs::set_permissions(volume.point.path(), Permissions::from_mode(0o755)).unwrap();
    let directory = volume.join("team");
    fs::create_dir(&directory).unwrap();
    chown(&directory, Some(0), Some(4321)).unwrap();
    fs::set_permissions(&directory, Permissions::from_mode(0o2770)).unwrap();
    let as_user = |groups: &str, script: &str| {
        let command = format!("setpriv --reuid=1111 --regid=1111 {groups} sh -c '{script}' sh \"$1\" 2>&1 || true");
        shell(&command, &[&directory])
    };
    assert!(as_user("--clear-groups", "ls \"$1\"").contains("Permission denied"));
    assert!(as_user("--clear-groups", "touch \"$1/x\"").contains("Permission denied"));
    assert_eq!(as_user("--groups=4321", "echo hello > \"$1/x\" && cat \"$1/x\""), "hello\n");
    let made = fs::metadata(directory.join("x")).unwrap();
    assert_eq!((made.uid(), made.gid()), (1111, 4321), "a set-group-id directory gives its group on");
    assert_eq!(as_user("--groups=4321", "mkdir \"$1/sub\" && ln \"$1/x\" \"$1/y\" && mv \"$1/y\" \"$1/sub/z\""), "");
    assert!(as_user("--groups=4321", "chown 0 \"$1/x\"").contains("not permitted"));
    // The sticky bit: only owners may remove.
    let shared = volume.join("tmp");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, Permissions::from_mode(0o1777)).unwrap();
    fs::write(shared.join("roots"), "").unwrap();
    let script = "setpriv --reuid=1111 --regid=1111 --clear-groups rm -f \"$1\" 2>&1 || true";
    assert!(shell(script, &[&shared.join("roots")]).contains("not permitted"));
    volume.close();
}

/// Copies by `cp -a`, tar and rsync keep the times of their sources, including those of directories, small and split
/// ones.
#[test]
fn copies_keep_the_times_of_directories() {
    let Some(volume) = volume() else { return };
    let from = volume.join("from");
    shell(
        "mkdir -p \"$1/small/below\" \"$1/large\"; cd \"$1/large\"; for n in $(seq 400); do : > $n; done; cd ..; : > small/f
        touch -d @1000000000.25 small/below large; touch -d @8000000000.5 small; touch -d @1100000000.125 .",
        &[&from],
    );
    let times = "cd \"$1\"; find . -type d -printf '%p %T@\\n' | sort";
    let expected = shell(times, &[&from]);
    assert!(expected.contains("./small 8000000000.5") && expected.contains("./large 1000000000.25"), "{expected}");
    let copies = [
        ("cp", "cp -a \"$1\" \"$2\""),
        ("tar", "mkdir \"$2\"; tar -C \"$1\" --format=posix -cf - . | tar -C \"$2\" -xpf -"),
        ("rsync", "if command -v rsync > /dev/null; then rsync -a \"$1/\" \"$2/\"; else cp -a \"$1\" \"$2\"; fi"),
    ];
    for (how, command) in copies {
        let copy = volume.join(how);
        shell(command, &[&from, &copy]);
        assert_eq!(shell(times, &[&copy]), expected, "{how}");
        // A change is visible, whatever time was set.
        shell("touch \"$1/small/new\"; rm \"$1/large/7\"; rmdir \"$1/small/below\"", &[&copy]);
        for part in ["small", "large"] {
            let shown = statx(CWD, copy.join(part), AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS).unwrap();
            let (mtime, ctime) = (shown.stx_mtime, shown.stx_ctime);
            assert_eq!((mtime.tv_sec, mtime.tv_nsec), (ctime.tv_sec, ctime.tv_nsec), "{how}: {part}");
            assert!((1_100_000_001..8_000_000_000).contains(&mtime.tv_sec), "{how}: {part}: {}", mtime.tv_sec);
        }
    }
    volume.close();
}

/// The set-id bits of a file are also cleared when an unprivileged user writes through an open descriptor past the page
/// cache.
#[test]
fn set_id_bits_are_cleared_by_descriptor_writes() {
    let Some(volume) = volume() else { return };
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can be somebody else");
        return;
    }
    fs::set_permissions(volume.path(), Permissions::from_mode(0o777)).unwrap();
    for length in [10, 500_000] {
        let path = volume.join(format!("f{length}"));
        let script = format!(
            "exec 3> \"$1\"; head -c {length} /dev/zero >&3; echo; read go; printf x >&3; echo; read go; printf x >&3"
        );
        let mut writer = Command::new("setpriv")
            .args(["--reuid=12345", "--regid=12345", "--clear-groups", "sh", "-ec", &script, "sh"])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut go, mut done) = (writer.stdin.take().unwrap(), writer.stdout.take().unwrap());
        let mut line = [0];
        for _ in 0..2 {
            done.read_exact(&mut line).unwrap();
            chown(&path, Some(0), Some(0)).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o6755)).unwrap();
            go.write_all(b"\n").unwrap();
        }
        assert!(writer.wait().unwrap().success());
        assert_eq!(mode(&path), 0o755, "{length} bytes");
        assert_eq!(fs::metadata(&path).unwrap().len(), length + 2);
    }
    volume.close();
}

/// chown(2) with neither owner nor group keeps the set-id bits of directories, and clears those of files only if called
/// by their owner or root, as local file systems do.
#[test]
fn chown_to_nobody_does_not_affect_others() {
    let Some(volume) = volume() else { return };
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can be somebody else");
        return;
    }
    fs::set_permissions(volume.path(), Permissions::from_mode(0o755)).unwrap();
    let (directory, file) = (volume.join("d"), volume.join("f"));
    fs::create_dir(&directory).unwrap();
    fs::write(&file, b"program").unwrap();
    let chown_as = |user: u32, path: &Path| {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        std::thread::scope(|scope| {
            let call = move || {
                // The raw system call, because libc's function would change the user of the whole process.
                let set = unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) };
                assert_eq!(set, 0);
                // The kernel decides the result.
                unsafe { libc::chown(path.as_ptr(), u32::MAX, u32::MAX) };
            };
            scope.spawn(call).join().unwrap();
        });
    };
    for (user, path, owner, wanted) in [
        (0, &directory, 0, 0o2775),
        (0, &file, 4321, 0o755),
        (4321, &directory, 4321, 0o2775),
        (1234, &directory, 4321, 0o2775),
        (1234, &file, 4321, 0o4755),
        (4321, &file, 4321, 0o755),
    ] {
        chown(path, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(path, Permissions::from_mode(if path == &file { 0o4755 } else { 0o2775 })).unwrap();
        chown_as(user, path);
        assert_eq!(mode(path), wanted, "by {user}, of {owner}: {}", path.display());
    }
    let local = volume.store.path().join("f");
    fs::write(&local, b"program").unwrap();
    for bits in [0o4755, 0o6755, 0o2745, 0o6745] {
        let [here, there] = [&file, &local].map(|path| {
            chown(path, Some(4321), Some(4321)).unwrap();
            fs::set_permissions(path, Permissions::from_mode(bits)).unwrap();
            chown(path, None, None).unwrap();
            mode(path)
        });
        assert_eq!(here, there, "by root, {bits:o}");
    }
    volume.close();
}

/// Promise: on a volume owned by a user, who can write any content to its tables, root's mount runs no set-user-id
/// programs and opens no devices; on root's own volume it does.
#[test]
fn set_uid_is_ignored_on_another_users_volume() {
    use rustix::fs::StatVfsMountFlags;
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let both = StatVfsMountFlags::NOSUID | StatVfsMountFlags::NODEV;
    for (volume, expected) in [(Volume::new(), StatVfsMountFlags::empty()), (Volume::owned_by(4711), both)] {
        let flags = rustix::fs::statvfs(volume.path()).unwrap().f_flag;
        assert_eq!(flags & both, expected);
        volume.close();
    }
}

/// Changes files through mappings and sets their times in between. `msync`: of the mapping, before it ends. A store after
/// an msync has another time than the one that was set before.
const MAPPED_STORES: &str = r#"
exec /usr/bin/python3 - "$1" <<'PY'
import mmap, os, sys
os.chdir(sys.argv[1])
SET = 7_000_000_005
def check(name, what, stays):
    mtime = os.stat(name).st_mtime_ns
    assert (mtime == SET) == stays, (name, what, mtime)
for size in 5_000, 60_000, 300_000:
    for end in "msync", "munmap", "close":
        name = f"{size} {end}"
        with open(name, "wb") as file:
            file.write(b"a" * size)
        descriptor = os.open(name, os.O_RDWR)
        mapped = mmap.mmap(descriptor, size)
        mapped[10:14] = b"mmap"
        os.utime(name, ns=(SET, SET))
        check(name, "set", True)
        if end == "msync":
            mapped.flush()
            check(name, "msync", True)
            mapped[20:24] = b"more"
            mapped.flush()
            check(name, "a later store", False)
            os.utime(name, ns=(SET, SET))
        if end == "close":
            os.close(descriptor)
        mapped.close()
        if end != "close":
            os.close(descriptor)
        check(name, end, True)
        with open(name, "rb") as file:
            assert file.read(14)[10:] == b"mmap", name
        check(name, "read", True)
PY
"#;

/// Promise: an mtime that was set stays when the kernel writes pages that were changed through a mapping before.
#[test]
fn set_mtime_stays_after_a_mapped_store() {
    if !can_mount() {
        return;
    }
    for list in ["", "nopassthrough", "nopassthrough,direct_io"] {
        let volume = Volume::with_options(list);
        shell(MAPPED_STORES, &[volume.path()]);
        volume.close();
        let (volume, beside) = Volume::mounted_twice(list);
        shell(MAPPED_STORES, &[&beside.join(".")]);
        beside.close();
        volume.close();
    }
}
