use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

#[derive(Clone, Copy, Debug)]
enum Step {
    Insert(u64),
    Remove(u64),
    Retain(u64),
}

/// Few hashes, so that buckets are full and numbers spill into later buckets.
const HASH: u64 = 0x7;

fn number() -> impl Strategy<Value = u64> {
    (0..=HASH, 1..32_u64).prop_map(|(hash, number)| number << 3 | hash)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        60 => number().prop_map(Step::Insert),
        40 => number().prop_map(Step::Remove),
        1 => (2..5_u64).prop_map(Step::Retain),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Promise: a table of numbers holds the same as a set of the standard library, whatever is full and wherever it
    /// wraps to the first bucket.
    #[test]
    fn buckets_match_a_reference_set(steps in proptest::collection::vec(step(), 0..400), factor: u64) {
        let (mut buckets, mut set) = (Buckets::<HASH> { factor: factor | 1, ..Buckets::default() }, HashSet::new());
        let has = |buckets: &Buckets<HASH>, number: u64| buckets.find(number & HASH, |is| is == number) == Some(number);
        for step in steps {
            match step {
                Step::Insert(number) => {
                    prop_assert_eq!(has(&buckets, number), set.contains(&number));
                    if set.insert(number) {
                        buckets.insert(number);
                    }
                }
                Step::Remove(number) => {
                    buckets.remove(number);
                    set.remove(&number);
                }
                Step::Retain(of) => {
                    buckets.retain(|number| number % of != 0);
                    set.retain(|number| number % of != 0);
                }
            }
            prop_assert_eq!(buckets.len(), set.len());
            prop_assert!(set.iter().all(|number| has(&buckets, *number)), "{:?}: one is not found", step);
        }
        let (mut held, mut numbers): (Vec<u64>, Vec<u64>) = (buckets.iter().collect(), set.into_iter().collect());
        held.sort_unstable();
        numbers.sort_unstable();
        prop_assert_eq!(held, numbers);
        for (at, bucket) in buckets.buckets.iter().enumerate() {
            for number in bucket.0.into_iter().filter(|number| *number != 0) {
                let mut passed = buckets.home(number);
                while passed != at {
                    prop_assert!(buckets.buckets[passed].is_full(), "one in {} has passed {}", at, passed);
                    passed = buckets.after(passed);
                }
            }
        }
    }
}
