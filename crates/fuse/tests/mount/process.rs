//! The mount as a whole: its statistics, its end, and an unprivileged user.

use crate::fixture::{MountPoint, Volume, can_mount, copy_program, is_mounted, shell, volume};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;
use varve_client::Timeouts;
use varve_fuse::unmount::{Unwritten, unmount};
use varve_fuse::{Error, MountOptions, null};

/// `varve stats` and `varve info` get their data from the mount alone.
#[test]
fn mount_reports_its_process_and_statistics() {
    let Some(volume) = volume() else { return };
    fs::write(volume.join("small"), "x").unwrap();
    fs::write(volume.join("large"), vec![1; 100_000]).unwrap();
    let stats = varve_fuse::stats(volume.path()).unwrap();
    assert!(stats.contains(&format!("\"pid\":{}", std::process::id())), "{stats}");
    assert!(stats.contains("\"operation\":\"create\""), "{stats}");
    let of = |name: &str| varve_fuse::info(&volume.join(name)).unwrap();
    assert!(of("small").contains("\"place\":\"row\""), "{}", of("small"));
    let large = of("large");
    let inode = format!("{:016x}", fs::metadata(volume.join("large")).unwrap().ino());
    assert!(large.contains("\"place\":\"backing file\"") && large.contains(&inode), "{large}");
    assert!(of("").contains("\"kind\":\"directory\""), "{}", of(""));
    assert!(matches!(varve_fuse::stats(&volume.join("small")), Err(Error::NotAMount(_))));
    assert!(matches!(varve_fuse::info(Path::new("/proc")), Err(Error::NotOnVolume(_))));
    volume.close();
}

/// Data written before an unmount is there after the next mount. Here the process outlives its mount, so `varve umount`
/// stops waiting for it, and reports that.
#[test]
fn unmounting_from_outside_makes_everything_durable() {
    let Some(volume) = volume() else { return };
    fs::write(volume.join("kept"), "kept").unwrap();
    let ended = unmount(volume.path(), Duration::from_millis(10), Unwritten::Keep, &|_| {});
    assert!(matches!(ended, Err(Error::StillRunning { pid, .. }) if pid == std::process::id()), "{ended:?}");
    assert!(!is_mounted(volume.path()));
    let Volume { point, .. } = volume;
    let again = unmount(point.path(), Duration::ZERO, Unwritten::Keep, &|_| {});
    assert!(matches!(again, Err(Error::NotMounted(_))), "{again:?}");
}

/// A path inside a mount is not its mount point.
#[test]
fn only_the_mount_point_is_unmounted() {
    let Some(volume) = volume() else { return };
    fs::create_dir(volume.join("inside")).unwrap();
    let ended = unmount(&volume.join("inside"), Duration::ZERO, Unwritten::Keep, &|_| {});
    assert!(matches!(ended, Err(Error::InsideMount { ref mount, .. }) if mount.ends_with(volume.path())), "{ended:?}");
    volume.close();
}

/// A user who is not root mounts through fusermount3, for themselves alone, and unmounts again.
///
/// The test starts itself again as that user, in a mount namespace of its own whose `/dev/fuse` everyone may open (as
/// on machines with users), so that nothing is left behind in any case.
#[test]
fn an_ordinary_user_mounts_through_fusermount3() {
    if !can_mount() {
        return;
    }
    if std::env::var_os(INNER).is_some() {
        return as_ordinary_user();
    }
    if !rustix::process::geteuid().is_root() {
        return as_ordinary_user();
    }
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o777)).unwrap();
    let program = directory.path().join("test");
    copy_program(&std::env::current_exe().unwrap(), &program);
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let script = format!(
        "unshare --mount sh -ec 'mount -t tmpfs none \"$1\"; mknod -m 666 \"$1/fuse\" c 10 229; \
         mount --bind \"$1/fuse\" /dev/fuse; cd \"$2\"; export TMPDIR=\"$2\" HOME=\"$2\" {INNER}=1; \
         exec setpriv --reuid=2 --regid=2 --clear-groups \
         \"$2/test\" --exact process::an_ordinary_user_mounts_through_fusermount3 --nocapture' sh \"$1\" \"$2\" 2>&1"
    );
    let device = tempfile::tempdir().unwrap();
    let output = shell(&script, &[device.path(), directory.path()]);
    assert!(output.contains("1 passed"), "{output}");
}

const INNER: &str = "VARVE_TEST_AS_USER";

fn as_ordinary_user() {
    let point = MountPoint::new();
    let options = MountOptions::new("null");
    let mounted = null::mount(point.path(), Timeouts::default(), &options).unwrap();
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.contains(point.path().to_str().unwrap())).unwrap();
    assert!(line.contains("nosuid,nodev") && line.contains("fuse.varve null"), "{line}");
    assert!(!line.contains("allow_other"), "{line}");
    fs::write(point.join("f"), "x").unwrap();
    mounted.unmount().unwrap();

    let volume = Volume::new();
    fs::create_dir(volume.join("d")).unwrap();
    fs::write(volume.join("d/small"), "small").unwrap();
    fs::write(volume.join("d/large"), vec![8; 200_000]).unwrap();
    assert_eq!(fs::read_to_string(volume.join("d/small")).unwrap(), "small");
    assert!(fs::read(volume.join("d/large")).unwrap() == vec![8; 200_000]);
    assert_eq!(fs::metadata(volume.join("d/small")).unwrap().uid(), rustix::process::geteuid().as_raw());
    volume.close();

    let mut everyone = MountOptions::new("null");
    everyone.parse("allow_other").unwrap();
    match null::mount(point.path(), Timeouts::default(), &everyone) {
        // Unless /etc/fuse.conf allows it.
        Err(Error::Helper(text)) => assert!(text.contains("user_allow_other"), "{text}"),
        Ok(mounted) => mounted.unmount().unwrap(),
        Err(error) => panic!("{error}"),
    }
}

/// Real programs on a mount: an archive of a tree is extracted unchanged, and rsync finds nothing to do.
#[test]
fn trees_are_copied_completely() {
    let Some(volume) = volume() else { return };
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let copy = volume.join("copy");
    shell(
        "cp -a \"$1\" \"$2\"; diff -r \"$1\" \"$2\"; cd \"$2\"; tar cf ../all.tar .; mkdir ../back; \
         tar xf ../all.tar -C ../back; diff -r \"$1\" ../back; find . -type f -exec touch {} +; rm -r ../back",
        &[source, &copy],
    );
    volume.close();
}

/// A mount that was detached while in use does not affect a later mount at the same path.
#[test]
fn unmount_affects_only_its_own_mount() {
    if !can_mount() {
        return;
    }
    let mut volume = Volume::new();
    let open = std::fs::File::create_new(volume.join("f")).unwrap();
    let unmounter = volume.unmounter();
    rustix::mount::unmount(volume.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
    let mut options = varve_fuse::MountOptions::new("null");
    options.threads = 1;
    let other = varve_fuse::null::mount(volume.path(), varve_client::Timeouts::default(), &options).unwrap();
    assert!(unmounter.is_gone());
    unmounter.unmount_if_free().unwrap();
    unmounter.detach().unwrap();
    assert!(crate::fixture::is_mounted(volume.path()), "the other mount");
    drop(open);
    volume.drop_mount();
    assert!(crate::fixture::is_mounted(volume.path()), "the other mount, when the first has ended");
    other.unmount().unwrap();
}
