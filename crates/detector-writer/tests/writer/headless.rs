//! Journals without a readable head, and the information that only the file has.

use super::common::{self, frames};
use super::{WAIT, quiet, settings};
use serde_json::json;
use std::path::{Path, PathBuf};
use varve_detector_dataset::dataset_spec::DatasetSpec;
use varve_detector_dataset::frame::{Frame, Payload};
use varve_detector_dataset::journal_entry;
use varve_detector_file::recover::{RecoverError, recover};
use varve_detector_file::{journal, run_files};
use varve_detector_hdf5::ElementType;
use varve_detector_writer::Writer;

fn description() -> DatasetSpec {
    let mut description = DatasetSpec::new(ElementType::U16, vec![9, 8]);
    description.fill = Some(7.0.into());
    description.scalars = vec!["declared".into()];
    description
}

fn give(writer: &Writer, number: u64) {
    // Written before the frame, so that no commit has one without the other.
    writer.scalars(number, vec![(0, (number * 10) as f64)]).expect("scalars taken");
    writer.keep_scalars().expect("the journal is written");
    let frame = Frame { number, taken: 0, payload: Payload::Plain(frames::frame(number, 72)) };
    writer.submit(frame, WAIT).expect("a frame taken");
}

fn until(writer: &Writer, done: impl Fn(&varve_detector_writer::WriterProgress) -> bool) {
    let deadline = std::time::Instant::now() + WAIT;
    while !done(&writer.progress()) {
        assert!(std::time::Instant::now() < deadline, "{:?}", writer.progress());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// The files that a killed run left.
struct Killed {
    file: Vec<u8>,
    journal: Vec<u8>,
}

/// A run that was killed after frame 5 arrived late, and frame 11 after the last commit.
fn killed(path: &Path) -> Killed {
    let writer = Writer::create(path, description(), settings(), quiet()).expect("a run started");
    (0..10).filter(|number| *number != 5).for_each(|number| give(&writer, number));
    until(&writer, |progress| progress.published == 10);
    give(&writer, 5);
    until(&writer, |progress| progress.durable == 10);
    give(&writer, 10);
    until(&writer, |progress| progress.published == 11);
    let head = std::fs::read(path).expect("the file")[..48].to_vec();
    give(&writer, 11);
    until(&writer, |progress| progress.durable == 12);
    drop(writer);
    let journal = std::fs::read(run_files::journal_of(path)).expect("the journal");
    // The superblock of the commit with frame 10 is restored, so readers see that commit, whatever was committed later.
    let mut file = std::fs::read(path).expect("the file");
    file[..48].copy_from_slice(&head);
    Killed { file, journal }
}

impl Killed {
    /// Writes its file, and `journal` beside it.
    fn copy(&self, path: &Path, journal: &[u8]) {
        std::fs::write(path, &self.file).expect("copied");
        std::fs::write(run_files::journal_of(path), journal).expect("put beside");
    }
}

fn tell(path: &Path, frames: u64) {
    let reported = json!({
        "frame": [9, 8], "fill": 7, "acknowledged": (0..frames).collect::<Vec<u64>>(), "exact": true, "rows": frames,
        "scalars": ["declared"], "late": [5],
    });
    std::fs::write(path.with_extension("json"), reported.to_string()).expect("the description written");
}

fn kept(path: &Path) -> PathBuf {
    let mut name = run_files::journal_of(path).into_os_string();
    name.push(".bad");
    name.into()
}

/// Whatever the damage to the head of its journal, the file keeps everything of its last commit, and is finished. The
/// loss is reported. With the complete journal put back, everything is found again.
#[test]
fn committed_frames_survive_journal_head_loss() {
    let directory = tempfile::tempdir().expect("a directory");
    let killed = killed(&directory.path().join("run.h5"));
    let journal = &killed.journal;
    let head = journal::encode_head(&description()).len();
    let changed = |range: std::ops::Range<usize>, with: u8| {
        let mut bytes = journal.clone();
        bytes[range].iter_mut().for_each(|byte| *byte ^= with);
        bytes
    };
    let mut blanked = journal.clone();
    blanked[..head + 20].fill(0);
    let mut files = 0;
    for (name, bytes, reported) in [
        ("magic", changed(0..1, 1), 1),
        ("length", changed(8..9, 4), 1),
        ("text", changed(30..31, 1), 1),
        ("blanked", blanked, 1),
        ("cut", journal[..head - 3].to_vec(), 0),
        ("empty", Vec::new(), 0),
    ] {
        let path = directory.path().join(format!("{name}.h5"));
        killed.copy(&path, &bytes);
        let refused = Writer::resume(&path, settings(), quiet()).err().expect("refused").to_string();
        assert!(refused.contains("is not a run's journal"), "{refused}");
        let recovered = recover(&path).expect("recovered");
        let counts = recovered.counts;
        assert_eq!((counts.frames, counts.received, counts.late, recovered.restored), (11, 10, 1, 11), "{name}");
        assert_eq!(recovered.journal_head.expect("it is said").frames, reported, "{name}");
        assert_eq!(recovered.damaged_journal, Some(kept(&path)), "{name}");
        assert_eq!(std::fs::read(kept(&path)).expect("kept"), bytes, "{name}");
        assert!(matches!(recover(&path), Err(RecoverError::NothingToDo { .. })), "{name}");
        let again = directory.path().join(format!("{name}-again.h5"));
        std::fs::copy(&path, &again).expect("copied");
        std::fs::write(run_files::journal_of(&again), journal).expect("put back");
        let recovered = recover(&again).expect("recovered");
        assert_eq!(
            (recovered.counts.frames, recovered.counts.missing, recovered.journal_head),
            (12, 0, None),
            "{name}"
        );
        tell(&path, 11);
        tell(&again, 12);
        files += 2;
    }
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), files.to_string());
}

/// If neither a journal without a head nor its file can be used, recovery refuses with advice and changes nothing.
#[test]
fn unreadable_journal_is_kept() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let killed = killed(&path);
    let beside = run_files::journal_of(&path);
    let refused = |journal: &[u8], words: &str| {
        std::fs::write(&beside, journal).expect("written");
        let error = recover(&path).expect_err("refused").to_string();
        assert!(error.contains(words), "{error}");
        assert_eq!(std::fs::read(&beside).expect("left"), journal);
    };
    // Possibly of a later version.
    let mut other = killed.journal.clone();
    other[7] = b'2';
    refused(&other, "is not a run's journal");
    assert_eq!(std::fs::read(&path).expect("the file").len(), killed.file.len());
    let mut blank = killed.file.clone();
    blank[..48].fill(0);
    for (bytes, words) in [
        (&blank[..], "has no commit"),
        (&killed.file[..100], "was truncated: it has 100 of"),
        (b"", "has no commit"),
        (&[b'x'; 100], "does not begin as an HDF5 file"),
    ] {
        std::fs::write(&path, bytes).expect("written");
        refused(b"", words);
        assert_eq!(std::fs::read(&path).expect("the file"), bytes);
    }
    std::fs::remove_file(&path).expect("removed");
    refused(b"", "does not exist: if it was moved");
    assert!(!path.exists());
}

/// If a journal's file was removed or truncated, recovery consumes nothing that the file's return could restore, and no
/// missing frame counts as received.
#[test]
fn a_journal_outlives_its_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let killed = killed(&path);
    let beside = run_files::journal_of(&path);
    std::fs::remove_file(&path).expect("taken away");
    for words in ["records 12 frames in it: put it back", "does not begin as a run's file"] {
        let error = recover(&path).expect_err("refused").to_string();
        assert!(error.contains(words), "{error}");
        let error = Writer::resume(&path, settings(), quiet()).err().expect("refused").to_string();
        assert!(error.contains(words), "{error}");
        assert_eq!(std::fs::read(&beside).expect("left"), killed.journal);
        assert!(std::fs::read(&path).ok().is_none_or(|bytes| bytes == b"somebody else's"));
        std::fs::write(&path, "somebody else's").expect("written");
    }
    let reported = journal::decode(&killed.journal).expect("a journal").entries;
    let mut ends: Vec<u64> = reported.iter().map(journal_entry::JournalEntry::end).filter(|end| *end > 0).collect();
    ends.sort_unstable();
    killed.copy(&path, &killed.journal);
    std::fs::File::options().write(true).open(&path).and_then(|file| file.set_len(ends[11] - 1)).expect("cut");
    let recovered = recover(&path).expect("recovered");
    assert_eq!((recovered.counts.frames, recovered.counts.damaged), (12, 1), "{recovered:?}");
    killed.copy(&path, &killed.journal);
    assert_eq!(recover(&path).expect("recovered").counts.damaged, 0);
}

/// A frame that readers saw as late stays late after its writer's death, whether the run is recovered or resumed.
#[test]
fn late_frames_stay_late() {
    let directory = tempfile::tempdir().expect("a directory");
    let killed = killed(&directory.path().join("run.h5"));
    let head = journal::encode_head(&description());
    for (name, journal, frames) in [("whole", &killed.journal, 12), ("emptied", &head, 11)] {
        let path = directory.path().join(format!("{name}.h5"));
        killed.copy(&path, journal);
        let recovered = recover(&path).expect("recovered");
        assert_eq!((recovered.counts.late, recovered.counts.received), (1, frames - 1), "{name}");
        tell(&path, frames);
        let path = directory.path().join(format!("{name}-on.h5"));
        killed.copy(&path, journal);
        // Resumed twice: the journal made by the first resumption does not record it either.
        let (writer, _) = Writer::resume(&path, settings(), quiet()).expect("taken up");
        drop(writer);
        let (writer, resumed) = Writer::resume(&path, settings(), quiet()).expect("taken up");
        assert_eq!(resumed.counts.late, 1, "{name}");
        (frames..14).for_each(|number| give(&writer, number));
        assert_eq!(writer.finish().expect("finished").counts.late, 1, "{name}");
        tell(&path, 14);
    }
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "4");
}
