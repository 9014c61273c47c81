//! `varve bench scale`: each number of servers has every file in the end, and nothing is left behind.

use super::common::{LONG, run, scratch, varve};

#[test]
fn scale_benchmark_finds_every_file_on_all_servers() {
    let directory = scratch();
    let mut bench = varve();
    bench.args(["--json", "bench", "scale", "--servers", "1,2", "--files-per-server", "1000"]).arg(directory.path());
    let report = run(&mut bench, LONG);
    let report = report.succeeded("varve bench scale").json();
    assert_eq!((&report["schema_version"], &report["command"]), (&1.into(), &"bench scale".into()));
    let results = report["results"].as_array().expect("a list");
    for (result, servers) in results.iter().zip([1, 2]) {
        assert_eq!(result["servers"], servers);
        assert_eq!((&result["files"], &result["found"]), (&(servers * 2_000).into(), &(servers * 2_000).into()));
        assert!(result["splits"].as_u64() > Some(32), "{report}");
        let number = |name: &str| result[name].as_f64().unwrap_or_else(|| panic!("{name} in {result}"));
        // A client that looks up the directory again, as its lease ends, makes a call more.
        assert!((1.0..1.2).contains(&number("calls_per_op")), "{report}");
        assert!((1.0..1.5).contains(&number("skew")), "{report}");
        assert!(number("client_cpu_us_per_op") > 0.0 && number("ops_per_s") > 0.0, "{report}");
        assert!(result["timeline"].as_array().is_some_and(|timeline| !timeline.is_empty()), "{report}");
    }
    assert_eq!(results.len(), 2);
    assert!(report["fit"]["a"].is_number() && report["fit"]["b"].is_number(), "{report}");
    assert_eq!(std::fs::read_dir(directory.path()).expect("it is there").count(), 0);
}
