//! Promises of the targets: `--via` is parsed, a directory performs its operations, and errors are distinguished.

use super::*;

#[test]
fn via_is_parsed_and_printed() {
    for text in ["library:/stores/v", "library:file:///stores/v", "mount:/mnt/v", "path:/tmp/a:b"] {
        assert_eq!(text.parse::<Via>().unwrap().to_string(), text);
    }
    for text in ["", "path", "path:", "/tmp", "nfs:/tmp"] {
        assert!(matches!(text.parse::<Via>(), Err(Error::Usage(_))), "{text:?}");
    }
}

/// Promise: root measures only where no other user can redirect it.
#[test]
fn root_refuses_paths_that_others_can_change() {
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: it needs root to give directories to other users");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    for directory in ["own/below", "open/below", "sticky/below", "other/below", "ways"] {
        std::fs::create_dir_all(at(directory)).unwrap();
    }
    let permit = |path: &str, mode| std::fs::set_permissions(at(path), std::fs::Permissions::from_mode(mode)).unwrap();
    permit("open", 0o775);
    permit("sticky", 0o1777);
    chown(at("other"), Some(65_534), None).unwrap();
    for (target, link) in [("../own", "good"), ("../other", "bad"), ("bad/below", "chain"), ("loop", "loop")] {
        symlink(target, at("ways").join(link)).unwrap();
    }
    symlink("../own", at("ways/planted")).unwrap();
    lchown(at("ways/planted"), Some(65_534), None).unwrap();
    let check = |path: &str| check_trusted(&Via::Path(at(path)));
    for good in ["own/below", "sticky/below", "sticky", "ways/good/below", "ways/good/../own/./below"] {
        check(good).unwrap();
    }
    for bad in ["other", "other/below", "open/below", "ways/bad/below", "ways/chain", "ways/planted/below"] {
        let error = check(bad).unwrap_err();
        assert!(matches!(error, Error::Usage(_)), "{bad}: {error:?}");
        assert!(error.to_string().ends_with("; run it as the user who owns the directory"), "{error}");
    }
    assert!(matches!(check("ways/loop").unwrap_err(), Error::Io { .. }));
    assert!(matches!(check("missing").unwrap_err(), Error::Io { .. }));
    assert!(
        check_fresh(&Via::Mount(at("other/below")), None).unwrap_err().to_string().contains("as the user who owns")
    );
    assert!(open(&Via::Path(at("other/below"))).err().unwrap().to_string().contains("as the user who owns"));
    // Directories that an earlier run left, as that of `mdtest -C`.
    std::fs::create_dir(at("own/kept")).unwrap();
    std::fs::remove_dir(at("own/below")).unwrap();
    check_fresh(&Via::Path(at("own")), Some("kept")).unwrap();
    chown(at("own/kept"), Some(65_534), None).unwrap();
    assert!(check_fresh(&Via::Path(at("own")), Some("kept")).is_err());
}

#[test]
fn directory_target_performs_each_operation() {
    let root = tempfile::tempdir().unwrap();
    let target = DirectoryTarget::open("path", root.path()).unwrap();
    let mut client = target.connect().unwrap();
    client.make_directory("d").unwrap();
    client.enter("d").unwrap();
    client.create("f", b"content").unwrap();
    assert_eq!(client.create("f", b"").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(client.stat("f").unwrap(), 7);
    assert_eq!(client.read("f", &mut [0; 3]).unwrap(), 7);
    assert_eq!(std::fs::read(root.path().join("d/f")).unwrap(), b"content");
    client.unlink("f").unwrap();
    assert!(missing(&client.stat("f").unwrap_err()));
    client.make_directory("e").unwrap();
    client.remove_directory("e").unwrap();
    client.create("left", b"").unwrap();
    client.remove_tree("d").unwrap();
    client.remove_tree("d").unwrap();
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn plain_directory_is_rejected_as_mount() {
    let root = tempfile::tempdir().unwrap();
    let error = open(&Via::Mount(root.path().to_owned())).err().unwrap();
    assert!(error.to_string().contains("is not on a FUSE mount"), "{error}");
    assert!(open(&Via::Path(root.path().join("missing"))).is_err());
}
