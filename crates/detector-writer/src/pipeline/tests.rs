use super::*;
use crate::Writer;
use crate::rounds::ROUNDS_GAP;
use crate::settings::{Listener, Settings};
use parking_lot::Mutex;
use std::time::Instant;
use varve_detector_dataset::frame::Payload;
use varve_detector_hdf5::ElementType;

/// Promise: frames that become durable before their writing thread reports them as written are reported at both levels,
/// once.
#[test]
fn durable_frames_are_reported_as_written_first() {
    let directory = tempfile::tempdir().unwrap();
    let reported: Arc<Mutex<Vec<(AckLevel, u64)>>> = Arc::default();
    let telling = Arc::clone(&reported);
    let listener = Arc::new(move |level: AckLevel, numbers: &[u64]| {
        telling.lock().extend(numbers.iter().map(|number| (level, *number)))
    });
    let description = DatasetSpec::new(ElementType::U16, vec![2, 2]);
    let path = directory.path().join("run.h5");
    let writer = Writer::create(&path, description, Settings::default(), listener).unwrap();
    writer.shared.reach(AckLevel::Durable, vec![(7, vec![])]);
    writer.shared.reach(AckLevel::Written, vec![(7, vec![])]);
    assert_eq!(*reported.lock(), [(AckLevel::Written, 7), (AckLevel::Durable, 7)]);
    assert_eq!((writer.progress().written, writer.progress().durable), (1, 1));
}

/// Promise: a sync is early if a client waits for much data, and otherwise waits for its interval.
#[test]
fn waiting_clients_hasten_the_sync() {
    let directory = tempfile::tempdir().unwrap();
    let settings = Settings { commit_interval: Duration::from_secs(3600), pressing_bytes: 1, ..Settings::default() };
    let begin = |name: &str, listener: Arc<dyn Listener>| {
        let description = DatasetSpec::new(ElementType::U16, vec![2, 2]);
        let writer = Writer::create(&directory.path().join(name), description, settings.clone(), listener).unwrap();
        let frame = Frame { number: 0, taken: 1, payload: Payload::Plain(vec![0; 8]) };
        writer.submit(frame, Duration::from_secs(10)).unwrap();
        writer
    };
    let unheard = begin("unheard.h5", Arc::new(()));
    let waited_for = begin("waited-for.h5", Arc::new(|_: AckLevel, _: &[u64]| {}));
    let begun = Instant::now();
    while waited_for.progress().durable == 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "its interval is waited for");
        std::thread::sleep(ROUNDS_GAP);
    }
    std::thread::sleep(4 * ROUNDS_GAP);
    assert_eq!((unheard.progress().taken, unheard.progress().durable), (1, 0));
    unheard.finish().unwrap();
    waited_for.finish().unwrap();
}

/// Promise: tables are limited to a number of entries per received frame, however far apart the frame numbers are.
#[test]
fn number_tables_grow_with_frames() {
    let directory = tempfile::tempdir().unwrap();
    let description = DatasetSpec::new(ElementType::U16, vec![2, 2]);
    let path = directory.path().join("run.h5");
    let writer = Writer::create(&path, description, Settings::default(), Arc::new(())).unwrap();
    // State after several jumps.
    writer.shared.highest.store(40 << 20, Ordering::Relaxed);
    let far = (4 << 20) + 1024;
    let refused = |taken: u64| {
        writer.shared.progress.lock().taken = taken;
        let frame = Frame { number: far, taken: 1, payload: Payload::Plain(vec![0; 8]) };
        let (submitted, row) = (writer.shared.check_number(frame.number, 0), writer.mark_damaged(far + 1024 * taken));
        assert!(row.is_err(), "a row is as far");
        if taken == 0 {
            let why = writer.submit(frame, Duration::from_secs(10)).unwrap_err().to_string();
            assert!(why.contains("is not accepted after 0 frames"), "{why}");
        }
        submitted.is_err()
    };
    assert_eq!([0, 1].map(refused), [true, false]);
    assert!(writer.shared.check_number(far, 1).is_ok(), "those of one report count");
}

/// Promise: an index is limited to a number of elements per received frame, however many chunks a frame has, and
/// however far the inner sides of its scan may grow.
#[test]
fn level_tables_grow_with_frames() {
    let directory = tempfile::tempdir().unwrap();
    let run = |name: &str, change: fn(&mut DatasetSpec)| {
        let mut description = DatasetSpec::new(ElementType::U8, vec![64]);
        change(&mut description);
        let path = directory.path().join(name);
        Writer::create(&path, description, Settings::default(), Arc::new(())).unwrap()
    };
    let takes = |writer: &Writer, number: u64, taken: u64| {
        writer.shared.progress.lock().taken = taken;
        writer.shared.highest.store(number, Ordering::Relaxed);
        writer.shared.check_number(number, 0)
    };
    let chunks = run("chunks.h5", |run| run.chunk = Some(vec![1]));
    // 2^26 elements at 64 chunks per frame.
    assert!(takes(&chunks, (1 << 20) - 1, 0).is_ok());
    let why = takes(&chunks, 1 << 20, 0).unwrap_err();
    assert!(why.contains("its last chunk would be place 67108928 of the index"), "{why}");
    assert!(takes(&chunks, 1 << 20, 1).is_ok(), "1,024 for each");
    let gaps = run("gaps.h5", |run| {
        (run.scan, run.scan_max) = (vec![None, Some(10)], Some(vec![None, Some(10_240)]));
    });
    let row = |row: u64| row * 10;
    assert!(takes(&gaps, row(6553), 0).is_ok());
    assert!(takes(&gaps, row(6554), 0).is_err());
    // Consecutive frames are accepted up to the limit of the index.
    assert!((0..400_000).step_by(997).all(|row| takes(&gaps, row * 10 + 9, row * 10 + 9).is_ok()));
    let why = takes(&gaps, row(419_431), u32::MAX.into()).unwrap_err();
    assert!(why.contains("of the index, which has 4294967295"), "{why}");
}
