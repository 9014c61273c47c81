//! `varve detector simulate` and `varve record recover`, end to end.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn varve(arguments: &[&str], file: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_varve")).args(arguments).arg(file).output().expect("varve runs")
}

/// The JSON that a command printed.
fn reported(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn h5ls(file: &Path, dataset: &str) -> String {
    let output = Command::new("h5ls").arg(format!("{}/{dataset}", file.display())).output().expect("h5ls runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn simulated_run_writes_one_nexus_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("run.h5");
    let simulate =
        ["--json", "detector", "simulate", "--model", "200x100xu16", "--frames", "40", "--drop", "0.2", "--out"];
    let output = varve(&simulate, &file);
    assert!(output.status.success(), "{output:?}");
    let reported = reported(&output);
    assert_eq!(reported["command"], "detector simulate");
    let (received, missing) =
        (reported["received"].as_u64().expect("a count"), reported["missing"].as_u64().expect("a count"));
    assert!((20..40).contains(&received) && missing > 0, "{reported}");
    assert_eq!(reported["dropped"], 0);
    assert!(h5ls(&file, "entry/data/data").contains("100, 200"), "{}", h5ls(&file, "entry/data/data"));
    let again = varve(&simulate, &file);
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("exists; a run never overwrites a file"), "{again:?}");
    let output = varve(&["--json", "record", "report"], &file);
    let report: serde_json::Value = self::reported(&output);
    assert_eq!((report["received"].as_u64(), report["missing"].as_u64()), (Some(received), Some(missing)), "{report}");
    let stages = report["stages"].as_array().expect("stages");
    assert!(stages.iter().all(|stage| stage["frames"] == received && stage["max_ms"].as_f64() > Some(0.0)), "{report}");
    assert!(stages.iter().any(|stage| stage["name"] == report["slowest"]), "{report}");
    let text = varve(&["record", "report"], &file);
    assert!(String::from_utf8_lossy(&text.stdout).contains("slowest stage: "), "{text:?}");
    let nothing = varve(&["record", "recover"], &file);
    assert_eq!(nothing.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&nothing.stdout).contains("needs no recovery"), "{nothing:?}");
}

/// Frames lost at the end of a run of known length count as missing, like frames lost within it. A replay has no frames
/// where the file has none.
#[test]
fn missing_frames_stay_missing_at_the_end_and_in_replay() {
    let directory = tempfile::tempdir().expect("a directory");
    let (file, again) = (directory.path().join("lost.h5"), directory.path().join("again.h5"));
    let simulate = ["--json", "detector", "simulate", "--model", "20x10xu16", "--frames", "20", "--drop"];
    for (share, layout) in [("1", "nexus"), ("0.5", "nexus"), ("0.5", "raw")] {
        let output = varve(&[&simulate[..], &[share, "--layout", layout, "--out"]].concat(), &file);
        assert!(output.status.success(), "{output:?}");
        let reported = reported(&output);
        let dataset = if layout == "raw" { "data" } else { "entry/data/data" };
        assert_eq!(
            reported["received"].as_u64().zip(reported["missing"].as_u64()).map(|(came, lost)| came + lost),
            Some(20)
        );
        assert!(h5ls(&file, dataset).contains("{20, 10, 20}"), "{}", h5ls(&file, dataset));
        let replay = ["--json", "detector", "simulate", "--replay", file.to_str().expect("text"), "--out"];
        let output = varve(&replay, &again);
        assert!(output.status.success(), "{output:?}");
        let replayed = self::reported(&output);
        assert_eq!(
            (&replayed["received"], &replayed["missing"]),
            (&reported["received"], &reported["missing"]),
            "{replayed}"
        );
        for file in [&file, &again] {
            std::fs::remove_file(file).expect("removed");
        }
    }
}

/// Issue 5: a bad dataset spec is refused with line and reason before the run starts.
#[test]
fn a_layout_file_is_followed_or_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let (file, layout) = (directory.path().join("run.h5"), directory.path().join("layout.xml"));
    let path = layout.to_str().expect("text");
    let simulate = ["detector", "simulate", "--model", "20x10xu16", "--frames", "4", "--layout", path, "--out"];
    let missing = varve(&simulate, &file);
    assert_eq!(missing.status.code(), Some(2), "{missing:?}");
    let text = "<hdf5_layout>\n<group name='scan'>\n<dataset name='images' source='detector'/>\n</group></hdf5_layout>";
    std::fs::write(&layout, text.replace("'detector'", "'camera'")).expect("the layout written");
    let refused = varve(&simulate, &file);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("line 3, column 1: source=\"camera\""), "{refused:?}");
    assert!(!file.exists());
    std::fs::write(&layout, text).expect("the layout written");
    assert!(varve(&simulate, &file).status.success());
    assert!(h5ls(&file, "scan/images").contains("{4, 10, 20}"), "{}", h5ls(&file, "scan/images"));
}

#[test]
fn metadata_are_written_or_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let (file, metadata) = (directory.path().join("run.h5"), directory.path().join("beamline.toml"));
    let path = metadata.to_str().expect("text");
    let simulate = ["detector", "simulate", "--model", "20x10xu16", "--frames", "4", "--metadata", path, "--out"];
    for (text, why) in [
        ("[nxmx]\nwave_length = 1.0\n", "unknown field `wave_length`"),
        ("[nxmx]\nwavelength = -1.0\n", "`wavelength` is -1;"),
    ] {
        std::fs::write(&metadata, text).expect("the metadata written");
        let refused = varve(&simulate, &file);
        assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains(why), "{refused:?}");
        assert!(!file.exists());
    }
    std::fs::write(&metadata, "[nxmx]\nwavelength = 1.0\nbeam_center = [10, 5]\n").expect("the metadata written");
    let output = varve(&simulate, &file);
    assert!(output.status.success(), "{output:?}");
    assert!(h5ls(&file, "entry/instrument/beam").contains("incident_wavelength"));
    assert!(h5ls(&file, "entry/instrument/detector").contains("beam_center_x"));
}

/// A copy of a run's file whose journal is damaged in the middle. `journal` then contains the bytes of that journal.
fn copy_damaged(file: &Path, name: &str, journal: &mut [u8], at: usize) -> PathBuf {
    let copy = file.with_file_name(name);
    let copied = Command::new("cp").arg("--sparse=always").args([file, &copy]).status().expect("cp runs");
    assert!(copied.success());
    journal[at] ^= 0x20;
    std::fs::write(file.with_file_name(format!("{name}.journal")), journal).expect("the journal written");
    copy
}

#[test]
fn a_killed_run_is_recovered() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("run.h5");
    let mut child = Command::new(env!("CARGO_BIN_EXE_varve"))
        .args(["detector", "simulate", "--model", "100x100xu16", "--rate", "200", "--frames", "100000", "--out"])
        .arg(&file)
        .stdout(Stdio::null())
        .spawn()
        .expect("varve runs");
    let deadline = Instant::now() + Duration::from_secs(60);
    while std::fs::metadata(directory.path().join("run.h5.journal")).map_or(0, |journal| journal.len()) < 4000 {
        assert!(Instant::now() < deadline, "the run writes nothing");
        std::thread::sleep(Duration::from_millis(10));
    }
    let running = varve(&["record", "recover"], &file);
    assert!(String::from_utf8_lossy(&running.stderr).contains("still being written"), "{running:?}");
    child.kill().expect("killed");
    child.wait().expect("gone");
    let journal = directory.path().join("run.h5.journal");
    let away = directory.path().join("away");
    std::fs::rename(&journal, &away).expect("renamed");
    let alone = varve(&["record", "recover"], &file);
    assert_eq!(alone.status.code(), Some(1), "{alone:?}");
    let words = String::from_utf8_lossy(&alone.stderr);
    assert!(words.contains("run.h5.journal is missing") && words.contains("frames of its last commit"), "{words}");
    std::fs::rename(&away, &journal).expect("renamed");
    let mut bytes = std::fs::read(&journal).expect("the journal");
    let headless = copy_damaged(&file, "headless.h5", &mut bytes.clone(), 20);
    let middle = bytes.len() / 2;
    let damaged = copy_damaged(&file, "damaged.h5", &mut bytes, middle);
    let output = varve(&["--json", "record", "recover"], &file);
    assert!(output.status.success(), "{output:?}");
    let recovered = reported(&output);
    assert!(recovered["received"].as_u64().expect("a count") > 10, "{recovered}");
    assert_eq!(recovered["damaged"], 0);
    let output = varve(&["--json", "record", "recover"], &damaged);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let partly = reported(&output);
    let received = |reported: &serde_json::Value| reported["received"].as_u64().expect("a count");
    assert!((received(&recovered) - 10..=received(&recovered)).contains(&received(&partly)), "{partly}: {recovered}");
    let damage = &partly["journal_damage"];
    assert_eq!(damage["places"], 1, "{partly}");
    assert!(damage["first"].as_u64() > Some(0) && damage["frames_max"].as_u64() <= Some(10), "{partly}");
    let kept = std::fs::read(partly["damaged_journal"].as_str().expect("a path")).expect("the journal is kept");
    assert_eq!(kept, bytes);
    assert!(!directory.path().join("run.h5.journal").exists());
    h5ls(&file, "entry/instrument/detector/data");
    let output = varve(&["record", "recover"], &headless);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let words = String::from_utf8_lossy(&output.stdout);
    assert!(words.contains("its head is unreadable") && words.contains("headless.h5.journal.bad"), "{words}");
    assert!(varve(&["record", "recover"], &headless).status.success(), "it is finished");
    h5ls(&headless, "entry/instrument/detector/data");
}

/// SIGINT and SIGTERM end a simulated run's file like an abort: the file is valid, has all frames so far, and has no
/// journal.
#[test]
fn interrupted_simulator_leaves_a_valid_file() {
    let directory = tempfile::tempdir().expect("a directory");
    for signal in ["INT", "TERM"] {
        let file = directory.path().join(format!("{signal}.h5"));
        let journal = file.with_extension("h5.journal");
        let child = Command::new(env!("CARGO_BIN_EXE_varve"))
            .args([
                "--json",
                "detector",
                "simulate",
                "--model",
                "100x100xu16",
                "--rate",
                "200",
                "--frames",
                "100000",
                "--out",
            ])
            .arg(&file)
            .stdout(Stdio::piped())
            .spawn()
            .expect("varve runs");
        let deadline = Instant::now() + Duration::from_secs(60);
        while std::fs::metadata(&journal).map_or(0, |journal| journal.len()) < 2000 {
            assert!(Instant::now() < deadline, "the run writes nothing");
            std::thread::sleep(Duration::from_millis(10));
        }
        let sent = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status().expect("kill runs");
        assert!(sent.success());
        let output = child.wait_with_output().expect("varve ends");
        assert_eq!(output.status.code(), Some(130), "{output:?}");
        let reported = reported(&output);
        assert_eq!((&reported["broken_off"], &reported["missing"]), (&true.into(), &0.into()), "{reported}");
        let frames = reported["frames"].as_u64().expect("a count");
        let shape = format!("{{{frames}/");
        assert!(
            frames > 0
                && reported["received"].as_u64().zip(reported["late"].as_u64()).map(|(on, late)| on + late)
                    == Some(frames)
        );
        assert!(h5ls(&file, "entry/data/data").contains(&shape), "{shape} {}", h5ls(&file, "entry/data/data"));
        assert!(!journal.exists());
    }
}

#[test]
fn invalid_arguments_are_refused_with_advice() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("run.h5");
    for (flag, value, words) in [
        ("--model", "pilatus", "use pilatus6m"),
        ("--filter", "brotli", "use raw, gzip"),
        ("--drop", "2", "not from 0 to 1"),
        ("--rate", "0", "give frames per second"),
        ("--rate", "1e-20", "give frames per second"),
        ("--compress-ratio", "1000000", "give a ratio from"),
        ("--frames", "0", "at least one frame"),
        ("--model", "4x4xu8", "too small to compress 6:1"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_varve"));
        command.args(["detector", "simulate", "--out"]).arg(&file);
        if flag != "--frames" {
            command.args(["--frames", "1"]);
        }
        if flag != "--model" {
            command.args(["--model", "64x64xu16"]);
        }
        let output = command.args([flag, value]).output().expect("varve runs");
        assert_eq!(output.status.code(), Some(2), "{flag}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(words), "{flag}: {output:?}");
        assert!(!file.exists(), "{flag}");
    }
}

/// Invalid requests to the service are refused before it starts.
#[test]
fn invalid_service_arguments_are_refused_with_advice() {
    let directory = tempfile::tempdir().expect("a directory");
    for (flag, value, words) in [
        ("--threads", "0", "give 1 to 1024"),
        ("--threads", "many", "give 1 to 1024"),
        ("--queue", "1", "give at least 1MiB"),
        ("--stripe", "0", "give at least 4KiB"),
        ("--commit-interval", "0s", "longer than 0"),
        ("--idle", "0", "longer than 0"),
        ("--runs-max", "0", "at least 1"),
        ("--connections-max", "0", "at least 1"),
        ("--http", "https://127.0.0.1:0", "http://ADDRESS:PORT"),
        ("--stream2", "tcp://nowhere", "tcp://HOST:PORT"),
        ("--stream2", "udp://host:31001", "tcp://HOST:PORT"),
        ("--stream2", "tcp://host:0", "tcp://HOST:PORT"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_varve"));
        command.args(["record", "serve", "--listen", "127.0.0.1:0"]).arg(directory.path());
        if flag != "--http" {
            command.args(["--http", "127.0.0.1:0"]);
        }
        // A service that does start is stopped, so that the failure is visible.
        let mut child =
            command.args([flag, value]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("varve runs");
        let mut reported = String::new();
        BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut reported).expect("a line, or the end");
        if !reported.is_empty() {
            child.kill().expect("killed");
        }
        let output = child.wait_with_output().expect("it ends");
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && printed.contains(words), "{flag} {value}: {reported} {printed}");
    }
}

/// Promise: a series that cannot be replayed to its end leaves a valid file of the frames before, and the error names
/// the failed frame. Our reader and our writer of CBF agree, byte by byte. fabio agrees too, but this test does not
/// install it.
#[test]
fn interrupted_replay_closes_its_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let (series, file) = (directory.path().join("series"), directory.path().join("run.h5"));
    let wrote = varve(&["detector", "simulate", "--model", "40x30xu16", "--frames", "6", "--cbf"], &series);
    assert!(wrote.status.success(), "{wrote:?}");
    let again = varve(&["detector", "simulate", "--model", "40x30xu16", "--frames", "6", "--cbf"], &series);
    let why = String::from_utf8_lossy(&again.stderr);
    assert!(again.status.code() == Some(1) && why.contains("never overwrites another"), "{again:?}");
    std::fs::write(series.join("run_000004.cbf"), "no image").expect("damaged");
    let series = series.to_str().expect("text");
    let broken = varve(&["--json", "detector", "simulate", "--replay", series, "--out"], &file);
    let why = String::from_utf8_lossy(&broken.stderr);
    assert!(broken.status.code() == Some(1) && why.contains("cannot replay frame 3"), "{broken:?}");
    assert_eq!(
        (reported(&broken)["received"].as_u64(), reported(&broken)["broken_off"].as_bool()),
        (Some(3), Some(true))
    );
    assert!(h5ls(&file, "entry/data/data").contains("{3/6, 30, 40}"), "{}", h5ls(&file, "entry/data/data"));
    assert!(!directory.path().join("run.h5.journal").exists());
}

#[test]
fn cbf_files_are_written_and_played_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let (first, second) = (directory.path().join("first"), directory.path().join("second"));
    let model = ["--json", "detector", "simulate", "--model", "487x50xi32", "--frames", "4"];
    let output = varve(&[&model[..], &["--cbf"]].concat(), &first);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(reported(&output)["frames"], 4);
    let file = directory.path().join("run.h5");
    let played = Command::new(env!("CARGO_BIN_EXE_varve"))
        .args(["detector", "simulate", "--replay"])
        .args([&first, Path::new("--out"), &file])
        .output()
        .expect("varve runs");
    assert!(played.status.success(), "{played:?}");
    assert!(h5ls(&file, "entry/data/data").contains("{4, 50, 487}"), "{}", h5ls(&file, "entry/data/data"));
    let again = Command::new(env!("CARGO_BIN_EXE_varve"))
        .args(["detector", "simulate", "--replay"])
        .args([&file, Path::new("--cbf"), &second])
        .output()
        .expect("varve runs");
    assert!(again.status.success(), "{again:?}");
    for number in 1..=4 {
        let name = format!("run_{number:06}.cbf");
        let (one, other) = (std::fs::read(first.join(&name)), std::fs::read(second.join(&name)));
        assert!(one.expect("written") == other.expect("written"), "{name} differs");
    }
    let none = varve(&["detector", "simulate", "--cbf", "x", "--replay"], directory.path());
    assert!(String::from_utf8_lossy(&none.stderr).contains("no .cbf files"), "{none:?}");
}

/// Reads the simulator's stream with libzmq and a third-party CBOR library.
const PULL: &str = r#"
import sys, cbor2, zmq
socket = zmq.Context().socket(zmq.PULL)
socket.connect(f"tcp://127.0.0.1:{sys.argv[1]}")
socket.RCVTIMEO = 60000
numbers = []
while (message := cbor2.loads(socket.recv()))["type"] != "end":
    if message["type"] == "start":
        assert message["number_of_images"] == 12 and message["channels"] == ["threshold_1"], message
        continue
    array = message["data"]["threshold_1"]
    (rows, columns), pixels = array.value
    assert (array.tag, rows, columns, pixels.tag, pixels.value.tag) == (40, 60, 80, 69, 56500), array
    assert list(pixels.value.value[:2]) == ["bslz4", 2]
    numbers.append(message["image_id"])
print(numbers)
"#;

#[test]
fn simulator_stream2_is_read_by_other_clients() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().and_then(Path::parent).expect("the workspace");
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|bound| bound.local_addr()).expect("a port").port();
    let client = Command::new(root.join("venv/bin/python"))
        .args(["-c", PULL, &port.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("run `make venv` first");
    let output = Command::new(env!("CARGO_BIN_EXE_varve"))
        .args(["detector", "simulate", "--model", "80x60xu16", "--frames", "12", "--compress-ratio", "3"])
        .args(["--to", &format!("zmq+tcp://127.0.0.1:{port}")])
        .output()
        .expect("varve runs");
    assert!(output.status.success(), "{output:?}");
    let reported = client.wait_with_output().expect("the client ends");
    let numbers: Vec<u64> = (0..12).collect();
    assert_eq!(String::from_utf8_lossy(&reported.stdout).trim(), format!("{numbers:?}"), "{reported:?}");
}

/// The documented form of the JSON, on which later readers rely.
#[test]
fn detector_benchmark_reports_its_documented_fields() {
    const CASES: [&str; 8] = [
        "precompressed",
        "raw-bslz4",
        "h5py",
        "scalars-0",
        "scalars-30",
        "writers-4-one-file",
        "writers-4-four-files",
        "rate-50",
    ];
    let directory = tempfile::tempdir().expect("a directory");
    let bench = ["--json", "bench", "detector", "--model", "128x64xu16", "--compress-ratio", "3", "--frames", "48"];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace");
    let output = Command::new(env!("CARGO_BIN_EXE_varve"))
        .current_dir(root)
        .args(bench)
        .args(["--rates", "50", "--rate-seconds", "0.5", "--repeat", "1"])
        .arg(directory.path())
        .output()
        .expect("varve runs");
    assert!(output.status.success(), "{output:?}");
    let reported = reported(&output);
    assert_eq!((&reported["schema_version"], &reported["command"]), (&1.into(), &"bench detector".into()));
    let names = |list: &str, key: &str| -> Vec<String> {
        let list = reported[list].as_array().expect("a list").iter();
        list.map(|entry| entry[key].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(names("results", "case"), CASES);
    for result in reported["results"].as_array().expect("a list") {
        for key in ["frames", "frames_per_s", "bytes_per_s", "cpu_ms_per_frame"] {
            assert!(result[key].as_f64().expect(key) > 0.0, "{key}: {result}");
        }
        // At a rate, the detector does not wait. The number of dropped frames depends on the machine, but all of them
        // must be counted.
        let taken_or_dropped =
            result["frames"].as_u64().zip(result["dropped"].as_u64()).map(|(taken, dropped)| taken + dropped);
        if result["case"] == "rate-50" {
            assert_eq!(taken_or_dropped, Some(25), "{result}");
        } else {
            assert_eq!(result["dropped"], 0, "{result}");
        }
        assert!(result["latency_ms"]["p50"].as_f64() <= result["latency_ms"]["p99"].as_f64(), "{result}");
    }
    let ceilings = names("ceilings", "name");
    for name in ["precompressed", "raw-bslz4", "loopback-receive", "pwrite", "compression"] {
        assert!(ceilings.iter().any(|known| known == name), "{ceilings:?}");
    }
    assert_eq!(std::fs::read_dir(directory.path()).expect("a directory").count(), 0, "nothing is left behind");
}

/// Issue 5: `advise` probes the directory. A run can use the result, and its file stores it. If nothing is fast enough,
/// the command says so.
#[test]
fn advice_is_measured_applied_and_stored() {
    let directory = tempfile::tempdir().expect("a directory");
    let model = ["--model", "200x100xu16", "--time", "500ms", "--threads", "2", "--compress-ratio", "4"];
    let asked =
        |rate: &str| varve(&[&["--json", "record", "advise", "--rate", rate], &model[..]].concat(), directory.path());
    let hopeless = asked("100000000");
    assert_eq!(hopeless.status.code(), Some(1), "{hopeless:?}");
    let wrong = String::from_utf8_lossy(&hopeless.stderr);
    assert!(wrong.contains("no setting reaches 100000000 frames/s") && wrong.contains("the bottleneck"), "{wrong}");
    let output = asked("0.01");
    assert!(output.status.success(), "{output:?}");
    let advice = reported(&output);
    assert!(advice["margin"].as_f64() > Some(1.0) && advice["alignment_bytes"].as_u64() > Some(0), "{advice}");
    let text = varve(&[&["record", "advise", "--rate", "0.01"], &model[..]].concat(), directory.path());
    assert!(String::from_utf8_lossy(&text.stdout).contains("proposed filter"), "{text:?}");
    let (kept, file) = (directory.path().join("advice.json"), directory.path().join("run.h5"));
    let advised = output.stdout.clone();
    std::fs::write(&kept, &advised).expect("written");
    let kept = kept.to_str().expect("text");
    let simulate = ["detector", "simulate", "--frames", "20", "--compress-ratio", "4", "--advice", kept];
    let other = varve(&[&simulate[..], &["--model", "100x100xu16", "--out"]].concat(), &file);
    assert!(String::from_utf8_lossy(&other.stderr).contains("the run has frames of [100, 100] u16"), "{other:?}");
    let output = varve(&[&simulate[..], &["--model", "200x100xu16", "--layout", "raw", "--out"]].concat(), &file);
    assert!(output.status.success(), "{output:?}");
    for (from, to, words) in [
        ("\"alignment_bytes\":", "\"alignment_bytes\":0,\"was\":", "the advice's alignment is 0 bytes"),
        ("\"command\":\"record advise\"", "\"command\":\"bench stream\"", "it is the output of `bench stream`"),
        ("\"schema_version\":1", "\"schema_version\":99", "its schema version is 99"),
    ] {
        let text = String::from_utf8_lossy(&advised).into_owned();
        assert!(text.contains(from), "{text}");
        std::fs::write(kept, text.replace(from, to)).expect("written");
        let refused =
            varve(&[&simulate[..], &["--model", "200x100xu16", "--out"]].concat(), &file.with_extension("no"));
        let printed = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && printed.contains(words) && !printed.contains("panicked"), "{printed}");
    }
    let listed = Command::new("h5dump").args(["-a", "varve_advice"]).arg(&file).output().expect("h5dump runs");
    let attribute = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(attribute.contains("alignment_bytes") && attribute.contains("200x100xu16"), "{listed:?}");
}
