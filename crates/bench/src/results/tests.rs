use super::*;

fn results() -> RunResults {
    RunResults {
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
fn part_of_a_pass_marks_the_figure_and_is_no_sample() {
    let mut results = results();
    let figure = |value| Figure::plain("write", "MiB/s", true, value);
    results.keep(&key("path:/a"), figure(2.0), &[]);
    results.keep(&key("path:/a"), figure(0.1).marked([MARK_PARTIAL]), &[]);
    results.keep(&key("path:/b"), figure(0.1).marked([MARK_PARTIAL]), &[]);
    let found: Vec<_> = results.results.iter().map(|of| (of.samples[..].to_vec(), of.marks.len())).collect();
    assert_eq!(found, [(vec![2.0], 1), (vec![0.1], 1)]);
}

#[test]
fn results_are_a_run_file_with_more_keys() {
    let mut results = RunResults { error: Some("rank 1 is lost".to_owned()), ..results() };
    let target = crate::environment::TargetEnvironment {
        via: "path".to_owned(),
        target: "/a".to_owned(),
        ..crate::environment::TargetEnvironment::default()
    };
    results.environment.targets.push(target);
    let figure = Figure::plain("write", "MiB/s", true, 2.5).marked([MARK_PARTIAL]);
    results.keep(&key("path:/a"), figure, &[]);
    let json = results.to_json().unwrap();
    let run = crate::run_file::RunFile::from_json(&json).unwrap();
    let entry = &run.entries[0];
    assert_eq!((entry.metric.as_str(), entry.clients(), entry.samples[0]), ("write", Some(2.0), 2.5));
    assert!(entry.is_marked(MARK_PARTIAL));
    assert_eq!(run.steps[0].failure, "rank 1 is lost");
    assert!(json.contains("\"driven_by\":\"threads\""), "{json}");
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

#[test]
fn highest_and_lowest_five_of_twenty_are_discarded() {
    let mut measured = Measured::new(&key("path:/a"), "write".to_owned(), "MiB/s", true);
    measured.samples = (0..20).map(|i| f64::from(i * 7 % 20)).collect();
    measured.discard = 5;
    let mut kept = measured.kept_samples();
    assert_eq!(kept[0], 7.0, "the order of the turns stays");
    kept.sort_by(f64::total_cmp);
    assert_eq!(kept, (5..15).map(f64::from).collect::<Vec<_>>());
    measured.samples.truncate(2);
    assert_eq!(measured.kept_samples(), [0.0, 7.0]);
}
