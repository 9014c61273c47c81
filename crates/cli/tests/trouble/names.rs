//! Names of every byte value and of every length, and paths as long as paths may be.

use super::common::Volume;
use std::collections::BTreeSet;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The longest path with its NUL (PATH_MAX).
const PATH_BYTES_MAX: usize = 4096;

#[test]
fn names_of_every_byte_and_length_work_or_are_refused() {
    let volume = Volume::format(&["--shards", "4", "--split-threshold", "2"]);
    let mount = volume.mount(&[]);
    let directory = mount.directory.join("names");
    std::fs::create_dir(&directory).expect("a directory");
    let mut names: BTreeSet<Vec<u8>> = (1..=255).filter(|byte| !b"/.".contains(byte)).map(|byte| vec![byte]).collect();
    names.extend((1..=255).filter(|byte| *byte != b'/').map(|byte| vec![b'a', byte, byte]));
    names.extend([b'x', 0xff].map(|byte| vec![byte; 255]));
    for name in &names {
        File::create(directory.join(OsStr::from_bytes(name))).unwrap_or_else(|error| panic!("{name:?}: {error}"));
    }
    for length in [256, 300, 4000] {
        let refused = File::create(directory.join("y".repeat(length))).expect_err("too long");
        assert_eq!(refused.raw_os_error(), Some(libc::ENAMETOOLONG), "{length}: {refused}");
    }
    let listed = || -> BTreeSet<Vec<u8>> {
        let entries = std::fs::read_dir(&directory).expect("it can be listed");
        entries.map(|entry| entry.expect("a listing goes on").file_name().into_vec()).collect()
    };
    assert!(listed() == names, "other names are listed than were made");
    mount.unmount();
    let mount = volume.mount(&[]);
    assert!(listed() == names, "other names are listed after a restart");
    for name in &names {
        std::fs::remove_file(directory.join(OsStr::from_bytes(name))).unwrap_or_else(|e| panic!("{name:?}: {e}"));
    }
    assert!(listed().is_empty());
    mount.unmount();
    volume.expect_sound();
}

#[test]
fn paths_are_as_long_as_paths_may_be() {
    let volume = Volume::format(&["--shards", "4"]);
    let mount = volume.mount(&[]);
    let mut path = mount.directory.clone().into_os_string().into_vec();
    while path.len() + 1 + 200 < PATH_BYTES_MAX - 400 {
        path.push(b'/');
        path.extend([b'd'; 200]);
        std::fs::create_dir(OsStr::from_bytes(&path)).expect("a directory deep down");
    }
    // The file's name takes the remaining length, to the byte.
    path.push(b'/');
    path.resize(PATH_BYTES_MAX - 1 - 200, b'e');
    std::fs::create_dir(OsStr::from_bytes(&path)).expect("the deepest directory");
    path.push(b'/');
    path.resize(PATH_BYTES_MAX - 1, b'f');
    std::fs::write(OsStr::from_bytes(&path), b"deep").expect("a path of 4,095 bytes and its NUL");
    assert_eq!(std::fs::read(OsStr::from_bytes(&path)).expect("it is there"), b"deep");
    path.push(b'f');
    let refused = File::create(OsStr::from_bytes(&path)).expect_err("a path of 4,096 bytes");
    assert_eq!(refused.raw_os_error(), Some(libc::ENAMETOOLONG), "{refused}");
    symlinks(&mount.directory);
    mount.unmount();
    volume.expect_sound();
}

/// A symlink's target is a path too.
fn symlinks(directory: &std::path::Path) {
    let longest = vec![b't'; PATH_BYTES_MAX - 1];
    std::os::unix::fs::symlink(OsStr::from_bytes(&longest), directory.join("longest")).expect("a long target");
    let read = std::fs::read_link(directory.join("longest")).expect("it can be read").into_os_string().into_vec();
    assert!(read == longest, "a target of {} bytes came back with {}", longest.len(), read.len());
    let target = CString::new(vec![b't'; PATH_BYTES_MAX]).expect("no NUL");
    let name = CString::new(directory.join("longer").into_os_string().into_vec()).expect("no NUL");
    // SAFETY: both are C strings that live over the call.
    let made = unsafe { libc::symlink(target.as_ptr(), name.as_ptr()) };
    assert_eq!((made, io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ENAMETOOLONG)));
}
