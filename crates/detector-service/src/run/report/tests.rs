use super::*;
use crate::StartRequest;
use crate::board::ProgressBoard;
use crate::records::RunRecord;
use crate::run::RunContext;
use crate::sink::RunSink;
use std::path::Path;
use std::sync::Arc;
use varve_detector_dataset::dataset_spec::DatasetSpec;
use varve_detector_dataset::frame::{Frame, Payload};
use varve_detector_dataset::journal_entry::{ChunkEntry, ChunkGroupEntry};
use varve_detector_dataset::ranges::Ranges;
use varve_detector_hdf5::ElementType;
use varve_detector_writer::{Settings, WaitPolicy, Writer};

const FRAME_BYTES: u64 = 128;

fn run(directory: &Path) -> Run {
    let mut description = DatasetSpec::new(ElementType::U16, vec![8, 8]);
    description.filter = "raw".parse().expect("a filter");
    let path = directory.join("run.h5");
    let board = Arc::new(ProgressBoard::with(vec![Ranges::default()]));
    let writer = Writer::create(&path, description.clone(), Settings::default(), board.clone()).expect("a run started");
    let home = RunContext { root: directory.to_owned(), records: None, reserve: None };
    let request = StartRequest::new("run", "run.h5".into(), description);
    Run::new(Arc::new(home), RunRecord::of(request), path, (RunSink::Own(writer), board))
}

/// A joined process's entry for a frame that it has written.
fn entry(run: &Run, frame: u64) -> JournalEntry {
    let address = run.grant(FRAME_BYTES).expect("an extent").start;
    let chunk = ChunkEntry { address, size: FRAME_BYTES, mask: 0, checksum: 0 };
    let frames = vec![FrameEntry { number: frame, times: [1; 4], missing: Vec::new() }];
    JournalEntry::ChunkGroup(ChunkGroupEntry {
        chunk_group: frame,
        epoch: 1,
        again: false,
        frames,
        chunks: vec![chunk],
    })
}

/// Promise: a report that is repeated while the first copy is being entered gets its reply only when that is done,
/// because the service could be killed in between.
#[test]
fn repeated_report_waits_for_the_first_in_the_journal() {
    let directory = tempfile::tempdir().expect("a directory");
    let run = run(directory.path());
    let entry = entry(&run, 0);
    // State after the first copy has claimed the frame.
    run.claims.lock()[0].insert(0);
    std::thread::scope(|scope| {
        let repeated = scope.spawn(|| run.report(vec![entry.clone()], true));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!repeated.is_finished(), "{:?}", repeated.join());
        run.with(|sink| sink.report(vec![entry.clone()])).expect("entered");
        assert_eq!(repeated.join().expect("no panic"), Ok(()));
    });
    // The first copy could not be entered, so the frame must be reported once more.
    run.claims.lock()[0].insert(1);
    let entry = self::entry(&run, 1);
    std::thread::scope(|scope| {
        let repeated = scope.spawn(|| run.report(vec![entry.clone()], true));
        std::thread::sleep(Duration::from_millis(50));
        run.claims.lock()[0].remove(1);
        let refusal = repeated.join().expect("no panic").expect_err("it is not in the journal");
        assert!(refusal.code.passes(), "{refusal}");
        run.report(vec![entry.clone()], true).expect("entered");
    });
    assert_eq!(run.with(|sink| Ok(sink.level(1, 0))), Ok(Some(AckLevel::Written)));
}

/// Promise: frames of a refused report may be sent by another client.
#[test]
fn refused_report_releases_its_frames() {
    let directory = tempfile::tempdir().expect("a directory");
    let run = run(directory.path());
    let JournalEntry::ChunkGroup(mut chunk_group) = entry(&run, 0) else { unreachable!("it is one") };
    chunk_group.chunks[0].address = 1 << 50;
    run.report(vec![JournalEntry::ChunkGroup(chunk_group)], false).expect_err("its chunk is not in the file");
    let frame = Frame { number: 0, taken: 0, payload: Payload::Plain(vec![7; FRAME_BYTES as usize]) };
    let taken = run.take(0, frame, || false, WaitPolicy::from(Duration::from_secs(60)));
    assert!(matches!(taken, Ok(Ok(()))), "it is no duplicate");
}
