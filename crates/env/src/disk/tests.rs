use super::*;
use crate::store_path::StorePath;
use std::sync::Barrier;

const PRIMITIVES: [Exclusive; 2] = [Exclusive::RenameNoReplace, Exclusive::Link];

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The probe selects a primitive and leaves no files behind.
#[test]
fn exclusive_create_probe_cleans_up() {
    let directory = tempfile::tempdir().unwrap();
    Exclusive::prove(directory.path()).unwrap();
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    for primitive in PRIMITIVES {
        assert!(primitive.is_kept_by(directory.path()).unwrap(), "{primitive:?}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "{primitive:?}");
    }
}

/// Of several processes exactly one succeeds, with each primitive, and the content that is read is the winner's.
#[test]
fn exclusive_create_has_one_winner() {
    for primitive in PRIMITIVES {
        let directory = tempfile::tempdir().unwrap();
        for round in 0..20 {
            let path = directory.path().join(format!("name{round}"));
            let barrier = Barrier::new(4);
            let winners: Vec<u8> = std::thread::scope(|scope| {
                let racers: Vec<_> = (0..4u8)
                    .map(|racer| {
                        let (path, barrier) = (&path, &barrier);
                        scope.spawn(move || {
                            barrier.wait();
                            match create_if_absent(primitive, path, &[racer; 100]) {
                                Ok(()) => Some(racer),
                                Err(error) => {
                                    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
                                    None
                                }
                            }
                        })
                    })
                    .collect();
                racers.into_iter().filter_map(|racer| racer.join().unwrap()).collect()
            });
            assert_eq!(winners.len(), 1, "{primitive:?}");
            assert_eq!(std::fs::read(&path).unwrap(), vec![winners[0]; 100]);
        }
        assert_eq!(names(directory.path()).len(), 20, "{primitive:?} left temporary files");
    }
}

/// The new content is complete, shorter or longer than the old; and the file is the reserved one, so that its blocks
/// are used.
#[test]
fn file_is_replaced_using_reserved_space() {
    let directory = tempfile::tempdir().unwrap();
    let (room, path) = (directory.path().join("room"), directory.path().join("record"));
    replace(&path, b"old").unwrap();
    for content in [vec![2; 100], vec![3; 9000]] {
        replace(&room, &[1; 5000]).unwrap();
        let inode = room.metadata().unwrap().ino();
        replace_into(&room, &path, &content).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), content);
        assert_eq!(path.metadata().unwrap().ino(), inode);
        assert_eq!(names(directory.path()), ["record"]);
    }
    assert!(replace_into(&room, &path, b"none").is_err_and(|error| error.kind() == io::ErrorKind::NotFound));
    assert_eq!(std::fs::read(&path).unwrap(), [3; 9000]);
}

/// A copy has the holes, permission bits and mtime of its source, and replaces the target's content.
#[test]
fn copy_equals_the_file() {
    const MIB: u64 = 1 << 20;
    let directory = tempfile::tempdir().unwrap();
    let (from, to) = (directory.path().join("from"), directory.path().join("to"));
    let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 500);
    std::fs::write(&to, vec![9; 3 << 20]).unwrap();
    // Range of data, and file length.
    let files = [((0, 0), 0), ((0, 0), 5 * MIB), ((0, 100), 100), ((7 * MIB, 1_500_000), 64 * MIB)];
    for ((offset, count), length) in files {
        let file = std::fs::File::create(&from).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &vec![7; count], offset).unwrap();
        file.set_len(length).unwrap();
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
        file.set_modified(long_ago).unwrap();
        copy_whole(&from, &to).unwrap();
        let (source, copy) = (from.metadata().unwrap(), to.metadata().unwrap());
        assert_eq!((copy.len(), copy.mode(), copy.modified().unwrap()), (length, source.mode(), long_ago));
        assert!(copy.blocks() <= source.blocks() + 64, "{} blocks of {}", copy.blocks(), source.blocks());
        assert!(std::fs::read(&from).unwrap() == std::fs::read(&to).unwrap());
    }
    assert!(copy_whole(&directory.path().join("none"), &to).is_err_and(|e| e.kind() == io::ErrorKind::NotFound));
}

/// A copy of a file to itself, by another name or through another directory, is refused and leaves the file unchanged.
#[test]
fn a_file_is_not_copied_over_itself() {
    let directory = tempfile::tempdir().unwrap();
    let (file, linked, there) = ["file", "linked", "there"].map(|name| directory.path().join(name)).into();
    std::fs::write(&file, b"content").unwrap();
    std::fs::hard_link(&file, &linked).unwrap();
    std::os::unix::fs::symlink(directory.path(), &there).unwrap();
    for same in [&file, &linked, &there.join("file")] {
        assert!(copy_whole(&file, same).is_err_and(|error| error.kind() == io::ErrorKind::InvalidInput));
        assert_eq!(std::fs::read(&file).unwrap(), b"content");
    }
}

/// The next start removes leftovers of a crash; published files stay.
#[test]
fn only_unpublished_leftovers_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let kept = directory.path().join("kept");
    create_if_absent(Exclusive::RenameNoReplace, &kept, b"content").unwrap();
    write_synced(&temporary(directory.path()), b"half", FILE_MODE).unwrap();
    assert_eq!(remove_leftovers(directory.path()).unwrap(), 1);
    assert_eq!(std::fs::read(&kept).unwrap(), b"content");
    assert_eq!(remove_leftovers(directory.path()).unwrap(), 0);
}

/// Missing parent directories are created; existing ones are no error; a file in place of one is.
#[test]
fn directories_are_made_to_any_depth() {
    let directory = tempfile::tempdir().unwrap();
    let deep = directory.path().join("a/b/c");
    create_directories(&deep).unwrap();
    create_directories(&deep).unwrap();
    assert!(deep.is_dir());
    std::fs::write(deep.join("file"), b"").unwrap();
    assert!(create_directories(&deep.join("file")).is_err());
}

/// Only directories below a store's root are created, and none if the root is missing.
#[test]
fn missing_root_is_not_created() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("root");
    let root = StorePath::from(path.clone());
    for below in [root.join("a"), root.join("a/b/c")] {
        create_directories(&below).unwrap_err();
        assert!(!path.exists(), "{below}");
    }
    std::fs::create_dir(&path).unwrap();
    for _ in 0..2 {
        create_directories(&root.join("a/b/c")).unwrap();
    }
    assert!(path.join("a/b/c").is_dir());
    let part = root.join("part");
    assert!(create_directories_below(&part, &part.join("a/b")).is_err() && !part.exists());
    assert!(create_directories(&root.join("../beside")).is_err());
    assert!(!directory.path().join("beside").exists());
}
