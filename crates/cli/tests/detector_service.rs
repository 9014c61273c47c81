//! The detector service as processes: commands, kill -9 of the service and of processes that joined it, many writers into
//! one file, readers during the run, a full disk. Files are read back by h5py (`make setup` brings it).

mod common;

use common::disk::Disk;
use common::{soak, varve};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use varve_detector::client::{Client, ClientError, Options, Outgoing};
use varve_detector::description::Description;
use varve_detector::frame::ElementType;
use varve_detector::frame::Level;
use varve_detector::service::StartRequest;
use varve_detector::stream::ErrorCode;

const SIDE: u64 = 48;
const WAIT: Duration = Duration::from_secs(60);

/// Frames whose content follows from their number, as the Python programs of the detector's tests compute it too.
fn elements(number: u64) -> Vec<u8> {
    let element = |i: u64| (7 * i + 13 * number + (i >> 3) * number) & 0x3ff;
    (0..SIDE * SIDE).flat_map(|i| (element(i) as u16).to_le_bytes()).collect()
}

fn frame(number: u64) -> Outgoing {
    Outgoing {
        number,
        taken: 0,
        element: ElementType::U16,
        sides: vec![SIDE as u32, SIDE as u32],
        frames: 1,
        filter: String::new(),
        parts: vec![elements(number)],
    }
}

fn start(name: &str) -> StartRequest {
    let mut description = Description::new(ElementType::U16, vec![SIDE, SIDE]);
    description.chunk = Some(vec![SIDE / 2, SIDE]);
    description.fill = Some(4321.0);
    StartRequest { absence_s: 30.0, ..StartRequest::new(name, format!("{name}.h5").into(), description) }
}

fn options(address: &str, request: &StartRequest) -> Options {
    Options { start: serde_json::to_string(request).expect("JSON"), ..Options::new(address, &request.name) }
}

/// A process of ours that prints JSON lines, ended by number whatever becomes of the test.
struct Process {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Process {
    fn start(arguments: &[&str]) -> Process {
        let mut command = varve();
        let mut child = command.arg("--json").args(arguments).stdout(Stdio::piped()).spawn().expect("varve runs");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        Process { child, lines }
    }

    fn told(&mut self) -> Value {
        let line = self.lines.next().expect("a line").expect("text");
        serde_json::from_str(&line).expect("JSON")
    }

    fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
    }

    fn terminate(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("told");
        let status = self.child.wait().expect("gone");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Ended in order already, most likely.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The service, always at the same address once it has one.
struct Service {
    process: Process,
    listen: String,
    http: String,
    root: PathBuf,
}

impl Service {
    fn start(root: &Path) -> Service {
        Service::at(root, "127.0.0.1:0", "127.0.0.1:0")
    }

    fn at(root: &Path, listen: &str, http: &str) -> Service {
        let directory = root.to_str().expect("text");
        let flags = ["--threads", "2", "--commit-interval", "20ms", "--queue", "1MiB", "--stripe", "64KiB"];
        let mut process =
            Process::start(&[&["record", "serve", directory, "--listen", listen, "--http", http], &flags[..]].concat());
        let told = process.told();
        let word = |key: &str| told[key].as_str().expect("an address").to_owned();
        Service { listen: word("listen"), http: word("http"), process, root: root.to_owned() }
    }

    fn kill_and_start_again(self) -> Service {
        let Service { process, listen, http, root } = self;
        process.kill();
        Service::at(&root, &listen, &http)
    }

    fn record(&self, words: &[&str]) -> (i32, Value) {
        let mut command = varve();
        command.args(["--json", "record"]).args(words).args(["--http", &self.http]);
        let output = command.output().expect("varve runs");
        let told = String::from_utf8_lossy(&output.stdout).lines().last().map_or(Value::Null, |line| {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {output:?}"))
        });
        assert!(told != Value::Null || !output.stderr.is_empty(), "{output:?}");
        (output.status.code().expect("a code"), told)
    }
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the crate lies in the workspace").to_path_buf()
}

fn python(script: &str) -> Command {
    let interpreter = workspace().join("venv/bin/python");
    assert!(interpreter.exists(), "{} is missing; run `make setup`, which makes it", interpreter.display());
    let mut command = Command::new(interpreter);
    command.arg(workspace().join("crates/detector/tests").join(script));
    command
}

fn tell(directory: &Path, name: &str, acknowledged: Vec<u64>, exact: bool) {
    let told = json!({"frame": [SIDE, SIDE], "fill": 4321, "acknowledged": acknowledged, "exact": exact});
    std::fs::write(directory.join(format!("{name}.json")), told.to_string()).expect("written");
}

/// Every file of `directory` that [`tell`] told of is as told.
fn check(directory: &Path, files: usize) {
    let output = python("frames.py").arg(directory).output().expect("python runs");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), files.to_string());
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT;
    while !done() {
        assert!(Instant::now() < deadline, "{what} takes too long");
        std::thread::sleep(Duration::from_millis(5));
    }
}

struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[test]
fn commands_steer_a_run() {
    let directory = common::scratch();
    let service = Service::start(directory.path());
    let started = service.record(&["start", "scan-1", "scan-1.h5", "--frame", "48x48", "--keep", "--layout", "nexus"]);
    assert_eq!((started.0, started.1["state"].as_str()), (0, Some("running")));
    assert_eq!(service.record(&["start", "scan-1", "scan-2.h5", "--frame", "48x48"]).0, 1);
    assert_eq!(service.record(&["start", "scan-3", "/etc/scan.h5", "--frame", "48x48"]).0, 1);
    assert_eq!(service.record(&["start", "scan-3", "scan-3.h5", "--frame", "48x-"]).0, 2);
    let watched = Process::start(&["record", "watch", "scan-1", "--http", &service.http]);
    let client = Client::connect(Options::new(&service.listen, "scan-1")).expect("in");
    (0..10).for_each(|number| client.send(frame(number), WAIT).expect("sent"));
    client.settle(WAIT).expect("durable");
    assert_eq!(service.record(&["status", "scan-1"]).1["latest_durable"], 9);
    assert_eq!(service.record(&["status"]).1["runs"][0]["durable"], 10);
    let (code, stopped) = service.record(&["stop", "scan-1"]);
    assert_eq!((code, stopped["finished"]["received"].as_u64()), (0, Some(10)), "{stopped}");
    let mut watched = watched;
    let last = std::iter::from_fn(|| watched.lines.next()).last().expect("lines").expect("text");
    assert!(last.contains("\"state\":\"finished\""), "{last}");
    service.process.terminate();
}

/// Promise: whatever is acknowledged is there after kill -9 of the service, whether it is started again or its file
/// recovered.
#[test]
fn killed_services_lose_no_acknowledged_frame() {
    let rounds = if soak() { 500 } else { 40 };
    let directory = common::scratch();
    let mut chance = Chance(0x5eed);
    let mut service = Service::start(directory.path());
    let mut files = 0;
    let mut kills = 0;
    while kills < rounds {
        let name = format!("round-{kills:03}");
        let request = start(&name);
        let level = [Level::Written, Level::Durable][chance.below(2) as usize];
        let connections = 1 + chance.below(3) as u16;
        let window_bytes = 1 << (15 + chance.below(4));
        let options = Options { level, connections, window_bytes, ..options(&service.listen, &request) };
        let client = Client::connect(options).expect("in");
        let again = chance.below(4);
        let mut next = 0;
        let mut bring = |client: &Client, frames: u64| {
            for number in next..next + frames {
                client.send(frame(number), WAIT).expect("sent");
            }
            next += frames;
        };
        // The service is killed, started again, and the client goes on.
        for _ in 0..again {
            bring(&client, 1 + chance.below(200));
            service = service.kill_and_start_again();
            kills += 1;
        }
        bring(&client, 1 + chance.below(200));
        if chance.below(2) == 0 && again > 0 {
            let finished = client.finish(WAIT).expect("finished");
            let there = finished.received + finished.late + finished.duplicate;
            assert_eq!((there, finished.missing + finished.damaged), (next, 0), "{name}: {finished:?}");
            tell(directory.path(), &name, (0..next).collect(), true);
        } else {
            // The service is killed, and the file recovered without it.
            let acknowledged: Vec<u64> = client.acknowledged(level).iter().flatten().collect();
            let Service { process, listen, http, root } = service;
            process.kill();
            kills += 1;
            drop(client);
            let file = directory.path().join(format!("{name}.h5"));
            let output = varve().args(["record", "recover"]).arg(&file).output().expect("varve runs");
            assert!(output.status.success(), "{name}: {output:?}");
            tell(directory.path(), &name, acknowledged, false);
            service = Service::at(&root, &listen, &http);
        }
        files += 1;
    }
    check(directory.path(), files);
}

/// Promise: several processes write into one file, each its share, and the death of one of them by kill -9 loses nothing
/// that was acknowledged.
#[test]
fn processes_that_joined_write_one_file_and_may_be_killed() {
    const SHARES: u64 = 4;
    let frames_each = if soak() { 5000 } else { 300 };
    let directory = common::scratch();
    let root = directory.path().to_str().expect("text");
    let service = Service::start(directory.path());
    let shares = SHARES.to_string();
    let flags = ["--frame", "48x48", "--chunk", "24x48", "--sources", &shares];
    let started = service.record(&[&["start", "many", "many.h5"], &flags[..]].concat());
    assert_eq!(started.0, 0, "{started:?}");
    let join = |source: u64, listen: &str| {
        let source = source.to_string();
        let mut joined = Process::start(&[
            "record",
            "join",
            &service.listen,
            "many",
            "--directory",
            root,
            "--source",
            &source,
            "--listen",
            listen,
            "--threads",
            "1",
            "--report-interval",
            "10ms",
        ]);
        let listen = joined.told()["listen"].as_str().expect("an address").to_owned();
        (joined, listen)
    };
    let mut joined: Vec<_> = (0..SHARES).map(|source| join(source, "127.0.0.1:0")).collect();
    let clients: Vec<Client> = joined
        .iter()
        .map(|(_, listen)| Options { window_bytes: 1 << 16, ..Options::new(listen, "many") })
        .map(|options| Client::connect(options).expect("in"))
        .collect();
    let mut chance = Chance(7);
    let victim_at = 100 + chance.below(100);
    for turn in 0..frames_each {
        if turn == victim_at {
            let victim = chance.below(SHARES) as usize;
            let (process, listen) = joined.remove(victim);
            process.kill();
            joined.insert(victim, join(victim as u64, &listen));
        }
        for (share, client) in clients.iter().enumerate() {
            client.send(frame(turn * SHARES + share as u64), WAIT).expect("sent");
        }
    }
    let finished: Vec<_> = std::thread::scope(|scope| {
        let ends: Vec<_> = clients.into_iter().map(|client| scope.spawn(|| client.finish(WAIT))).collect();
        ends.into_iter().map(|end| end.join().expect("no panic").expect("finished")).collect()
    });
    let all = frames_each * SHARES;
    let first = finished[0];
    assert!(finished.iter().all(|finished| *finished == first), "{finished:?}");
    assert_eq!((first.frames, first.missing + first.damaged), (all, 0), "{first:?}");
    let told = json!({"frame": [SIDE, SIDE], "fill": 0, "acknowledged": (0..all).collect::<Vec<u64>>(), "exact": true});
    std::fs::write(directory.path().join("many.json"), told.to_string()).expect("written");
    check(directory.path(), 1);
    for (mut process, _) in joined {
        let status = process.child.wait().expect("gone");
        assert!(status.success(), "{status}");
    }
    service.process.terminate();
}

/// Promise: unmodified h5py finds every frame that was durable two seconds before, at any moment of the run; a reader
/// that is slow, or stopped, costs no frame.
#[test]
fn readers_follow_a_run_and_cost_nothing() {
    let directory = common::scratch();
    let service = Service::start(directory.path());
    let request = start("live");
    let patience = Some(Duration::ZERO);
    let client = Client::connect(Options { patience, ..options(&service.listen, &request) }).expect("in");
    let file = directory.path().join("live.h5");
    let mut follower = python("follow.py");
    follower.arg(&file).arg(format!("http://{}/runs/live", service.http)).args([SIDE.to_string(), "6".into()]);
    let follower = follower.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("python runs");
    // Holds the file open, and is stopped in the middle of it.
    let mut sleeper =
        Command::new("tail").args(["-c", "+1", "-f"]).arg(&file).stdout(Stdio::piped()).spawn().expect("runs");
    let pid = rustix::process::Pid::from_child(&sleeper);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("stopped");
    let begun = Instant::now();
    let mut frames = 0;
    while begun.elapsed() < Duration::from_secs(7) {
        client.send(frame(frames), WAIT).expect("sent");
        frames += 1;
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = follower.wait_with_output().expect("python ends");
    sleeper.kill().expect("killed");
    sleeper.wait().expect("gone");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let looks: u64 = String::from_utf8_lossy(&output.stdout).trim().parse().expect("how often it looked");
    assert!(looks >= 5, "{looks}");
    let finished = client.finish(WAIT).expect("finished");
    assert_eq!((finished.received + finished.late, finished.dropped), (frames, 0), "{finished:?}");
    service.process.terminate();
}

/// Promise: a full disk is an error to the client, and the file is valid with all frames so far.
#[test]
fn a_full_disk_ends_the_run_with_a_valid_file() {
    let Some(disk) = Disk::make("48M") else { return };
    let service = Service::start(disk.path().as_path());
    let mut request = start("full");
    request.description.filter = "raw".parse().expect("a filter");
    let options = Options { level: Level::Written, window_bytes: 1 << 20, ..options(&service.listen, &request) };
    let client = Client::connect(options).expect("in");
    let mut sent = 0;
    let refused = loop {
        match client.send(frame(sent), WAIT) {
            Ok(()) => sent += 1,
            Err(ClientError::Refused(refusal)) => break refusal,
            Err(other) => panic!("{other}"),
        }
        assert!(sent < 50_000, "the disk takes it all");
    };
    assert_eq!(refused.code, ErrorCode::Failed, "{refused}");
    let acknowledged: Vec<u64> = client.acknowledged(Level::Written).iter().flatten().collect();
    assert!(acknowledged.len() > 1000, "{}", acknowledged.len());
    let mut told = Value::Null;
    until("the end of the run", || {
        told = service.record(&["status", "full"]).1;
        told["state"] == "failed"
    });
    let why = told["why"].as_str().expect("a reason");
    assert!(why.contains("No space left") && why.contains("frames so far"), "{why}");
    let held = told["finished"]["received"].as_u64().expect("a count");
    assert!(held >= acknowledged.len() as u64, "{held} of {}", acknowledged.len());
    // The check writes beside the file, where there is no room.
    let copies = common::scratch();
    std::fs::copy(disk.path().join("full.h5"), copies.path().join("full.h5")).expect("copied");
    tell(copies.path(), "full", acknowledged, false);
    check(copies.path(), 1);
    assert!(!disk.path().join("full.h5.journal").exists());
    drop(client);
    service.process.terminate();
    disk.unmount();
}
