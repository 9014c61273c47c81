//! Damaged journals: lost records are restored from other sources, or reported.

use super::common::{self, frames};
use super::{WAIT, quiet, settings};
use serde_json::json;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use varve_detector_dataset::dataset_spec::{Allocate, DatasetSpec, RunValue, ScalarColumn, ScalarKind, Structure};
use varve_detector_dataset::frame::{Frame, Payload};
use varve_detector_dataset::journal_entry::JournalEntry;
use varve_detector_dataset::layout::Layout;
use varve_detector_file::recover::{Recovered, recover};
use varve_detector_file::{journal, run_files};
use varve_detector_filters::Filter;
use varve_detector_hdf5::ElementType;
use varve_detector_writer::{Settings, Writer};

const FRAMES: u64 = 30;

fn description() -> DatasetSpec {
    let mut description = DatasetSpec::new(ElementType::U16, vec![9, 8]);
    description.fill = Some(7.0.into());
    description.scalars = vec!["declared".into()];
    description
}

fn give(writer: &Writer, number: u64) {
    let frame = Frame { number, taken: 0, payload: Payload::Plain(frames::frame(number, 72)) };
    writer.submit(frame, WAIT).expect("a frame taken");
}

/// Makes a file with all its frames and scalars in its index; returns the journal that it had until then.
fn run(path: &Path, description: DatasetSpec) -> Vec<u8> {
    let writer = Writer::create(path, description, settings(), quiet()).expect("a run started");
    for number in 0..FRAMES {
        give(&writer, number);
        writer.scalars(number, vec![(0, (number * 10) as f64)]).expect("scalars taken");
        if number == 9 {
            let added = ScalarColumn { name: "added".into(), kind: ScalarKind::Text(8) };
            assert_eq!(writer.column(added).expect("a column"), 1);
        }
    }
    for number in 0..FRAMES {
        writer.scalars(number, vec![(1, (number * 10 + 1).to_string())]).expect("scalars taken");
    }
    writer.keep_scalars().expect("the journal is written");
    let deadline = std::time::Instant::now() + WAIT;
    while writer.progress().durable < FRAMES {
        assert!(std::time::Instant::now() < deadline, "{:?}", writer.progress());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let journal = std::fs::read(run_files::journal_of(path)).expect("the journal");
    writer.finish().expect("finished");
    journal
}

/// The offset of a frame's record in a journal, and its length.
fn record_of(journal: &[u8], frame: u64) -> (usize, usize) {
    let contents = journal::decode(journal).expect("a journal");
    let tells = |entry: &&JournalEntry| matches!(entry, JournalEntry::ChunkGroup(chunk_group) if chunk_group.chunk_group == frame);
    let mut record = Vec::new();
    journal::encode(contents.entries.iter().find(tells).expect("the frame"), &mut record);
    (journal.windows(record.len()).position(|window| *window == record[..]).expect("the record"), record.len())
}

/// Every kind of index, and every file structure.
fn shapes() -> [(&'static str, DatasetSpec); 7] {
    let with = |change: &dyn Fn(&mut DatasetSpec)| {
        let mut description = description();
        change(&mut description);
        description
    };
    let layout = |group: &str, end: &str| {
        let text = format!("<hdf5_layout>{group}<dataset name='data' source='detector'/>{end}</hdf5_layout>");
        Layout::parse(&text).expect("a layout")
    };
    let placed = "<dataset name='declared' source='ndattribute' ndattribute='declared'/></group></group>";
    let grouped = layout("<group name='all'><group name='run' ndattr_default='true'>", placed);
    [
        ("fixed", with(&|run| (run.scan, run.chunk) = (vec![Some(5), Some(6)], Some(vec![4, 5])))),
        ("fixed-plain", with(&|run| (run.scan, run.filter) = (vec![Some(FRAMES)], Filter::RAW))),
        ("tree", with(&|run| (run.scan, run.scan_max) = (vec![None, Some(6)], Some(vec![None, None])))),
        (
            "implicit",
            with(&|run| {
                (run.scan, run.filter) = (vec![Some(FRAMES + 1)], Filter::RAW);
                (run.allocate, run.fill) = (Allocate::Implicit, None);
            }),
        ),
        ("shared", with(&|run| (run.chunk, run.structure) = (Some(vec![4, 9, 8]), Structure::Nexus))),
        ("laid-out", with(&|run| run.structure = Structure::Layout(layout("", "")))),
        (
            "laid-out-grouped",
            with(&|run| {
                run.structure = Structure::Layout(grouped.clone());
                run.values = [("ring".to_owned(), RunValue::Integer(3))].into();
            }),
        ),
    ]
}

/// If only the head of a journal is left, no committed frame is lost, whatever index the file has. A complete journal
/// has everything in the file.
#[test]
fn every_index_is_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut files = 0;
    for (name, description) in shapes() {
        let path = directory.path().join(format!("{name}.h5"));
        let journal = run(&path, description.clone());
        let copy = directory.path().join(format!("{name}-whole.h5"));
        std::fs::copy(&path, &copy).expect("copied");
        std::fs::write(run_files::journal_of(&copy), &journal).expect("put back");
        let recovered = recover(&copy).expect("recovered");
        assert_eq!((recovered.restored, recovered.damaged_journal), (0, None), "{name}");
        let head = journal::encode_head(&description);
        std::fs::write(run_files::journal_of(&path), head).expect("emptied");
        let recovered = recover(&path).expect("recovered");
        assert_eq!((recovered.restored, recovered.counts.damaged), (FRAMES, 0), "{name}: {recovered:?}");
        for path in [&path, &copy] {
            let reported = json!({
                "frame": [9, 8], "fill": description.fill.unwrap_or(0.0.into()), "exact": true,
                "acknowledged": (0..FRAMES).collect::<Vec<u64>>(),
                "scalars": ["declared", "added"], "flat": name.starts_with("laid-out"),
                "root": if name == "laid-out-grouped" { "/all/run" } else { "/" },
            });
            std::fs::write(path.with_extension("json"), reported.to_string()).expect("the description written");
            files += 1;
        }
    }
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), files.to_string());
}

/// Promise: if a file was truncated under its writer and has grown again by later writes, only the frames that are
/// present count as received.
#[test]
fn truncated_frames_stay_damaged_after_regrowth() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut files = 0;
    // The last ones differ only in their structure.
    for (name, description) in shapes().into_iter().take(5) {
        for (kept, far) in [(true, 0), (true, 70 << 20), (false, 70 << 20)] {
            let path = directory.path().join(format!("{name}-{kept}-{far}.h5"));
            let journal = run(&path, description.clone());
            let mut ends: Vec<u64> =
                journal::decode(&journal).expect("a journal").entries.iter().map(JournalEntry::end).collect();
            ends.retain(|end| *end > 0);
            ends.sort_unstable();
            let cut = if kept { ends[ends.len() / 2] - 1 } else { 20 };
            std::fs::write(run_files::journal_of(&path), &journal).expect("put back");
            let file = std::fs::File::options().read(true).write(true).open(&path).expect("without a lock");
            let end = file.metadata().expect("the file").len();
            file.set_len(cut).expect("cut");
            file.write_all_at(&[1; 100], end + far).expect("what came since");
            drop(file);
            let Recovered { counts, .. } = recover(&path).expect("recovered");
            assert_eq!((counts.frames, counts.received + counts.damaged), (FRAMES, FRAMES), "{name}: {counts:?}");
            assert!(counts.damaged > 0 && kept == (counts.received > 0), "{name}, cut at {cut}: {counts:?}");
            let reported = json!({
                "frame": [9, 8], "fill": description.fill.unwrap_or(0.0.into()), "exact": false, "acknowledged": [],
            });
            std::fs::write(path.with_extension("json"), reported.to_string()).expect("the description written");
            files += 1;
        }
    }
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), files.to_string());
}

/// The same for frames far below the file's end, where only holes show the loss.
#[test]
fn frames_in_a_hole_are_damaged() {
    const SIDE: u64 = 2048;
    const FRAMES: u64 = 12;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let mut description = DatasetSpec::new(ElementType::U16, vec![SIDE, SIDE]);
    description.filter = Filter::RAW;
    let settings = Settings { queue_bytes: 64 << 20, ..settings() };
    let writer = Writer::create(&path, description, settings, quiet()).expect("a run started");
    for number in 0..FRAMES {
        let payload = Payload::Plain(vec![number as u8 + 1; (SIDE * SIDE * 2) as usize]);
        writer.submit(Frame { number, taken: 0, payload }, WAIT).expect("a frame taken");
    }
    while writer.progress().durable < FRAMES {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // As after a kill.
    drop(writer);
    let file = std::fs::File::options().write(true).open(&path).expect("without a lock");
    let end = file.metadata().expect("the file").len();
    file.set_len(17 << 20).and_then(|()| file.write_all_at(&[1; 100], end)).expect("cut, and long again");
    drop(file);
    let counts = recover(&path).expect("recovered").counts;
    assert_eq!((counts.received, counts.damaged), (2, FRAMES - 2), "{counts:?}");
}

fn tell(path: &Path, acknowledged: &[u64], scalars: &[&str], untimed: &[u64]) {
    let reported = json!({
        "frame": [9, 8], "fill": 7, "acknowledged": acknowledged, "exact": true, "scalars": scalars, "untimed": untimed,
    });
    std::fs::write(path.with_extension("json"), reported.to_string()).expect("the description written");
}

fn kept(path: &Path) -> PathBuf {
    let mut name = run_files::journal_of(path).into_os_string();
    name.push(".bad");
    name.into()
}

/// The ways in which a journal can lose records.
fn damages(journal: &[u8]) -> [(&'static str, Vec<u8>); 5] {
    let (at, length) = record_of(journal, 10);
    let (first, last) = (record_of(journal, 3).0, record_of(journal, 25).0);
    let turned = |at: usize| {
        let mut bytes = journal.to_vec();
        bytes[at] ^= 0x10;
        bytes
    };
    let mut torn = journal.to_vec();
    torn[first.min(last) + 9..first.max(last) + 9].fill(0);
    let head = journal::encode_head(&description()).len();
    [
        ("turned", turned(at + 6)),
        ("turned-length", turned(at)),
        ("torn", torn),
        ("cut", journal[..at + length - 1].to_vec()),
        ("emptied", journal[..head].to_vec()),
    ]
}

/// Frames and scalars in the file's own index are never lost with the journal, whatever is left of it, and whether the
/// run is recovered or resumed.
#[test]
fn committed_frames_survive_journal_loss() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let journal = run(&path, description());
    let all: Vec<u64> = (0..FRAMES).collect();
    let mut files = 0;
    for (name, bytes) in damages(&journal) {
        for goes_on in [false, true] {
            let copy = directory.path().join(format!("{name}-{goes_on}.h5"));
            std::fs::copy(&path, &copy).expect("copied");
            std::fs::write(run_files::journal_of(&copy), &bytes).expect("damaged");
            if goes_on {
                let (writer, resumed) = Writer::resume(&copy, settings(), quiet()).expect("taken up");
                assert_eq!(resumed.frames.len(), FRAMES, "{name}");
                give(&writer, FRAMES);
                writer.finish().expect("finished");
            } else {
                let recovered = recover(&copy).expect("recovered");
                assert_eq!((recovered.counts.missing, recovered.counts.damaged), (0, 0), "{name}: {recovered:?}");
                assert!(recovered.restored > 0, "{name}: {recovered:?}");
                assert_eq!(recovered.damaged_journal, Some(kept(&copy)), "{name}");
                assert_eq!(recovered.journal_damage.places > 0, !["cut", "emptied"].contains(&name), "{recovered:?}");
                assert_eq!(recovered.journal_damage.columns, 0, "{name}: {recovered:?}");
            }
            assert_eq!(std::fs::read(kept(&copy)).expect("the journal is kept"), bytes, "{name}");
            assert!(!run_files::journal_of(&copy).exists());
            let more = if goes_on { vec![FRAMES] } else { Vec::new() };
            // The later frame has no scalars.
            let scalars: &[&str] = if goes_on { &[] } else { &["declared", "added"] };
            tell(&copy, &[all.clone(), more].concat(), scalars, &[]);
            files += 1;
        }
    }
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), files.to_string());
}

/// If the end of the journal is gone, the amount of the loss is unknown, and nothing of the file is lost. With a
/// complete copy of the journal, recovery restores everything.
#[test]
fn journal_restores_frames_of_a_lost_file_end() {
    let packed = DatasetSpec { fill: Some(0.0.into()), ..description() };
    let implicit = DatasetSpec {
        scan: vec![Some(FRAMES)],
        filter: Filter::RAW,
        allocate: Allocate::Implicit,
        fill: None,
        ..description()
    };
    for description in [packed, implicit] {
        lose_the_end(&description);
    }
}

fn lose_the_end(description: &DatasetSpec) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let writer = Writer::create(&path, description.clone(), settings(), quiet()).expect("a run started");
    let superblock = || {
        let mut bytes = [0; 48];
        let file = std::fs::File::open(&path).expect("the file");
        file.read_exact_at(&mut bytes, 0).is_ok().then_some(bytes).filter(|bytes| bytes[0] != 0)
    };
    let deadline = std::time::Instant::now() + WAIT;
    let none = superblock();
    (0..10).for_each(|number| give(&writer, number));
    let first = loop {
        assert!(std::time::Instant::now() < deadline, "{:?}", writer.progress());
        match superblock().filter(|bytes| Some(*bytes) != none) {
            Some(bytes) => break bytes,
            None => std::thread::sleep(std::time::Duration::from_millis(5)),
        }
    };
    (10..FRAMES).for_each(|number| give(&writer, number));
    while writer.progress().durable < FRAMES {
        assert!(std::time::Instant::now() < deadline, "{:?}", writer.progress());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let journal = std::fs::read(run_files::journal_of(&path)).expect("the journal");
    writer.finish().expect("finished");
    // The state after the first commit of frames, which is never overwritten, with the later chunks.
    let file = std::fs::File::options().write(true).open(&path).expect("the file");
    file.write_all_at(&first, 0).expect("set back");
    let beside = run_files::journal_of(&path);
    std::fs::write(&beside, journal::encode_head(description)).expect("emptied");
    let recovered = recover(&path).expect("recovered");
    assert!(recovered.journal_damage.end, "{recovered:?}");
    assert!((1..=10).contains(&recovered.restored) && recovered.counts.received <= 10, "{recovered:?}");
    std::fs::write(&beside, &journal).expect("put back");
    let recovered = recover(&path).expect("recovered");
    assert!(!recovered.journal_damage.end, "{recovered:?}");
    assert_eq!((recovered.counts.received, recovered.counts.damaged), (FRAMES, 0), "{recovered:?}");
    let reported =
        json!({"frame": [9, 8], "fill": 0, "acknowledged": (0..FRAMES).collect::<Vec<u64>>(), "exact": true});
    std::fs::write(path.with_extension("json"), reported.to_string()).expect("the description written");
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "1");
}

/// Recovers a file whose run was killed before its first commit, with `journal` beside it.
fn uncommitted(from: &Path, to: &Path, journal: &[u8]) -> Recovered {
    std::fs::copy(from, to).expect("copied");
    let file = std::fs::File::options().write(true).open(to).expect("the copy");
    file.write_all_at(&[0; 48], 0).expect("blanked");
    std::fs::write(run_files::journal_of(to), journal).expect("damaged");
    recover(to).expect("recovered")
}

/// For frames recorded only in a damaged record: a frame that the file confirms is received, and a frame with a known
/// number is damaged. For the others, recovery reports the location of the loss and the maximum number of frames.
#[test]
fn frames_of_a_damaged_record_are_verified_or_reported() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let journal = run(&path, description());
    let (at, length) = record_of(&journal, 10);
    let but = |lost: &[u64]| -> Vec<u64> { (0..FRAMES).filter(|number| !lost.contains(number)).collect() };
    let turned = |at: usize| {
        let mut bytes = journal.clone();
        bytes[at] ^= 0x10;
        bytes
    };
    // The writer's epoch is wrong, which does not matter.
    let copy = directory.path().join("borne-out.h5");
    let recovered = uncommitted(&path, &copy, &turned(at + 6));
    assert_eq!((recovered.counts.missing, recovered.counts.damaged, recovered.restored), (0, 0, 1), "{recovered:?}");
    assert_eq!((recovered.journal_damage.places, recovered.journal_damage.frames_max), (1, 0), "{recovered:?}");
    tell(&copy, &but(&[]), &["declared"], &[10]);
    // The chunk's checksum is wrong, so it could be any chunk.
    let copy = directory.path().join("named.h5");
    let recovered = uncommitted(&path, &copy, &turned(at + length - 12));
    assert_eq!((recovered.counts.missing, recovered.counts.damaged, recovered.restored), (0, 1, 0), "{recovered:?}");
    assert_eq!((recovered.journal_damage.first, recovered.journal_damage.bytes), (at as u64, length as u64));
    assert_eq!(recovered.journal_damage.frames_max, 1);
    tell(&copy, &but(&[10]), &["declared"], &[]);
    // The number of the frame cannot be read.
    let copy = directory.path().join("lost.h5");
    let recovered = uncommitted(&path, &copy, &turned(at + 5));
    assert_eq!((recovered.counts.missing, recovered.counts.damaged, recovered.restored), (1, 0, 0), "{recovered:?}");
    assert_eq!(recovered.journal_damage.frames_max, 1);
    tell(&copy, &but(&[10]), &["declared"], &[]);
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "3");
}

/// Promise: a frame that is verified although its record is damaged stays intact, also if it lies behind all data in
/// other records. A recovery or a resumed run writes behind it.
#[test]
fn verified_frame_is_not_overwritten() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let journal = run(&path, description());
    let contents = journal::decode(&journal).expect("a journal");
    let chunk_groups = contents.entries.iter().filter(|entry| matches!(entry, JournalEntry::ChunkGroup(_)));
    let Some(JournalEntry::ChunkGroup(last)) = chunk_groups.max_by_key(|entry| entry.end()) else {
        panic!("no frames")
    };
    let (at, length) = record_of(&journal, last.chunk_group);
    let mut turned = journal.clone();
    turned[at + 6] ^= 0x10;
    let copy = directory.path().join("recovered.h5");
    let recovered = uncommitted(&path, &copy, &turned);
    assert_eq!((recovered.counts.missing, recovered.counts.damaged, recovered.restored), (0, 0, 1), "{recovered:?}");
    tell(&copy, &(0..FRAMES).collect::<Vec<u64>>(), &["declared"], &[last.chunk_group]);

    // The journal ends with this record, as after a loss of power.
    turned.truncate(at + length);
    let mut there = journal::frames_told(&turned[..at]).into_iter().collect::<Vec<u64>>();
    there.extend([last.chunk_group, FRAMES]);
    let copy = directory.path().join("resumed.h5");
    std::fs::copy(&path, &copy).expect("copied");
    let file = std::fs::File::options().write(true).open(&copy).expect("the copy");
    file.write_all_at(&[0; 48], 0).expect("blanked");
    std::fs::write(run_files::journal_of(&copy), &turned).expect("torn");
    let (writer, resumed) = Writer::resume(&copy, settings(), quiet()).expect("taken up");
    assert!(resumed.frames.contains(last.chunk_group), "{resumed:?}");
    give(&writer, FRAMES);
    writer.finish().expect("finished");
    there.sort_unstable();
    tell(&copy, &there, &[], &[last.chunk_group]);
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "2");
}
