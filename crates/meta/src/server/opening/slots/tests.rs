use super::super::{FailureKind, OpenFailure};
use super::*;
use std::time::Duration;
use varve_types::{InodeId, SessionId};

type Slot = ShardSlot<&'static str>;

fn at(seconds: u64) -> Instant {
    Instant(Duration::from_secs(seconds))
}

fn cause(reason: &str) -> Cause {
    Cause::from(reason)
}

fn failure(reason: &str) -> OpenFailure {
    OpenFailure { cause: cause(reason), kind: FailureKind::Passing }
}

fn name(slot: &Slot) -> &'static str {
    match &slot.state {
        SlotState::Elsewhere => "elsewhere",
        SlotState::Waiting => "waiting",
        SlotState::Opening => "opening",
        SlotState::Open(_) => "open",
        SlotState::MovingAway(..) => "moving away",
        SlotState::Failed { .. } => "failed",
        SlotState::Refused { .. } => "refused",
        SlotState::Released { .. } => "released",
        SlotState::Closed => "closed",
    }
}

fn opened() -> Slot {
    let mut slot = Slot::new(true, at(0));
    slot.begin_attempt(at(1));
    assert_eq!(slot.opened("table", at(2)), None);
    slot
}

#[test]
fn owned_shard_waits_for_its_first_attempt() {
    let mut slot = Slot::new(true, at(0));
    assert_eq!((name(&slot), slot.had), ("waiting", false));
    slot.hurried = true;
    slot.begin_attempt(at(1));
    assert_eq!((name(&slot), slot.hurried), ("opening", false));
    assert_eq!((slot.attempts.begun, slot.attempts.ended), (1, 0));
    slot.opened("table", at(2));
    assert_eq!((name(&slot), slot.had, slot.since), ("open", true, at(2)));
    assert_eq!(slot.attempts.ended, 1);
}

#[test]
fn refused_shard_keeps_its_view_until_it_is_open() {
    let mut slot = Slot::new(true, at(0));
    slot.begin_attempt(at(1));
    slot.refused(failure("full"), Some("view"), at(2));
    slot.begin_attempt(at(3));
    assert_eq!((name(&slot), slot.view()), ("refused", Some(&"view")));
    slot.refused(failure("still full"), None, at(4));
    assert_eq!(slot.cause(), Some(&cause("still full")));
    assert_eq!((slot.view(), slot.since), (Some(&"view"), at(2)), "it has been refused since the first attempt");
    slot.begin_attempt(at(5));
    assert_eq!(slot.opened("table", at(6)), Some("view"), "the caller closes it");
    assert_eq!((name(&slot), slot.view(), slot.cause()), ("open", None, None));
}

#[test]
fn failed_shard_takes_one_view() {
    let mut slot = opened();
    slot.fail(cause("fsync failed"), at(3));
    assert_eq!(slot.add_view("view"), None);
    assert_eq!(slot.add_view("second"), Some("second"));
    slot.begin_attempt(at(4));
    slot.refused(failure("full"), None, at(5));
    assert_eq!((name(&slot), slot.view(), slot.since), ("refused", Some(&"view"), at(5)));
    let mut open = opened();
    assert_eq!(open.add_view("late"), Some("late"), "an open shard has no view");
}

#[test]
fn shard_of_another_server_is_released() {
    let mut slot = opened();
    slot.fail(cause("fenced"), at(3));
    slot.add_view("view");
    assert_eq!(slot.released(cause("another server has it"), at(4)), Some("view"));
    assert_eq!((name(&slot), slot.cause()), ("released", Some(&cause("another server has it"))));
    assert!(!slot.begin_take_over(at(5)), "it is not taken back");
    assert_eq!(slot.closed(at(6)), None);
    assert_eq!(name(&slot), "released");
}

#[test]
fn move_ends_elsewhere_or_open() {
    let mut slot = opened();
    slot.move_away(at(3));
    assert_eq!((name(&slot), slot.since), ("moving away", at(3)));
    slot.stay(at(4));
    assert_eq!((name(&slot), slot.since), ("open", at(4)));
    slot.move_away(at(5));
    slot.set_gate(Gate::Ending);
    slot.set_gate(Gate::None);
    slot.moved(at(6));
    assert_eq!((name(&slot), slot.since), ("elsewhere", at(6)));
}

#[test]
fn failed_move_leaves_a_failed_shard() {
    let mut slot = opened();
    slot.move_away(at(3));
    slot.set_gate(Gate::None);
    slot.fail(cause("the other worker cannot open it"), at(4));
    slot.begin_attempt(at(5));
    slot.opened("table again", at(6));
    assert_eq!(name(&slot), "open");
}

#[test]
fn shard_is_taken_over_from_elsewhere_only() {
    let mut slot = Slot::new(false, at(0));
    assert!(slot.begin_take_over(at(1)));
    assert!(!slot.begin_take_over(at(1)), "it is being opened");
    slot.begin_attempt(at(1));
    slot.not_taken_over(at(2));
    assert_eq!(name(&slot), "elsewhere");
    assert!(slot.begin_take_over(at(3)));
    slot.begin_attempt(at(3));
    slot.opened("table", at(4));
    assert!(!slot.begin_take_over(at(5)));
    slot.fail(cause("store"), at(6));
    assert!(!slot.begin_take_over(at(7)));
}

#[test]
fn cluster_gives_shards_that_are_elsewhere() {
    let own = |slot: &mut Slot, now| slot.begin_ownership(Term(7), Duration::ZERO, now);
    let mut slot = Slot::new(false, at(0));
    assert!(!slot.gone(at(0)), "it was not here");
    assert!(own(&mut slot, at(1)));
    assert!(slot.sessions().is_some());
    assert!(!own(&mut slot, at(2)), "it waits for its opening");
    slot.begin_attempt(at(2));
    slot.opened("table", at(3));
    assert!(!own(&mut slot, at(4)), "it is open");
    slot.fail(cause("fenced"), at(5));
    slot.released(cause("another server has it"), at(6));
    assert!(own(&mut slot, at(7)), "the map gives it back");
    assert_eq!(name(&slot), "waiting");
}

#[test]
fn released_shard_is_whose_the_map_says() {
    let release = || {
        let mut slot = opened();
        slot.fail(cause("fenced"), at(5));
        slot.released_to_map(cause("another server has it"), at(6));
        assert_eq!(name(&slot), "released");
        slot
    };
    let (mut again, mut gone) = (release(), release());
    assert!(again.begin_ownership(Term(8), Duration::ZERO, at(7)));
    assert_eq!((name(&again), again.term), ("waiting", Term(8)));
    assert!(gone.gone(at(7)));
    assert_eq!((name(&gone), gone.sessions().is_some()), ("elsewhere", false));
}

/// A session that does not know the new term yet goes on with its files. In a later term, another server may have had them.
#[test]
fn shard_taken_back_in_the_next_term_keeps_open_files() {
    for (term, kept) in [(8, true), (9, false)] {
        let mut slot = Slot::new(false, at(0));
        assert!(slot.begin_ownership(Term(7), Duration::ZERO, at(1)));
        slot.open_files.as_ref().unwrap().open(SessionId(1), InodeId(1), true);
        slot.begin_attempt(at(2));
        slot.opened("table", at(3));
        slot.fail(cause("fenced"), at(5));
        slot.released_to_map(cause("another server has it"), at(6));
        assert!(slot.begin_ownership(Term(term), Duration::ZERO, at(7)));
        assert_eq!(slot.open_files.unwrap().has_open_to(SessionId(1), InodeId(1), true), kept);
    }
}

/// A later fence is reported with the newest term.
#[test]
fn term_follows_the_map_while_a_shard_opens() {
    let mut slot = Slot::new(false, at(0));
    assert!(slot.begin_ownership(Term(6), Duration::ZERO, at(1)));
    assert!(!slot.begin_ownership(Term(7), Duration::ZERO, at(2)));
    assert_eq!(slot.term, Term(7));
}

#[test]
fn shard_given_away_is_kept_from_calls_until_it_is_gone() {
    let mut slot = opened();
    slot.move_away(at(3));
    slot.set_gate(Gate::None);
    slot.open_files = Some(OpenFiles::after(Duration::ZERO));
    assert!(!slot.gone(at(4)), "it moves between workers");
    slot.set_gate(Gate::Given);
    assert_eq!(name(&slot), "moving away");
    assert!(slot.gone(at(5)));
    assert_eq!((name(&slot), slot.sessions().is_some()), ("elsewhere", false));
}

/// Promise: a shard that could not be given away comes back with the files that sessions have open.
#[test]
fn shard_that_comes_back_has_its_open_files() {
    for (term, kept) in [(Term(4), true), (Term(5), false)] {
        let mut slot = opened();
        slot.term = Term(3);
        let open_files = OpenFiles::after(Duration::ZERO);
        open_files.open(SessionId(1), InodeId(7), true);
        slot.open_files = Some(open_files);
        slot.move_away(at(3));
        slot.set_gate(Gate::Given);
        assert!(slot.begin_ownership(term, Duration::ZERO, at(5)));
        assert_eq!(!slot.open_files.as_ref().unwrap().is_empty(), kept, "{term:?}");
    }
}

#[test]
fn ended_worker_has_closed_its_shards() {
    for own in [true, false] {
        let mut slot = Slot::new(own, at(0));
        assert_eq!(slot.closed(at(1)), None);
        assert_eq!(name(&slot), if own { "closed" } else { "elsewhere" });
    }
    let mut refused = Slot::new(true, at(0));
    refused.begin_attempt(at(1));
    refused.refused(failure("full"), Some("view"), at(2));
    assert_eq!(refused.closed(at(3)), Some("view"));
}
