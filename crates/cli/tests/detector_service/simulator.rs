//! The simulator with a service: it waits for a free connection, plays runs, resumes after kill -9, and reports a lost
//! service.

use super::*;

/// Promise: the simulator waits for free connections up to the limit of --timeout, and reports that it waits.
#[test]
fn simulator_waits_for_a_free_connection() {
    let directory = common::scratch();
    let root = directory.path().to_str().expect("text");
    let place = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--connections-max", "1"];
    let mut service = JsonProcess::start(&[&["record", "serve", root], &place[..]].concat());
    let listen = service.reported()["listen"].as_str().expect("an address").to_owned();
    let holds = Client::connect(options(&listen, &start("holds"))).expect("in");
    let to = format!("tcp://{listen}");
    let simulate = |timeout: &str| {
        let mut command = varve();
        command.args([
            "detector",
            "simulate",
            "--to",
            &to,
            "--model",
            "64x48xu16",
            "--frames",
            "5",
            "--file",
            "late.h5",
        ]);
        command.args(["--timeout", timeout]).stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().expect("varve runs")
    };
    let output = simulate("500ms").wait_with_output().expect("it ends");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{printed}");
    for words in ["waiting up to 500ms for a free connection", "no free connection to", "longer --timeout"] {
        assert!(printed.contains(words), "{words}: {printed}");
    }
    let waits = simulate("60s");
    std::thread::sleep(Duration::from_millis(500));
    drop(holds);
    let output = waits.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    service.terminate();
}

/// Issue 5: the simulator speaks our protocol. It plays a run of its own or an existing one, over several connections.
/// A new simulator resumes the run of a killed one. It reports a lost service.
#[test]
fn simulator_streams_a_run_to_a_service() {
    let directory = common::scratch();
    let service = Service::start(directory.path());
    let to = format!("tcp://{}", service.listen);
    let model = ["detector", "simulate", "--to", &to, "--model", "64x48xu16", "--compress-ratio", "4"];
    let simulate = |words: &[&str]| {
        let output = varve().arg("--json").args(model).args(words).output().expect("varve runs");
        let reported: Value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        (output.status.code().expect("a code"), reported, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // A run of its own.
    let (code, reported, wrong) =
        simulate(&["--run", "own", "--file", "own.h5", "--frames", "200", "--connections", "3", "--layout", "raw"]);
    assert_eq!(
        (code, reported["frames"].as_u64(), reported["missing"].as_u64()),
        (0, Some(200), Some(0)),
        "{reported} {wrong}"
    );
    assert_eq!(service.record(&["status", "own"]).1["durable"], 200);
    // The same frames as in a file that a simulator writes itself.
    let alone = directory.path().join("alone.h5");
    let mut command = varve();
    command.args(["detector", "simulate", "--model", "64x48xu16", "--compress-ratio", "4", "--layout", "raw"]);
    let output = command.args(["--frames", "200", "--out"]).arg(&alone).output().expect("varve runs");
    assert!(output.status.success(), "{output:?}");
    let own = directory.path().join("own.h5");
    let data = |file: &Path| varve_detector_tools::replay::FrameReplay::open(file, None).expect("a file");
    let (own, alone) = (data(&own), data(&alone));
    let (mut one, mut other) = (Vec::new(), Vec::new());
    for number in [0, 1, 99, 199] {
        own.frame_into(number, &mut one).expect("read");
        alone.frame_into(number, &mut other).expect("read");
        assert_eq!(one, other, "frame {number}");
    }
    // The modules of a detector, each of which sends its rows.
    let elements = ["--run", "rows", "--file", "rows.h5", "--frames", "30", "--sources", "3", "--layout", "raw"];
    let (code, reported, wrong) = simulate(&elements);
    let there = reported["received"].as_u64();
    assert_eq!((code, there, reported["partial"].as_u64()), (0, Some(30), Some(0)), "{reported} {wrong}");
    let rows = data(&directory.path().join("rows.h5"));
    for number in [0, 17, 29] {
        rows.frame_into(number, &mut one).expect("read");
        alone.frame_into(number, &mut other).expect("read");
        assert_eq!(one, other, "frame {number}");
    }
    // The run was ended. The same command is refused, with advice.
    let (code, _, wrong) = simulate(&["--run", "own", "--file", "own.h5", "--frames", "200", "--layout", "raw"]);
    assert!(code == 1 && wrong.contains("give another name and file"), "{code} {wrong}");
    // An existing run, which continues afterwards.
    assert_eq!(service.record(&["start", "there", "there.h5", "--frame", "48x64", "--keep"]).0, 0);
    let (code, reported, wrong) = simulate(&["--run", "there", "--frames", "20", "--leave"]);
    assert_eq!((code, reported["frames"].as_u64()), (0, Some(20)), "{reported} {wrong}");
    assert_eq!(service.record(&["status", "there"]).1["state"], "running");
    assert_eq!(service.record(&["stop", "there"]).1["finished"]["received"], 20);
    assert_eq!(service.record(&["start", "narrow", "narrow.h5", "--frame", "48x63"]).0, 0);
    let (code, _, wrong) = simulate(&["--run", "narrow", "--frames", "20"]);
    assert!(code == 1 && wrong.contains("refuses frame 0"), "{code} {wrong}");
    let (code, _, wrong) = simulate(&["--run", "nowhere", "--frames", "20"]);
    assert!(code == 1 && wrong.contains("there is no run `nowhere`"), "{code} {wrong}");
    resumed(&service, &to);
    // A service that is unreachable, and one that hangs.
    let flags = ["--run", "lost", "--file", "lost.h5", "--frames", "3000", "--rate", "300", "--timeout", "500ms"];
    let hung = varve().args(model).args(flags).stderr(Stdio::piped()).spawn().expect("varve runs");
    until("the run", || service.record(&["status", "lost"]).1["durable"].as_u64() > Some(0));
    let pid = rustix::process::Pid::from_child(&service.process.child);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("stopped");
    let output = hung.wait_with_output().expect("it ends");
    let wrong = String::from_utf8_lossy(&output.stderr).into_owned();
    // The message depends on whether the simulator was sending or connecting.
    let reported = ["made no progress for 0.5 s", "no reply for 5s"].iter().any(|reported| wrong.contains(reported));
    assert!(output.status.code() == Some(1) && reported, "{output:?}");
    service.process.kill();
    let (code, _, wrong) = simulate(&["--run", "lost", "--frames", "20", "--timeout", "300ms"]);
    assert!(code == 1 && wrong.contains("cannot reach"), "{code} {wrong}");
}

/// A simulator is killed in the middle, and the same command sends the rest.
fn resumed(service: &Service, to: &str) {
    let model = ["detector", "simulate", "--to", to, "--model", "64x48xu16", "--compress-ratio", "4"];
    let flags = ["--run", "twice", "--file", "twice.h5", "--frames", "120", "--client", "me", "--rate", "50"];
    let mut first = varve().args(model).args(flags).stdout(Stdio::null()).spawn().expect("varve runs");
    until("the first frames", || service.record(&["status", "twice"]).1["durable"].as_u64() > Some(5));
    first.kill().expect("killed");
    first.wait().expect("gone");
    let output = varve().arg("--json").args(model).args(flags).output().expect("varve runs");
    let reported: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let count = |key: &str| reported[key].as_u64().expect("a count");
    assert!(count("already") > 5, "{reported}");
    assert_eq!((count("frames") + count("dropped") + count("already"), count("duplicate")), (120, 0), "{reported}");
    assert_eq!(count("received") + count("dropped"), 120, "{reported}");
}
