use super::*;
use std::cell::Cell;
use std::future::{pending, ready};

/// Promise: work that is done counts, and work that is not ends when a look says so, at the latest after its time.
#[test]
fn given_up_work_ends_after_its_time() {
    let wait = Duration::from_millis(5);
    let done = block_on(unless_given_up(ready(7), wait, || Some("given up")));
    assert_eq!(done, Ok(7));
    let looks = Cell::new(0);
    let given_up = || {
        looks.set(looks.get() + 1);
        (looks.get() > 0).then_some("given up")
    };
    assert_eq!(block_on(unless_given_up(pending::<()>(), wait, given_up)), Err("given up"));
    assert_eq!(looks.get(), 1);
}

/// Promise: a thread goes on with the same loop, and a pause takes its time.
#[test]
fn pause_takes_its_time() {
    let wait = Duration::from_millis(3);
    let (begun, ended) = block_on(async {
        let begun = current().now();
        pause(wait).await;
        (begun, current().now())
    });
    assert!(ended.since(begun) >= wait);
}
