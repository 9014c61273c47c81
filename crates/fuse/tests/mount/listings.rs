//! The kernel's cache of listings: it saves requests, and never hides a change.

use crate::fixture::{Beside, Volume, can_mount, volume};
use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};
use varve_client::Operation;

/// The mtime that a rewound listing is compared by is at most one lease old, on a machine that is busy.
const REWIND: Duration = Duration::from_secs(20);

fn names(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn make(directory: &Path, names: std::ops::Range<u32>) {
    for number in names {
        fs::write(directory.join(format!("name-{number}")), "").unwrap();
    }
}

/// An open directory stream, which can be rewound and positioned.
struct Stream(*mut libc::DIR);

impl Stream {
    fn open(directory: &Path) -> Stream {
        let path = CString::new(directory.as_os_str().as_bytes()).unwrap();
        // SAFETY: `path` is a C string.
        let stream = unsafe { libc::opendir(path.as_ptr()) };
        assert!(!stream.is_null());
        Stream(stream)
    }

    /// The next name other than `.` and `..`, and the position after it.
    fn next(&mut self) -> Option<(String, i64)> {
        loop {
            // SAFETY: the stream is open, and the entry is valid until the next call.
            let (name, after) = unsafe {
                let entry = libc::readdir(self.0);
                if entry.is_null() {
                    return None;
                }
                (CStr::from_ptr((*entry).d_name.as_ptr()).to_str().unwrap().to_owned(), libc::telldir(self.0))
            };
            if name != "." && name != ".." {
                return Some((name, after));
            }
        }
    }

    fn rest(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.next()).map(|(name, _)| name).collect()
    }

    fn rewind(&mut self) {
        // SAFETY: the stream is open.
        unsafe { libc::rewinddir(self.0) }
    }

    fn seek(&mut self, position: i64) {
        // SAFETY: the stream is open, and the position is one of it.
        unsafe { libc::seekdir(self.0, position) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream is open, and closed once.
        unsafe { libc::closedir(self.0) };
    }
}

fn one_and_two_mounts() -> [(Volume, Option<Beside>); 2] {
    let (shared, beside) = Volume::mounted_twice("");
    [(Volume::new(), None), (shared, Some(beside))]
}

/// The second listing costs the request of its opendir alone, until a name changes; a write to a file is no such change.
#[test]
fn repeated_listing_comes_from_the_kernel() {
    if !can_mount() {
        return;
    }
    for (volume, beside) in one_and_two_mounts() {
        let directory = volume.join("d");
        fs::create_dir(&directory).unwrap();
        make(&directory, 0..40);
        // A directory that is open for another reason is cached too.
        let open = fs::File::open(&directory).unwrap();
        let listed = |expected: usize| {
            let before = volume.operations(Operation::ReadDirectory);
            assert_eq!(names(&directory).len(), expected);
            volume.operations(Operation::ReadDirectory) - before
        };
        // Splits end by then.
        let deadline = Instant::now() + REWIND;
        while listed(40) > 1 {
            assert!(Instant::now() < deadline, "never kept");
        }
        // The kernel may drop its pages of the listing by itself, if memory is short.
        let deadline = Instant::now() + REWIND;
        loop {
            fs::write(directory.join("name-1"), "content").unwrap();
            if listed(40) == 1 {
                break;
            }
            assert!(Instant::now() < deadline, "dropped by each write of a file");
        }
        make(&directory, 40..41);
        assert!(listed(41) > 1);
        fs::remove_file(directory.join("name-1")).unwrap();
        assert!(listed(40) > 1);
        drop(open);
        beside.into_iter().for_each(Beside::close);
        volume.close();
    }
}

/// A name that another mount made, removed or replaced is so in every listing that is opened after the change returned.
#[test]
fn cached_listing_follows_other_mounts() {
    if !can_mount() {
        return;
    }
    let (volume, beside) = Volume::mounted_twice("");
    let (here, there) = (volume.join("d"), beside.join("d"));
    fs::create_dir(&here).unwrap();
    make(&here, 0..30);
    let mut expected = names(&here);
    for round in 0..20 {
        assert_eq!(names(&here), expected, "round {round}");
        fs::write(there.join(format!("made-{round}")), "").unwrap();
        expected.insert(format!("made-{round}"));
        assert_eq!(names(&here), expected, "round {round}: made");
        fs::rename(there.join(format!("made-{round}")), there.join(format!("moved-{round}"))).unwrap();
        expected.remove(&format!("made-{round}"));
        expected.insert(format!("moved-{round}"));
        assert_eq!(names(&here), expected, "round {round}: renamed");
        fs::remove_file(there.join(format!("name-{round}"))).unwrap();
        expected.remove(&format!("name-{round}"));
        assert_eq!(names(&here), expected, "round {round}: removed");
    }
    use std::os::unix::fs::{DirEntryExt, MetadataExt};
    fs::write(there.join("new"), "").unwrap();
    fs::rename(there.join("new"), there.join("name-29")).unwrap();
    let replaced = fs::read_dir(&here).unwrap().map(Result::unwrap).find(|entry| entry.file_name() == "name-29");
    assert_eq!(replaced.unwrap().ino(), fs::metadata(there.join("name-29")).unwrap().ino(), "replaced");
    beside.close();
    volume.close();
}

/// A stream that another mount changes the directory under: it has every lasting name once, and after rewinddir(3) shows
/// the change within a lease.
#[test]
fn open_stream_is_rewound_to_the_new_names() {
    if !can_mount() {
        return;
    }
    let (volume, beside) = Volume::mounted_twice("");
    let (here, there) = (volume.join("d"), beside.join("d"));
    fs::create_dir(&here).unwrap();
    make(&here, 0..2000);
    assert_eq!(names(&here).len(), 2000);
    let mut stream = Stream::open(&here);
    let mut seen: Vec<String> = (0..500).map(|_| stream.next().unwrap().0).collect();
    make(&there, 2000..2100);
    seen.extend(stream.rest());
    let lasting = |name: &&String| name["name-".len()..].parse::<u32>().unwrap() < 2000;
    assert_eq!(seen.iter().filter(lasting).count(), 2000);
    assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), seen.len());
    let begun = Instant::now();
    loop {
        stream.rewind();
        if stream.rest().len() == 2100 {
            break;
        }
        assert!(begun.elapsed() < REWIND, "the new names stay away");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(stream);
    assert_eq!(names(&here).len(), 2100, "a mixed listing is not kept");
    beside.close();
    volume.close();
}

/// seekdir(3) to any position of a stream continues there, from the kernel's cache and without it.
#[test]
fn positions_hold_with_and_without_the_cache() {
    let Some(volume) = volume() else { return };
    let directory = volume.join("d");
    fs::create_dir(&directory).unwrap();
    make(&directory, 0..1000);
    for round in 0..3 {
        let mut stream = Stream::open(&directory);
        let mut all = Vec::new();
        while let Some(entry) = stream.next() {
            all.push(entry);
        }
        assert_eq!(all.len(), 1000, "round {round}");
        for at in [0, 1, 17, 499, 998] {
            stream.seek(all[at].1);
            assert_eq!(stream.next().unwrap().0, all[at + 1].0, "round {round}, from {at}");
        }
        // After a change in this mount, rewinddir makes the kernel drop its listing.
        if round == 1 {
            fs::remove_file(directory.join(&all[600].0)).unwrap();
            stream.rewind();
            assert_eq!(stream.next().unwrap().0, all[0].0);
            stream.seek(all[599].1);
            assert_eq!(stream.next().unwrap().0, all[601].0);
            fs::write(directory.join(&all[600].0), "").unwrap();
        }
    }
    volume.close();
}

/// Own changes are in the next listing, also of a stream that was rewound, while other streams fill the cache.
#[test]
fn own_changes_are_in_the_next_listing() {
    if !can_mount() {
        return;
    }
    for (volume, beside) in one_and_two_mounts() {
        let directory = volume.join("d");
        fs::create_dir(&directory).unwrap();
        make(&directory, 0..300);
        let mut stream = Stream::open(&directory);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                for _ in 0..60 {
                    let seen = names(&directory);
                    assert!((0..300).all(|number| seen.contains(&format!("name-{number}"))));
                }
            });
            for number in 300..400 {
                make(&directory, number..number + 1);
                let newest = format!("name-{number}");
                assert!(names(&directory).contains(&newest), "{newest}");
                stream.rewind();
                assert!(stream.rest().contains(&newest), "{newest} after rewinddir");
            }
            reader.join().unwrap();
        });
        drop(stream);
        beside.into_iter().for_each(Beside::close);
        volume.close();
    }
}

/// The kernel's copy does not let a user list a directory that they may no longer read.
#[test]
fn cached_listing_needs_read_permission() {
    use std::os::unix::fs::PermissionsExt;
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let volume = Volume::with_options("allow_other");
    let directory = volume.join("d");
    fs::set_permissions(volume.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(&directory).unwrap();
    make(&directory, 0..3);
    let list = || {
        let script = "import os,sys\nos.setgid(47111); os.setuid(47111)\nprint(len(os.listdir(sys.argv[1])))";
        let output = std::process::Command::new("/usr/bin/python3").args(["-c", script]).arg(&directory).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    assert_eq!([list(), list()], ["3\n", "3\n"]);
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(names(&directory).len(), 3);
    assert_eq!(list(), "", "not theirs to read");
    volume.close();
}
