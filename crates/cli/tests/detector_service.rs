//! The detector service as processes: commands, kill -9 of the service and of joined processes, many writers into one
//! file, readers during the run, a full disk. h5py reads the files back (`make setup` installs it).

#[path = "detector_service/beamline.rs"]
mod beamline;
mod common;
#[path = "detector_service/simulator.rs"]
mod simulator;
#[path = "detector_service/trust.rs"]
mod trust;

use common::disk::Disk;
use common::{soak, varve};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use varve_detector_dataset::dataset_spec::DatasetSpec;
use varve_detector_dataset::frame::AckLevel;
use varve_detector_hdf5::ElementType;
use varve_detector_service::StartRequest;
use varve_detector_stream::ErrorCode;
use varve_detector_stream::client::{Client, ClientError, ClientOptions, Outgoing};

const SIDE: u64 = 48;
const WAIT: Duration = Duration::from_secs(60);

/// A frame whose content follows from its number. The Python programs of the detector's tests compute it too.
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
    let mut description = DatasetSpec::new(ElementType::U16, vec![SIDE, SIDE]);
    description.chunk = Some(vec![SIDE / 2, SIDE]);
    description.fill = Some(4321.0.into());
    StartRequest { absence_s: 30.0, ..StartRequest::new(name, format!("{name}.h5").into(), description) }
}

fn options(address: &str, request: &StartRequest) -> ClientOptions {
    ClientOptions { start: serde_json::to_string(request).expect("JSON"), ..ClientOptions::new(address, &request.name) }
}

/// A process of the suite that prints JSON lines, killed by its number whatever becomes of the test.
struct JsonProcess {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl JsonProcess {
    fn start(arguments: &[&str]) -> JsonProcess {
        let mut command = varve();
        command.arg("--json").args(arguments);
        JsonProcess::of(command)
    }

    fn of(mut command: Command) -> JsonProcess {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("varve runs");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        JsonProcess { child, lines }
    }

    fn reported(&mut self) -> Value {
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

impl Drop for JsonProcess {
    fn drop(&mut self) {
        // It has probably ended in order already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The service. It keeps its address once it has one.
struct Service {
    process: JsonProcess,
    listen: String,
    http: String,
    root: PathBuf,
}

impl Service {
    fn start(root: &Path) -> Service {
        Service::at(root, "127.0.0.1:0", "127.0.0.1:0")
    }

    fn at(root: &Path, listen: &str, http: &str) -> Service {
        let mut command = varve();
        command.args(Service::words(root, listen, http));
        Service::of(root, command)
    }

    fn words<'a>(root: &'a Path, listen: &'a str, http: &'a str) -> Vec<&'a str> {
        let directory = root.to_str().expect("text");
        let flags = ["--threads", "2", "--commit-interval", "20ms", "--queue", "1MiB", "--stripe", "64KiB"];
        [&["--json", "record", "serve", directory, "--listen", listen, "--http", http], &flags[..]].concat()
    }

    fn of(root: &Path, command: Command) -> Service {
        let mut process = JsonProcess::of(command);
        let reported = process.reported();
        let word = |key: &str| reported[key].as_str().expect("an address").to_owned();
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
        let reported = String::from_utf8_lossy(&output.stdout).lines().last().map_or(Value::Null, |line| {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {output:?}"))
        });
        assert!(reported != Value::Null || !output.stderr.is_empty(), "{output:?}");
        (output.status.code().expect("a code"), reported)
    }
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the crate lies in the workspace").to_path_buf()
}

fn python(script: &str) -> Command {
    let interpreter = workspace().join("venv/bin/python");
    assert!(interpreter.exists(), "{} is missing; run `make setup`, which makes it", interpreter.display());
    let mut command = Command::new(interpreter);
    command.arg(workspace().join("crates/detector-writer/tests").join(script));
    command
}

fn tell(directory: &Path, name: &str, acknowledged: Vec<u64>, exact: bool) {
    let reported = json!({"frame": [SIDE, SIDE], "fill": 4321, "acknowledged": acknowledged, "exact": exact});
    std::fs::write(directory.join(format!("{name}.json")), reported.to_string()).expect("written");
}

/// Checks every file of `directory` that [`tell`] has recorded against its record.
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

struct TestRandom(u64);

impl TestRandom {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Starts a process that writes a writer share; returns it with its frame address.
fn join(service: &Service, root: &str, run: &str, source: u64, listen: &str, retry: &str) -> (JsonProcess, String) {
    let source = source.to_string();
    let place = ["--directory", root, "--source", &source, "--listen", listen];
    let flags = ["--threads", "1", "--report-interval", "10ms", "--retry", retry];
    let mut joined = JsonProcess::start(&[&["record", "join", &service.listen, run], &place[..], &flags[..]].concat());
    let listen = joined.reported()["listen"].as_str().expect("an address").to_owned();
    (joined, listen)
}

#[test]
fn commands_control_a_run() {
    let directory = common::scratch();
    let service = Service::start(directory.path());
    let started = service.record(&["start", "scan-1", "scan-1.h5", "--frame", "48x48", "--keep", "--layout", "nexus"]);
    assert_eq!((started.0, started.1["state"].as_str()), (0, Some("running")));
    assert_eq!(service.record(&["start", "scan-1", "scan-2.h5", "--frame", "48x48"]).0, 1);
    assert_eq!(service.record(&["start", "scan-3", "/etc/scan.h5", "--frame", "48x48"]).0, 1);
    assert_eq!(service.record(&["start", "scan-3", "scan-3.h5", "--frame", "48x-"]).0, 2);
    for name in ["", ".", ".hidden", "a/b", "../scan-1", "a b", "a\nb", &"x".repeat(65)] {
        for words in [&["start", name, "any.h5", "--frame", "48x48"][..], &["stop", name], &["status", name]] {
            let mut command = varve();
            let output =
                command.arg("record").args(words).args(["--http", &service.http]).output().expect("varve runs");
            let printed = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.code() == Some(2) && printed.contains("use 1 to 64 letters"), "{words:?}: {printed}");
        }
    }
    let watched = JsonProcess::start(&["record", "watch", "scan-1", "--http", &service.http]);
    let client = Client::connect(ClientOptions::new(&service.listen, "scan-1")).expect("in");
    (0..10).for_each(|number| client.send(frame(number), WAIT).expect("sent"));
    client.settle(WAIT).expect("durable");
    assert_eq!(service.record(&["status", "scan-1"]).1["latest_durable"], 9);
    // The form that `serve` prints.
    let url = format!("http://{}", service.http);
    let output = varve().args(["record", "status", "--http", &url]).output().expect("varve runs");
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("scan-1"), "{output:?}");
    assert_eq!(service.record(&["status"]).1["runs"][0]["durable"], 10);
    let (code, stopped) = service.record(&["stop", "scan-1"]);
    assert_eq!((code, stopped["finished"]["received"].as_u64()), (0, Some(10)), "{stopped}");
    let mut watched = watched;
    let last = std::iter::from_fn(|| watched.lines.next()).last().expect("lines").expect("text");
    assert!(last.contains("\"state\":\"finished\""), "{last}");
    service.process.terminate();
}

/// Promise: acknowledged frames survive kill -9 of the service, whether the service is restarted or the file is
/// recovered.
#[test]
fn killed_services_lose_no_acknowledged_frame() {
    let rounds = if soak() { 500 } else { 40 };
    let directory = common::scratch();
    let mut chance = TestRandom(0x5eed);
    let mut service = Service::start(directory.path());
    let mut files = 0;
    let mut kills = 0;
    while kills < rounds {
        let name = format!("round-{kills:03}");
        let mut request = start(&name);
        if chance.below(2) == 0 {
            // A frame is one chunk, so the receiving thread filters it as it arrives.
            request.description.chunk = None;
        }
        let level = [AckLevel::Written, AckLevel::Durable][chance.below(2) as usize];
        let connections = 1 + chance.below(3) as u16;
        let window_bytes = 1 << (15 + chance.below(4));
        let options = ClientOptions { level, connections, window_bytes, ..options(&service.listen, &request) };
        let client = Client::connect(options).expect("in");
        let again = chance.below(4);
        let mut next = 0;
        let mut bring = |client: &Client, frames: u64| {
            for number in next..next + frames {
                client.send(frame(number), WAIT).expect("sent");
            }
            next += frames;
        };
        // The service is killed and restarted, and the client continues.
        for _ in 0..again {
            bring(&client, 1 + chance.below(200));
            service = service.kill_and_start_again();
            kills += 1;
        }
        bring(&client, 1 + chance.below(200));
        if chance.below(2) == 0 && again > 0 {
            let finished = client.finish(WAIT).expect("finished");
            let there = finished.received;
            assert_eq!((there, finished.missing + finished.damaged), (next, 0), "{name}: {finished:?}");
            tell(directory.path(), &name, (0..next).collect(), true);
        } else {
            // The service is killed, and the file is recovered without it.
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

/// Promise: several processes write into one file, each its share. The death of one of them by kill -9 loses no
/// acknowledged frame.
#[test]
fn joined_writers_share_a_file_and_survive_kills() {
    const SHARES: u64 = 4;
    let frames_each = if soak() { 5000 } else { 300 };
    let directory = common::scratch();
    let root = directory.path().to_str().expect("text");
    let service = Service::start(directory.path());
    let shares = SHARES.to_string();
    let flags = ["--frame", "48x48", "--chunk", "24x48", "--sources", &shares];
    let started = service.record(&[&["start", "many", "many.h5"], &flags[..]].concat());
    assert_eq!(started.0, 0, "{started:?}");
    let join = |source: u64, listen: &str| join(&service, root, "many", source, listen, "60s");
    let mut joined: Vec<_> = (0..SHARES).map(|source| join(source, "127.0.0.1:0")).collect();
    let clients: Vec<Client> = joined
        .iter()
        .map(|(_, listen)| ClientOptions { window_bytes: 1 << 16, ..ClientOptions::new(listen, "many") })
        .map(|options| Client::connect(options).expect("in"))
        .collect();
    let mut chance = TestRandom(7);
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
    let reported =
        json!({"frame": [SIDE, SIDE], "fill": 0, "acknowledged": (0..all).collect::<Vec<u64>>(), "exact": true});
    std::fs::write(directory.path().join("many.json"), reported.to_string()).expect("written");
    check(directory.path(), 1);
    for (mut process, _) in joined {
        let status = process.child.wait().expect("gone");
        assert!(status.success(), "{status}");
    }
    service.process.terminate();
}

/// Promise: a joined process whose client has no more frames can be stopped like any other. Its frames belong to the
/// run, which continues.
#[test]
fn complete_writer_share_can_be_stopped() {
    let directory = common::scratch();
    let root = directory.path().to_str().expect("text");
    let service = Service::start(directory.path());
    assert_eq!(service.record(&["start", "two", "two.h5", "--frame", "48x48", "--sources", "2"]).0, 0);
    let (joined, listen) = join(&service, root, "two", 0, "127.0.0.1:0", "60s");
    let client = Client::connect(ClientOptions { retry: Duration::from_secs(1), ..ClientOptions::new(&listen, "two") })
        .expect("in");
    (0..5).for_each(|number| client.send(frame(number), WAIT).expect("sent"));
    std::thread::scope(|scope| {
        let finish = scope.spawn(|| client.finish(WAIT));
        std::thread::sleep(Duration::from_secs(1));
        joined.terminate();
        assert!(finish.join().expect("no panic").is_err(), "the run is not finished");
    });
    assert_eq!(service.record(&["status", "two"]).1["state"], "running");
    let (code, stopped) = service.record(&["stop", "two"]);
    assert_eq!((code, stopped["finished"]["received"].as_u64()), (0, Some(5)), "{stopped}");
    assert!(stopped["stored_bytes"].as_u64() > Some(0), "{stopped}");
    service.process.terminate();
}

/// Promise: at any time of the run, unmodified h5py finds every frame that was durable two seconds before. A slow or
/// stopped reader costs no frame.
#[test]
fn readers_follow_a_run_without_slowing_it() {
    let directory = common::scratch();
    let service = Service::start(directory.path());
    let request = start("live");
    let patience = Some(Duration::ZERO);
    let client = Client::connect(ClientOptions { patience, ..options(&service.listen, &request) }).expect("in");
    let file = directory.path().join("live.h5");
    let mut follower = python("follow.py");
    let http = service.http.parse().expect("an address");
    let token = varve_detector_stream::token::for_peer("", http).expect("the service has published its token");
    follower.arg(&file).arg(format!("http://{http}/runs/live")).args([SIDE.to_string(), "6".into(), token]);
    let follower = follower.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("python runs");
    // A reader that holds the file open and is stopped in the middle.
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
    assert_eq!((finished.received, finished.dropped), (frames, 0), "{finished:?}");
    service.process.terminate();
}

/// Promise: a full disk is an error to the client, and the file is valid with all frames so far.
#[test]
fn a_full_disk_ends_the_run_with_a_valid_file() {
    let Some(disk) = Disk::make("48M") else { return };
    let service = Service::start(disk.path().as_path());
    let mut request = start("full");
    request.description.filter = "raw".parse().expect("a filter");
    let options =
        ClientOptions { level: AckLevel::Written, window_bytes: 1 << 20, ..options(&service.listen, &request) };
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
    let acknowledged: Vec<u64> = client.acknowledged(AckLevel::Written).iter().flatten().collect();
    let mut reported = Value::Null;
    until("the end of the run", || {
        reported = service.record(&["status", "full"]).1;
        reported["state"] == "failed"
    });
    // Commits take most of the disk if frames arrive slowly: some 48 KiB each, fifty times a second.
    assert!(acknowledged.len() > 300, "{} acknowledged: {reported}", acknowledged.len());
    let why = reported["why"].as_str().expect("a reason");
    assert!(why.contains("No space left") && why.contains("frames so far"), "{reported}");
    assert_eq!(reported["failure"], reported["why"], "{reported}");
    let listed = varve().args(["record", "status", "--http", &service.http]).output().expect("varve runs");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains(&format!("full  failed  durable {}  ", reported["durable"])), "{listed}: {reported}");
    assert!(reported["durable"].as_u64() >= Some(acknowledged.len() as u64), "{reported}");
    let held = reported["finished"]["received"].as_u64().expect("a count");
    assert!(held >= acknowledged.len() as u64, "{held} of {}: {reported}", acknowledged.len());
    // The check writes beside the file, and that disk is full.
    let copies = common::scratch();
    std::fs::copy(disk.path().join("full.h5"), copies.path().join("full.h5")).expect("copied");
    tell(copies.path(), "full", acknowledged, false);
    check(copies.path(), 1);
    assert!(!disk.path().join("full.h5.journal").exists(), "{reported}");
    drop(client);
    service.process.terminate();
    disk.unmount();
}

/// Promise: the file size limit (`ulimit -f`) fails the run of the affected file, with all frames so far, and no other
/// run.
#[test]
fn file_size_limit_fails_only_the_affected_run() {
    let directory = common::scratch();
    let root = directory.path();
    // In blocks of 512 bytes: more than the size of a new file, and less than its later size.
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 163840; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_varve")]);
    let service = Service::of(root, {
        limited.args(Service::words(root, "127.0.0.1:0", "127.0.0.1:0"));
        limited
    });
    let mut request = start("large");
    request.description.filter = "raw".parse().expect("a filter");
    let client = Client::connect(options(&service.listen, &request)).expect("in");
    let refused = (0..30_000).find_map(|number| client.send(frame(number), WAIT).err()).expect("it meets the limit");
    assert!(refused.to_string().contains("ulimit -f"), "{refused}");
    until("the end of the run", || service.record(&["status", "large"]).1["state"] == "failed");
    let small = Client::connect(options(&service.listen, &start("small"))).expect("the service is there");
    (0..10).for_each(|number| small.send(frame(number), WAIT).expect("sent"));
    small.finish(WAIT).expect("finished");
    let acknowledged = client.acknowledged(AckLevel::Durable).iter().flatten().collect();
    tell(root, "large", acknowledged, false);
    tell(root, "small", (0..10).collect(), true);
    check(root, 2);
    service.process.terminate();
}

/// Promise: joined processes continue once a killed service has restarted. If it does not restart, they end within the
/// given time, and recovery produces a file with every acknowledged frame.
#[test]
fn joined_writers_survive_coordinator_death() {
    const SHARES: u64 = 2;
    let directory = common::scratch();
    let root = directory.path().to_str().expect("text");
    let service = Service::start(directory.path());
    let flags = ["--frame", "48x48", "--chunk", "24x48", "--sources", "2"];
    assert_eq!(service.record(&[&["start", "orphaned", "orphaned.h5"], &flags[..]].concat()).0, 0);
    let joined: Vec<_> =
        (0..SHARES).map(|source| join(&service, root, "orphaned", source, "127.0.0.1:0", "5s")).collect();
    let connect = |listen: &String| {
        let options = ClientOptions {
            level: AckLevel::Written,
            retry: Duration::from_secs(2),
            ..ClientOptions::new(listen, "orphaned")
        };
        Client::connect(options).expect("in")
    };
    let clients: Vec<Client> = joined.iter().map(|(_, listen)| connect(listen)).collect();
    let bring = |turns: std::ops::Range<u64>| {
        for turn in turns {
            for (share, client) in clients.iter().enumerate() {
                client.send(frame(turn * SHARES + share as u64), WAIT).expect("sent");
            }
        }
    };
    bring(0..40);
    let service = service.kill_and_start_again();
    bring(40..80);
    clients.iter().for_each(|client| client.settle(WAIT).expect("all are written, though the service was killed"));
    // The service is killed for good while its writers report.
    bring(80..120);
    let acknowledged: Vec<u64> = {
        let of = |client: &Client| client.acknowledged(AckLevel::Written).iter().flatten().collect::<Vec<u64>>();
        let mut all: Vec<u64> = clients.iter().flat_map(of).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    assert!(acknowledged.len() >= 160, "{}", acknowledged.len());
    service.process.kill();
    for (mut process, _) in joined {
        let deadline = Instant::now() + WAIT;
        let status = loop {
            if let Some(status) = process.child.try_wait().expect("a child") {
                break status;
            }
            assert!(Instant::now() < deadline, "a process that joined does not end");
            std::thread::sleep(Duration::from_millis(20));
        };
        assert_eq!(status.code(), Some(1), "{status}");
    }
    for client in clients {
        assert!(client.finish(WAIT).is_err(), "a run without its service is not finished");
    }
    let output = varve().args(["record", "recover"]).arg(directory.path().join("orphaned.h5")).output().expect("runs");
    assert!(output.status.success(), "{output:?}");
    let reported = json!({"frame": [SIDE, SIDE], "fill": 0, "acknowledged": acknowledged, "exact": false});
    std::fs::write(directory.path().join("orphaned.json"), reported.to_string()).expect("written");
    check(directory.path(), 1);
}

/// Promise: a stopped service publishes all received frames. It reports which runs are not finished and what to do.
#[test]
fn stopped_service_publishes_received_frames() {
    let directory = common::scratch();
    let root = directory.path().to_str().expect("text");
    let serve = |interval: &str| {
        let mut command = varve();
        command.args(["--json", "record", "serve", root, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
        command.args(["--threads", "2", "--commit-interval", interval]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("varve runs");
        let mut reported = String::new();
        BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut reported).expect("a line");
        (child, serde_json::from_str::<Value>(&reported).expect("JSON"))
    };
    let stop = |child: Child| {
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("told");
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    // Nothing is committed before the end.
    let (child, reported) = serve("1h");
    let request = start("left");
    let listen = reported["listen"].as_str().expect("an address");
    let client = Client::connect(ClientOptions { level: AckLevel::Memory, ..options(listen, &request) }).expect("in");
    (0..30).for_each(|number| client.send(frame(number), WAIT).expect("sent"));
    client.settle(WAIT).expect("taken");
    drop(client);
    let printed = stop(child);
    for words in ["run `left` is not finished", "left.h5 contains its 30 frames so far", "varve record serve "] {
        assert!(printed.contains(words), "{words}: {printed}");
    }
    tell(directory.path(), "left", (0..30).collect(), true);
    check(directory.path(), 1);
    let (child, reported) = serve("20ms");
    let service = ["--json", "record", "stop", "left", "--http", reported["http"].as_str().expect("an address")];
    let output = varve().args(service).output().expect("varve runs");
    let stopped: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(stopped["finished"]["received"], 30, "{stopped}");
    let printed = stop(child);
    assert!(!printed.contains("not finished"), "{printed}");
    check(directory.path(), 1);
}
