//! The client libraries in Python and C with the real service: frames and scalars, connections that break, a service
//! that is stopped and restarted, refusals. The Windows program runs under Wine.

#[path = "../../detector-writer/tests/common/mod.rs"]
mod common;

use common::cutter::Cutter;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use varve_detector_dataset::dataset_spec::DatasetSpec;
use varve_detector_hdf5::ElementType;
use varve_detector_service::{Config, EndKind, Protection, Run, Service, StartRequest};
use varve_detector_stream::client::{Client, ClientOptions, Outgoing};
use varve_detector_stream::tls::ServerTls;
use varve_detector_writer::Settings;

/// The value of the example programs.
const SIDE: u64 = 48;

fn config(root: &Path, listen: &str, token: Option<&str>) -> Config {
    Config {
        listen: listen.parse().expect("an address"),
        http: None,
        root: root.to_owned(),
        token: token.map(str::to_owned),
        protection: Protection::default(),
        plugins: None,
        metadata: None,
        settings: Settings { queue_bytes: 1 << 20, commit_interval: Duration::from_millis(20), ..Settings::default() },
        runs_max: 8,
        connections_max: 16,
        idle: Duration::from_secs(10),
    }
}

fn service(root: &Path) -> Service {
    Service::start(config(root, "127.0.0.1:0", None)).expect("a service")
}

fn start(directory: &Path, name: &str, frame: [u64; 2]) -> PathBuf {
    let path = directory.join(format!("{name}.start"));
    let description = json!({"element": "u16", "frame": frame, "fill": 4321, "scalars": ["energy"]});
    std::fs::write(&path, json!({"file": format!("{name}.h5"), "description": description}).to_string())
        .expect("written");
    path
}

fn clients() -> PathBuf {
    common::workspace().join("clients")
}

/// The command of one of the example programs.
struct Program {
    name: &'static str,
    command: Vec<String>,
    environment: Vec<(&'static str, String)>,
}

impl Program {
    /// Python without numpy or any other installed module.
    fn python() -> Program {
        let script = clients().join("python/example.py").display().to_string();
        Program {
            name: "python",
            command: vec!["python3".into(), "-I".into(), "-S".into(), script],
            environment: vec![],
        }
        .isolated()
    }

    /// An isolated interpreter does not search the script's directory for modules, so this adds the path.
    fn isolated(mut self) -> Program {
        let code = "import sys, runpy; sys.dont_write_bytecode = True; sys.path.insert(0, sys.argv[1]); \
                    sys.argv[:] = sys.argv[2:]; runpy.run_path(sys.argv[0], run_name='__main__')";
        let script = self.command.pop().expect("the script");
        let library = clients().join("python").display().to_string();
        self.command.extend(["-c".into(), code.into(), library, script]);
        self
    }

    fn c(directory: &Path) -> Program {
        Program { name: "c", command: vec![build(directory, "cc", &[], (&example(), "example"))], environment: vec![] }
    }

    fn windows(directory: &Path) -> Program {
        let program = build(directory, "x86_64-w64-mingw32-gcc", &["-lws2_32"], (&example(), "example.exe"));
        let prefix = directory.join("wine").display().to_string();
        let environment = vec![("WINEPREFIX", prefix), ("WINEDEBUG", "-all".to_owned())];
        Program { name: "windows", command: vec!["wine".into(), program], environment }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).envs(self.environment.iter().cloned());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn spawn(&self, address: SocketAddr, run: &str, rest: &[&str]) -> Child {
        let mut command = self.command();
        command.args([&address.ip().to_string(), &address.port().to_string(), run]).args(rest);
        command.spawn().unwrap_or_else(|error| panic!("{}: {error}; `make setup` installs what is missing", self.name))
    }

    fn run(&self, address: SocketAddr, run: &str, rest: &[&str]) -> Output {
        self.spawn(address, run, rest).wait_with_output().expect("it ends")
    }
}

impl Drop for Program {
    /// Ends Wine's own server, which would stay a while and hold its directory.
    fn drop(&mut self) {
        if self.name == "windows" {
            let ended = Command::new("wineserver").arg("-k").envs(self.environment.iter().cloned()).status();
            assert!(ended.is_ok(), "{ended:?}");
        }
    }
}

fn example() -> PathBuf {
    clients().join("c/example.c")
}

/// Compiles as strictly as possible: no extensions, no warnings.
fn build(directory: &Path, compiler: &str, libraries: &[&str], (source, name): (&Path, &str)) -> String {
    let program = directory.join(name).display().to_string();
    let mut command = Command::new(compiler);
    command.args(["-std=c99", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"]).arg(clients().join("c"));
    command.arg(source).arg(clients().join("c/varve_detector.c"));
    common::printed(command.args(libraries).args(["-o", &program]));
    program
}

fn reported(output: &Output, name: &str) -> Value {
    assert!(output.status.success(), "{name}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{name}: {error}: {output:?}"))
}

/// A frame that another one overtook, as happens when connections break, counts as late.
fn assert_all(reported: &Value, frames: u64) {
    let count = |name: &str| reported[name].as_u64().expect("a count");
    assert_eq!((count("received"), count("missing")), (frames, 0), "{reported}");
}

/// Checks that the file contains frames 0 to `frames` with their scalars.
fn check(directory: &Path, name: &str, frames: u64) {
    check_scalars(directory, name, frames, &["energy"]);
}

fn check_scalars(directory: &Path, name: &str, frames: u64, scalars: &[&str]) {
    let acknowledged: Vec<u64> = (0..frames).collect();
    let reported =
        json!({"frame": [SIDE, SIDE], "fill": 4321, "acknowledged": acknowledged, "exact": true, "scalars": scalars});
    let description = directory.join(format!("{name}.json"));
    std::fs::write(&description, reported.to_string()).expect("written");
    assert_eq!(common::python("frames.py", &[directory]).trim(), "1");
    std::fs::remove_file(description).expect("removed");
}

#[test]
fn python_and_c_clients_send_frames_and_scalars() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = service(directory.path());
    for program in [Program::python(), Program::c(directory.path())] {
        for level in ["memory", "written", "durable"] {
            let name = format!("{}-{level}", program.name);
            let start = start(directory.path(), &name, [SIDE, SIDE]);
            let output = program.run(service.address(), &name, &[start.to_str().expect("text"), "100", level]);
            let reported = reported(&output, &name);
            assert_all(&reported, 100);
            check(directory.path(), &name, 100);
        }
    }
    service.stop();
}

#[test]
fn python_and_c_clients_send_every_scalar_kind() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = service(directory.path());
    for program in [Program::python(), Program::c(directory.path())] {
        let name = format!("{}-kinds", program.name);
        let path = directory.path().join(format!("{name}.start"));
        let scalars = json!(["energy", {"name": "steps", "type": "i64"}, {"name": "pulse", "type": "u64"},
            {"name": "sample", "type": "text", "bytes": 16}]);
        let description = json!({"element": "u16", "frame": [SIDE, SIDE], "fill": 4321, "scalars": scalars});
        let start = json!({"file": format!("{name}.h5"), "description": description});
        std::fs::write(&path, start.to_string()).expect("written");
        let start = path.to_str().expect("text");
        let output = program.run(service.address(), &name, &[start, "60", "durable", "", "kinds"]);
        assert_all(&reported(&output, &name), 60);
        check_scalars(directory.path(), &name, 60, &["energy", "steps", "pulse", "sample"]);
    }
    service.stop();
}

/// Arrays of numpy, slices of them, and chunks filtered by the caller.
#[test]
fn the_python_client_takes_arrays() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = service(directory.path());
    let address = service.address().to_string();
    let reported = common::python("arrays.py", &[Path::new(&address), directory.path(), &clients().join("python")]);
    assert_eq!(reported.trim(), "51", "{reported}");
    service.stop();
}

#[test]
fn clients_reconnect_after_broken_connections() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = service(directory.path());
    for program in [Program::python(), Program::c(directory.path())] {
        // The cuts fall within a HELLO, a head and a body: the budgets are no multiple of anything.
        for (number, budget) in [40, 4_700, 100_003].into_iter().enumerate() {
            let name = format!("{}-{number}", program.name);
            let start = start(directory.path(), &name, [SIDE, SIDE]);
            let cutter = Cutter::new(service.address(), budget, 4);
            let output = program.run(cutter.address, &name, &[start.to_str().expect("text"), "120"]);
            let reported = reported(&output, &name);
            assert_all(&reported, 120);
            assert_eq!(reported["duplicate"], 0, "what is sent again is no duplicate: {reported}");
            assert_eq!(cutter.cuts(), 0, "{reported}");
            check(directory.path(), &name, 120);
        }
    }
    service.stop();
}

/// Chunks that several frames share are sent in one message, and again after a cut. The last one may hold fewer frames.
#[test]
fn c_client_sends_frames_that_share_chunks() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = service(directory.path());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/slabs.c");
    let command = vec![build(directory.path(), "cc", &[], (&source, "slabs"))];
    let program = Program { name: "slabs", command, environment: vec![] };
    for (name, cuts) in [("slabs", 0), ("slabs-cut", 4)] {
        let path = directory.path().join(format!("{name}.start"));
        let description = json!({"element": "u16", "frame": [SIDE, SIDE], "chunk": [4, SIDE / 2, SIDE], "fill": 4321,
            "filter": "lz4"});
        std::fs::write(&path, json!({"file": format!("{name}.h5"), "description": description}).to_string())
            .expect("written");
        let cutter = Cutter::new(service.address(), 100_003, cuts);
        let reported = reported(&program.run(cutter.address, name, &[path.to_str().expect("text"), "102"]), name);
        assert_all(&reported, 102);
        assert_eq!(reported["duplicate"], 0, "{reported}");
        check_scalars(directory.path(), name, 102, &[]);
    }
    service.stop();
}

#[test]
fn clients_wait_for_a_service_that_is_restarted() {
    let directory = tempfile::tempdir().expect("a directory");
    // Enough frames that the service is stopped in the middle.
    for (program, frames) in [(Program::python(), 1500), (Program::c(directory.path()), 20_000)] {
        let first = service(directory.path());
        let address = first.address();
        let start = start(directory.path(), program.name, [SIDE, SIDE]);
        let rest = [start.to_str().expect("text"), &frames.to_string()];
        let child = program.spawn(address, program.name, &rest);
        let deadline = Instant::now() + Duration::from_secs(60);
        let durable = |run: Arc<Run>| run.status().latest_durable.unwrap_or_default();
        while first.shared().run(program.name).map_or(0, durable) < 20 {
            assert!(Instant::now() < deadline, "no frames come");
            std::thread::sleep(Duration::from_millis(5));
        }
        first.stop();
        let second = Service::start(config(directory.path(), &address.to_string(), None)).expect("the address again");
        let reported = reported(&child.wait_with_output().expect("it ends"), program.name);
        assert_all(&reported, frames);
        assert_eq!(reported["reconnects"], 1, "{reported}");
        check(directory.path(), program.name, frames);
        second.stop();
    }
}

/// Checks the result of each call after the run has ended while its client was idle.
const IDLE: &str = r#"
import json, sys, time
sys.path.insert(0, sys.argv[2])
from varve_detector import Client, Refused
start = {"file": "idle.h5", "description": {"element": "u8", "frame": [4, 4]}}
client = Client(sys.argv[1], "idle", start=start, timeout=20)
client.send(0, bytes(16))
client.wait()
print("ready", flush=True)
sys.stdin.readline()
begun = (time.monotonic(), time.process_time())
try:
    for _ in range(100):
        client.poll(0.1)
    sys.exit("it hears nothing")
except Refused as error:
    assert "the run has ended" in str(error), error
try:
    client.send(1, bytes(16))
    sys.exit("a frame is taken")
except Refused:
    pass
client.wait()
assert client.end().received == 1
assert time.process_time() - begun[1] < 1 and time.monotonic() - begun[0] < 10
"#;

#[test]
fn idle_client_is_notified_of_run_end() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = service(directory.path());
    let mut child = Command::new("python3")
        .args(["-I", "-S", "-B", "-c", IDLE, &service.address().to_string()])
        .arg(clients().join("python"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python runs");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    service.shared().run("idle").expect("it runs").end(EndKind::Finished, "");
    writeln!(child.stdin.take().expect("piped"), "ended").expect("it listens");
    assert!(child.wait().expect("it ends").success());
    service.stop();
}

/// Promise: if others end a client's run, the client gets an error for its next frame, and does not continue as if
/// frames were taken.
#[test]
fn clients_are_notified_of_run_end() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = service(directory.path());
    for program in [Program::python(), Program::c(directory.path())] {
        let start = start(directory.path(), program.name, [SIDE, SIDE]);
        let child = program.spawn(service.address(), program.name, &[start.to_str().expect("text"), "1000000"]);
        let deadline = Instant::now() + Duration::from_secs(60);
        let run = loop {
            let run = service.shared().run(program.name);
            if let Some(run) = run.filter(|run| run.status().latest_durable.unwrap_or_default() > 20) {
                break run;
            }
            assert!(Instant::now() < deadline, "no frames come");
            std::thread::sleep(Duration::from_millis(5));
        };
        run.end(EndKind::Finished, "");
        let ended = Instant::now();
        let output = child.wait_with_output().expect("it ends");
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        let words = ["the run has ended", "the run has been finished"];
        assert!(
            !output.status.success() && words.iter().any(|words| printed.contains(words)),
            "{}: {printed}",
            program.name
        );
        assert!(ended.elapsed() < Duration::from_secs(20), "{}: after {:?}", program.name, ended.elapsed());
    }
    let request = StartRequest::new("rust", "rust.h5".into(), DatasetSpec::new(ElementType::U16, vec![4, 4]));
    let start = serde_json::to_string(&request).expect("JSON");
    let client = Client::connect(ClientOptions { start, ..ClientOptions::new(&service.address().to_string(), "rust") })
        .expect("in");
    let wait = Duration::from_secs(20);
    let send = |number| {
        let (element, filter, parts) = (ElementType::U16, String::new(), vec![vec![0; 32]]);
        client.send(Outgoing { number, taken: 0, element, sides: vec![4, 4], frames: 1, filter, parts }, wait)
    };
    send(0).expect("taken");
    client.settle(wait).expect("durable");
    service.shared().run("rust").expect("it runs").end(EndKind::Finished, "");
    let deadline = Instant::now() + wait;
    let mut number = 1;
    while send(number).is_ok() {
        assert!(Instant::now() < deadline, "frames are taken still");
        (number, _) = (number + 1, std::thread::sleep(Duration::from_millis(5)));
    }
    let ended = client.settle(wait);
    assert!(number == 1 && ended.is_ok() || ended.is_err(), "{number} frames: {ended:?}");
    service.stop();
}

#[test]
fn refusals_have_readable_reasons() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path(), "127.0.0.1:0", Some("secret"))).expect("a service");
    let bad = directory.path().join("bad.start");
    let description = json!({"element": "u16", "frame": []});
    std::fs::write(&bad, json!({"file": "bad.h5", "description": description}).to_string()).expect("written");
    for program in [Program::python(), Program::c(directory.path())] {
        let good = start(directory.path(), &format!("{}-good", program.name), [SIDE, SIDE]);
        let small = start(directory.path(), &format!("{}-small", program.name), [SIDE, SIDE / 2]);
        for (run, start, token, words) in [
            ("good", good.as_path(), "wrong", "the token is wrong"),
            ("nowhere", Path::new("-"), "secret", "there is no run"),
            ("bad", &bad, "secret", "`frame` is []"),
            ("small", &small, "secret", "frame 0 is refused"),
        ] {
            let run = format!("{}-{run}", program.name);
            let output = program.run(service.address(), &run, &[start.to_str().expect("text"), "10", "durable", token]);
            let printed = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success(), "{run}: {output:?}");
            // The Python client itself detects that the frame does not match its start request.
            let own = run == "python-small" && printed.contains("are no frame of");
            assert!(printed.contains(words) || own, "{run}: {printed}");
        }
    }
    service.stop();
}

/// Programs of the service's user find the token by themselves.
#[test]
fn clients_find_a_published_token() {
    let directory = tempfile::tempdir().expect("a directory");
    let protection = Protection { publish: true, ..Protection::default() };
    let token = varve_detector_stream::token::random();
    let config = Config { protection, ..config(directory.path(), "127.0.0.1:0", Some(&token)) };
    let service = Service::start(config).expect("a service");
    for program in [Program::python(), Program::c(directory.path())] {
        let path = start(directory.path(), program.name, [SIDE, SIDE]);
        let output = program.run(service.address(), program.name, &[path.to_str().expect("text"), "5", "durable"]);
        assert_all(&reported(&output, program.name), 5);
        check(directory.path(), program.name, 5);
    }
    service.stop();
}

#[test]
fn python_brings_frames_over_tls() {
    let directory = tempfile::tempdir().expect("a directory");
    let certificate = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name);
    let tls = ServerTls::read(&certificate("service.pem"), &certificate("service.key")).expect("a certificate");
    let protection = Protection { tls: Some(tls), ..Protection::default() };
    let config = Config { protection, ..config(directory.path(), "127.0.0.1:0", Some("secret")) };
    let service = Service::start(config).expect("a service");
    let program = Program::python();
    let path = start(directory.path(), "encrypted", [SIDE, SIDE]);
    let path = path.to_str().expect("text");
    let authority = certificate("authority.pem");
    let rest = [path, "40", "durable", "secret", "", authority.to_str().expect("text")];
    assert_all(&reported(&program.run(service.address(), "encrypted", &rest), "encrypted"), 40);
    check(directory.path(), "encrypted", 40);
    service.stop();
}

/// The last chunk of several frames, which stays incomplete, is written when the client waits for its end. With this
/// commit interval, no timer would write it.
#[test]
fn clients_do_not_wait_for_an_incomplete_chunk() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut config = config(directory.path(), "127.0.0.1:0", None);
    config.settings.commit_interval = Duration::from_secs(3600);
    let service = Service::start(config).expect("a service");
    for program in [Program::python(), Program::c(directory.path())] {
        let path = directory.path().join(format!("{}.start", program.name));
        let description = json!({"element": "u16", "frame": [SIDE, SIDE], "chunk": [4, SIDE / 2, SIDE], "fill": 4321,
            "scalars": ["energy"]});
        let file = format!("{}.h5", program.name);
        std::fs::write(&path, json!({"file": file, "description": description}).to_string()).expect("written");
        let output = program.run(service.address(), program.name, &[path.to_str().expect("text"), "9", "written"]);
        assert_all(&reported(&output, program.name), 9);
        check(directory.path(), program.name, 9);
    }
    service.stop();
}

/// Clients wait for a free connection as they do for an unreachable service.
#[test]
fn clients_wait_for_queue_space() {
    let directory = tempfile::tempdir().expect("a directory");
    let one = Config { connections_max: 1, ..config(directory.path(), "127.0.0.1:0", None) };
    let service = Service::start(one).expect("a service");
    for program in [Program::python(), Program::c(directory.path())] {
        let other = start(directory.path(), &format!("{}-other", program.name), [SIDE, SIDE]);
        let text = std::fs::read_to_string(other).expect("read");
        let address = service.address().to_string();
        let holds = ClientOptions { start: text, ..ClientOptions::new(&address, &format!("{}-other", program.name)) };
        let holds = Client::connect(holds).expect("in");
        let start = start(directory.path(), program.name, [SIDE, SIDE]);
        let child = program.spawn(service.address(), program.name, &[start.to_str().expect("text"), "10"]);
        std::thread::sleep(Duration::from_millis(500));
        drop(holds);
        assert_all(&reported(&child.wait_with_output().expect("it ends"), program.name), 10);
    }
    service.stop();
}

/// The program is built with mingw-w64 and runs under Wine, also over connections that break.
#[cfg(target_arch = "x86_64")]
#[test]
fn the_windows_program_runs_under_wine() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = service(directory.path());
    let program = Program::windows(directory.path());
    for (name, cuts) in [("windows", 0), ("windows-cut", 3)] {
        let start = start(directory.path(), name, [SIDE, SIDE]);
        let cutter = Cutter::new(service.address(), 100_003, cuts);
        let output = program.run(cutter.address, name, &[start.to_str().expect("text"), "200"]);
        let reported = reported(&output, name);
        assert_all(&reported, 200);
        check(directory.path(), name, 200);
    }
    service.stop();
}
