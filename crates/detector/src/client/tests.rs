use super::*;

const OWN: Level = Level::Durable;

/// Messages of two frames that are sent, from these on.
fn sent(firsts: &[u64]) -> State {
    let mut state = State::default();
    for first in firsts {
        let (element, sides, filter) = (ElementType::U8, vec![1, 1], String::new());
        let out = Outgoing { number: *first, taken: 0, element, sides, frames: 2, filter, parts: vec![vec![7; 2]] };
        state.kept_bytes += out.bytes();
        state.kept.insert(*first, Arc::new(out));
    }
    state
}

fn kept(state: &State) -> Vec<u64> {
    state.kept.keys().copied().collect()
}

/// Promise: a frame of which the service says that it came before is settled if it was acknowledged at the client's level
/// before it was brought, and otherwise kept until it is.
#[test]
fn what_came_before_is_kept_until_it_is_acknowledged() {
    let duplicate = |state: &mut State, number: u64| {
        state.take_notice(0, NoticeCode::Duplicate.of(number, ""), OWN);
    };
    let acknowledge = |state: &mut State, level: Level, range: std::ops::Range<u64>| {
        state.acknowledge(level, OWN, &[range]);
    };
    let mut state = sent(&[]);
    acknowledge(&mut state, OWN, 0..3);
    acknowledge(&mut state, Level::Written, 0..6);
    let mut state = State { acknowledged: state.acknowledged, ..sent(&[0, 2, 4]) };
    (0..3).for_each(|number| duplicate(&mut state, number));
    assert_eq!(kept(&state), [2, 4], "frame 3 is not acknowledged so far");
    (3..6).for_each(|number| duplicate(&mut state, number));
    assert_eq!((kept(&state), state.kept_bytes), (vec![2, 4], 4));
    // Of no frame, and of one that is not kept.
    [NO_FRAME, 0, 100].into_iter().for_each(|number| duplicate(&mut state, number));
    assert_eq!(kept(&state), [2, 4]);
    acknowledge(&mut state, OWN, 3..6);
    assert!(state.is_settled() && state.kept_bytes == 0 && state.dropped == 0, "{:?}", state.kept);
    assert_eq!(state.notices.len(), 9);
}
