//! Promises of the measurement: percentiles, spreads, intervals and the gate.

use super::*;
use std::time::Duration;

#[test]
fn percentiles_are_within_three_digits_of_the_truth() {
    let mut first = Latencies::default();
    let mut second = Latencies::default();
    for microsecond in 1..=10_000 {
        let half = if microsecond % 2 == 0 { &mut first } else { &mut second };
        half.record(Duration::from_micros(microsecond));
    }
    first.add(&second);
    let p = first.percentiles();
    assert_eq!(first.count(), 10_000);
    for (got, wanted) in [(p.p50, 5_000.0), (p.p99, 9_900.0), (p.p999, 9_990.0), (p.max, 10_000.0), (p.mean, 5_000.5)] {
        assert!((got - wanted).abs() <= wanted * 1e-3, "{got} is not {wanted}");
    }
}

#[test]
fn latencies_survive_the_way_to_another_process() {
    let mut latencies = Latencies::default();
    for microsecond in [1, 5, 5, 900, 70_000] {
        latencies.record(Duration::from_micros(microsecond));
    }
    let read = Latencies::of_counts(&latencies.counts());
    assert_eq!((read.count(), read.percentiles()), (5, latencies.percentiles()));
}

#[test]
fn percentiles_without_samples_are_zero() {
    assert_eq!(Latencies::default().percentiles(), Percentiles::default());
}

#[test]
fn spread_of_an_even_and_an_odd_number_of_samples() {
    let even = Spread::of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
    assert_eq!((even.median, even.min, even.max, even.mean), (2.5, 1.0, 4.0, 2.5));
    assert!((even.stddev - (5.0_f64 / 3.0).sqrt()).abs() < 1e-12);
    assert_eq!(even.samples, [4.0, 1.0, 3.0, 2.0], "the order of the repeats is kept");
    let one = Spread::of(&[7.0]).unwrap();
    assert_eq!((one.median, one.stddev), (7.0, 0.0));
    assert_eq!(Spread::of(&[]), None);
}

#[test]
fn intervals_are_those_of_the_sign_test() {
    // Order statistics of the median's interval as in Conover, Practical Nonparametric Statistics, table A3.
    for (n, k, confidence) in [(10, 2, 0.9785), (12, 3, 0.9614), (15, 4, 0.9648), (20, 6, 0.9586)] {
        let these: Vec<f64> = (1..=n).map(f64::from).collect();
        let (_, interval) = paired_ratios(&these, &vec![1.0; n as usize]).unwrap();
        let interval = interval.unwrap();
        assert_eq!((interval.low, interval.high), (f64::from(k), f64::from(n + 1 - k)), "{n} pairs");
        assert!((interval.confidence - confidence).abs() < 1e-4, "{n} pairs: {}", interval.confidence);
    }
}

#[test]
fn few_pairs_have_no_interval_and_ratios_pair_by_turn() {
    let (ratios, interval) = paired_ratios(&[10.0, 40.0, 90.0], &[10.0, 20.0, 30.0]).unwrap();
    assert_eq!(ratios.samples, [1.0, 2.0, 3.0]);
    assert_eq!(interval, None);
    assert!(paired_ratios(&[], &[]).is_none());
}

#[test]
fn gate_opens_or_aborts_for_all_threads() {
    let gate = Gate::new(3);
    std::thread::scope(|scope| {
        let rounds: Vec<_> = (0..3).map(|_| scope.spawn(|| (0..100).all(|_| gate.wait()))).collect();
        assert!(rounds.into_iter().all(|round| round.join().unwrap()));
        let stuck: Vec<_> = (0..2).map(|_| scope.spawn(|| gate.wait())).collect();
        gate.give_up();
        assert!(stuck.into_iter().all(|stuck| !stuck.join().unwrap()));
    });
    assert!(!gate.wait());
}

/// For any number of turns, the interval has at least the stated confidence.
#[test]
fn interval_of_many_pairs_has_a_width() {
    let these: Vec<f64> = (0..2000).map(|turn| f64::from(turn) + 1.0).collect();
    let (_, interval) = paired_ratios(&these, &[1.0; 2000]).unwrap();
    let interval = interval.unwrap();
    assert!((0.95..0.96).contains(&interval.confidence), "{interval:?}");
    // Half of 2,000, and 1.96 times half of their root.
    assert!((955.0..=958.0).contains(&interval.low) && (1043.0..=1046.0).contains(&interval.high), "{interval:?}");
}
