//! Runs are written by the whole pipeline and read back by h5py: every frame in its place, every lost one missing.

mod common;

use common::frames;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::json;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use varve_detector::description::{Allocate, Description, Structure};
use varve_detector::filters::Encoder;
use varve_detector::frame::{Frame, Level, Payload};
use varve_detector::hdf5::ElementType;
use varve_detector::recover::{RecoverError, recover};
use varve_detector::writer::{Settings, WriteError, Writer};

const WAIT: Duration = Duration::from_secs(60);

fn settings() -> Settings {
    Settings {
        threads: 3,
        queue_bytes: 1 << 20,
        stripe_bytes: 16 << 10,
        extent_bytes: 64 << 10,
        commit_interval: Duration::from_millis(5),
    }
}

fn quiet() -> varve_detector::writer::Acknowledge {
    Arc::new(|_, _| {})
}

#[derive(Clone, Debug)]
struct Run {
    description: Description,
    frames: u64,
    /// Of a hundred frames, how many never come.
    lost: u64,
    filtered: bool,
    seed: u64,
}

fn run() -> impl Strategy<Value = Run> {
    let filters = ["raw", "gzip:1", "shuffle+gzip:4", "lz4", "zstd:1", "bslz4", "bszstd:1"];
    let shape = (prop::collection::vec((1_u64..20, 1_u64..20), 1..=3), prop::option::of(1_u64..4), any::<bool>());
    let rest = (prop::sample::select(filters.to_vec()), any::<bool>(), any::<bool>(), 0_u64..3, 1_u64..60);
    (shape, rest, 0_u64..60, any::<bool>(), any::<u64>()).prop_map(|(shape, rest, lost, filtered, seed)| {
        let (sides, inner, limited) = shape;
        let (filter, nexus, sparse, scalars, frames) = rest;
        let mut description = Description::new(ElementType::U16, sides.iter().map(|side| side.0).collect());
        description.chunk = Some(sides.iter().map(|(side, chunk)| (*chunk).min(*side)).collect());
        description.scan = [limited.then_some(60)].into_iter().chain(inner.map(Some)).collect();
        description.filter = filter.parse().expect("a filter's name");
        description.fill = Some(65535.0);
        description.structure = if nexus { Structure::Nexus } else { Structure::Raw };
        description.allocate = if sparse { Allocate::Sparse } else { Allocate::Packed };
        description.scalars = (0..scalars).map(|column| format!("column {column}").into()).collect();
        Run { description, frames, lost, filtered, seed }
    })
}

fn write(directory: &Path, name: &str, run: &Run) {
    let path = directory.join(format!("{name}.h5"));
    let writer = Writer::create(&path, run.description.clone(), settings(), quiet()).expect("a run started");
    let mut state = run.seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let mut numbers: Vec<u64> = (0..run.frames).filter(|_| next() % 100 >= run.lost).collect();
    // Frames may overtake each other.
    for at in 1..numbers.len() {
        numbers.swap(at, at - next() as usize % at.min(5));
    }
    for number in &numbers {
        let bytes = frames::frame(*number, run.description.frame_bytes() / 2);
        let payload = match run.filtered && run.description.chunks_per_frame() == 1 {
            true => {
                let mut filtered = Vec::new();
                Encoder::new(run.description.filter, 2)
                    .and_then(|mut e| e.encode(&bytes, &mut filtered))
                    .expect("filtered");
                Payload::Filtered(vec![filtered])
            }
            false => Payload::Plain(bytes),
        };
        writer.submit(Frame { number: *number, taken: 0, payload }, WAIT).expect("a frame taken");
        let values =
            (0..run.description.scalars.len() as u32).map(|column| (column, (number * 10) as f64 + f64::from(column)));
        writer.scalars(*number, values.collect()).expect("scalars taken");
    }
    let finished = writer.finish().expect("a run finished");
    assert_eq!(finished.counts.received + finished.counts.late, numbers.len() as u64);
    assert_eq!(std::fs::metadata(&path).expect("the file").len(), finished.file_bytes);
    assert!(!directory.join(format!("{name}.h5.journal")).exists());
    tell(directory, name, &run.description, &numbers, true);
}

fn names(description: &Description) -> Vec<String> {
    description.scalars.iter().map(|column| column.name.clone()).collect()
}

fn tell(directory: &Path, name: &str, description: &Description, acknowledged: &[u64], exact: bool) {
    let told = json!({
        "frame": description.frame, "fill": description.fill, "acknowledged": acknowledged, "exact": exact,
        "scalars": if exact { names(description) } else { Vec::new() },
    });
    std::fs::write(directory.join(format!("{name}.json")), told.to_string()).expect("the description written");
}

#[test]
fn random_runs_are_read_back_equal() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let count = if std::env::var_os("VARVE_SOAK").is_some() { 1000 } else { 40 };
    for number in 0..count {
        write(directory.path(), &format!("run-{number:04}"), &run().new_tree(&mut runner).expect("a run").current());
    }
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), count.to_string());
    for number in 0..count.min(40) {
        let path = directory.path().join(format!("run-{number:04}.h5"));
        common::said(Command::new("h5ls").arg("-rv").arg(&path));
        common::said(common::with_plugins(Command::new("h5dump").arg(&path)));
        let repacked = directory.path().join(format!("repacked-{number:04}.h5"));
        common::said(common::with_plugins(Command::new("h5repack").arg(&path).arg(&repacked)));
        common::said(common::with_plugins(Command::new("h5diff").arg(&path).arg(&repacked)));
    }
}

/// Unmodified readers open the file at any moment of the run and see a whole one, which grows.
#[test]
fn a_file_opens_at_any_moment_of_its_run() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("live.h5");
    let mut description = Description::new(ElementType::U16, vec![32, 32]);
    description.structure = Structure::Nexus;
    let writer = Writer::create(&path, description, settings(), quiet()).expect("a run started");
    let mut reader = Command::new(common::interpreter())
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/live.py"))
        .arg(&path)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a reader");
    let mut number = 0;
    while reader.try_wait().expect("the reader").is_none() {
        let payload = Payload::Plain(frames::frame(number, 32 * 32));
        writer.submit(Frame { number, taken: 0, payload }, WAIT).expect("a frame taken");
        number += 1;
        std::thread::sleep(Duration::from_millis(2));
    }
    let output = reader.wait_with_output().expect("the reader's words");
    assert!(output.status.success(), "the reader failed after {number} frames");
    writer.finish().expect("a run finished");
}

#[test]
fn what_cannot_be_written_is_refused_and_the_run_goes_on() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let mut description = Description::new(ElementType::U16, vec![2, 2]);
    description.scan = vec![Some(4)];
    let writer = Writer::create(&path, description.clone(), settings(), quiet()).expect("a run started");
    let submit = |number, payload| writer.submit(Frame { number, taken: 0, payload }, WAIT);
    let refused = |number, payload| submit(number, payload).expect_err("refused").to_string();
    assert!(refused(0, Payload::Plain(vec![0; 7])).contains("7 bytes instead of 8"));
    assert!(refused(4, Payload::Plain(vec![0; 8])).contains("the scan has 4 frames"));
    assert!(refused(0, Payload::Filtered(vec![])).contains("0 chunks instead of 1"));
    assert!(writer.scalars(0, vec![(0, 1.0)]).expect_err("refused").to_string().contains("the run has 0"));
    submit(3, Payload::Plain(vec![0; 8])).expect("a good frame taken");
    let running = recover(&path).expect_err("a running run");
    assert!(matches!(running, RecoverError::Running { .. }), "{running}");
    let again = Writer::create(&path, description.clone(), settings(), quiet()).err().expect("the file exists");
    assert!(matches!(again, WriteError::Exists { .. }), "{again}");
    // As after a crash: the journal stays.
    drop(writer);
    std::fs::rename(&path, directory.path().join("away")).expect("renamed");
    let unfinished = Writer::create(&path, description, settings(), quiet()).err().expect("the journal exists");
    assert!(unfinished.to_string().contains("varve record recover"), "{unfinished}");
    std::fs::rename(directory.path().join("away"), &path).expect("renamed");
    let recovered = recover(&path).expect("recovered");
    assert_eq!((recovered.counts.received, recovered.counts.missing), (1, 3));
    assert!(matches!(recover(&path), Err(RecoverError::NothingToDo { .. })));
}

/// A chunk that a loss of power took, though the journal names it: its frame is marked damaged and reads as nothing.
#[test]
fn a_chunk_that_was_never_synced_is_found_damaged() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let mut slow = settings();
    slow.commit_interval = Duration::from_secs(3600);
    let mut description = Description::new(ElementType::U16, vec![8, 8]);
    description.fill = Some(9.0);
    let (sender, written) = std::sync::mpsc::channel();
    let acknowledge: varve_detector::writer::Acknowledge = Arc::new(move |level, numbers| {
        if level == Level::Written {
            sender.send(numbers.len()).expect("the test listens");
        }
    });
    let writer = Writer::create(&path, description.clone(), slow, acknowledge).expect("a run started");
    for number in 0..4 {
        writer
            .submit(Frame { number, taken: 0, payload: Payload::Plain(frames::frame(number, 64)) }, WAIT)
            .expect("taken");
    }
    let mut count = 0;
    while count < 4 {
        count += written.recv_timeout(WAIT).expect("all are written");
    }
    // What a crash leaves at this moment; the copies are ours to damage.
    let crashed = directory.path().join("crashed.h5");
    common::said(Command::new("cp").arg("--sparse=always").arg(&path).arg(&crashed));
    let journal = std::fs::read(directory.path().join("run.h5.journal")).expect("the journal");
    std::fs::write(directory.path().join("crashed.h5.journal"), &journal).expect("copied");
    let contents = varve_detector::journal::decode(&journal).expect("a journal");
    let victim = contents.entries.iter().find_map(|entry| match entry {
        varve_detector::journal::Entry::Slab(slab) if slab.slab == 2 => Some(slab.chunks[0].clone()),
        _ => None,
    });
    let mut bytes = std::fs::read(&crashed).expect("read");
    bytes[victim.expect("frame 2").address as usize + 20] ^= 1;
    std::fs::write(&crashed, bytes).expect("damaged");
    let recovered = recover(&crashed).expect("recovered");
    assert_eq!((recovered.counts.received, recovered.counts.damaged), (3, 1));
    writer.finish().expect("finished");
    tell(directory.path(), "crashed", &description, &[0, 1, 3], true);
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "1");
}
