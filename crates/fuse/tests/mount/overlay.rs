//! overlayfs with a volume as its upper directory.

use crate::fixture::{Volume, can_mount, shell, volume};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// An overlay with `lower` below and `upper` and `work` of a volume above. Unmounted on drop.
struct Overlay {
    at: PathBuf,
}

impl Overlay {
    fn mount(volume: &Volume, base: &tempfile::TempDir) -> Overlay {
        let [lower, at] = ["lower", "merged"].map(|name| base.path().join(name));
        let (upper, work) = (volume.join("upper"), volume.join("work"));
        for directory in [&lower, &at, &upper, &work] {
            fs::create_dir_all(directory).unwrap();
        }
        let mount = "mount -t overlay -o lowerdir=\"$1\",upperdir=\"$2\",workdir=\"$3\" varve-test \"$4\"";
        shell(mount, &[&lower, &upper, &work, &at]);
        Overlay { at }
    }

    fn join(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }

    fn unmount(self) {
        shell("umount \"$1\"", &[&self.at]);
        std::mem::forget(self);
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.at, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Promise: a volume can be the upper directory: files are copied up, made, removed and renamed, and it is all there
/// after a new mount. overlayfs refuses a FUSE mount that lacks d_type, xattrs or RENAME_WHITEOUT.
#[test]
fn overlayfs_takes_a_volume_as_upper_directory() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root mounts an overlay here");
    }
    let Some(volume) = volume() else { return };
    let base = tempfile::tempdir().unwrap();
    let lower = base.path().join("lower");
    fs::create_dir_all(lower.join("tree/deep")).unwrap();
    for (name, content) in [("kept", "kept"), ("changed", "old"), ("removed", "x"), ("moved", "moved")] {
        fs::write(lower.join(name), content).unwrap();
    }
    fs::write(lower.join("tree/deep/file"), "deep").unwrap();
    let large = vec![5u8; 300_000];
    fs::write(lower.join("large"), &large).unwrap();

    let overlay = Overlay::mount(&volume, &base);
    fs::write(overlay.join("new"), "new").unwrap();
    fs::write(overlay.join("changed"), "changed").unwrap();
    fs::OpenOptions::new().append(true).open(overlay.join("large")).and_then(|file| file.set_len(200_000)).unwrap();
    fs::remove_file(overlay.join("removed")).unwrap();
    fs::rename(overlay.join("moved"), overlay.join("elsewhere")).unwrap();
    fs::remove_dir_all(overlay.join("tree")).unwrap();
    fs::create_dir(overlay.join("tree")).unwrap();
    fs::write(overlay.join("tree/fresh"), "fresh").unwrap();
    let check = |overlay: &Overlay| {
        let mut names: Vec<_> =
            fs::read_dir(&overlay.at).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, ["changed", "elsewhere", "kept", "large", "new", "tree"]);
        for (name, content) in [("new", "new"), ("changed", "changed"), ("kept", "kept"), ("elsewhere", "moved")] {
            assert_eq!(fs::read_to_string(overlay.join(name)).unwrap(), content);
        }
        assert_eq!(fs::read(overlay.join("large")).unwrap(), large[..200_000]);
        let inside: Vec<_> =
            fs::read_dir(overlay.join("tree")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(inside, ["fresh"], "the directory below is hidden");
    };
    check(&overlay);
    overlay.unmount();
    for name in ["removed", "moved"] {
        let whiteout = fs::symlink_metadata(volume.join("upper").join(name)).unwrap();
        assert!(whiteout.file_type().is_char_device() && whiteout.rdev() == 0, "{name}");
    }
    assert_eq!(fs::read_to_string(lower.join("changed")).unwrap(), "old");
    let again = Overlay::mount(&volume, &base);
    check(&again);
    again.unmount();
    volume.close();
}

/// Promise: so can the volume of a user in a user namespace of that user, where the overlay's processes have other ids and no
/// capabilities.
#[test]
fn overlayfs_takes_a_users_volume_in_a_user_namespace() {
    if !rustix::process::geteuid().is_root() || !can_mount() {
        return eprintln!("skipped: only root becomes another user");
    }
    let volume = Volume::owned_by(47111);
    let base = tempfile::tempdir().unwrap();
    fs::create_dir(base.path().join("lower")).unwrap();
    fs::create_dir(base.path().join("merged")).unwrap();
    for (name, content) in [("changed", "old"), ("removed", "x"), ("moved", "moved")] {
        fs::write(base.path().join("lower").join(name), content).unwrap();
    }
    shell("chown -R 47111:47111 \"$1\"", &[base.path()]);
    let inside = r#"
        mkdir "$1/upper" "$1/work"
        mount -t overlay -o "userxattr,lowerdir=$2/lower,upperdir=$1/upper,workdir=$1/work" varve-test "$2/merged"
        cd "$2/merged"
        echo more >>changed; rm removed; mv moved elsewhere; mkdir tree; echo new >tree/new
        # Without capabilities.
        setpriv --inh-caps=-all --bounding-set=-all sh -ec 'echo plain >tree/plain; mkdir tree/sub; rmdir tree/sub'
        test "$(ls | tr '\n' ' ')" = "changed elsewhere tree "
        cd /; umount "$2/merged"
        mount -t overlay -o "userxattr,lowerdir=$2/lower,upperdir=$1/upper,workdir=$1/work" varve-test "$2/merged"
        cat "$2/merged/changed" "$2/merged/tree/plain"
    "#;
    let as_user = "setpriv --reuid 47111 --regid 47111 --clear-groups unshare -Urm sh -ec \"$3\" sh \"$1\" \"$2\"";
    let shown = shell(as_user, &[volume.path(), base.path(), Path::new(inside)]);
    assert_eq!(shown, "oldmore\nplain\n");
    assert!(fs::symlink_metadata(volume.join("upper/removed")).unwrap().file_type().is_char_device());
    assert_eq!(fs::read_to_string(base.path().join("lower/changed")).unwrap(), "old");
    volume.close();
}
