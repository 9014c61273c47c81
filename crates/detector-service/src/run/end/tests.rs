use super::*;
use crate::StartRequest;
use crate::records::RunRecord;
use crate::run::RunContext;
use std::os::unix::fs::FileExt;
use varve_detector_dataset::dataset_spec::DatasetSpec;
use varve_detector_dataset::frame::{Frame, Payload};
use varve_detector_dataset::journal_entry::JournalEntry;
use varve_detector_file::{journal, run_files};
use varve_detector_hdf5::ElementType;
use varve_detector_writer::{Settings, Writer};

const FRAMES: u64 = 4;

/// Promise: after a failure only frames that are intact in the file are reported as durable, because the store may have
/// lost written data.
#[test]
fn frames_lost_by_the_store_are_not_durable() {
    let directory = tempfile::tempdir().expect("a directory");
    let (run, chunk) = failed_run(directory.path());
    // The data never reached the store.
    let file = std::fs::File::options().write(true).open(&run.path).expect("the file");
    file.write_all_at(&[0; 16], chunk).expect("damaged");
    let mut finished = FinishedHead::default();
    let why = run.rescue("syncing has failed", &mut finished);
    assert_eq!((finished.received, finished.damaged), (3, 1));
    assert!(why.contains("3 frames so far, and 1 are damaged"), "{why}");
    assert_eq!(run.board.all_frames(AckLevel::Durable), [[0, 1, 3].into_iter().collect::<Ranges>()]);
}

/// Promise: a failed run is made valid even if a thread that was about to write still holds its journal.
#[test]
fn failed_run_is_recovered_when_its_journal_is_unlocked() {
    let directory = tempfile::tempdir().expect("a directory");
    let (run, _) = failed_run(directory.path());
    let held = std::fs::File::options().append(true).open(run_files::journal_of(&run.path)).expect("the journal");
    let held = journal::Journal::lock(held).expect("nobody has it");
    let mut finished = FinishedHead::default();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            drop(held);
        });
        let why = run.rescue("writing has failed", &mut finished);
        assert!(why.contains("the file contains all 4 frames so far"), "{why}");
    });
    assert_eq!(finished.received, FRAMES);
}

/// A run with a failed writer, and the address of frame 2's chunk in its file.
fn failed_run(directory: &Path) -> (Run, u64) {
    let path = directory.join("run.h5");
    let (description, settings) = (DatasetSpec::new(ElementType::U16, vec![8, 8]), Settings::default());
    let settings = Settings { commit_interval: Duration::from_secs(3600), ..settings };
    let writer = Writer::create(&path, description.clone(), settings, Arc::new(())).expect("a run started");
    for number in 0..FRAMES {
        let payload = Payload::Plain(vec![number as u8; 128]);
        writer.submit(Frame { number, taken: 0, payload }, Duration::from_secs(60)).expect("taken");
    }
    while writer.progress().written < FRAMES {
        std::thread::sleep(Duration::from_millis(1));
    }
    let failed = directory.join("failed.h5");
    std::fs::copy(&path, &failed).expect("copied");
    std::fs::copy(run_files::journal_of(&path), run_files::journal_of(&failed)).expect("copied");
    let entries = journal::read(&run_files::journal_of(&failed)).expect("a journal").entries;
    let chunk = entries.iter().find_map(|entry| match entry {
        JournalEntry::ChunkGroup(chunk_group) if chunk_group.chunk_group == 2 => Some(chunk_group.chunks[0].clone()),
        _ => None,
    });
    let request = StartRequest::new("failed", "failed.h5".into(), description);
    let record = RunRecord { begun: true, ..RunRecord::of(request) };
    let home = RunContext { root: directory.to_owned(), records: None, reserve: None };
    let run = Run::waiting(Arc::new(home), record, String::new());
    run.board.post_ranges(0, AckLevel::Written, &(0..FRAMES).collect());
    (run, chunk.expect("frame 2").address)
}
