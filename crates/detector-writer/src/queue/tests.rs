use super::*;
use varve_detector_dataset::frame::Payload;
use varve_detector_hdf5::ElementType;

fn part(number: u64, bytes: usize) -> Vec<FramePart> {
    vec![FramePart {
        frame: Frame { number, taken: 0, payload: Payload::Plain(vec![0; bytes]) },
        source: 0,
        received: 0,
    }]
}

/// While the writers stall, an unlimited caller waits once and then uses the whole queue; a limited caller uses the
/// whole queue at once.
#[test]
fn unbounded_producer_blocks_once_when_writers_stall() {
    const BYTES: usize = LEAD_BYTES / 2 + 1;
    let queue = FrameQueue::new(8 * BYTES, 1, &DatasetSpec::new(ElementType::U8, vec![1]));
    for number in 0..8 {
        queue.push(part(number, BYTES), WaitPolicy::Unlimited).expect("there is room");
        assert_eq!(queue.state.lock().stalled, number >= LEAD_JOBS as u64);
    }
    assert_eq!(queue.push(part(8, BYTES), Duration::ZERO.into()), Err(QueueRefused::Full));
    assert!(matches!(queue.pop(false), NextJob::Job(Job { chunk_group: 0, .. })));
    assert!(!queue.state.lock().stalled);
    queue.push(part(8, BYTES), Duration::ZERO.into()).expect("a caller that does not wait may use the whole queue");
}

/// The queue does not close while a caller writes its own frame, and hands out a frame that the caller drops.
#[test]
fn own_frames_finish_before_the_queue_closes() {
    let queue = FrameQueue::new(1, 1, &DatasetSpec::new(ElementType::U8, vec![1]));
    (0..2).for_each(|_| queue.begin_own().expect("it is open"));
    queue.close();
    assert_eq!(queue.begin_own(), Err(QueueRefused::Closed));
    queue.end_own(Some(Job { chunk_group: 7, parts: part(7, 1) }));
    assert!(matches!(queue.pop(false), NextJob::Job(Job { chunk_group: 7, .. })));
    assert!(matches!(queue.pop(false), NextJob::Idle));
    queue.end_own(None);
    assert!(matches!(queue.pop(true), NextJob::Closed));
}

/// A caller that waits for the writers continues when they take a job.
#[test]
fn blocked_producer_resumes_with_the_writers() {
    const BYTES: usize = LEAD_BYTES;
    let queue = FrameQueue::new(64 * BYTES, 1, &DatasetSpec::new(ElementType::U8, vec![1]));
    std::thread::scope(|scope| {
        scope.spawn(|| (0..40).for_each(|number| queue.push(part(number, 1), WaitPolicy::Unlimited).expect("room")));
        scope.spawn(|| {
            (40..60).for_each(|number| queue.push(part(number, BYTES), WaitPolicy::Unlimited).expect("room"))
        });
        let taken: HashSet<u64> = (0..60)
            .map(|_| match queue.pop(true) {
                NextJob::Job(job) => job.chunk_group,
                _ => panic!("it is not closed"),
            })
            .collect();
        assert_eq!(taken.len(), 60);
    });
}
