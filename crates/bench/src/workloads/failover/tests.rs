use super::clients::DirectoryLog;
use super::*;
use std::collections::BTreeSet;
use std::time::Duration;

fn names(numbers: &[u64]) -> BTreeSet<Vec<u8>> {
    numbers.iter().map(|number| format!("f{number}").into_bytes()).collect()
}

#[test]
fn missing_files_and_files_that_came_back_are_lost() {
    let log = DirectoryLog { first: 2, next: 5, unknown: BTreeSet::new() };
    assert_eq!(log.difference(&names(&[2, 3, 4])), 0);
    assert_eq!(log.difference(&names(&[2, 4])), 1);
    assert_eq!(log.difference(&names(&[1, 2, 3, 4])), 1);
    assert_eq!(log.difference(&names(&[1, 2, 3])), 2);
}

#[test]
fn files_of_failed_calls_may_exist_or_not() {
    let log = DirectoryLog { first: 2, next: 5, unknown: BTreeSet::from([1, 4]) };
    assert_eq!(log.difference(&names(&[2, 3])), 0);
    assert_eq!(log.difference(&names(&[1, 2, 3, 4])), 0);
    assert_eq!(log.difference(&names(&[0, 2, 3])), 1);
}

#[test]
fn unexpected_names_are_counted() {
    let log = DirectoryLog { first: 0, next: 1, unknown: BTreeSet::new() };
    let mut found = names(&[0]);
    found.insert(b"x".to_vec());
    assert_eq!(log.difference(&found), 1);
}

#[test]
fn percentiles_are_those_of_the_nearest_rank() {
    let stalls: Vec<Duration> = (1..=30).rev().map(Duration::from_millis).collect();
    assert_eq!(Stalls::of(&stalls), Stalls { p50: 15.0, p99: 30.0, max: 30.0 });
    assert_eq!(Stalls::of(&[Duration::from_micros(1250)]), Stalls { p50: 1.3, p99: 1.3, max: 1.3 });
    assert_eq!(Stalls::of(&[]), Stalls::default());
}
