use super::*;
use crate::frame::Payload;
use crate::hdf5::ElementType;

fn part(number: u64, bytes: usize) -> Vec<Part> {
    vec![Part { frame: Frame { number, taken: 0, payload: Payload::Plain(vec![0; bytes]) }, source: 0, received: 0 }]
}

/// While nobody takes, who may wait does so once, and then all room is used; who has not the time has all room at once.
#[test]
fn who_may_wait_waits_for_the_writers_once_where_they_stand_still() {
    const BYTES: usize = LEAD_BYTES / 2 + 1;
    let queue = Queue::new(8 * BYTES, 1, &Description::new(ElementType::U8, vec![1]));
    for number in 0..8 {
        queue.push(part(number, BYTES), Patience::Unlimited).expect("there is room");
        assert_eq!(queue.state.lock().stalled, number >= LEAD_JOBS as u64);
    }
    assert_eq!(queue.push(part(8, BYTES), Duration::ZERO.into()), Err(Refused::Full));
    assert!(matches!(queue.pop(false), Next::Job(Job { slab: 0, .. })));
    assert!(!queue.state.lock().stalled);
    queue.push(part(8, BYTES), Duration::ZERO.into()).expect("who cannot wait has all room");
}

/// Nothing is closed while somebody writes what it brought, and what it lets go of is given out.
#[test]
fn what_is_ones_own_is_ended_before_the_queue_is() {
    let queue = Queue::new(1, 1, &Description::new(ElementType::U8, vec![1]));
    (0..2).for_each(|_| queue.begin_own().expect("it is open"));
    queue.close();
    assert_eq!(queue.begin_own(), Err(Refused::Closed));
    queue.end_own(Some(Job { slab: 7, parts: part(7, 1) }));
    assert!(matches!(queue.pop(false), Next::Job(Job { slab: 7, .. })));
    assert!(matches!(queue.pop(false), Next::Idle));
    queue.end_own(None);
    assert!(matches!(queue.pop(true), Next::Closed));
}

/// Who waits for the writers goes on when they take.
#[test]
fn who_may_wait_goes_on_when_the_writers_do() {
    const BYTES: usize = LEAD_BYTES;
    let queue = Queue::new(64 * BYTES, 1, &Description::new(ElementType::U8, vec![1]));
    std::thread::scope(|scope| {
        scope.spawn(|| (0..40).for_each(|number| queue.push(part(number, 1), Patience::Unlimited).expect("room")));
        scope.spawn(|| (40..60).for_each(|number| queue.push(part(number, BYTES), Patience::Unlimited).expect("room")));
        let taken: HashSet<u64> = (0..60)
            .map(|_| match queue.pop(true) {
                Next::Job(job) => job.slab,
                _ => panic!("it is not closed"),
            })
            .collect();
        assert_eq!(taken.len(), 60);
    });
}
