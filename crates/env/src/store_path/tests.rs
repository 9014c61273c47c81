use super::*;
use crate::disk;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

fn root() -> (tempfile::TempDir, StoreRoot, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let (store, outside) = (directory.path().join("store"), directory.path().join("outside"));
    std::fs::create_dir_all(store.join("a/b/c")).unwrap();
    std::fs::create_dir_all(outside.join("b/c")).unwrap();
    std::fs::write(outside.join("b/c/file"), b"secret").unwrap();
    let root = StoreRoot::hold(&store).unwrap();
    (directory, root, outside)
}

fn is_link_refusal(error: &io::Error) -> bool {
    error.to_string().contains("symlink")
}

#[test]
fn a_file_is_made_read_and_removed() {
    let (_directory, root, _) = root();
    for root in [root.clone(), StoreRoot::at(root.path())] {
        let path = root.join("a/b/c/file");
        disk::replace(&path, b"content").unwrap();
        assert_eq!(path.read().unwrap(), b"content");
        assert_eq!(std::fs::read(path.path()).unwrap(), b"content");
        let names: Vec<_> = path.parent().read_dir().unwrap().iter().map(|e| e.file_name().to_owned()).collect();
        assert_eq!(names, ["file"]);
        assert!(path.is_file() && !path.is_dir() && path.parent().is_dir());
        disk::remove_file(&path).unwrap();
        assert!(!path.exists() && !path.try_exists().unwrap());
    }
}

/// Promise: a link is not followed at any component of a path, relative or absolute, inside or outside of the store.
#[test]
fn a_link_at_any_component_is_refused() {
    for component in ["a", "a/b", "a/b/c", "a/b/c/file"] {
        for inside in [false, true] {
            let (_directory, root, outside) = root();
            let place = root.path().join(component);
            let moved = root.path().join("moved");
            if place.exists() {
                std::fs::rename(&place, &moved).unwrap();
            } else {
                std::fs::write(&moved, b"moved").unwrap();
            }
            let below = Path::new(component).strip_prefix("a").unwrap();
            let target = if inside { moved } else { outside.join(below) };
            symlink(&target, &place).unwrap();
            let path = root.join("a/b/c/file");
            let errors = [
                path.open().map(drop),
                path.read().map(drop),
                disk::File::options().write(true).create().open(&path).map(drop),
                disk::File::options().write(true).create_empty().open(&path).map(drop),
                disk::read_text(&path).map(drop),
                disk::copy_whole(&outside.join("b/c/file"), &path),
            ];
            for refused in errors {
                let refused = refused.expect_err(component);
                assert!(is_link_refusal(&refused), "{component}: {refused}");
            }
            if component != "a/b/c/file" {
                // A link as last component is itself replaced or removed.
                let errors = [
                    disk::replace(&path, b"planted"),
                    disk::remove_file(&path),
                    disk::create_directories(&path),
                    disk::rename(&path, &root.join("renamed")),
                    disk::link(&path, &root.join("linked")),
                    path.read_dir().map(drop),
                    path.symlink_metadata().map(drop),
                ];
                assert!(errors.iter().all(Result::is_err), "{component}: {errors:?}");
            }
            assert_eq!(std::fs::read(outside.join("b/c/file")).unwrap(), b"secret");
            assert_eq!(std::fs::read_dir(outside.join("b/c")).unwrap().count(), 1);
        }
    }
}

#[test]
fn a_link_is_replaced_and_removed_as_a_name() {
    let (_directory, root, outside) = root();
    let path = root.join("a/link");
    symlink(outside.join("b/c/file"), path.path()).unwrap();
    disk::replace(&path, b"own").unwrap();
    assert_eq!(path.read().unwrap(), b"own");
    disk::remove_file(&path).unwrap();
    symlink(&outside, path.path()).unwrap();
    disk::remove_tree(&path).unwrap();
    symlink(&outside, path.path()).unwrap();
    disk::remove_tree(&root.join("a")).unwrap();
    assert!(!root.join("a").exists());
    assert_eq!(std::fs::read(outside.join("b/c/file")).unwrap(), b"secret");
}

#[test]
fn special_files_are_refused_at_once() {
    use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
    for kind in ["FIFO", "socket", "device", "directory"] {
        let (_directory, root, _) = root();
        let path = root.join("a/special");
        let node = |kind| mknodat(CWD, path.path(), kind, Mode::from_raw_mode(0o666), makedev(1, 3));
        match kind {
            "FIFO" => node(FileType::Fifo).unwrap(),
            "socket" => drop(std::os::unix::net::UnixListener::bind(path.path()).unwrap()),
            "device" if rustix::process::geteuid().is_root() => node(FileType::CharacterDevice).unwrap(),
            "device" => continue,
            _ => std::fs::create_dir(path.path()).unwrap(),
        }
        let options = disk::File::options;
        for (read, write) in [(true, false), (false, true), (true, true)] {
            for options in [options(), options().create(), options().create_empty()] {
                let refused = options.read(read).write(write).open(&path).expect_err(kind);
                let text = refused.to_string();
                let is_directory = kind == "directory" && refused.raw_os_error() == Some(libc::EISDIR);
                assert!(is_directory || (text.contains(kind) && text.contains("a/special")), "{kind}: {text}");
            }
        }
        assert!(options().write(true).create_new().open(&path).is_err(), "{kind}");
    }
}

#[test]
fn names_above_the_root_are_refused() {
    let (directory, root, outside) = root();
    for below in ["..", "../outside/b/c/file", "a/../../outside/b/c/file", "/etc/passwd"] {
        let path = root.join(below);
        let errors = [
            path.open().map(drop),
            path.symlink_metadata().map(drop),
            disk::remove_file(&path),
            disk::replace(&path, b"planted"),
        ];
        assert!(errors.iter().all(Result::is_err), "{below}: {errors:?}");
    }
    assert_eq!(root.join(outside.join("b/c/file")).open().unwrap_err().kind(), io::ErrorKind::InvalidInput);
    assert_eq!(std::fs::read(outside.join("b/c/file")).unwrap(), b"secret");
    drop(directory);
}

/// Promise: while another process keeps exchanging a directory for a link, nothing outside is read, changed or created.
#[test]
fn a_directory_swapped_for_a_link_leads_nowhere() {
    const ROUNDS: u32 = 3000;
    let (_directory, root, outside) = root();
    let (place, aside) = (root.path().join("a"), root.path().join("aside"));
    std::fs::write(place.join("b/c/file"), b"inside").unwrap();
    let link = root.path().join("link");
    symlink(&outside, &link).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                std::fs::rename(&place, &aside).unwrap();
                std::fs::rename(&link, &place).unwrap();
                std::fs::rename(&place, &link).unwrap();
                std::fs::rename(&aside, &place).unwrap();
            }
        });
        let path = root.join("a/b/c/file");
        for _ in 0..ROUNDS {
            if let Ok(content) = path.read() {
                assert_eq!(content, b"inside");
            }
            let _ = disk::replace(&path, b"inside");
            let _ = disk::create_directory(&root.join("a/b/c/made"));
            let _ = disk::remove_tree(&root.join("a/b/c/made"));
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(std::fs::read(outside.join("b/c/file")).unwrap(), b"secret");
    assert_eq!(std::fs::read_dir(outside.join("b/c")).unwrap().count(), 1);
    assert_eq!(std::fs::read_dir(outside.join("b")).unwrap().count(), 1);
}

#[test]
fn a_held_root_is_followed_when_it_moves() {
    let (directory, root, _) = root();
    let anew = StoreRoot::at(root.path());
    std::fs::rename(root.path(), directory.path().join("moved")).unwrap();
    std::fs::create_dir(root.path()).unwrap();
    disk::replace(&root.join("a/file"), b"content").unwrap();
    assert!(directory.path().join("moved/a/file").exists());
    assert!(!anew.join("a").exists());
}

#[test]
fn messages_escape_the_path() {
    let path = StoreRoot::at("/store").join("a\u{1b}[2J");
    assert_eq!(path.display().to_string(), "/store/a\\u{1b}[2J");
}

/// A test with a FUSE mount needs a server, so this test uses mounts of other kinds: they may be crossed.
#[test]
fn other_mounts_inside_may_be_crossed() {
    let proc = StoreRoot::hold("/").unwrap();
    if !Path::new("/proc/self").exists() {
        return;
    }
    assert!(proc.join("proc/version").open().is_ok());
    assert!(proc.join("proc").read_dir().is_ok_and(|entries| !entries.is_empty()));
}
