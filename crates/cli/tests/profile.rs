//! `varve bench profile` finds a place for the time of every operation.

mod common;

use common::{must, scratch, varve};

const STAGES: [&str; 7] = ["client", "wire", "queue", "fetch", "decide", "log", "reply"];

#[test]
fn the_stages_of_an_operation_are_told() {
    let scratch = scratch();
    let mut command = varve();
    command.args(["--json", "bench", "profile", "--files", "100"]).arg(scratch.path());
    let profile = must(&mut command).json();
    let doors = profile["doors"].as_array().expect("doors");
    let names: Vec<_> = doors.iter().map(|door| door["door"].as_str().unwrap_or_default()).collect();
    assert_eq!(names, ["library", "served mount", "embedded mount"]);
    for door in doors {
        let operations = door["operations"].as_array().expect("operations");
        assert_eq!(operations.len(), 3, "{door}");
        for operation in operations {
            let stages = operation["stages"].as_array().expect("stages");
            for stage in STAGES {
                assert!(stages.iter().any(|found| found["stage"] == stage), "{stage} is not in {operation}");
            }
            assert!(operation["latency_us"].as_f64() > Some(0.0), "{operation}");
        }
        let create = &operations[0];
        assert!(create["calls"].as_f64() >= Some(1.0), "a create is a call at least: {create}");
        let log = create["stages"].as_array().into_iter().flatten().find(|stage| stage["stage"] == "log");
        assert!(log.and_then(|log| log["us"].as_f64()) > Some(0.0), "a create goes to the log: {create}");
    }
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0, "the volumes made for it are removed");
}
