//! The possible forms of a run, and the resulting files.

use super::common::{self, frames};
use super::{WAIT, cut, quiet, settings, tell};
use serde_json::json;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use varve_detector_dataset::dataset_spec::{DatasetSpec, Region, Structure};
use varve_detector_dataset::frame::{Frame, Payload};
use varve_detector_file::recover::{RecoverError, recover};
use varve_detector_file::run_files;
use varve_detector_filters::{Encoder, PluginChoice};
use varve_detector_hdf5::ElementType;
use varve_detector_writer::{Settings, WaitPolicy, WriteError, Writer};

/// Promise: all frames that their receiving thread writes are in the file, however soon the run ends. This includes a
/// frame that is dropped unwritten, and one whose thread is still writing.
#[test]
fn receiving_thread_may_write_its_frame() {
    const FRAMES: u64 = 60;
    let directory = tempfile::tempdir().expect("a directory");
    let mut description = DatasetSpec::new(ElementType::U16, vec![30, 40]);
    description.fill = Some(7.0.into());
    let path = directory.path().join("own.h5");
    tell(directory.path(), "own", &description, &(0..FRAMES).collect::<Vec<_>>(), true);
    let writer = Writer::create(&path, description, settings(), quiet()).expect("a run started");
    let mut charges = Vec::new();
    for number in 0..FRAMES {
        let frame = Frame { number, taken: 0, payload: Payload::Plain(frames::frame(number, 1200)) };
        let inline_write =
            writer.hand_in(0, frame, WaitPolicy::Writes { more: number % 2 == 0 }).expect("a frame taken");
        charges.push(inline_write.expect("the caller that hands a frame in writes it"));
    }
    let late = charges.split_off(FRAMES as usize / 2);
    // Written and dropped frames, in any order.
    charges
        .into_iter()
        .rev()
        .enumerate()
        .for_each(|(at, inline_write)| if at % 5 > 0 { inline_write.write() } else { drop(inline_write) });
    let counts = std::thread::scope(|scope| {
        scope.spawn(|| {
            for inline_write in late {
                std::thread::sleep(Duration::from_millis(2));
                inline_write.write();
            }
        });
        writer.finish().expect("a run finished").counts
    });
    assert_eq!((counts.frames, counts.missing), (FRAMES, 0));
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "1");
}

/// The file has a row for frames that never arrived, including those after the last received one. An aborted run is
/// filled to the end of its last row.
#[test]
fn a_scan_that_ends_has_all_its_frames() {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, finished, rows) in [("finished", true, 12), ("given-up", false, 8), ("nothing", true, 12)] {
        let mut description = DatasetSpec::new(ElementType::U16, vec![4, 5]);
        (description.scan, description.fill) = (vec![Some(3), Some(4)], Some(7.0.into()));
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
        let reported = json!({"frame": [4, 5], "fill": 7, "acknowledged": numbers, "exact": true, "rows": rows});
        std::fs::write(path.with_extension("json"), reported.to_string()).expect("the description written");
        let listed = common::printed(Command::new("h5ls").arg(format!("{}/data", path.display())));
        assert!(listed.contains(if finished { "{3, 4, 4, 5}" } else { "{2/3, 4, 4, 5}" }), "{listed}");
    }
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "3");
}

/// Regions that arrive compressed are written unchanged if each consists of whole chunks.
#[test]
fn compressed_regions_are_written_unchanged() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let mut description = DatasetSpec::new(ElementType::U16, vec![2, 6, 5]);
    description.chunk = Some(vec![1, 6, 5]);
    description.fill = Some(3.0.into());
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
    let reported = json!({
        "frame": [2, 6, 5], "fill": 3, "acknowledged": [0, 1, 2], "exact": true,
        "sources": description.sources, "lost": {"1": [0]},
    });
    std::fs::write(directory.path().join("run.json"), reported.to_string()).expect("the description written");
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "1");
}

/// Promise: the same holds for the only region of a run that covers a part of the frame: it goes into the chunks that
/// it consists of.
#[test]
fn single_region_is_written_without_copy() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let mut description = DatasetSpec::new(ElementType::U16, vec![8, 6]);
    description.chunk = Some(vec![4, 6]);
    description.fill = Some(3.0.into());
    description.sources = vec![Region { offset: vec![4, 0], shape: vec![4, 6] }];
    let writer = Writer::create(&path, description.clone(), settings(), quiet()).expect("a run started");
    let mut encoder = Encoder::new(description.filter, 2).expect("an encoder");
    for number in 0..4 {
        let plain = cut(&frames::frame(number, 48), &description.frame, &description.sources[0]);
        let payload = match number % 2 {
            0 => Payload::Plain(plain),
            _ => {
                let mut blob = Vec::new();
                encoder.encode(&plain, &mut blob).expect("filtered");
                Payload::Filtered(vec![blob.into()])
            }
        };
        writer.submit_region(0, Frame { number, taken: 0, payload }, WAIT).expect("a region taken");
    }
    writer.finish().expect("a run finished");
    let reported = json!({
        "frame": [8, 6], "fill": 3, "acknowledged": [0, 1, 2, 3], "exact": true, "sources": description.sources,
    });
    std::fs::write(directory.path().join("run.json"), reported.to_string()).expect("the description written");
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "1");
}

/// A filter from a shared library compresses on our threads. Readers with this filter can read the file.
#[test]
fn a_users_filter_is_run() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let mut description = DatasetSpec::new(ElementType::U16, vec![40, 50]);
    description.fill = Some(1.0.into());
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
    let listed =
        common::printed(common::with_plugins(Command::new("h5ls").arg("-v").arg(path.with_file_name("run.h5"))));
    assert!(listed.contains("307"), "{listed}");
    for (library, why) in
        [("/nowhere/filter.so", "cannot open shared object file"), ("libc.so.6", "no H5PLget_plugin_type")]
    {
        let choice = PluginChoice { library: library.into(), values: vec![], exclusive: false, registered: None };
        let refused = Writer::create(
            &directory.path().join("no.h5"),
            DatasetSpec { plugin: Some(choice), ..description.clone() },
            settings(),
            quiet(),
        );
        let error = refused.err().expect("refused").to_string();
        assert!(error.contains(why), "{error}");
    }
}

/// Unused reserved space is freed, and the data of several threads lies without gaps.
#[test]
fn a_finished_file_is_little_larger_than_its_content() {
    const FRAMES: u64 = 20;
    const BLOB_BYTES: usize = 100_000;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let description = DatasetSpec::new(ElementType::U16, vec![256, 256]);
    let settings = Settings { threads: 4, commit_interval: Duration::from_secs(3600), ..Settings::default() };
    let writer = Writer::create(&path, description, settings, quiet()).expect("a run started");
    // The lengths of the frame, of its one block, and of the block's compressed bytes.
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

#[test]
fn unwritable_frame_is_refused_and_the_run_continues() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let mut description = DatasetSpec::new(ElementType::U16, vec![2, 2]);
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

/// Without its journal, an unfinished file is distinguished from a finished one, and from a file that belongs to no
/// run.
#[test]
fn file_without_journal_is_recognised() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let writer = Writer::create(&path, DatasetSpec::new(ElementType::U16, vec![2, 2]), settings(), quiet());
    let writer = writer.expect("a run started");
    for number in [0, 1, 3] {
        writer.submit(Frame { number, taken: 0, payload: Payload::Plain(vec![0; 8]) }, WAIT).expect("a frame taken");
    }
    let deadline = std::time::Instant::now() + WAIT;
    while writer.progress().published < 4 {
        assert!(std::time::Instant::now() < deadline, "{:?}", writer.progress());
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(writer);
    let journal = run_files::journal_of(&path);
    std::fs::rename(&journal, directory.path().join("away")).expect("renamed");
    let Err(RecoverError::NoJournal(alone)) = recover(&path) else { panic!("it is not finished") };
    assert_eq!((alone.left.frames, alone.left.missing), (3, 1));
    let resumed = Writer::resume(&path, settings(), quiet()).err().expect("refused").to_string();
    assert!(resumed.contains("run.h5.journal is missing"), "{resumed}");
    std::fs::rename(directory.path().join("away"), &journal).expect("renamed");
    recover(&path).expect("recovered");
    assert!(matches!(recover(&path), Err(RecoverError::NothingToDo { .. })));
    let whole = std::fs::read(&path).expect("read");
    for (bytes, why) in [
        (&whole[..whole.len() - 1], "truncated"),
        (b"no HDF5 file, but a text that is longer than the head of one is", "does not begin as"),
        (b"", "has 0 bytes"),
    ] {
        std::fs::write(&path, bytes).expect("written");
        let foreign = recover(&path).expect_err("no file of a run").to_string();
        assert!(foreign.contains(why), "{foreign}");
    }
}

/// Unmodified readers can open the file at any time of the run. They see a valid file, which grows.
#[test]
fn file_is_readable_throughout_its_run() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("live.h5");
    let mut description = DatasetSpec::new(ElementType::U16, vec![32, 32]);
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

/// Promise: a file under a run's name can be opened at all times, from the first on.
#[test]
fn file_is_readable_as_soon_as_it_is_named() {
    const RUNS: usize = 200;
    let directory = tempfile::tempdir().expect("a directory");
    let path = |run: usize| directory.path().join(format!("run-{run}.h5"));
    std::thread::scope(|scope| {
        let found = scope.spawn(|| {
            (0..RUNS).for_each(|run| {
                // A file that existed without its first bytes could not be opened.
                let mut file = loop {
                    match File::open(path(run)) {
                        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound),
                        Ok(file) => break file,
                    }
                };
                let mut first = Vec::new();
                (&mut file).take(8).read_to_end(&mut first).expect("a file that can be read");
                assert_eq!(first, b"\x89HDF\r\n\x1a\n", "run {run}");
            });
        });
        for run in 0..RUNS {
            let description = DatasetSpec::new(ElementType::U16, vec![8, 8]);
            Writer::create(&path(run), description, settings(), quiet())
                .expect("a run started")
                .finish()
                .expect("ended");
            if found.is_finished() {
                break;
            }
        }
        found.join().expect("every file began as one");
    });
    let left: Vec<_> =
        std::fs::read_dir(directory.path()).expect("a directory").map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left.len(), RUNS, "{left:?}");
}

/// Promise: another user's file under the temporary name of a run's file stays, whatever the result of the run. The
/// leftover of an interrupted start under that name is removed.
#[test]
fn unrelated_file_beside_the_run_is_kept() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, beside) = (directory.path().join("run.h5"), directory.path().join("run.h5.new"));
    let create = || Writer::create(&path, DatasetSpec::new(ElementType::U16, vec![8, 8]), settings(), quiet());
    std::fs::write(&beside, "somebody's").expect("a file");
    match create() {
        Err(WriteError::Exists { path }) => assert_eq!(path, beside),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was written over"),
    }
    assert_eq!(std::fs::read_dir(directory.path()).expect("a directory").count(), 1, "nothing else is left");
    std::fs::remove_file(&beside).expect("it is there");
    let writer = create().expect("a run started");
    std::fs::write(&beside, "somebody's").expect("a file");
    writer.finish().expect("a run finished");
    assert_eq!(std::fs::read(&beside).expect("it is there"), b"somebody's");

    let (path, beside) = (directory.path().join("cut.h5"), directory.path().join("cut.h5.new"));
    let writer = Writer::create(&path, DatasetSpec::new(ElementType::U16, vec![8, 8]), settings(), quiet());
    drop(writer.expect("a run started"));
    // As after a kill before the file got its name; then, for a store without `RENAME_NOREPLACE`, as after a kill in
    // the middle of that.
    std::fs::rename(&path, &beside).expect("it is there");
    recover(&path).expect("recovered");
    assert!(path.exists() && !beside.exists());
    std::fs::remove_file(&path).expect("it is there");
    let writer = Writer::create(&path, DatasetSpec::new(ElementType::U16, vec![8, 8]), settings(), quiet());
    std::fs::hard_link(&path, &beside).expect("another name");
    writer.expect("a run started").finish().expect("a run finished");
    assert!(path.exists() && !beside.exists());
}

/// Promise: no HDF5 program can open the file of a run for writing, which would truncate it on close. A run whose file
/// such a program has open is not resumed.
#[test]
fn run_file_is_locked_against_other_writers() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let description = DatasetSpec::new(ElementType::U16, vec![8, 8]);
    let writer = Writer::create(&path, description.clone(), settings(), quiet()).expect("a run started");
    let mut python = Command::new(common::interpreter());
    let opened = |mode: &str| {
        let script = "import h5py, sys; h5py.File(sys.argv[1], sys.argv[2]).close()";
        let mut python = Command::new(common::interpreter());
        python.args(["-c", script]).arg(&path).arg(mode).output().expect("h5py runs")
    };
    assert!(opened("r").status.success());
    let refused = opened("r+");
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && why.contains("unable to lock file"), "{why}");
    let frame = |number| Frame { number, taken: 0, payload: Payload::Plain(frames::frame(number, 64)) };
    (0..20).for_each(|number| writer.submit(frame(number), WAIT).expect("a frame taken"));
    writer.leave().expect("left");
    let script = "import h5py, sys; file = h5py.File(sys.argv[1], 'r+'); print('open', flush=True); sys.stdin.read()";
    let mut other =
        python.args(["-c", script]).arg(&path).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("h5py runs");
    let mut printed = [0; 4];
    std::io::Read::read_exact(other.stdout.as_mut().expect("piped"), &mut printed).expect("it says that it is open");
    let open = |error: &str| assert!(error.contains("has the file open for writing"), "{error}");
    open(&Writer::resume(&path, settings(), quiet()).err().expect("refused").to_string());
    open(&recover(&path).expect_err("refused").to_string());
    drop(other.stdin.take());
    assert!(other.wait().expect("it ends").success());
    let (writer, resumed) = Writer::resume(&path, settings(), quiet()).expect("taken up");
    assert_eq!(resumed.frames.len(), 20);
    writer.submit(frame(20), WAIT).expect("a frame taken");
    writer.finish().expect("a run finished");
    assert!(opened("r+").status.success());
    tell(directory.path(), "run", &description, &(0..21).collect::<Vec<u64>>(), true);
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "1");
}

/// Promise: the metadata of the whole run is in the file, whatever its structure.
#[test]
fn run_values_are_written_to_the_file() {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, structure, place) in
        [("raw", Structure::Raw, "values"), ("nexus", Structure::Nexus, "entry/instrument/detector/values")]
    {
        let path = directory.path().join(format!("{name}.h5"));
        let mut description = DatasetSpec::new(ElementType::U16, vec![8, 8]);
        description.structure = structure;
        description.values =
            serde_json::from_value(json!({"run": 7, "energy": 12.5, "user": "Ångström"})).expect("values");
        let writer = Writer::create(&path, description, settings(), quiet()).expect("a run started");
        let payload = Payload::Plain(frames::frame(0, 64));
        writer.submit(Frame { number: 0, taken: 0, payload }, WAIT).expect("a frame taken");
        writer.finish().expect("a run finished");
        let script = "import h5py, json, sys; group = h5py.File(sys.argv[1])[sys.argv[2]]; \
                      print(json.dumps([int(group['run'][()]), float(group['energy'][()]), group['user'].asstr()[()]]))";
        let read = common::printed(Command::new(common::interpreter()).args(["-c", script]).arg(&path).arg(place));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&read).expect("JSON"), json!([7, 12.5, "Ångström"]));
    }
}

/// Promise: the time to write very many frames that share a chunk grows linearly with their number. This holds for
/// frames sent together, added to a written chunk, and resumed.
#[test]
fn very_many_frames_share_a_chunk() {
    const FRAMES: u64 = 400_000;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let mut description = DatasetSpec::new(ElementType::U8, vec![1]);
    description.chunk = Some(vec![FRAMES, 1]);
    let values: Vec<u8> = (0..FRAMES).map(|number| (number % 251) as u8).collect();
    description.filter = "raw".parse().expect("a filter's name");
    let writer = Writer::create(&path, description, settings(), quiet()).expect("a run started");
    let durable = |writer: &Writer, frames: u64| {
        let begun = Instant::now();
        while writer.progress().durable < frames {
            assert!(writer.progress().failure.is_none() && begun.elapsed() < WAIT, "{:?}", writer.progress());
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let patience = WaitPolicy::Within(WAIT);
    writer
        .submit_chunk_group(0, (0..FRAMES - 1, 0), vec![values.clone().into()], patience)
        .expect("all but the last frame taken");
    writer.flush();
    durable(&writer, FRAMES - 1);
    drop(writer);
    let (writer, resumed) = Writer::resume(&path, settings(), quiet()).expect("taken up");
    assert_eq!(resumed.counts.received, FRAMES - 1);
    let frame = Frame { number: FRAMES - 1, taken: 0, payload: Payload::Plain(vec![7]) };
    writer.submit(frame, WAIT).expect("the last frame taken");
    durable(&writer, FRAMES);
    assert_eq!(writer.finish().expect("a run finished").counts.missing, 0);
    let read = hdf5_reader::Hdf5File::open(&path)
        .expect("a file")
        .dataset("/data")
        .expect("the data")
        .read_raw_bytes()
        .expect("elements");
    assert!(read[..values.len() - 1] == values[..values.len() - 1] && read[values.len() - 1..] == [7]);
}
