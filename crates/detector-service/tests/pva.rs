//! Frames of an EPICS server become runs: plain and compressed arrays, acquisitions one after the other, a service that
//! is restarted, and a server that is found by a search.

#[path = "../../detector-writer/tests/common/mod.rs"]
mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use varve_detector_dataset::frame::AckLevel;
use varve_detector_service::{Config, Protection, PvaServer, PvaTarget, Service};
use varve_detector_writer::Settings;

const PV: &str = "SIM1:Pva1:Image";
const PATIENCE: Duration = Duration::from_secs(60);

fn service(root: &Path, server: PvaServer, idle: Duration) -> Service {
    let config = Config {
        listen: ([127, 0, 0, 1], 0).into(),
        http: None,
        root: root.to_owned(),
        token: None,
        protection: Protection::default(),
        plugins: None,
        settings: Settings { threads: 2, commit_interval: Duration::from_millis(50), ..Settings::default() },
        runs_max: 4,
        connections_max: 4,
        idle: PATIENCE,
        metadata: None,
    };
    let mut service = Service::start(config).expect("a service");
    service.take_pva(PvaTarget { pv: PV.into(), server, idle }).expect("a thread");
    service
}

/// The server in Python.
struct Ioc {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    port: u16,
    search_port: u16,
}

impl Ioc {
    fn start() -> Ioc {
        let mut command = Command::new(common::interpreter());
        command.arg(script()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("python runs");
        let (to, from) = (process.stdin.take().expect("piped"), process.stdout.take().expect("piped"));
        let mut from = BufReader::new(from);
        let mut line = String::new();
        from.read_line(&mut line).expect("a line");
        let ports: Vec<u16> = line.split_whitespace().map(|port| port.parse().expect("a port")).collect();
        Ioc { process, to, from, port: ports[0], search_port: ports[1] }
    }

    fn at(&self) -> PvaServer {
        PvaServer::At(format!("127.0.0.1:{}", self.port))
    }

    fn post(&mut self, frames: &str) {
        writeln!(self.to, "post {frames}").expect("it listens");
        let mut line = String::new();
        self.from.read_line(&mut line).expect("a line");
        assert_eq!(line, "posted\n");
    }
}

impl Drop for Ioc {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn script() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pva.py")
}

fn until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "it takes too long until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Number of frames that a run has durably.
fn durable(service: &Service, run: &str) -> u64 {
    service.shared().run(run).map_or(0, |run| run.board.frames(0, AckLevel::Durable).len())
}

fn has_ended(service: &Service, run: &str) -> bool {
    service.shared().run(run).is_some_and(|run| run.ended_as().is_some())
}

/// Posts frames until the subscription delivers them: the value that is there before is not recorded.
fn post_until_subscribed(ioc: &mut Ioc, service: &Service, run: &str, first: u64, form: &str) -> u64 {
    let deadline = Instant::now() + PATIENCE;
    let mut next = first;
    while service.shared().run(run).is_none() {
        assert!(Instant::now() < deadline, "no run begins");
        ioc.post(&format!("{next} 1 {form}"));
        next += 1;
        std::thread::sleep(Duration::from_millis(50));
    }
    next
}

/// Checks the file of a run; returns the number of its frames and its first unique id.
fn check(root: &Path, run: &str, first: u64, form: &str) -> (u64, u64) {
    let mut command = Command::new(common::interpreter());
    command.arg(script()).arg("check").arg(root.join(format!("{run}.h5"))).arg(first.to_string());
    let printed = common::printed(command.args(form.split(' ')));
    let numbers: Vec<u64> = printed.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    (numbers[0], numbers[1])
}

fn run(number: u32) -> String {
    format!("SIM1-Pva1-Image-{number:04}")
}

/// Promise: each acquisition of a PV becomes a file with frames, times and attributes; compressed arrays are kept as they
/// are.
#[test]
fn acquisitions_of_a_pv_become_runs() {
    let directory = tempfile::tempdir().expect("a directory");
    let root = directory.path();
    let mut ioc = Ioc::start();
    let service = service(root, ioc.at(), PATIENCE);
    let mut forms = ["plain u2", "lz4 u2", "bslz4 u2", "plain f4", "bslz4 u4"].into_iter().zip(1_u32..);
    let (form, number) = forms.next().expect("a form");
    let mut next = post_until_subscribed(&mut ioc, &service, &run(number), 10, form);
    ioc.post(&format!("{next} 20 {form}"));
    next += 20;
    for (form, number) in forms {
        // Another codec or type begins another run, and so does a number that is not higher than the last.
        ioc.post(&format!("5 20 {form}"));
        until("the next run begins", || service.shared().run(&run(number)).is_some());
        until("the previous run ends", || has_ended(&service, &run(number - 1)));
    }
    until("the last frames are durable", || durable(&service, &run(5)) == 20);
    // A codec without a filter is counted and ends the run before.
    ioc.post("100 3 jpeg u1");
    until("the last run ends", || has_ended(&service, &run(5)));
    assert!(service.shared().run(&run(6)).is_none());
    service.stop();
    let (frames, first) = check(root, &run(1), 10, "plain u2");
    assert_eq!(first + frames, next, "frames after the first are complete");
    for (form, number) in [("lz4 u2", 2), ("bslz4 u2", 3), ("plain f4", 4), ("bslz4 u4", 5)] {
        assert_eq!(check(root, &run(number), 5, form), (20, 5), "{form}");
    }
}

/// Promise: a run of a PV goes on after the service was restarted, and ends when no frame comes.
#[test]
fn a_run_of_a_pv_goes_on_after_a_restart_and_ends_when_idle() {
    let directory = tempfile::tempdir().expect("a directory");
    let root = directory.path();
    let mut ioc = Ioc::start();
    // The search goes to the port of this server alone.
    let searched = PvaServer::Searched(vec![format!("127.0.0.1:{}", ioc.search_port)]);
    let first = service(root, searched, PATIENCE);
    let next = post_until_subscribed(&mut ioc, &first, &run(1), 1, "plain");
    ioc.post(&format!("{next} 10 plain"));
    let begun = first.shared().run(&run(1)).and_then(|run| run.pva.as_ref().map(|source| source.first));
    let frames = next + 10 - begun.expect("the run is a PV's") as u64;
    until("the frames are durable", || durable(&first, &run(1)) == frames);
    assert_eq!(first.stop().len(), 1, "the run is unfinished");
    // The value that the server has when the next service subscribes continues the run.
    ioc.post(&format!("{} 1 plain", next + 10));
    let second = service(root, ioc.at(), Duration::from_secs(10));
    until("the present value is taken", || durable(&second, &run(1)) == frames + 1);
    ioc.post(&format!("{} 5 plain", next + 11));
    until("the run ends", || has_ended(&second, &run(1)));
    second.stop();
    let (frames, start) = check(root, &run(1), 1, "plain");
    assert_eq!(start + frames, next + 16);
}

/// Promise: a jump of the numbers, which a run would refuse, begins another run.
#[test]
fn a_jump_of_unique_ids_begins_another_run() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut ioc = Ioc::start();
    let service = service(directory.path(), ioc.at(), PATIENCE);
    post_until_subscribed(&mut ioc, &service, &run(1), 1, "plain");
    ioc.post("1000000000 5 plain");
    until("the frames after the jump are durable", || durable(&service, &run(2)) == 5);
    service.stop();
}

/// Promise: the service stops during an acquisition, whose frames come faster than reads time out.
#[test]
fn service_stops_during_an_acquisition() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut ioc = Ioc::start();
    let service = service(directory.path(), ioc.at(), PATIENCE);
    let next = post_until_subscribed(&mut ioc, &service, &run(1), 1, "plain");
    // The server goes on for a quarter of an hour.
    writeln!(ioc.to, "post {next} 100000 plain").expect("it listens");
    until("frames are durable", || durable(&service, &run(1)) > 1);
    let (stopped, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        service.stop();
        stopped.send(()).expect("the test waits");
    });
    wait.recv_timeout(PATIENCE).expect("the service stops");
}
