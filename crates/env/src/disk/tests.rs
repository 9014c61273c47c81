use super::*;
use crate::store_path::StorePath;
use std::sync::Barrier;

const PRIMITIVES: [Exclusive; 2] = [Exclusive::Link, Exclusive::RenameNoReplace];

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The probe selects hard links where they work, and leaves no files behind.
#[test]
fn exclusive_create_probe_cleans_up() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(Exclusive::working(directory.path()).unwrap(), Exclusive::Link);
    assert_eq!(names(directory.path()), [""; 0]);
    for primitive in PRIMITIVES {
        assert!(primitive.works_in(directory.path()).unwrap(), "{primitive}");
        assert_eq!(names(directory.path()), [""; 0], "{primitive}");
    }
}

/// Two processes race for 1,000 names; the proof leaves no files behind, also in the directory of a store.
#[test]
fn exclusive_create_is_proven_by_a_race() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(Exclusive::prove(directory.path()).unwrap(), Exclusive::Link);
    assert_eq!(Exclusive::prove(&StorePath::from(directory.path().to_owned())).unwrap(), Exclusive::Link);
    assert_eq!(names(directory.path()), [""; 0]);
}

/// A link that a network file system sent twice, because the first reply was lost, counts as made once.
#[test]
fn repeated_link_request_is_a_success() {
    let directory = tempfile::tempdir().unwrap();
    let [first, second, name] = ["first", "second", "name"].map(|name| directory.path().join(name));
    write_synced(&first, b"first", FILE_MODE).unwrap();
    write_synced(&second, b"second", FILE_MODE).unwrap();
    std::fs::hard_link(&first, &name).unwrap();
    publish_if_absent(Exclusive::Link, &first, &name).unwrap();
    let refused = publish_if_absent(Exclusive::Link, &second, &name).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read(&name).unwrap(), b"first");
    assert_eq!(names(directory.path()), ["name"]);
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

/// A start removes leftovers of dead writers and of earlier programs; published files stay, and files of the living.
#[test]
fn leftovers_of_living_writers_stay() {
    let directory = tempfile::tempdir().unwrap();
    let kept = directory.path().join("kept");
    create_if_absent(Exclusive::Link, &kept, b"content").unwrap();
    write_synced(&temporary(directory.path()), b"half", FILE_MODE).unwrap();
    let other: WriterId = "00000000000000ab".parse().unwrap();
    let of_other = other.temporary_name();
    for name in [of_other.as_str(), ".~tmp.0123", ".~tmp.00000000000000ac.0000000000000001", ".~tmp."] {
        std::fs::write(directory.path().join(name), b"half").unwrap();
    }
    std::fs::create_dir(directory.path().join(".~tmp.race")).unwrap();
    std::fs::write(directory.path().join(".~tmp.race/name0"), b"").unwrap();
    assert_eq!(remove_leftovers(directory.path(), &[other]).unwrap(), 5);
    assert_eq!(names(directory.path()), [of_other.as_str(), "kept"]);
    assert_eq!(remove_leftovers(directory.path(), &[]).unwrap(), 1);
    assert_eq!(std::fs::read(&kept).unwrap(), b"content");
}

/// The writer in a temporary name is read back; other names have none.
#[test]
fn temporary_names_hold_their_writer() {
    let own = WriterId::of_this_process();
    assert_eq!(own, WriterId::of_this_process());
    assert_eq!(WriterId::of_temporary(OsStr::new(&own.temporary_name())), Some(own));
    assert_eq!(own.to_string().parse(), Ok(own));
    for name in ["kept", ".~tmp.format", ".~tmp.0123456789abcdef", ".~tmp.+123456789abcdef.0", ".~tmp.ab.cd"] {
        assert_eq!(WriterId::of_temporary(OsStr::new(name)), None, "{name}");
    }
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

/// The difference between a clock and the store's is measured in either direction, and the probe leaves no file.
#[test]
fn clock_is_compared_with_the_store() {
    use crate::clock::{Clock, Instant, RealClock};
    use varve_types::Timestamp;
    struct WrongClock(i64);
    impl Clock for WrongClock {
        fn now(&self) -> Timestamp {
            let now = RealClock::new().now();
            Timestamp { seconds: now.seconds + self.0, ..now }
        }
        fn monotonic(&self) -> Instant {
            RealClock::new().monotonic()
        }
    }
    let directory = tempfile::tempdir().unwrap();
    for wrong_s in [0, 3600, -3600] {
        let ahead = store_clock_ahead_s(directory.path(), &WrongClock(wrong_s)).unwrap();
        assert!((ahead - wrong_s).abs() <= 5, "{ahead} s, not {wrong_s} s");
    }
    assert_eq!(names(directory.path()), [""; 0]);
    assert!(store_clock_ahead_s(&directory.path().join("none"), &RealClock::new()).is_err());
}
