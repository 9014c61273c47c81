use super::*;
use crate::NoticeCode;
use varve_detector_hdf5::ElementType;

const OWN: AckLevel = AckLevel::Durable;

/// Two-frame messages in flight, by first number.
fn sent(firsts: &[u64]) -> ClientState {
    let mut state = ClientState::default();
    for first in firsts {
        let (element, sides, filter) = (ElementType::U8, vec![1, 1], String::new());
        let out = Outgoing { number: *first, taken: 0, element, sides, frames: 2, filter, parts: vec![vec![7; 2]] };
        state.kept_bytes += out.bytes();
        state.kept.insert(*first, Arc::new(out));
    }
    state
}

fn kept(state: &ClientState) -> Vec<u64> {
    state.kept.keys().copied().collect()
}

/// Promise: a frame that the service reports as a duplicate is released if it was acknowledged at the client's level
/// before it was sent, and otherwise kept until it is.
#[test]
fn unacknowledged_frames_are_kept() {
    let duplicate = |state: &mut ClientState, number: u64| {
        state.take_notice(0, NoticeCode::Duplicate.of(number, ""), OWN);
    };
    let acknowledge = |state: &mut ClientState, level: AckLevel, range: std::ops::Range<u64>| {
        state.acknowledge(level, OWN, &[range]);
    };
    let mut state = sent(&[]);
    acknowledge(&mut state, OWN, 0..3);
    acknowledge(&mut state, AckLevel::Written, 0..6);
    let mut state = ClientState { acknowledged: state.acknowledged, ..sent(&[0, 2, 4]) };
    (0..3).for_each(|number| duplicate(&mut state, number));
    assert_eq!(kept(&state), [2, 4], "frame 3 is not acknowledged so far");
    (3..6).for_each(|number| duplicate(&mut state, number));
    assert_eq!((kept(&state), state.kept_bytes), (vec![2, 4], 4));
    // One notice without a frame, and one for a frame that is not kept.
    [NO_FRAME, 0, 100].into_iter().for_each(|number| duplicate(&mut state, number));
    assert_eq!(kept(&state), [2, 4]);
    acknowledge(&mut state, OWN, 3..6);
    assert!(state.is_settled() && state.kept_bytes == 0 && state.dropped == 0, "{:?}", state.kept);
    assert_eq!(state.notices.len(), 9);
}
