//! Space that commits leave behind, in a slow run with many scalars in a long scan.

use super::common::{self, frames};
use super::{WAIT, quiet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};
use varve_detector_dataset::dataset_spec::DatasetSpec;
use varve_detector_dataset::frame::{Frame, Payload};
use varve_detector_file::recover::recover;
use varve_detector_file::run_files;
use varve_detector_hdf5::ElementType;
use varve_detector_writer::{Settings, Writer};

const SCALARS: u32 = 100;
const SCAN: u64 = 1_000_000;
/// Copies that take longer are not valid, and are removed.
const READER_AGE: Duration = Duration::from_secs(2);

fn writer(path: &Path, reader_age: Duration) -> Writer {
    let mut description = DatasetSpec::new(ElementType::U16, vec![32, 32]);
    description.scan = vec![Some(SCAN)];
    description.scalars = (0..SCALARS).map(|number| format!("scalar-{number}").as_str().into()).collect();
    let settings = Settings { commit_interval: Duration::from_millis(20), reader_age, ..Settings::default() };
    Writer::create(path, description, settings, quiet()).expect("a run started")
}

/// A frame with all its scalars, at ten times the rate of a slow detector.
fn frame(writer: &Writer, number: u64) {
    let payload = Payload::Plain(frames::frame(number, 32 * 32));
    writer.submit(Frame { number, taken: 0, payload }, WAIT).expect("a frame taken");
    let values = (0..SCALARS).map(|scalar| (scalar, number as f64 + f64::from(scalar))).collect();
    writer.scalars(number, values).expect("scalars taken");
    thread::sleep(Duration::from_millis(10));
}

fn bytes(path: &Path) -> u64 {
    std::fs::metadata(path).expect("a file").len()
}

/// Promise: a finished file is at most 1.2 times what `h5repack` makes of it, and copies that readers made at any moment
/// of the run are valid. 600 frames as in a minute of a slow detector.
#[test]
fn finished_file_has_little_dead_space() {
    let frames = if std::env::var_os("VARVE_SOAK").is_some() { 6000 } else { 600 };
    let directory = tempfile::tempdir().expect("a directory");
    let (path, copies) = (directory.path().join("run.h5"), directory.path().join("copies"));
    std::fs::create_dir(&copies).expect("a directory");
    let writer = writer(&path, READER_AGE);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for reader in 0..2 {
            let (path, copies, over) = (&path, &copies, &over);
            scope.spawn(move || {
                for number in (0..).take_while(|_| !over.load(Relaxed)) {
                    let (copy, began) = (copies.join(format!("{reader}-{number}.h5")), Instant::now());
                    std::fs::copy(path, &copy).expect("a copy");
                    if began.elapsed() >= READER_AGE {
                        std::fs::remove_file(&copy).expect("removed");
                    }
                    thread::sleep(Duration::from_millis(150));
                }
            });
        }
        (0..frames).for_each(|number| frame(&writer, number));
        over.store(true, Relaxed);
    });
    let journal = std::fs::read(run_files::journal_of(&path)).expect("the journal");
    let finished = writer.give_up().expect("a run finished");
    assert_eq!((finished.counts.frames, finished.file_bytes), (frames, bytes(&path)));
    let packed = directory.path().join("packed.h5");
    common::printed(common::with_plugins(&mut Command::new("h5repack")).args([&path, &packed]));
    assert!(bytes(&path) * 5 <= bytes(&packed) * 6, "{} bytes instead of {}", bytes(&path), bytes(&packed));
    let checked = common::python("dead_space.py", &[&path, &copies]);
    let made = std::fs::read_dir(&copies).expect("a directory").count();
    assert_eq!(checked.trim(), made.to_string());
    assert!(made > 20, "{made} copies");
    assert!(siblings(&path).is_empty(), "{:?}", siblings(&path));
    // The journal does not describe the copy that took the file's name.
    let before = std::fs::read(&path).expect("the file");
    std::fs::write(run_files::journal_of(&path), journal).expect("put back");
    let refusal = recover(&path).expect_err("a journal of another file").to_string();
    assert!(refusal.contains("remove the journal"), "{refusal}");
    assert!(std::fs::read(&path).expect("the file") == before);
}

/// Gives the directory a default ACL with an entry for a user; prints whether it takes one.
const SET_DEFAULT_ACL: &str = "import os, struct, sys\n\
    entries = ((1, 6, -1), (2, 4, 1), (4, 4, -1), (16, 4, -1), (32, 4, -1))\n\
    acl = struct.pack('<I', 2) + b''.join(struct.pack('<HHi', *entry) for entry in entries)\n\
    try: os.setxattr(sys.argv[1], 'system.posix_acl_default', acl)\n\
    except OSError: print('no')\n";

/// Promise: a file is not replaced if its name is a symbolic link, or if the copy would get attributes of its own.
#[test]
fn linked_file_and_file_of_other_attributes_are_kept() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = |name: &str| {
        std::fs::create_dir(directory.path().join(name)).expect("a directory");
        directory.path().join(name).join("run.h5")
    };
    let ended = |path: &Path, change: &dyn Fn()| {
        let writer = writer(path, Duration::from_secs(3600));
        (0..100).for_each(|number| frame(&writer, number));
        let number = std::fs::metadata(path).expect("the file").ino();
        change();
        assert_eq!(writer.give_up().expect("a run finished").file_bytes, bytes(path));
        assert!(siblings(path).is_empty(), "{:?}", siblings(path));
        std::fs::metadata(path).expect("the file").ino() == number
    };
    assert!(!ended(&place("replaced"), &|| ()), "a copy is worth it");
    let (path, real) = (place("linked"), directory.path().join("real.h5"));
    let kept = ended(&path, &|| {
        std::fs::rename(&path, &real).expect("moved");
        std::os::unix::fs::symlink(&real, &path).expect("a link");
    });
    assert!(kept && path.is_symlink());
    let (path, has_acls) = (place("attributes"), AtomicBool::new(true));
    let kept = ended(&path, &|| {
        let mut python = Command::new(common::interpreter());
        let answer = common::printed(python.args(["-c", SET_DEFAULT_ACL]).arg(path.parent().expect("a directory")));
        has_acls.store(answer.trim() != "no", Relaxed);
    });
    assert_eq!(kept, has_acls.into_inner(), "without ACLs the file is replaced");
}

/// Promise: while a run lasts, space that no reader needs is reused. Another run keeps it, until that takes much.
#[test]
fn dead_space_is_reused_during_a_run() {
    const MUCH: u64 = 14 << 20;
    const LAST: u64 = 20_000;
    let directory = tempfile::tempdir().expect("a directory");
    let paths = ["reusing.h5", "keeping.h5"].map(|name| directory.path().join(name));
    let writers = [writer(&paths[0], READER_AGE), writer(&paths[1], Duration::from_secs(3600))];
    // The file's length is a reservation; its blocks are what it takes.
    let taken = |path: &Path| std::fs::metadata(path).expect("a file").blocks() * 512;
    let mut number = 0;
    while taken(&paths[1]) < MUCH {
        assert!(number < LAST, "{number} frames took {} bytes", taken(&paths[1]));
        writers.iter().for_each(|writer| frame(writer, number));
        number += 1;
    }
    let (reusing, keeping) = (taken(&paths[0]), taken(&paths[1]));
    assert!(reusing * 3 < keeping * 2, "{reusing} bytes instead of {keeping}");
    for writer in writers {
        assert_eq!(writer.give_up().expect("a run finished").counts.frames, number);
    }
    assert!(bytes(&paths[0]).abs_diff(bytes(&paths[1])) < bytes(&paths[0]) / 20, "both end as small");
}

fn siblings(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().expect("a name").to_string_lossy().into_owned();
    let entries = std::fs::read_dir(path.parent().expect("a directory")).expect("a directory");
    let entries = entries.map(|entry| entry.expect("an entry").path());
    entries
        .filter(|entry| entry.file_name().is_some_and(|other| other.to_string_lossy().starts_with(&format!("{name}."))))
        .collect()
}
