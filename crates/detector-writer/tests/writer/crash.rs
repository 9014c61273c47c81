//! Recovery of a run whose writer has died.

use super::common::{self, frames};
use super::full_disk::SmallStore;
use super::{WAIT, cut, quiet, settings, strips, tell};
use serde_json::json;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use varve_detector_dataset::dataset_spec::{DatasetSpec, ScalarColumn, ScalarKind};
use varve_detector_dataset::frame::{AckLevel, Frame, Payload};
use varve_detector_dataset::journal_entry::{ChunkEntry, ChunkGroupEntry, FrameEntry, JournalEntry};
use varve_detector_file::recover::recover;
use varve_detector_file::{journal, run_files};
use varve_detector_hdf5::ElementType;
use varve_detector_writer::{Settings, Writer};

/// A resumed run continues where its writer stopped: with parts of chunk groups, scalars, and added columns.
#[test]
fn resumed_run_keeps_parts_and_columns() {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, goes_on) in [("recovered", false), ("resumed", true)] {
        let path = directory.path().join(format!("{name}.h5"));
        let mut description = DatasetSpec::new(ElementType::U16, vec![9, 8]);
        description.chunk = Some(vec![4, 5, 8]);
        description.fill = Some(7.0.into());
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
            assert_eq!((writer.level(1, 0), writer.level(1, 1)), (Some(AckLevel::Durable), None));
            assert_eq!(writer.column(added).expect("the column"), 1);
            give(&writer, 1, 1);
            give(&writer, 1, 0);
            let counts = writer.finish().expect("finished").counts;
            assert_eq!((counts.received + counts.late + counts.duplicate, counts.partial), (2, 1), "{counts:?}");
            lost = json!({"5": [0]});
        } else {
            recover(&path).expect("recovered");
        }
        let reported = json!({
            "frame": [9, 8], "fill": 7, "acknowledged": [0, 1, 5], "exact": true, "scalars": ["declared", "added"],
            "sources": description.sources, "lost": lost,
        });
        std::fs::write(path.with_extension("json"), reported.to_string()).expect("the description written");
    }
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "2");
}

/// Promise: leftovers of a service that was killed while it resumed a run are removed with the run's journal.
#[test]
fn second_recovery_does_not_change_the_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let description = DatasetSpec::new(ElementType::U16, vec![8, 8]);
    drop(Writer::create(&path, description, settings(), quiet()).expect("a run started"));
    std::fs::write(directory.path().join("run.h5.journal.new"), "the half of a journal").expect("written");
    recover(&path).expect("recovered");
    let left = std::fs::read_dir(directory.path()).expect("the directory").map(|entry| entry.expect("an entry").path());
    assert_eq!(left.collect::<Vec<_>>(), [path]);
}

/// A loss of power destroyed a chunk that the journal names. Its frame is marked damaged and reads as the fill value.
#[test]
fn unsynced_chunk_is_found_damaged() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let mut slow = settings();
    slow.commit_interval = Duration::from_secs(3600);
    let mut description = DatasetSpec::new(ElementType::U16, vec![8, 8]);
    description.fill = Some(9.0.into());
    let (sender, written) = std::sync::mpsc::channel();
    let acknowledge = Arc::new(move |level: AckLevel, numbers: &[u64]| {
        if level == AckLevel::Written {
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
    // The state that a crash would leave now. The test may damage the copies.
    let crashed = directory.path().join("crashed.h5");
    common::printed(Command::new("cp").arg("--sparse=always").arg(&path).arg(&crashed));
    let journal = std::fs::read(directory.path().join("run.h5.journal")).expect("the journal");
    std::fs::write(directory.path().join("crashed.h5.journal"), &journal).expect("copied");
    let contents = varve_detector_file::journal::decode(&journal).expect("a journal");
    let victim = contents.entries.iter().find_map(|entry| match entry {
        varve_detector_dataset::journal_entry::JournalEntry::ChunkGroup(chunk_group)
            if chunk_group.chunk_group == 2 =>
        {
            Some(chunk_group.chunks[0].clone())
        }
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

/// Promise: a chunk that a sync could not write is found damaged, although the page cache still has it.
#[test]
fn chunk_only_in_page_cache_is_found_damaged() {
    let directory = tempfile::tempdir().expect("a directory");
    let (small, image) = (directory.path().join("small"), directory.path().join("image"));
    let Some(_store) = SmallStore::mount_image(&small, &image, 96) else { return };
    let path = directory.path().join("run.h5");
    let settings = Settings { commit_interval: Duration::from_secs(3600), ..settings() };
    let mut description = DatasetSpec::new(ElementType::U16, vec![64, 64]);
    (description.filter, description.fill) = ("raw".parse().expect("a filter's name"), Some(9.0.into()));
    let writer = Writer::create(&path, description.clone(), settings, quiet()).expect("a run started");
    for number in 0..4 {
        let payload = Payload::Plain(frames::frame(number, 64 * 64));
        writer.submit(Frame { number, taken: 0, payload }, WAIT).expect("taken");
    }
    while writer.progress().written < 4 {
        std::thread::sleep(Duration::from_millis(1));
    }
    for (name, from) in [("failed.h5", &path), ("failed.h5.journal", &run_files::journal_of(&path))] {
        common::printed(Command::new("cp").arg("--sparse=always").arg(from).arg(small.join(name)));
        std::fs::File::open(small.join(name)).and_then(|file| file.sync_all()).expect("synced");
    }
    writer.finish().expect("finished");
    // Overwrites the data below the file system, which does not notice.
    let (mut store, frame) = (std::fs::read(&image).expect("read"), frames::frame(2, 64 * 64));
    let at = store.windows(1024).position(|bytes| *bytes == frame[2048..3072]).expect("the frame");
    store[at..at + 1024].fill(0);
    let below = std::fs::File::options().write(true).open(&image).expect("the image");
    below.write_all_at(&store[at..at + 1024], at as u64).expect("written");
    let failed = std::fs::read(small.join("failed.h5")).expect("read");
    assert!(failed.windows(1024).any(|bytes| *bytes == frame[2048..3072]), "the kernel still has it");
    let recovered = recover(&small.join("failed.h5")).expect("recovered");
    assert_eq!((recovered.counts.received, recovered.counts.damaged), (3, 1));
}

/// Scalars are in the journal, which survives the process, before later frames are acknowledged as written, and on
/// request.
#[test]
fn scalars_outlive_the_process_with_their_frames() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let mut description = DatasetSpec::new(ElementType::U16, vec![2, 2]);
    description.scalars = vec![ScalarColumn { name: "a".into(), kind: ScalarKind::Float }];
    let settings = Settings { commit_interval: Duration::from_secs(3600), ..settings() };
    let (printed, hears) = std::sync::mpsc::channel();
    let acknowledge = Arc::new(move |level: AckLevel, _: &[u64]| {
        if level == AckLevel::Written {
            printed.send(()).expect("the test hears");
        }
    });
    let writer = Writer::create(&path, description, settings, acknowledge).expect("a run started");
    let in_journal = || -> Vec<u64> {
        let read = journal::read(&run_files::journal_of(&path)).expect("a journal");
        let frame = |entry: &JournalEntry| match entry {
            JournalEntry::Scalars { frame, .. } => Some(*frame),
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

/// A resumed run continues at its last write: the length by which the file had grown in advance does not become a hole
/// within it. Extents granted to others stay theirs.
#[test]
fn resumed_run_leaves_no_hole() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let description = DatasetSpec::new(ElementType::U16, vec![9, 8]);
    let give = |writer: &Writer, number: u64| {
        let frame = Frame { number, taken: 0, payload: Payload::Plain(frames::frame(number, 72)) };
        writer.submit(frame, WAIT).expect("a frame taken");
    };
    let mut writer = Writer::create(&path, description.clone(), settings(), quiet()).expect("a run started");
    for number in 0..10 {
        give(&writer, number);
        drop(writer);
        writer = Writer::resume(&path, settings(), quiet()).expect("taken up").0;
    }
    let granted = writer.grant(1).expect("an extent");
    drop(writer);
    writer = Writer::resume(&path, settings(), quiet()).expect("taken up").0;
    assert!(writer.grant(1).expect("an extent").start >= granted.end);
    give(&writer, 10);
    let finished = writer.finish().expect("finished");
    assert!(finished.file_bytes < 1 << 20, "{} bytes", finished.file_bytes);
    assert_eq!(std::fs::metadata(&path).expect("the file").len(), finished.file_bytes);
    tell(directory.path(), "run", &description, &(0..11).collect::<Vec<u64>>(), true);
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "1");
}

/// Promise: frames that an earlier program accepted but no index can hold are damaged. They prevent neither the
/// recovery of other frames nor the resumption of the run. The same holds for frames far from all others, which are
/// present.
#[test]
fn frames_beyond_every_index_are_damaged() {
    const FIRST: u64 = 4096;
    let directory = tempfile::tempdir().expect("a directory");
    let mut description = DatasetSpec::new(ElementType::U16, vec![4]);
    (description.scan, description.scan_max) = (vec![None, Some(10)], Some(vec![None, Some(1_000_000)]));
    description.filter = "raw".parse().expect("a filter's name");
    let mut journal = journal::encode_head(&description);
    journal::encode(&JournalEntry::Granted { end: 0 }, &mut journal);
    let mut file = vec![0; FIRST as usize];
    for number in [7, 42_940, 4_000_000] {
        let (bytes, address) = (frames::frame(number, 4), file.len() as u64);
        let chunk = ChunkEntry { address, size: 8, mask: 0, checksum: xxhash_rust::xxh3::xxh3_64(&bytes) };
        let frames = vec![FrameEntry { number, times: [1, 1, 1, 1], missing: Vec::new() }];
        journal::encode(
            &JournalEntry::ChunkGroup(ChunkGroupEntry {
                chunk_group: number,
                epoch: 0,
                again: false,
                frames,
                chunks: vec![chunk],
            }),
            &mut journal,
        );
        file.extend(bytes);
    }
    for goes_on in [false, true] {
        let path = directory.path().join(format!("{goes_on}.h5"));
        std::fs::write(&path, &file).expect("the file written");
        std::fs::write(run_files::journal_of(&path), &journal).expect("the journal written");
        let counts = match goes_on {
            false => recover(&path).expect("recovered").counts,
            true => {
                let (writer, resumed) = Writer::resume(&path, settings(), quiet()).expect("taken up");
                assert_eq!((resumed.counts.received, resumed.counts.damaged), (2, 1));
                let frame = |number| Frame { number, taken: 0, payload: Payload::Plain(frames::frame(number, 4)) };
                let refused = writer.submit(frame(4_000_000), WAIT).expect_err("no file can have it").to_string();
                assert!(refused.contains("of the index, which has 4294967295"), "{refused}");
                writer.submit(frame(8), WAIT).expect("a frame taken");
                writer.finish().expect("finished").counts
            }
        };
        assert_eq!((counts.received + counts.late, counts.damaged), (2 + u64::from(goes_on), 1), "{counts:?}");
        for number in [7, 42_940] {
            let (at, values) = (format!("{},{},0", number / 10, number % 10), frames::frame(number, 4));
            let values: Vec<u16> = values.chunks(2).map(|value| u16::from_le_bytes([value[0], value[1]])).collect();
            let dumped =
                common::printed(Command::new("h5dump").args(["-d", "/data", "-s", &at, "-c", "1,1,4"]).arg(&path));
            let values: Vec<String> = values.iter().map(u16::to_string).collect();
            assert!(dumped.contains(&values.join(", ")), "{number}: {dumped}");
        }
    }
}
