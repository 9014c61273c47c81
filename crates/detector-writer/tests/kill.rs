//! Promise: after kill -9 of any process at any time, `recover` finds every frame that was acknowledged as written or
//! durable, with equal content. Before that, the file opens with the frames of its last commit.

mod common;

use common::frames;
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use varve_detector_dataset::dataset_spec::{DatasetSpec, Region};
use varve_detector_dataset::frame::{AckLevel, Frame, Payload};
use varve_detector_file::recover::{RecoverError, recover};
use varve_detector_hdf5::ElementType;
use varve_detector_writer::{Settings, WaitPolicy, Writer};

const FILE: &str = "VARVE_KILL_FILE";
const SIDE: u64 = 48;

/// Every other round has chunks of several frames, which arrive in two regions.
fn description(path: &Path) -> DatasetSpec {
    let mut description = DatasetSpec::new(ElementType::U16, vec![SIDE, SIDE]);
    description.chunk = Some(vec![SIDE / 2, SIDE]);
    if path.to_string_lossy().ends_with(['1', '3', '5', '7', '9']) {
        description.chunk = Some(vec![3, SIDE / 2, SIDE]);
        let half = |first| Region { offset: vec![first, 0], shape: vec![SIDE / 2, SIDE] };
        description.sources = vec![half(0), half(SIDE / 2)];
    }
    description.fill = Some(4321.0.into());
    description
}

/// The process to kill: this test alone, in a process of its own. It prints each acknowledged frame on a line.
#[test]
#[ignore = "is run by the kill test, which sets its environment"]
fn victim_writes() {
    let path = PathBuf::from(std::env::var_os(FILE).expect("run by the kill test"));
    let settings = Settings {
        threads: 2,
        queue_bytes: 1 << 20,
        stripe_bytes: 64 << 10,
        extent_bytes: 1 << 20,
        commit_interval: Duration::from_millis(20),
        ..Settings::default()
    };
    let acknowledge = Arc::new(|level: AckLevel, numbers: &[u64]| {
        if level >= AckLevel::Written {
            let words: String = numbers.iter().map(|number| format!("ack {number}\n")).collect();
            std::io::stdout().lock().write_all(words.as_bytes()).expect("the kill test listens");
        }
    });
    let description = description(&path.with_extension(""));
    let sources = description.regions().len();
    let writer = Writer::create(&path, description, settings, acknowledge).expect("a run started");
    for number in 0..1_000_000 {
        let frame = frames::frame(number, (SIDE * SIDE) as usize);
        for (source, region) in frame.chunks(frame.len() / sources).enumerate() {
            let frame = Frame { number, taken: 0, payload: Payload::Plain(region.to_vec()) };
            let patience = match number % 3 {
                0 => Duration::from_secs(60).into(),
                rest => WaitPolicy::Writes { more: rest == 1 },
            };
            writer.submit_region(source as u32, frame, patience).expect("a region taken");
        }
    }
}

#[test]
#[ignore = "is run by the kill test, which sets its environment"]
fn victim_recovers() {
    match recover(Path::new(&std::env::var_os(FILE).expect("run by the kill test"))) {
        Ok(_) | Err(RecoverError::NothingToDo { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

fn victim(test: &str, path: &Path) -> Child {
    Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"])
        .env(FILE, path)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the victim")
}

fn tell(directory: &Path, name: &str, acknowledged: &[u64]) {
    let reported = json!({"frame": [SIDE, SIDE], "fill": 4321, "acknowledged": acknowledged, "exact": false});
    std::fs::write(directory.join(format!("{name}.json")), reported.to_string()).expect("the description written");
}

#[test]
fn killed_writers_lose_no_acknowledged_frame() {
    let rounds = if std::env::var_os("VARVE_SOAK").is_some() { 500 } else { 40 };
    let directory = tempfile::tempdir().expect("a directory");
    let mut state = 0x5eed_u64;
    let mut total = 0;
    for round in 0..rounds {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let name = format!("round-{round:03}");
        let path = directory.path().join(format!("{name}.h5"));
        let mut child = victim("victim_writes", &path);
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut acknowledged = Vec::new();
        let mut note = |line: std::io::Result<String>| {
            let line = line.expect("the victim's words");
            acknowledged.extend(line.rsplit_once("ack ").and_then(|(_, number)| number.parse::<u64>().ok()));
        };
        // The time of the kill depends on progress, not on the clock, so that a slow machine kills a running victim
        // too.
        for line in lines.by_ref().take(5 + (state >> 33) as usize % 300) {
            note(line);
        }
        child.kill().expect("killed");
        lines.for_each(&mut note);
        child.wait().expect("gone");
        total += acknowledged.len();
        let before = directory.path().join(format!("{name}-before.h5"));
        // The file's length was grown in advance with a hole, which must stay a hole.
        common::printed(Command::new("cp").arg("--sparse=always").arg(&path).arg(&before));
        tell(directory.path(), &format!("{name}-before"), &[]);
        if state >> 40 & 1 == 0 {
            let mut child = victim("victim_recovers", &path);
            std::thread::sleep(Duration::from_micros((state >> 45) % 12_000));
            child.kill().expect("killed");
            child.wait().expect("gone");
        }
        match recover(&path) {
            // The journal has every committed frame.
            Ok(recovered) => assert_eq!(recovered.restored, 0, "{name}: {recovered:?}"),
            Err(RecoverError::NothingToDo { .. }) => {}
            Err(error) => panic!("{name}: {error}"),
        }
        tell(directory.path(), &name, &acknowledged);
    }
    assert!(total > rounds * 5, "{total} frames acknowledged in {rounds} rounds");
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), (2 * rounds).to_string());
}
