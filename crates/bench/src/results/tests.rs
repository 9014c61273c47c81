use super::*;

fn results() -> RunResults {
    RunResults {
        schema_version: RESULTS_SCHEMA_VERSION,
        command: "bench data".to_owned(),
        arguments: Vec::new(),
        environment: Environment::default(),
        driven_by: "threads".to_owned(),
        results: Vec::new(),
        warnings: Vec::new(),
        error: None,
    }
}

fn key(target: &str) -> FigureKey {
    FigureKey { workload: "data", target: target.to_owned(), clients: 2, parameters: Parameters::new() }
}

#[test]
fn samples_of_one_figure_are_kept_together() {
    let mut results = results();
    for value in [1.0, 2.0] {
        results.keep(&key("path:/a"), Figure::plain("write", "MiB/s", true, value), &[]);
        results.keep(&key("path:/b"), Figure::plain("write", "MiB/s", true, 3.0 * value), &[]);
    }
    assert_eq!(results.results.len(), 2);
    assert_eq!(results.results[1].samples, [3.0, 6.0]);
    assert!(results.to_text().contains("3.00  path:/b"), "{}", results.to_text());
}

#[test]
fn csv_quotes_fields_and_disarms_formulas() {
    let mut results = results();
    let figure = Figure::plain("read", "MiB/s", true, -1.5).marked([MARK_PAGE_CACHE]);
    results.keep(&key("path:/a,\"b\""), figure, &[]);
    results.keep(&key("=cmd()"), Figure::plain("x", "s", false, 1.0), &[]);
    let csv = results.to_csv();
    assert!(csv.contains("data,\"path:/a,\"\"b\"\"\",2,,read,MiB/s,0,-1.5,page cache\n"), "{csv}");
    assert!(csv.contains("data,'=cmd(),2"), "{csv}");
}

#[test]
fn difference_within_the_noise_is_called_the_same() {
    let mut results = results();
    for turn in 0..10 {
        results.keep(&key("path:/a"), Figure::plain("x", "ops/s", true, 100.0), &[]);
        results.keep(&key("path:/b"), Figure::plain("x", "ops/s", true, 95.0 + f64::from(turn)), &[]);
    }
    assert!(results.to_text().contains("same  path:/b"), "{}", results.to_text());
}
