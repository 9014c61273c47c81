use super::client::ClientPhase;
use super::fit::{Point, timeline};
use super::report::skew;
use super::*;

fn client(seconds: f64, ticks: &[u64]) -> ClientPhase {
    ClientPhase { seconds, ticks: ticks.to_vec(), ..ClientPhase::default() }
}

#[test]
fn timeline_sums_clients_up_in_tenths_of_short_runs() {
    let clients = [client(0.26, &[10, 20, 6]), client(0.18, &[30, 8])];
    let rates = timeline(&clients);
    let expected = [(0.1, 400.0), (0.2, 280.0), (0.26, 100.0)];
    assert_eq!(rates.len(), expected.len(), "{rates:?}");
    for ((end, rate), (expected_end, expected_rate)) in rates.iter().zip(expected) {
        assert!((end - expected_end).abs() < 1e-9 && (rate - expected_rate).abs() < 1e-6, "{rates:?}");
    }
}

#[test]
fn last_interval_that_is_too_short_joins_the_one_before() {
    let rates = timeline(&[client(0.22, &[10, 20, 4])]);
    assert_eq!(rates.len(), 2);
    assert!((rates[1].0 - 0.22).abs() < 1e-9 && (rates[1].1 - 24.0 / 0.12).abs() < 1e-6, "{rates:?}");
}

#[test]
fn long_runs_have_intervals_of_half_a_second() {
    let rates = timeline(&[client(6.0, &[7; 60])]);
    assert_eq!(rates.len(), 12);
    assert!((rates[0].0 - 0.5).abs() < 1e-9 && rates.iter().all(|(_, rate)| (rate - 70.0).abs() < 1e-6), "{rates:?}");
}

#[test]
fn intervals_after_the_first_clients_end_are_not_fitted() {
    let clients = [client(0.2, &[10, 10]), client(0.4, &[5, 5, 5, 5])];
    let fitted: Vec<Point> = Point::before_the_first_end(2, &timeline(&clients), &clients).collect();
    assert_eq!(fitted.len(), 2);
}

#[test]
fn fit_finds_the_factors_of_its_own_formula() {
    let exact = Fit { a: 700.0, b: -90.0, r2: 1.0 };
    let of = |servers: f64| {
        (1..40).map(move |half| {
            let seconds = f64::from(half) / 2.0;
            Point { servers, seconds, rate: exact.at(servers, seconds) }
        })
    };
    let points: Vec<Point> = [1.0, 2.0, 8.0].into_iter().flat_map(of).collect();
    let fit = Fit::of(&points).unwrap();
    assert!((fit.a - 700.0).abs() < 1e-6 && (fit.b + 90.0).abs() < 1e-6 && fit.r2 > 0.999_999, "{fit:?}");
    let one_number: Vec<Point> = of(4.0).collect();
    assert_eq!((Fit::of(&one_number), Fit::of(&[])), (None, None));
}

#[test]
fn skew_is_the_largest_over_the_mean() {
    assert_eq!(skew([4, 4].into_iter()), 1.0);
    assert_eq!(skew([6, 3, 3].into_iter()), 1.5);
    assert_eq!(skew([0, 0].into_iter()), 1.0);
}

#[test]
fn all_numbers_of_servers_have_one_split_threshold() {
    let config = |servers: &[usize], files_per_server| ScaleConfig {
        servers: servers.to_vec(),
        files_per_server,
        progress: false,
        arguments: Vec::new(),
    };
    assert_eq!(config(&[1, 16], 20_000).split_threshold(), 78);
    assert!(config(&[1, 16], 20_000).check().is_ok());
    for wrong in [config(&[], 20_000), config(&[0], 20_000), config(&[65], 20_000), config(&[1], 10)] {
        assert!(matches!(wrong.check(), Err(Error::Usage(_))));
    }
}

#[test]
fn report_shows_rates_above_their_fit() {
    let result = |servers: usize, found| ScaleResult {
        servers,
        files: 40,
        found,
        ops_per_s: 5_000.0,
        server_cpu_us_per_op: 61.5,
        client_cpu_us_per_op: 20.0,
        calls_per_op: 1.001,
        redirects: 3,
        skew: 1.02,
        partition_skew: 1.1,
        splits: 63,
        idle_server_cpus: 0.01,
        growth_ops_per_s: 4_000.0,
        growth_server_cpu_us_per_op: 90.0,
        growth_redirects: 70,
        timeline: vec![(0.5, 1_000.0), (1.0, 8_000.0)],
    };
    let config = ScaleConfig { servers: vec![1, 2], files_per_server: 20, progress: false, arguments: Vec::new() };
    let fit = Some(Fit { a: 100.0, b: -7.0, r2: 0.5 });
    let report = ScaleReport::new(&config, std::time::Duration::from_secs(3), fit, vec![result(1, 40), result(2, 39)]);
    let text = report.to_text();
    for line in
        ["        2  ▁█  1.0 s, at most 8.00 k/s", "(100 x S - 7) / ln T", "2 servers: 40 files were created, and 39"]
    {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
    assert!(!report.all_found());
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!(json["results"][1]["timeline"][1], serde_json::json!([1.0, 8000.0]));
    assert_eq!((&json["command"], &json["fit"]["a"]), (&"bench scale".into(), &100.0.into()));
}
