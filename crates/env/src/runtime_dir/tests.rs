//! The choice of the directory, and its checks. Tests with other users: `crates/cli/tests/trust_environment`.

use super::*;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().mode() & 0o7777
}

#[test]
fn directory_follows_from_process_owner_and_environment() {
    let xdg = || Some(PathBuf::from("/run/user/1"));
    for (process, files, xdg, expected) in [
        (0, 0, xdg(), "/run/varve"),
        (0, 0, None, "/run/varve"),
        (0, 47111, xdg(), "/run/varve/47111"),
        (47111, 47111, xdg(), "/run/user/1/varve"),
        (47111, 47111, None, "/tmp/varve-47111"),
    ] {
        assert_eq!(choose(process, files, xdg), Path::new(expected));
    }
}

#[test]
fn only_a_closed_directory_of_the_user_is_private() {
    let own = rustix::process::geteuid().as_raw();
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("run");
    std::fs::create_dir(&directory).unwrap();
    for (mode, is_one) in [(0o700, true), (0o750, false), (0o701, false), (0o777, false)] {
        set_mode(&directory, mode);
        assert_eq!(is_private(&directory, own), is_one, "{mode:o}");
    }
    set_mode(&directory, 0o700);
    assert!(!is_private(&directory, own + 1), "another user's");
    let link = scratch.path().join("link");
    symlink(&directory, &link).unwrap();
    assert!(!is_private(&link, own), "a link");
    assert!(!is_private(&scratch.path().join("absent"), own));
    assert!(!is_private(Path::new("."), own), "relative");
}

#[test]
fn prepared_directory_has_its_mode() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("a/sockets");
    prepare(&directory, 0o700).unwrap();
    assert_eq!(mode(&directory), 0o700);
    set_mode(&directory, 0o755);
    prepare(&directory, 0o700).unwrap();
    assert_eq!(mode(&directory), 0o755, "the user's choice");
    set_mode(&directory, 0o775);
    assert!(matches!(prepare(&directory, 0o700), Err(RuntimeDirError::Writable { .. })));
}

#[test]
fn directory_of_our_name_is_closed_again() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("varve-1");
    std::fs::create_dir(&directory).unwrap();
    set_mode(&directory, 0o777);
    prepare(&directory, 0o700).unwrap();
    assert_eq!(mode(&directory), 0o700);
}

#[test]
fn links_and_files_are_no_directories() {
    let scratch = tempfile::tempdir().unwrap();
    let [link, dangling, file] = ["link", "dangling", "file"].map(|name| scratch.path().join(name));
    symlink(scratch.path(), &link).unwrap();
    symlink("nowhere", &dangling).unwrap();
    std::fs::write(&file, "").unwrap();
    for path in [link, dangling, file] {
        let refused = prepare(&path, 0o700).unwrap_err();
        assert!(matches!(refused, RuntimeDirError::Kind { .. }), "{refused}");
        assert!(refused.to_string().contains("--unix-dir"), "{refused}");
    }
}

#[test]
fn directory_of_an_owner_lies_below_roots() {
    let scratch = tempfile::tempdir().unwrap();
    let run = scratch.path().join("varve");
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    let made = make_below(&run, Owner { uid, gid }).unwrap();
    assert_eq!(made, run.join(uid.to_string()));
    assert_eq!((mode(&run), mode(&made)), (0o755, 0o700));
    assert_eq!(make_below(&run, Owner { uid, gid }).unwrap(), made);
    std::fs::remove_dir(&made).unwrap();
    symlink("/", &made).unwrap();
    assert!(make_below(&run, Owner { uid, gid }).is_err());
}
