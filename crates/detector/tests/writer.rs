//! Runs are written by the whole pipeline and read back by h5py: every frame in its place, every lost one missing.

mod common;

use common::frames;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use varve_detector::description::{Allocate, Description, Region, Scalar, ScalarColumn, ScalarKind, Structure};
use varve_detector::filters::{Encoder, PluginChoice};
use varve_detector::frame::{Frame, Level, Payload};
use varve_detector::hdf5::ElementType;
use varve_detector::journal::{self, Entry};
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
    /// Of a hundred regions, how many never come.
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

fn run() -> impl Strategy<Value = Run> {
    let filters = ["raw", "gzip:1", "shuffle+gzip:4", "lz4", "zstd:1", "bslz4", "bszstd:1"];
    let shape = (prop::collection::vec((1_u64..20, 1_u64..20), 1..=3), scan(), any::<bool>(), any::<bool>());
    let structure = (any::<bool>(), prop::sample::select(vec![Allocate::Packed, Allocate::Sparse, Allocate::Implicit]));
    let rest = (prop::sample::select(filters.to_vec()), structure, 0_u64..5, 1_u64..60, 1_u64..4);
    let way = (0_u64..60, any::<bool>(), prop::sample::select(vec![2_usize << 10, 1 << 20]), any::<u64>());
    (shape, rest, way).prop_map(|(shape, rest, (lost, filtered, queue_bytes, seed))| {
        let (sides, (inner, chunk), limited, extended) = shape;
        let (filter, (nexus, allocate), scalars, frames, sources) = rest;
        let mut description = Description::new(ElementType::U16, sides.iter().map(|side| side.0).collect());
        let within: Vec<u64> = sides.iter().map(|(side, chunk)| (*chunk).min(*side)).collect();
        description.scan = [limited.then_some(60)].into_iter().chain(inner.into_iter().map(Some)).collect();
        let several =
            description.scan.iter().zip(chunk).map(|(side, chunk)| side.map_or(chunk, |side| side.min(chunk)));
        description.chunk = Some(match seed % 2 {
            0 => within,
            _ => several.chain(within).collect(),
        });
        // One unlimited side more than the first gives a tree.
        let open = |(at, side): (usize, &Option<u64>)| if at == 0 && limited { *side } else { None };
        description.scan_max = extended.then(|| description.scan.iter().enumerate().map(open).collect());
        description.filter = filter.parse().expect("a filter's name");
        description.fill = Some(65535.0);
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
        Run { description, frames, lost, filtered, queue_bytes, seed }
    })
}

/// Cuts a frame along its first side, and leaves the last row out where there are several.
fn strips(frame: &[u64], count: u64) -> Vec<Region> {
    let rows = frame[0].saturating_sub(1);
    if count == 1 || rows < count {
        return Vec::new();
    }
    let strip = |number: u64| {
        let (first, end) = (number * rows / count, (number + 1) * rows / count);
        let zeros = vec![0; frame.len() - 1];
        Region { offset: [vec![first], zeros].concat(), shape: [vec![end - first], frame[1..].to_vec()].concat() }
    };
    (0..count).map(strip).collect()
}

/// What a source brings of a frame, which it has as a whole.
fn cut(frame: &[u8], sides: &[u64], region: &Region) -> Vec<u8> {
    let row = sides[1..].iter().product::<u64>() as usize * 2;
    let first = region.offset[0] as usize;
    frame[first * row..(first + region.shape[0] as usize) * row].to_vec()
}

fn scalar(kind: ScalarKind, number: u64) -> Scalar {
    match kind {
        ScalarKind::Float => (number as f64).into(),
        ScalarKind::Integer => (number as i64).into(),
        ScalarKind::Text(_) => number.to_string().into(),
        ScalarKind::Unsigned => number.into(),
    }
}

fn write(directory: &Path, name: &str, run: &Run) {
    let path = directory.join(format!("{name}.h5"));
    let Description { ref frame, ref scalars, ref sources, .. } = run.description;
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
        let alone = run.description.chunks_per_frame() * run.description.slab_frames() == 1 && sources.is_empty();
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
        writer.submit_region(*source, Frame { number: *number, taken: 0, payload }, WAIT).expect("a frame taken");
    }
    // Scalars are late, and one of their columns is new.
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
    let told = json!({
        "frame": frame, "fill": run.description.fill.unwrap_or(0.0), "acknowledged": numbers, "exact": true,
        "scalars": names, "sources": sources, "lost": lost, "dump": true, "rows": run.description.frames_max(),
    });
    std::fs::write(directory.join(format!("{name}.json")), told.to_string()).expect("the description written");
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

/// The frames as Debian's h5dump reads them.
fn dump(path: &Path, to: &Path) {
    let listed = common::said(Command::new("h5ls").arg(path));
    let dataset = if listed.contains("entry") { "/entry/data/data" } else { "/data" };
    let mut command = Command::new("h5dump");
    command.args(["-d", dataset, "-b", "LE", "-o"]).arg(to).arg(path);
    common::said(common::with_plugins(&mut command));
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
        let dumped = path.with_extension("dumped");
        dump(&path, &dumped);
        let expected = std::fs::read(path.with_extension("raw")).expect("what h5py read");
        assert!(std::fs::read(&dumped).expect("what h5dump read") == expected, "{}: h5dump differs", path.display());
        let repacked = directory.path().join(format!("repacked-{number:04}.h5"));
        common::said(common::with_plugins(Command::new("h5repack").arg(&path).arg(&repacked)));
        common::said(common::with_plugins(Command::new("h5diff").arg(&path).arg(&repacked)));
    }
}

/// Those that never came, after the last that did, too; unless the run was given up.
#[test]
fn a_scan_that_ends_has_all_its_frames() {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, finished, rows) in [("finished", true, 12), ("given-up", false, 6), ("nothing", true, 12)] {
        let mut description = Description::new(ElementType::U16, vec![4, 5]);
        (description.scan, description.fill) = (vec![Some(3), Some(4)], Some(7.0));
        let path = directory.path().join(format!("{name}.h5"));
        let writer = Writer::create(&path, description, settings(), quiet()).expect("a run started");
        let numbers: Vec<u64> = if name == "nothing" { vec![] } else { vec![0, 1, 2, 3, 5] };
        for number in &numbers {
            let payload = Payload::Plain(frames::frame(*number, 20));
            writer.submit(Frame { number: *number, taken: 0, payload }, WAIT).expect("a frame taken");
        }
        let counts = if finished { writer.finish() } else { writer.give_up() }.expect("a run ended").counts;
        let came = numbers.len() as u64;
        assert_eq!((counts.frames, counts.missing, counts.received + counts.late), (rows, rows - came, came));
        let told = json!({"frame": [4, 5], "fill": 7, "acknowledged": numbers, "exact": true, "rows": rows});
        std::fs::write(path.with_extension("json"), told.to_string()).expect("the description written");
        let listed = common::said(Command::new("h5ls").arg(format!("{}/data", path.display())));
        assert!(listed.contains(if finished { "{3, 4, 4, 5}" } else { "{2/3, 4, 4, 5}" }), "{listed}");
    }
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "3");
}

/// What was written is taken up again where its writer left it: parts of slabs, scalars, columns that were added.
#[test]
fn a_run_goes_on_with_its_parts_and_columns() {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, goes_on) in [("recovered", false), ("resumed", true)] {
        let path = directory.path().join(format!("{name}.h5"));
        let mut description = Description::new(ElementType::U16, vec![9, 8]);
        description.chunk = Some(vec![4, 5, 8]);
        description.fill = Some(7.0);
        description.scalars = vec!["declared".into()];
        description.sources = strips(&description.frame, 2);
        let writer = Writer::create(&path, description.clone(), settings(), quiet()).expect("a run started");
        let give = |writer: &Writer, number: u64, source: u32| {
            let plain = cut(&frames::frame(number, 72), &description.frame, &description.sources[source as usize]);
            let frame = Frame { number, taken: 0, payload: Payload::Plain(plain) };
            writer.submit_region(source, frame, WAIT).expect("a region taken");
        };
        for (number, source) in [(0, 0), (0, 1), (1, 0), (5, 1)] {
            give(&writer, number, source);
        }
        let added = ScalarColumn { name: "added".into(), kind: ScalarKind::Text(8) };
        assert_eq!(writer.column(added.clone()).expect("a column"), 1);
        for number in [0, 1, 5] {
            writer.scalars(number, vec![(0, (number * 10) as f64)]).expect("scalars taken");
            writer.scalars(number, vec![(1, (number * 10 + 1).to_string())]).expect("scalars taken");
        }
        let wrong = writer.scalars(0, vec![(1, 1.5)]).expect_err("no text").to_string();
        assert!(wrong.contains("`added`"), "{wrong}");
        // As after a crash: the journal stays.
        drop(writer);
        let mut lost = json!({"1": [1], "5": [0]});
        if goes_on {
            let (writer, resumed) = Writer::resume(&path, settings(), quiet()).expect("taken up");
            assert_eq!((resumed.counts.received, resumed.counts.partial), (1, 2));
            assert_eq!((writer.level(1, 0), writer.level(1, 1)), (Some(Level::Durable), None));
            assert_eq!(writer.column(added).expect("the column"), 1);
            give(&writer, 1, 1);
            give(&writer, 1, 0);
            let counts = writer.finish().expect("finished").counts;
            assert_eq!((counts.received + counts.late + counts.duplicate, counts.partial), (2, 1), "{counts:?}");
            lost = json!({"5": [0]});
        } else {
            recover(&path).expect("recovered");
        }
        let told = json!({
            "frame": [9, 8], "fill": 7, "acknowledged": [0, 1, 5], "exact": true, "scalars": ["declared", "added"],
            "sources": description.sources, "lost": lost,
        });
        std::fs::write(path.with_extension("json"), told.to_string()).expect("the description written");
    }
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "2");
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
        ("sparse", None, None, Allocate::Sparse),
        ("implicit", Some(frames), None, Allocate::Implicit),
    ] {
        let mut description = Description::new(ElementType::U16, vec![4, 3]);
        description.scan = vec![scan, Some(1)];
        description.scan_max = scan_max;
        description.allocate = allocate;
        if allocate == Allocate::Implicit {
            description.filter = "raw".parse().expect("a filter's name");
        }
        write(
            directory.path(),
            name,
            &Run { description, frames, lost: 3, filtered: false, queue_bytes: 1 << 20, seed: 7 },
        );
    }
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "5");
}

/// Regions that come compressed go to the file as they are, where each is made of whole chunks.
#[test]
fn regions_that_come_compressed_are_written_as_they_are() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let mut description = Description::new(ElementType::U16, vec![2, 6, 5]);
    description.chunk = Some(vec![1, 6, 5]);
    description.fill = Some(3.0);
    let channel = |number| Region { offset: vec![number, 0, 0], shape: vec![1, 6, 5] };
    description.sources = vec![channel(0), channel(1)];
    let writer = Writer::create(&path, description.clone(), settings(), quiet()).expect("a run started");
    let mut encoder = Encoder::new(description.filter, 2).expect("an encoder");
    for (number, source) in [(0, 0), (1, 1), (0, 1), (2, 0), (2, 1)] {
        let plain = cut(&frames::frame(number, 60), &description.frame, &description.sources[source as usize]);
        let mut blob = Vec::new();
        encoder.encode(&plain, &mut blob).expect("filtered");
        let payload = Payload::Filtered(vec![blob.into()]);
        writer.submit_region(source, Frame { number, taken: 0, payload }, WAIT).expect("a region taken");
    }
    assert_eq!(writer.level(1, 0), None);
    assert!(writer.level(1, 1).is_some());
    let twice = Frame { number: 0, taken: 0, payload: Payload::Plain(vec![0; 60]) };
    writer.submit_region(1, twice, WAIT).expect("a region that came before is passed over");
    let counts = writer.finish().expect("a run finished").counts;
    assert_eq!((counts.received, counts.partial, counts.duplicate), (1, 1, 1), "{counts:?}");
    let told = json!({
        "frame": [2, 6, 5], "fill": 3, "acknowledged": [0, 1, 2], "exact": true,
        "sources": description.sources, "lost": {"1": [0]},
    });
    std::fs::write(directory.path().join("run.json"), told.to_string()).expect("the description written");
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "1");
}

/// A filter from a shared library compresses in our threads, and readers that have it read the file.
#[test]
fn a_users_filter_is_run() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let mut description = Description::new(ElementType::U16, vec![40, 50]);
    description.fill = Some(1.0);
    description.chunk = Some(vec![3, 20, 50]);
    description.filter = "raw".parse().expect("a filter's name");
    let bzip2 = Path::new(common::plugins()).join("libh5bzip2.so");
    description.plugin = Some(PluginChoice { library: bzip2, values: vec![9], exclusive: false, registered: None });
    let writer = Writer::create(&path, description.clone(), settings(), quiet()).expect("a run started");
    let numbers: Vec<u64> = (0..20).collect();
    for number in &numbers {
        let payload = Payload::Plain(frames::frame(*number, 2000));
        writer.submit(Frame { number: *number, taken: 0, payload }, WAIT).expect("a frame taken");
    }
    writer.finish().expect("a run finished");
    tell(directory.path(), "run", &description, &numbers, true);
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "1");
    let listed = common::said(common::with_plugins(Command::new("h5ls").arg("-v").arg(path.with_file_name("run.h5"))));
    assert!(listed.contains("307"), "{listed}");
    for (library, why) in
        [("/nowhere/filter.so", "cannot open shared object file"), ("libc.so.6", "no H5PLget_plugin_type")]
    {
        let choice = PluginChoice { library: library.into(), values: vec![], exclusive: false, registered: None };
        let refused = Writer::create(
            &directory.path().join("no.h5"),
            Description { plugin: Some(choice), ..description.clone() },
            settings(),
            quiet(),
        );
        let error = refused.err().expect("refused").to_string();
        assert!(error.contains(why), "{error}");
    }
}

/// A file system of a few MiB, mounted for as long as this lives.
struct SmallStore<'a>(&'a Path);

impl SmallStore<'_> {
    /// `None` where this user may not mount.
    fn mount(at: &Path, kib: u64) -> Option<SmallStore<'_>> {
        std::fs::create_dir_all(at).expect("a mount point");
        let size = format!("size={kib}k");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "varve-test"]).arg(at).output();
        mounted.is_ok_and(|output| output.status.success()).then_some(SmallStore(at))
    }
}

impl Drop for SmallStore<'_> {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("--lazy").arg(self.0).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "{} stays mounted", self.0.display());
    }
}

/// Issue 5: disk full gives a clear error, and a valid file with all frames so far; wherever in a commit, a stripe or the
/// journal it is that the disk runs full.
#[test]
fn a_full_disk_keeps_every_frame_so_far() {
    let (sizes, seldom) = ([3000, 4500, 6000, 12_000], Duration::from_secs(3600));
    for (kib, commit_interval) in sizes.into_iter().flat_map(|kib| [(kib, seldom), (kib, Duration::from_millis(2))]) {
        let settings = Settings { commit_interval, stripe_bytes: 256 << 10, ..settings() };
        if !fills_a_disk(kib + u64::from(std::process::id()) % 64 * 4, settings) {
            return;
        }
    }
}

/// Writes frames until a disk of so many KiB is full, and reads them; `false` where this user may not mount.
fn fills_a_disk(kib: u64, settings: Settings) -> bool {
    let directory = tempfile::tempdir().expect("a directory");
    let small = directory.path().join("small");
    let Some(_store) = SmallStore::mount(&small, kib) else { return false };
    let path = small.join("full.h5");
    let mut description = Description::new(ElementType::U16, vec![128, 128]);
    description.filter = "raw".parse().expect("a filter's name");
    description.fill = Some(2.0);
    let written = Arc::new(std::sync::Mutex::new(Vec::new()));
    let noted = Arc::clone(&written);
    let acknowledge: varve_detector::writer::Acknowledge = Arc::new(move |level, numbers| {
        if level == Level::Written {
            noted.lock().expect("not poisoned").extend_from_slice(numbers);
        }
    });
    let writer = Writer::create(&path, description.clone(), settings, acknowledge).expect("a run started");
    let failure = (0..10_000).find_map(|number| {
        let payload = Payload::Plain(frames::frame(number, 128 * 128));
        writer.submit(Frame { number, taken: 0, payload }, WAIT).err()
    });
    assert!(matches!(failure, Some(WriteError::Failed(_))), "{failure:?}");
    let error = writer.finish().expect_err("the run has failed").to_string();
    assert!(error.contains("No space left"), "{error}");
    // The file opens as it is, the disk still full, with all that was written before the disk was.
    let mut acknowledged = written.lock().expect("not poisoned").clone();
    assert!(acknowledged.len() as u64 > kib / 64, "{} frames were written on {kib} KiB", acknowledged.len());
    acknowledged.sort_unstable();
    let told = json!({"frame": [128, 128], "fill": 2, "acknowledged": acknowledged, "exact": false});
    let full = directory.path().join("read");
    std::fs::create_dir(&full).expect("a directory");
    std::os::unix::fs::symlink(&path, full.join("full.h5")).expect("a link");
    std::fs::write(full.join("full.json"), told.to_string()).expect("the description written");
    assert_eq!(common::python("frames.py", &[&full]).trim(), "1");
    true
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

/// What was set aside and not needed is given back, and what several threads wrote lies without gaps.
#[test]
fn a_finished_file_is_little_larger_than_its_content() {
    const FRAMES: u64 = 20;
    const BLOB_BYTES: usize = 100_000;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let description = Description::new(ElementType::U16, vec![256, 256]);
    let settings = Settings { threads: 4, commit_interval: Duration::from_secs(3600), ..Settings::default() };
    let writer = Writer::create(&path, description, settings, quiet()).expect("a run started");
    // The lengths of the frame, of its one block, and of what that takes.
    let lengths = [&[0; 4][..], &[0, 2, 0, 0], &[0, 2, 0, 0], &(BLOB_BYTES as u32 - 16).to_be_bytes()].concat();
    for number in 0..FRAMES {
        let blob = [&lengths[..], &vec![number as u8; BLOB_BYTES - lengths.len()]].concat();
        let payload = Payload::Filtered(vec![blob.into()]);
        writer.submit(Frame { number, taken: 0, payload }, WAIT).expect("a frame taken");
    }
    let finished = writer.finish().expect("a run finished");
    let length = std::fs::metadata(&path).expect("the file").len();
    assert_eq!(finished.file_bytes, length);
    let content = FRAMES * BLOB_BYTES as u64;
    assert!(length < content + content / 25, "{length} bytes for {content}");
}

/// Scalars are in the journal, which outlives the process, when frames that came after them are called written, and when
/// they are asked for.
#[test]
fn scalars_outlive_the_process_with_their_frames() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let mut description = Description::new(ElementType::U16, vec![2, 2]);
    description.scalars = vec![ScalarColumn { name: "a".into(), kind: ScalarKind::Float }];
    let settings = Settings { commit_interval: Duration::from_secs(3600), ..settings() };
    let (said, hears) = std::sync::mpsc::channel();
    let acknowledge: varve_detector::writer::Acknowledge = Arc::new(move |level, _| {
        if level == Level::Written {
            said.send(()).expect("the test hears");
        }
    });
    let writer = Writer::create(&path, description, settings, acknowledge).expect("a run started");
    let in_journal = || -> Vec<u64> {
        let read = journal::read(&journal::path_beside(&path)).expect("a journal");
        let frame = |entry: &Entry| match entry {
            Entry::Scalars { frame, .. } => Some(*frame),
            _ => None,
        };
        read.entries.iter().filter_map(frame).collect()
    };
    writer.scalars(0, vec![(0, 1.5)]).expect("a value of a column");
    let payload = Payload::Plain(frames::frame(0, 4));
    writer.submit(Frame { number: 0, taken: 0, payload }, WAIT).expect("a frame taken");
    hears.recv_timeout(WAIT).expect("it is written");
    assert_eq!(in_journal(), [0]);
    writer.scalars(7, vec![(0, 2.5)]).expect("a value of a column");
    assert_eq!(in_journal(), [0]);
    writer.keep_scalars().expect("the journal is written");
    assert_eq!(in_journal(), [0, 7]);
    writer.finish().expect("a run finished");
}
