//! Runs of random shapes, orders and losses, and long ones, read by h5py and h5dump.

use super::common::{self, frames};
use super::{WAIT, cut, names, quiet, settings, strips};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use varve_detector_dataset::dataset_spec::{Allocate, DatasetSpec, Scalar, ScalarColumn, ScalarKind, Structure};
use varve_detector_dataset::frame::{Frame, Payload};
use varve_detector_filters::Encoder;
use varve_detector_hdf5::ElementType;
use varve_detector_writer::{Settings, WaitPolicy, Writer};

#[derive(Clone, Debug)]
struct RandomRun {
    description: DatasetSpec,
    frames: u64,
    /// How many of a hundred regions are lost.
    lost: u64,
    filtered: bool,
    queue_bytes: usize,
    seed: u64,
}

/// Sides of the scan beneath its first, and of chunks along the scan.
type Scan = (Vec<u64>, Vec<u64>);

fn scan() -> impl Strategy<Value = Scan> {
    (prop::collection::vec(1_u64..4, 0..=2), prop::collection::vec(1_u64..4, 3))
}

fn run() -> impl Strategy<Value = RandomRun> {
    let filters = ["raw", "gzip:1", "shuffle+gzip:4", "lz4", "zstd:1", "bslz4", "bszstd:1"];
    let shape = (prop::collection::vec((1_u64..20, 1_u64..20), 1..=3), scan(), any::<bool>(), any::<bool>());
    let structure = (any::<bool>(), prop::sample::select(vec![Allocate::Packed, Allocate::Sparse, Allocate::Implicit]));
    let rest = (prop::sample::select(filters.to_vec()), structure, 0_u64..5, 1_u64..60, 1_u64..4);
    let way = (0_u64..60, any::<bool>(), prop::sample::select(vec![2_usize << 10, 1 << 20]), any::<u64>());
    (shape, rest, way).prop_map(|(shape, rest, (lost, filtered, queue_bytes, seed))| {
        let (sides, (inner, chunk), limited, extended) = shape;
        let (filter, (nexus, allocate), scalars, frames, sources) = rest;
        let mut description = DatasetSpec::new(ElementType::U16, sides.iter().map(|side| side.0).collect());
        let within: Vec<u64> = sides.iter().map(|(side, chunk)| (*chunk).min(*side)).collect();
        description.scan = [limited.then_some(60)].into_iter().chain(inner.into_iter().map(Some)).collect();
        let several =
            description.scan.iter().zip(chunk).map(|(side, chunk)| side.map_or(chunk, |side| side.min(chunk)));
        description.chunk = Some(match seed % 2 {
            0 => within,
            _ => several.chain(within).collect(),
        });
        // One unlimited side besides the first gives a tree.
        let open = |(at, side): (usize, &Option<u64>)| if at == 0 && limited { *side } else { None };
        description.scan_max = extended.then(|| description.scan.iter().enumerate().map(open).collect());
        description.filter = filter.parse().expect("a filter's name");
        description.fill = Some(65535.0.into());
        description.structure = if nexus { Structure::Nexus } else { Structure::Raw };
        description.scalars = (0..scalars).map(|column| format!("column {column}").into()).collect();
        if let Some(column) = description.scalars.get_mut(1) {
            column.kind = ScalarKind::Integer;
        }
        if let Some(column) = description.scalars.get_mut(2) {
            column.kind = ScalarKind::Text(10);
        }
        if let Some(column) = description.scalars.get_mut(3) {
            column.kind = ScalarKind::Unsigned;
        }
        description.sources = strips(&description.frame, sources);
        description.allocate = allocate;
        if allocate == Allocate::Implicit {
            description.fill = None;
            if description.check().is_err() {
                description.allocate = Allocate::Packed;
            }
        }
        RandomRun { description, frames, lost, filtered, queue_bytes, seed }
    })
}

fn scalar(kind: ScalarKind, number: u64) -> Scalar {
    match kind {
        ScalarKind::Float => (number as f64).into(),
        ScalarKind::Integer => (number as i64).into(),
        ScalarKind::Text(_) => number.to_string().into(),
        ScalarKind::Unsigned => number.into(),
    }
}

fn write(directory: &Path, name: &str, run: &RandomRun) {
    let path = directory.join(format!("{name}.h5"));
    let DatasetSpec { ref frame, ref scalars, ref sources, .. } = run.description;
    let settings = Settings { queue_bytes: run.queue_bytes, ..settings() };
    let writer = Writer::create(&path, run.description.clone(), settings, quiet()).expect("a run started");
    let mut state = run.seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let regions = run.description.regions();
    let all = (0..run.frames).flat_map(|number| (0..regions.len() as u32).map(move |source| (number, source)));
    let mut parts: Vec<(u64, u32)> = all.filter(|_| next() % 100 >= run.lost).collect();
    // Frames may overtake each other, and regions too.
    for at in 1..parts.len() {
        parts.swap(at, at - next() as usize % at.min(9));
    }
    let numbers: BTreeSet<u64> = parts.iter().map(|(number, _)| *number).collect();
    for (number, source) in &parts {
        let bytes = frames::frame(*number, run.description.frame_bytes() / 2);
        let alone =
            run.description.chunks_per_frame() * run.description.chunk_group_frames() == 1 && sources.is_empty();
        let payload = match run.filtered && alone {
            true => {
                let mut filtered = Vec::new();
                Encoder::new(run.description.filter, 2)
                    .and_then(|mut e| e.encode(&bytes, &mut filtered))
                    .expect("filtered");
                Payload::Filtered(vec![filtered.into()])
            }
            false => Payload::Plain(cut(&bytes, frame, &regions[*source as usize])),
        };
        let patience = match number % 3 {
            0 => WAIT.into(),
            rest => WaitPolicy::Writes { more: rest == 1 },
        };
        writer.submit_region(*source, Frame { number: *number, taken: 0, payload }, patience).expect("a frame taken");
    }
    // Scalars arrive late, and one of their columns is new.
    let extra = writer.column(ScalarColumn { name: "extra".into(), kind: ScalarKind::Integer }).expect("a column");
    for number in &numbers {
        let values = scalars
            .iter()
            .enumerate()
            .map(|(column, scalar_column)| (column as u32, scalar(scalar_column.kind, number * 10 + column as u64)));
        let extra = (extra, scalar(ScalarKind::Integer, number * 10 + scalars.len() as u64));
        writer.scalars(*number, values.chain([extra]).collect()).expect("scalars taken");
    }
    let finished = writer.finish().expect("a run finished");
    let counts = finished.counts;
    assert_eq!(counts.received + counts.late + counts.partial, numbers.len() as u64, "{counts:?}");
    assert_eq!(std::fs::metadata(&path).expect("the file").len(), finished.file_bytes);
    assert!(!directory.join(format!("{name}.h5.journal")).exists());
    let came: BTreeSet<(u64, u32)> = parts.into_iter().collect();
    let lost = |number: &u64| -> Vec<u32> {
        (0..regions.len() as u32).filter(|source| !came.contains(&(*number, *source))).collect()
    };
    let lost: BTreeMap<String, Vec<u32>> =
        numbers.iter().map(|number| (number.to_string(), lost(number))).filter(|(_, lost)| !lost.is_empty()).collect();
    let mut names = names(&run.description);
    names.push("extra".into());
    let reported = json!({
        "frame": frame, "fill": run.description.fill.unwrap_or(0.0.into()), "acknowledged": numbers, "exact": true,
        "scalars": names, "sources": sources, "lost": lost, "dump": true, "rows": run.description.frames_max(),
    });
    std::fs::write(directory.join(format!("{name}.json")), reported.to_string()).expect("the description written");
}

/// The frames as Debian's h5dump reads them.
fn dump(path: &Path, to: &Path) {
    let listed = common::printed(Command::new("h5ls").arg(path));
    let dataset = if listed.contains("entry") { "/entry/data/data" } else { "/data" };
    let mut command = Command::new("h5dump");
    command.args(["-d", dataset, "-b", "LE", "-o"]).arg(to).arg(path);
    common::printed(common::with_plugins(&mut command));
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
        common::printed(Command::new("h5ls").arg("-rv").arg(&path));
        let dumped = path.with_extension("dumped");
        dump(&path, &dumped);
        let expected = std::fs::read(path.with_extension("raw")).expect("what h5py read");
        assert!(std::fs::read(&dumped).expect("what h5dump read") == expected, "{}: h5dump differs", path.display());
        let repacked = directory.path().join(format!("repacked-{number:04}.h5"));
        common::printed(common::with_plugins(Command::new("h5repack").arg(&path).arg(&repacked)));
        common::printed(common::with_plugins(Command::new("h5diff").arg(&path).arg(&repacked)));
    }
}

/// Every index beyond its first pages, through the whole pipeline.
#[test]
fn long_runs_are_read_back_equal() {
    let directory = tempfile::tempdir().expect("a directory");
    let frames = if std::env::var_os("VARVE_SOAK").is_some() { 100_500 } else { 1_500 };
    for (name, scan, scan_max, allocate) in [
        ("fixed", Some(frames), None, Allocate::Packed),
        ("extensible", None, None, Allocate::Packed),
        ("tree", Some(frames), Some(vec![None, None]), Allocate::Packed),
        ("gaps", None, Some(vec![None, Some(900)]), Allocate::Packed),
        ("sparse", None, None, Allocate::Sparse),
        ("implicit", Some(frames), None, Allocate::Implicit),
    ] {
        // Each commit also covers the rows between frames.
        let frames = if name == "gaps" { frames.min(1_500) } else { frames };
        let mut description = DatasetSpec::new(ElementType::U16, vec![4, 3]);
        description.scan = vec![scan, Some(1)];
        description.scan_max = scan_max;
        description.allocate = allocate;
        if allocate == Allocate::Implicit {
            description.filter = "raw".parse().expect("a filter's name");
        }
        write(
            directory.path(),
            name,
            &RandomRun { description, frames, lost: 3, filtered: false, queue_bytes: 1 << 20, seed: 7 },
        );
    }
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "6");
}
