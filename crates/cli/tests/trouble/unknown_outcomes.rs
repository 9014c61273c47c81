//! Changes that are in progress when the store disappears: their outcome is unknown, but all clients see the same.

use super::common::{Mount, Volume, until};
use super::{RECOVERY, comes_back, expect_no_panic};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// With the shortest sync interval, after which the loss of the store is noticed.
const FLAGS: [&str; 4] = ["--shards", "4", "--sync-interval", "100ms"];
const EMBEDDED: &str = "deadline=10s";
const ROUNDS: usize = 2;

/// How long changes succeed before the store disappears.
const WELL: Duration = Duration::from_millis(300);

/// Changes one name, or two, in or between the directories `p` and `q` beneath a worker's own. Returns all names that
/// it could touch; the kernel has looked them up before.
type Work = fn(&Path, usize) -> (Vec<PathBuf>, io::Result<()>);

const WORK: [Work; 6] = [
    |at, number| {
        let name = at.join(format!("p/made {number}"));
        (vec![name.clone()], absent(&name).and_then(|()| File::create_new(&name).map(drop)))
    },
    |at, number| {
        let name = at.join(format!("q/directory {number}"));
        (vec![name.clone()], absent(&name).and_then(|()| fs::create_dir(&name)))
    },
    |at, number| {
        let name = at.join(format!("p/removed {number}"));
        let done = File::create_new(&name).and_then(|file| file.metadata()).and_then(|_| fs::remove_file(&name));
        (vec![name], done)
    },
    |at, number| {
        let name = at.join(format!("q/gone {number}"));
        let done = fs::create_dir(&name).and_then(|()| fs::metadata(&name)).and_then(|_| fs::remove_dir(&name));
        (vec![name], done)
    },
    |at, number| renamed(at.join("p/renamed"), at.join("p/back"), number),
    |at, number| renamed(at.join("p/moved"), at.join("q/moved"), number),
];

fn absent(name: &Path) -> io::Result<()> {
    match fs::metadata(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(_) => panic!("{} is there", name.display()),
    }
}

/// Renames a file back and forth.
fn renamed(here: PathBuf, there: PathBuf, number: usize) -> (Vec<PathBuf>, io::Result<()>) {
    let (from, to) = if number.is_multiple_of(2) { (&here, &there) } else { (&there, &here) };
    let done = fs::metadata(from).and_then(|_| absent(to)).and_then(|()| fs::rename(from, to));
    (vec![here, there], done)
}

/// Works in a directory of its own until something fails; returns the names that the failed change touched.
fn until_it_fails(directory: &Path, work: Work) -> Vec<PathBuf> {
    for number in 0.. {
        let (names, done) = work(directory, number);
        let Err(error) = done else { continue };
        let errno = error.raw_os_error();
        assert!(errno == Some(libc::EIO) || errno == Some(libc::ETIMEDOUT), "{names:?}: {error}");
        return names;
    }
    unreachable!("the store does not go")
}

/// Moves the store away during changes, and back when all workers have failed. Returns the names that the failed
/// changes touched.
fn failed_changes(volume: &Volume, directory: &Path) -> Vec<Vec<PathBuf>> {
    let (store, aside) = (volume.store(), volume.beside("aside"));
    let places: Vec<_> = (0..WORK.len()).map(|number| directory.join(number.to_string())).collect();
    for place in &places {
        ["p", "q"].iter().for_each(|part| fs::create_dir_all(place.join(part)).expect("a directory"));
        ["p/renamed", "p/moved"].iter().for_each(|name| fs::write(place.join(name), name).expect("a file"));
    }
    let names = std::thread::scope(|scope| {
        let workers: Vec<_> =
            places.iter().zip(WORK).map(|(place, work)| scope.spawn(move || until_it_fails(place, work))).collect();
        std::thread::sleep(WELL);
        fs::rename(&store, &aside).expect("the store goes");
        workers.into_iter().map(|worker| worker.join().expect("a worker")).collect()
    });
    fs::rename(&aside, &store).expect("the store comes back");
    names
}

/// All names beneath a directory in its listings, with the inode numbers from the listings.
fn listed(directory: &Path) -> io::Result<BTreeMap<PathBuf, u64>> {
    use std::os::unix::fs::DirEntryExt;
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        found.insert(entry.path(), entry.ino());
        if entry.file_type()?.is_dir() {
            found.extend(listed(&entry.path())?);
        }
    }
    Ok(found)
}

/// The inode numbers from stat(2) for the listed names and for the touched ones.
fn found(listed: &BTreeMap<PathBuf, u64>, touched: &[Vec<PathBuf>]) -> io::Result<BTreeMap<PathBuf, u64>> {
    use std::os::unix::fs::MetadataExt;
    let mut found = BTreeMap::new();
    for name in listed.keys().chain(touched.iter().flatten()) {
        match fs::symlink_metadata(name) {
            Ok(metadata) => drop(found.insert(name.clone(), metadata.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Waits until listings and stat agree, and each renamed file has one name. Returns the names found then.
fn agree(mount: &Mount, touched: &[Vec<PathBuf>]) -> BTreeMap<PathBuf, u64> {
    let mut agreed = BTreeMap::new();
    until("listings and names agree", RECOVERY, || {
        let Ok(listed) = listed(&mount.directory) else { return false };
        let Ok(found) = found(&listed, touched) else { return false };
        let one = |names: &Vec<PathBuf>| {
            names.len() < 2 || names.iter().filter(|name| found.contains_key(*name)).count() == 1
        };
        let agree = listed == found && touched.iter().all(one);
        agreed = found;
        agree
    });
    agreed
}

/// The kernel of an embedded mount, which caches names for an hour, shows the actual state.
#[test]
fn clients_agree_on_changes_interrupted_by_store_loss() {
    let volume = Volume::format(&FLAGS);
    let mut mount = volume.mount(&["-o", EMBEDDED]);
    let mut touched = Vec::new();
    for round in 0..ROUNDS {
        touched.extend(failed_changes(&volume, &mount.directory.join(round.to_string())));
        comes_back("creating", || File::create(mount.directory.join(format!("after {round}"))));
        agree(&mount, &touched);
    }
    let agreed = agree(&mount, &touched);
    expect_no_panic("the mount", &mount.log());
    mount.unmount();
    volume.expect_sound();
    mount = volume.mount(&["-o", EMBEDDED]);
    assert_eq!(agree(&mount, &touched), agreed, "the next mount shows something else");

    // A mount that dies with unknown outcomes blocks nobody.
    let (store, aside) = (volume.store(), volume.beside("aside"));
    fs::rename(&store, &aside).expect("the store goes");
    until_it_fails(&mount.directory.join("0/4"), WORK[0]);
    mount.kill_process();
    mount.bury();
    fs::rename(&aside, &store).expect("the store comes back");
    volume.mount(&["-o", EMBEDDED]).unmount();
    volume.expect_sound();
}
