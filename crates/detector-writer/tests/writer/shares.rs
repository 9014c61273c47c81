//! A writer share of a run, written by a pipeline of its own and reported to the writer that commits the file.

use super::common::{self, frames};
use super::{WAIT, quiet, settings, tell};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};
use varve_detector_dataset::dataset_spec::{Allocate, DatasetSpec};
use varve_detector_dataset::frame::{Frame, Payload};
use varve_detector_dataset::journal_entry::{ChunkEntry, ChunkGroupEntry, FrameEntry, JournalEntry};
use varve_detector_file::recover::recover;
use varve_detector_file::{journal, run_files};
use varve_detector_filters::Filter;
use varve_detector_hdf5::{ElementType, UNDEFINED};
use varve_detector_writer::join::{Coordinator, Joined};
use varve_detector_writer::{Pipeline, Settings, WriteError, Writer};

/// A coordinator without a network.
pub struct Direct(pub Arc<Writer>);

impl Coordinator for Direct {
    fn extent(&self, bytes: u64) -> io::Result<Range<u64>> {
        self.0.grant(bytes)
    }

    fn report(&self, entries: Vec<JournalEntry>) -> io::Result<()> {
        self.0.report(entries).map_err(io::Error::other)
    }
}

/// Extents that were granted to joined processes and never reported take no space: they are a hole within the file, and
/// are removed at its end. Every reader can read it.
#[test]
fn unfilled_extents_take_no_space() {
    const EXTENT: u64 = 8 << 20;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let mut description = DatasetSpec::new(ElementType::U16, vec![6, 5]);
    description.fill = Some(9.0.into());
    let writer = Arc::new(Writer::create(&path, description.clone(), settings(), quiet()).expect("a run started"));
    let file = std::fs::File::options().read(true).write(true).open(&path).expect("the file");
    let holes = varve_detector_file::allocate::punch(&file, 1 << 20..2 << 20).expect("a store");
    // A killed process has written to its extent, and reported nothing.
    let killed = |writer: &Writer| {
        let extent = writer.grant(EXTENT).expect("an extent");
        file.write_all_at(&vec![1; EXTENT as usize], extent.start).expect("written");
        extent
    };
    let first = killed(&writer);
    let coordinator = Arc::new(Direct(Arc::clone(&writer)));
    let large = Settings { extent_bytes: EXTENT, stripe_bytes: EXTENT / 2, ..settings() };
    let joined = Joined::join(&path, description.clone(), large, (1, coordinator), quiet()).expect("joined");
    for number in 0..16 {
        let payload = Payload::Plain(frames::frame(number, 30));
        joined.submit(Frame { number, taken: 0, payload }, WAIT).expect("a frame taken");
    }
    joined.leave().expect("all is reported");
    let last = killed(&writer);
    let writer = Arc::into_inner(writer).expect("nobody else has it");
    let finished = writer.finish().expect("a run finished");
    let reported = std::fs::metadata(&path).expect("the file");
    assert_eq!(finished.file_bytes, reported.len());
    assert!(reported.len() > first.end, "the frames lie behind the first extent");
    assert!(reported.len() < last.end, "{} bytes, though nothing lies in {last:?}", reported.len());
    // A file system may count blocks until it has written its cached pages.
    let deadline = Instant::now() + WAIT;
    while holes && std::fs::metadata(&path).expect("the file").blocks() * 512 >= EXTENT / 4 {
        assert!(Instant::now() < deadline, "the unfilled extents take space");
        std::thread::sleep(Duration::from_millis(10));
    }
    tell(directory.path(), "run", &description, &(0..16).collect::<Vec<u64>>(), true);
    let copy = directory.path().join("copy.h5");
    common::printed(common::with_plugins(&mut Command::new("h5repack")).arg(&path).arg(&copy));
    tell(directory.path(), "copy", &description, &(0..16).collect::<Vec<u64>>(), true);
    assert!(std::fs::metadata(&copy).expect("the copy").len() < EXTENT);
    let dumped = common::printed(common::with_plugins(&mut Command::new("h5dump")).args(["-d", "/data"]).arg(&path));
    assert!(dumped.contains("( 16, 6, 5 )"), "{dumped}");
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "2");
}

/// Promise: a joined process may continue to write to its granted extents during and after the recovery of the file.
/// The file stays valid and finished.
#[test]
fn recovered_file_is_safe_from_late_writers() {
    const EXTENT: u64 = 8 << 20;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let description = DatasetSpec::new(ElementType::U16, vec![6, 5]);
    let settings = Settings { commit_interval: Duration::from_secs(3600), ..settings() };
    let writer =
        Arc::new(Writer::create(&path, description.clone(), settings.clone(), quiet()).expect("a run started"));
    let coordinator = Arc::new(Direct(Arc::clone(&writer)));
    let large = Settings { extent_bytes: EXTENT, stripe_bytes: EXTENT / 2, ..settings };
    let joined = Joined::join(&path, description.clone(), large, (1, coordinator), quiet()).expect("joined");
    for number in 0..16 {
        let payload = Payload::Plain(frames::frame(number, 30));
        joined.submit(Frame { number, taken: 0, payload }, WAIT).expect("a frame taken");
    }
    joined.leave().expect("all is reported");
    // The journal stays, as after a kill.
    drop(writer);
    let entries = journal::read(&run_files::journal_of(&path)).expect("a journal").entries;
    let reported = entries
        .iter()
        .filter(|entry| matches!(entry, JournalEntry::ChunkGroup(_)))
        .map(JournalEntry::end)
        .max()
        .expect("frames");
    let granted = entries.iter().map(|entry| if let JournalEntry::Granted { end } = entry { *end } else { 0 }).max();
    let rest = vec![0xff; (granted.expect("an extent") - reported) as usize];
    let file = std::fs::File::options().write(true).open(&path).expect("the file");
    let writes = || file.write_all_at(&rest, reported);
    writes().expect("written");
    assert_eq!(recover(&path).expect("recovered").counts.received, 16);
    writes().expect("written");
    let again = recover(&path).expect_err("it is finished").to_string();
    assert!(again.contains("needs no recovery"), "{again}");
    tell(directory.path(), "run", &description, &(0..16).collect::<Vec<u64>>(), true);
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "1");
}

/// Promise: a report that no writer of the run can have made is refused. If a journal contains one all the same, it is
/// skipped.
#[test]
fn impossible_report_is_refused_and_skipped() {
    let directory = tempfile::tempdir().expect("a directory");
    for filter in [Filter::RAW, Filter::BSLZ4] {
        let path = directory.path().join(format!("{filter}.h5"));
        let description = DatasetSpec { filter, ..DatasetSpec::new(ElementType::U16, vec![6, 5]) };
        let writer = Writer::create(&path, description.clone(), settings(), quiet()).expect("a run started");
        for number in 0..4 {
            let payload = Payload::Plain(frames::frame(number, 30));
            writer.submit(Frame { number, taken: 0, payload }, WAIT).expect("a frame taken");
        }
        let extent = writer.grant(1 << 20).expect("an extent");
        let frame = FrameEntry { number: 4, times: [0; 4], missing: Vec::new() };
        let chunk_group = |chunk_group, frames, (address, size)| {
            let chunks = vec![ChunkEntry { address, size, mask: 0, checksum: 0 }];
            JournalEntry::ChunkGroup(ChunkGroupEntry { chunk_group, epoch: 1, again: true, frames, chunks })
        };
        let many = extent.end - extent.start;
        let wrong = [
            chunk_group(1 << 40, Vec::new(), (UNDEFINED, 0)),
            chunk_group(4, vec![frame.clone()], (extent.start, many)),
            chunk_group(4, vec![frame.clone()], (extent.start, 0)),
            chunk_group(4, vec![frame], (UNDEFINED, 1 << 40)),
        ];
        for entry in wrong.clone() {
            let refused = writer.report(vec![entry.clone()]);
            assert!(matches!(refused, Err(WriteError::Frame { .. })), "{entry:?}: {refused:?}");
        }
        drop(writer);
        let beside = run_files::journal_of(&path);
        let mut bytes = std::fs::read(&beside).expect("a journal");
        wrong.iter().for_each(|entry| journal::encode(entry, &mut bytes));
        std::fs::write(&beside, bytes).expect("written");
        let (writer, resumed) = Writer::resume(&path, settings(), quiet()).expect("taken up");
        assert_eq!(resumed.frames, (0..4).collect());
        assert_eq!(writer.finish().expect("finished").counts.received, 4);
        tell(directory.path(), &filter.to_string(), &description, &[0, 1, 2, 3], true);
    }
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "2");
}

/// A chunk group that was written while incomplete is reported twice, and its frames are counted once.
#[test]
fn frames_of_a_writer_share_are_counted_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let mut description = DatasetSpec::new(ElementType::U16, vec![6, 5]);
    description.chunk = Some(vec![4, 6, 5]);
    description.fill = Some(9.0.into());
    description.scalars = vec!["energy".into()];
    let writer = Arc::new(Writer::create(&path, description.clone(), settings(), quiet()).expect("a run started"));
    // Without space for a second frame, a chunk group is passed on incomplete.
    let settings = Settings { queue_bytes: 1, ..settings() };
    let coordinator = Arc::new(Direct(Arc::clone(&writer)));
    let joined = Joined::join(&path, description.clone(), settings, (1, coordinator), quiet()).expect("joined");
    let numbers: Vec<u64> = (0..16).collect();
    let each = |numbers: &mut dyn Iterator<Item = u64>| {
        for number in numbers {
            let payload = Payload::Plain(frames::frame(number, 30));
            joined.submit(Frame { number, taken: 0, payload }, WAIT).expect("a frame taken");
        }
        let deadline = std::time::Instant::now() + WAIT;
        while joined.progress().written < joined.progress().taken.saturating_sub(1) {
            assert!(std::time::Instant::now() < deadline, "{:?}", joined.progress());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    for offset in 0..4 {
        each(&mut numbers.iter().copied().filter(|number| number % 4 == offset));
    }
    joined.scalars(3, vec![(0, 30.0)]).expect("a value of a column");
    joined.keep_scalars().expect("reported");
    let read = journal::read(&run_files::journal_of(&path)).expect("a journal");
    assert!(read.entries.iter().any(|entry| matches!(entry, JournalEntry::Scalars { frame: 3, .. })));
    let observed = joined.observer();
    joined.leave().expect("all is reported");
    assert_eq!((observed().taken, observed().written), (16, 16));
    assert_eq!((writer.progress().taken, writer.progress().written), (16, 16));
    let writer = Arc::into_inner(writer).expect("nobody else has it");
    let counts = writer.finish().expect("a run finished").counts;
    assert_eq!((counts.received + counts.late, counts.missing), (16, 0), "{counts:?}");
    description.scalars.clear();
    tell(directory.path(), "run", &description, &numbers, true);
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "1");
}

/// Promise: frames that share a chunk may go to several processes, the committing one included. All of them are in the
/// file.
#[test]
fn frames_of_one_chunk_come_to_several_writers() {
    const FRAMES: u64 = 50;
    for filter in [Filter::RAW, Filter::BSLZ4] {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("run.h5");
        let mut description = DatasetSpec::new(ElementType::U16, vec![6, 5]);
        description.chunk = Some(vec![4, 4, 5]);
        description.filter = filter;
        description.fill = Some(9.0.into());
        let writer = Arc::new(Writer::create(&path, description.clone(), settings(), quiet()).expect("a run started"));
        let joined = [1, 2].map(|epoch| {
            let coordinator = Arc::new(Direct(Arc::clone(&writer)));
            Joined::join(&path, description.clone(), settings(), (epoch, coordinator), quiet()).expect("joined")
        });
        let pipelines: [&Pipeline; 3] = [&joined[0], &joined[1], &writer];
        std::thread::scope(|scope| {
            for (share, pipeline) in pipelines.into_iter().enumerate() {
                scope.spawn(move || {
                    for number in (0..FRAMES).filter(|number| *number as usize % 3 == share) {
                        let payload = Payload::Plain(frames::frame(number, 30));
                        pipeline.submit(Frame { number, taken: 0, payload }, WAIT).expect("a frame taken");
                        if number % 7 == 0 {
                            pipeline.flush();
                        }
                    }
                });
            }
        });
        for joined in joined {
            joined.leave().expect("all is reported");
        }
        assert_eq!(writer.progress().taken, FRAMES);
        let writer = Arc::into_inner(writer).expect("nobody else has it");
        let counts = writer.finish().expect("a run finished").counts;
        assert_eq!((counts.received + counts.late, counts.missing), (FRAMES, 0), "{counts:?}");
        tell(directory.path(), "run", &description, &(0..FRAMES).collect::<Vec<u64>>(), true);
        assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "1");
    }
}

/// The maximum file size of the store: writes past it fail.
const FAR: u64 = (i64::MAX as u64) & !0xfff;

/// Grants space for one frame when the test permits it, and then space that cannot be written to.
struct Failing {
    may: Mutex<mpsc::Receiver<()>>,
    next: AtomicU64,
    reported: Mutex<Vec<u64>>,
}

impl Coordinator for Failing {
    fn extent(&self, bytes: u64) -> io::Result<Range<u64>> {
        self.may.lock().expect("not poisoned").recv().map_err(io::Error::other)?;
        let start = self.next.swap(FAR, Ordering::Relaxed);
        Ok(start..start + bytes)
    }

    fn report(&self, entries: Vec<JournalEntry>) -> io::Result<()> {
        let chunk_groups = entries.into_iter().filter_map(|entry| match entry {
            JournalEntry::ChunkGroup(chunk_group) => Some(chunk_group.chunk_group),
            _ => None,
        });
        self.reported.lock().expect("not poisoned").extend(chunk_groups);
        Ok(())
    }
}

/// Promise: a thread that could not write a frame still reports the frames it had written before.
#[test]
fn what_was_written_before_a_failure_is_reported() {
    const FRAME: u64 = 64 * 64 * 2;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let mut description = DatasetSpec::new(ElementType::U16, vec![64, 64]);
    description.filter = "raw".parse().expect("a filter");
    let writer = Writer::create(&path, description.clone(), settings(), quiet()).expect("a run started");
    let (tell, may) = mpsc::channel();
    let next = writer.grant(FRAME).expect("an extent").start;
    let coordinator =
        Arc::new(Failing { may: Mutex::new(may), next: AtomicU64::new(next), reported: Mutex::default() });
    // Extents of one frame, none of which fills a stripe.
    let settings = Settings {
        threads: 1,
        stripe_bytes: 1 << 20,
        extent_bytes: FRAME,
        commit_interval: Duration::from_secs(3600),
        ..settings()
    };
    let joined = (1, Arc::clone(&coordinator) as Arc<dyn Coordinator>);
    let joined = Joined::join(&path, description, settings, joined, quiet()).expect("joined");
    for number in 0..2 {
        let payload = Payload::Plain(frames::frame(number, 64 * 64));
        joined.submit(Frame { number, taken: 0, payload }, WAIT).expect("a frame taken");
    }
    // The second frame is waiting now, so the first is not written before it arrives.
    (0..2).for_each(|_| tell.send(()).expect("it is asked for"));
    joined.leave().expect_err("the second cannot be written");
    assert_eq!(*coordinator.reported.lock().expect("not poisoned"), [0]);
}

/// Promise: two processes that joined under one number, as is possible after a restart of the service, do not conflict.
/// All frames of a chunk that both sent frames of are in the file.
#[test]
fn two_joins_under_one_name_do_not_conflict() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let mut description = DatasetSpec::new(ElementType::U16, vec![6, 5]);
    description.chunk = Some(vec![4, 6, 5]);
    description.fill = Some(9.0.into());
    let writer = Arc::new(Writer::create(&path, description.clone(), settings(), quiet()).expect("a run started"));
    for numbers in [[0, 1], [2, 3]] {
        let coordinator = Arc::new(Direct(Arc::clone(&writer)));
        let joined = Joined::join(&path, description.clone(), settings(), (3, coordinator), quiet()).expect("joined");
        for number in numbers {
            let payload = Payload::Plain(frames::frame(number, 30));
            joined.submit(Frame { number, taken: 0, payload }, WAIT).expect("a frame taken");
        }
        joined.leave().expect("all is reported");
    }
    let writer = Arc::into_inner(writer).expect("nobody else has it");
    assert_eq!(writer.finish().expect("a run finished").counts.received, 4);
    tell(directory.path(), "run", &description, &[0, 1, 2, 3], true);
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "1");
}

/// Promise: no process can join a run whose addresses follow from the frames' numbers. It would overwrite frames that
/// it does not know of.
#[test]
fn run_without_index_cannot_be_joined() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let mut description = DatasetSpec { filter: Filter::RAW, ..DatasetSpec::new(ElementType::U16, vec![6, 5]) };
    (description.scan, description.allocate) = (vec![Some(4)], Allocate::Implicit);
    let writer = Arc::new(Writer::create(&path, description.clone(), settings(), quiet()).expect("a run started"));
    let coordinator = Arc::new(Direct(Arc::clone(&writer)));
    let refused = Joined::join(&path, description, settings(), (1, coordinator), quiet()).err().expect("refused");
    assert!(refused.to_string().contains("has one writer"), "{refused}");
}
