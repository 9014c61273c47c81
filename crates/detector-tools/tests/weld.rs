//! Files that h5py wrote, with a virtual dataset of h5py, become one file whose chunks are the same bytes.

#[path = "../../detector-writer/tests/common/mod.rs"]
mod common;

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use varve_detector_dataset::dataset_spec::Structure;
use varve_detector_tools::weld::{WeldError, weld};

fn python(arguments: &[&str], directory: &Path) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/weld.py");
    common::printed(Command::new(common::interpreter()).arg(script).args(arguments).arg(directory))
}

/// Promise: a virtual dataset and its files become one file without a chunk being compressed again.
#[test]
fn virtual_dataset_becomes_one_file_with_the_same_chunks() {
    let directory = tempfile::tempdir().expect("a directory");
    let masters = python(&["make"], directory.path());
    let masters: Vec<&str> = masters.split_whitespace().collect();
    assert!(masters.len() >= 8, "{masters:?}");
    for master in masters {
        let (path, out) = (directory.path().join(master), directory.path().join(format!("welded-{master}")));
        let finished = weld(&path, None, &out, |description| description.structure = Structure::Nexus);
        let finished = finished.unwrap_or_else(|error| panic!("{master}: {error}"));
        let missing = u64::from(master.contains("gap"));
        assert_eq!((finished.counts.frames, finished.counts.missing), (12, missing), "{master}");
    }
    assert_eq!(python(&["check"], directory.path()).trim(), "right");
}

#[test]
fn virtual_datasets_that_cannot_be_welded_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    python(&["bad"], directory.path());
    let refused = |master: &str| {
        let out = directory.path().join("out.h5");
        let error: WeldError = weld(&directory.path().join(master), None, &out, |_| ()).expect_err(master);
        let left = std::fs::read_dir(directory.path()).expect("a directory");
        let left = left.filter(|entry| entry.as_ref().expect("an entry").file_name().as_bytes().starts_with(b"out."));
        assert_eq!(left.count(), 0, "{master} leaves a file");
        error.to_string()
    };
    for (master, words) in [
        ("filters.h5", "another type, chunk or filter than the first file"),
        ("absent.h5", "No such file"),
        ("cut.h5", "cuts through its chunks"),
        ("slabs.h5", "chunks of one frame each are needed"),
        ("late.h5", "stored without its filters"),
        ("unlimited-None.h5", "is unlimited"),
        ("unlimited-latest.h5", "is unlimited"),
        ("two.h5", "several virtual datasets"),
        ("none.h5", "no virtual dataset of frames"),
    ] {
        let text = refused(master);
        assert!(text.contains(words), "{master}: {text}");
    }
    let chosen = weld(&directory.path().join("two.h5"), Some("/other"), &directory.path().join("chosen.h5"), |_| ());
    assert_eq!(chosen.expect("welded").counts.frames, 3);
}
