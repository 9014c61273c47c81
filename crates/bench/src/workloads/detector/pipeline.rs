//! The whole pipeline: a simulated detector sends over loopback, and the service receives, compresses, writes and
//! acknowledges, all in this process. Alternatively another receiver takes the same stream.

use super::Material;
use super::stages::processors;
use crate::environment::Watch;
use crate::measure::{Latencies, cpu_seconds};
use crate::{Error, Result, interrupt};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use varve_detector_dataset::dataset_spec::{DatasetSpec, Scalar, Structure};
use varve_detector_dataset::frame::AckLevel;
use varve_detector_filters::Filter;
use varve_detector_service::{Config, Protection, Service, StartRequest};
use varve_detector_stream::link::{Incoming, hold_little, send_to_service};
use varve_detector_stream::scalars::ScalarRow;
use varve_detector_stream::{
    BodyChecksum, FrameHead, FromService, NoticeCode, ScalarsHead, StreamHello, StreamRole, ToService, VERSION,
};
use varve_detector_writer::Settings;

/// The clients' default.
pub const CHECKSUM: BodyChecksum = BodyChecksum::Xxh3;
pub const RUN: &str = "bench";
/// Only a hanging store takes this long in these runs.
const DEADLINE: Duration = Duration::from_secs(120);
/// A detector keeps a frame that cannot be sent for this long.
const MEMORY: Duration = Duration::from_secs(1);
/// Rows of scalars per message: a control system batches some too.
const ROWS: u64 = 16;

/// The data to send.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Sends chunks that were made before the run. Otherwise frames are plain and simulated during the run.
    pub precompressed: bool,
    pub frames: u64,
    /// Sends every `step`th of these frames, starting at `first`; other senders send the rest.
    pub first: u64,
    pub step: u64,
    /// Frames a second; `None`: as fast as the service takes them.
    pub rate: Option<f64>,
    /// Scalars per frame.
    pub scalars: usize,
    /// Connections, each with a sender of its own.
    pub connections: u16,
}

/// The frame numbers of a load. Senders take the next one from it.
pub struct Numbers {
    first: u64,
    step: u64,
    frames: u64,
    taken: AtomicU64,
}

impl Numbers {
    pub fn of(load: &Load) -> Numbers {
        Numbers { first: load.first, step: load.step, frames: load.frames, taken: AtomicU64::new(0) }
    }

    /// The next number; the caller sends that frame. `None`: all are taken.
    fn next(&self) -> Option<u64> {
        let number = self.first + self.taken.fetch_add(1, Relaxed) * self.step;
        (number < self.frames).then_some(number)
    }
}

/// The results of a run.
#[derive(Clone)]
pub struct PipelineMeasurement {
    pub frames: u64,
    pub dropped: u64,
    pub seconds: f64,
    pub cpu_s: f64,
    /// Share of the processors' time that others took during the run.
    pub others: f64,
    /// From the time a frame is sent, or at a rate is due, until the service acknowledges it as written.
    pub latencies: Latencies,
}

/// When each frame was sent, in nanoseconds since the run began; 0: not yet.
pub struct SendTimes {
    begun: Instant,
    at: Vec<AtomicU64>,
    /// Frames that were dropped before they were sent.
    lost: AtomicU64,
    stopped: AtomicBool,
}

impl SendTimes {
    pub fn new(frames: u64) -> SendTimes {
        let at = (0..frames).map(|_| AtomicU64::new(0)).collect();
        SendTimes { begun: Instant::now(), at, lost: AtomicU64::new(0), stopped: AtomicBool::new(false) }
    }

    pub fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }

    fn latency(&self, number: u64) -> Option<Duration> {
        let sent = self.at.get(number as usize)?.load(Relaxed);
        (sent > 0).then(|| self.begun.elapsed().saturating_sub(Duration::from_nanos(sent)))
    }
}

pub fn failed(what: &'static str) -> impl FnOnce(String) -> Error {
    move |why| Error::Io { what: format!("the detector's {what}"), source: io::Error::other(why) }
}

pub fn hello(role: StreamRole, client: u8) -> StreamHello {
    StreamHello {
        version: VERSION,
        newest: 0,
        role,
        checksum: CHECKSUM,
        // Written.
        levels: 2,
        source: 0,
        connection: 0,
        connections: 1,
        patience: None,
        client: [client; 16],
        run: RUN.to_owned(),
        token: String::new(),
        start: String::new(),
    }
}

/// Sends one of `numbers` after the other, according to `load`, on a connection that has completed the handshake.
pub fn send_frames(
    to: &mut TcpStream,
    material: &Material,
    load: &Load,
    numbers: &Numbers,
    sent: &SendTimes,
) -> io::Result<()> {
    let model = material.simulator.model();
    let mut frame = Vec::new();
    while let Some(number) = numbers.next() {
        if sent.stopped.load(Relaxed) || interrupt::raised() {
            break;
        }
        let mut at = sent.begun.elapsed();
        if let Some(rate) = load.rate {
            let due = Duration::from_secs_f64(number as f64 / rate);
            std::thread::sleep(due.saturating_sub(at));
            if sent.begun.elapsed() > due + MEMORY {
                sent.lost.fetch_add(1, Relaxed);
                continue;
            }
            at = due;
        }
        let body = if load.precompressed {
            &material.chunks[number as usize % material.chunks.len()]
        } else {
            material.simulator.frame_into(number, &mut frame);
            &frame
        };
        let head = FrameHead {
            number,
            taken: varve_detector_dataset::time::unix_nanos(),
            element: model.element,
            frames: 1,
            sides: vec![model.height as u32, model.width as u32],
            filter: if load.precompressed { Filter::BSLZ4.to_string() } else { String::new() },
            chunks: if load.precompressed { vec![body.len() as u32] } else { Vec::new() },
        };
        sent.at[number as usize].store(at.as_nanos().max(1) as u64, Relaxed);
        send_to_service(to, &ToService::Frame { head, again: false }, &[body], CHECKSUM.of(body))?;
    }
    send_to_service(to, &ToService::End { complete: true, lost: sent.lost() }, &[], 0)
}

pub fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    hold_little(&stream)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.set_write_timeout(Some(DEADLINE))?;
    Ok(stream)
}

/// Runs `load` through a new service, which knows no earlier run, into a file of `directory`. The file is removed.
pub fn run(material: &Material, directory: &Path, load: &Load) -> Result<PipelineMeasurement> {
    let root = directory.join("service");
    std::fs::create_dir(&root).map_err(Error::io("cannot make the service's directory"))?;
    let service = Service::start(config(&root)).map_err(|error| failed("service")(error.to_string()))?;
    let measured = run_with(&service, material, load);
    service.stop();
    let measured = measured?;
    std::fs::remove_dir_all(&root).map_err(Error::io("cannot remove the file of a run"))?;
    Ok(measured)
}

pub fn config(directory: &Path) -> Config {
    Config {
        listen: (Ipv4Addr::LOCALHOST, 0).into(),
        http: None,
        root: directory.to_owned(),
        token: None,
        protection: Protection::default(),
        plugins: None,
        metadata: None,
        settings: Settings { threads: processors(), ..Settings::default() },
        runs_max: 8,
        connections_max: 64,
        idle: DEADLINE,
    }
}

/// The request for a run that takes `load`.
pub fn start_request(material: &Material, load: &Load) -> StartRequest {
    let model = material.simulator.model();
    let mut description = DatasetSpec::new(model.element, vec![model.height, model.width]);
    description.scan = vec![Some(load.frames)];
    description.structure = Structure::Nexus;
    description.scalars = (0..load.scalars).map(|number| format!("scalar_{number}").into()).collect();
    StartRequest { absence_s: 5.0, ..StartRequest::new(RUN, "run.h5".into(), description) }
}

fn run_with(service: &Service, material: &Material, load: &Load) -> Result<PipelineMeasurement> {
    let request = start_request(material, load);
    service.shared().begin(request).map_err(|refusal| failed("run")(refusal.text))?;
    let ways = BenchConnection::open_all(service.address(), load.connections)?;
    let (watch, cpu, sent) = (Watch::start(), cpu_seconds(), SendTimes::new(load.frames));
    let reported = std::thread::scope(|scope| {
        let sent = &sent;
        let scalars = (load.scalars > 0).then(|| {
            let address = service.address();
            scope.spawn(move || send_scalars(address, load, sent))
        });
        let reported = feed_all(ways, material, load, sent);
        let scalars = scalars.map_or(Ok(()), |scalars| joined(scalars.join()));
        reported.and_then(|reported| scalars.map(|()| reported))
    });
    interrupt::check()?;
    let reported = reported?;
    reported.check(load.frames)?;
    let (seconds, cpu_s) = (sent.begun.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    Ok(PipelineMeasurement {
        frames: reported.received,
        dropped: reported.dropped,
        seconds,
        cpu_s,
        others: watch.others(cpu_s),
        latencies: reported.latencies,
    })
}

fn joined(ended: std::thread::Result<io::Result<()>>) -> Result<()> {
    ended
        .unwrap_or_else(|_| Err(io::Error::other("a sender has panicked")))
        .map_err(|error| failed("connection")(error.to_string()))
}

/// A connection for frames that the service has accepted.
pub struct BenchConnection {
    frames: TcpStream,
    answers: Incoming,
}

/// The service's replies about a run.
pub struct ServiceReplies {
    pub latencies: Latencies,
    pub received: u64,
    pub dropped: u64,
}

impl ServiceReplies {
    /// Checks that every lost frame was counted.
    pub fn check(&self, frames: u64) -> Result<()> {
        let ServiceReplies { received, dropped, .. } = self;
        if received + dropped == frames {
            return Ok(());
        }
        Err(failed("run")(format!("{received} frames received and {dropped} dropped of {frames}")))
    }
}

impl BenchConnection {
    /// Opens all connections of one client. The service sends frame notices on the first one only.
    fn open_all(address: SocketAddr, connections: u16) -> Result<Vec<BenchConnection>> {
        let hello = StreamHello { connections, ..hello(StreamRole::Frames, 1) };
        let levels = |connection| if connection == 0 { hello.levels } else { 0 };
        let open = |connection| {
            BenchConnection::open(address, StreamHello { connection, levels: levels(connection), ..hello.clone() })
        };
        (0..connections).map(open).collect()
    }

    pub fn open(address: SocketAddr, hello: StreamHello) -> Result<BenchConnection> {
        let fail = |error: io::Error| failed("connection")(error.to_string());
        let mut frames = connect(address).map_err(fail)?;
        // Processes started for this run require the token that they have published.
        let token = varve_detector_stream::token::for_peer(&hello.token, address);
        let token = token.map_err(|error| failed("token")(error.to_string()))?;
        let hello = StreamHello { token, ..hello };
        send_to_service(&mut frames, &ToService::Hello(hello), &[], 0).map_err(fail)?;
        let mut answers = Incoming::new(frames.try_clone().map_err(fail)?);
        match answers.from_service().map_err(|error| failed("connection")(error.to_string()))? {
            Some(FromService::Welcome(_)) => Ok(BenchConnection { frames, answers }),
            Some(FromService::Error(refusal)) => Err(failed("run")(refusal.text)),
            other => Err(failed("connection")(format!("it sent {other:?} instead of a welcome"))),
        }
    }

    /// Sends one of `numbers` after the other, according to `load`, and receives the frame notices until the run is
    /// finished.
    pub fn feed(
        mut self,
        material: &Material,
        load: &Load,
        numbers: &Numbers,
        sent: &SendTimes,
    ) -> Result<ServiceReplies> {
        std::thread::scope(|scope| {
            let mut frames = self.frames;
            let sender = scope.spawn(move || send_frames(&mut frames, material, load, numbers, sent));
            let reported = listen(&mut self.answers, sent);
            sent.stopped.store(true, Relaxed);
            let sent = joined(sender.join());
            reported.and_then(|reported| sent.map(|()| reported))
        })
    }
}

/// Runs [`BenchConnection::feed`] on all connections of a client; returns the replies of the first.
fn feed_all(ways: Vec<BenchConnection>, material: &Material, load: &Load, sent: &SendTimes) -> Result<ServiceReplies> {
    let numbers = &Numbers::of(load);
    std::thread::scope(|scope| {
        let feed = |way: BenchConnection| scope.spawn(move || way.feed(material, load, numbers, sent));
        let fed: Vec<_> = ways.into_iter().map(feed).collect();
        let reported =
            fed.into_iter().map(|fed| fed.join().unwrap_or_else(|payload| Err(crate::workloads::panicked(&*payload))));
        let reported = reported.collect::<Vec<_>>().into_iter().collect::<Result<Vec<_>>>()?;
        reported.into_iter().next().ok_or_else(|| failed("connection")("there is none".into()))
    })
}

/// Reads the service's messages until the run is finished; returns its counts of received and dropped frames.
fn listen(answers: &mut Incoming, sent: &SendTimes) -> Result<ServiceReplies> {
    let mut latencies = Latencies::default();
    loop {
        let message = answers.from_service().map_err(|error| failed("connection")(error.to_string()))?;
        match message {
            Some(FromService::Ack(ack)) if ack.level == AckLevel::Written => {
                let numbers = ack.frames.into_iter().flatten();
                numbers.filter_map(|number| sent.latency(number)).for_each(|latency| latencies.record(latency));
            }
            Some(FromService::Finished(finished)) => {
                return Ok(ServiceReplies { latencies, received: finished.received, dropped: finished.dropped });
            }
            Some(FromService::Notice(notice)) if notice.code != NoticeCode::Dropped => {
                return Err(failed("frame")(notice.text));
            }
            Some(FromService::Error(refusal)) => return Err(failed("run")(refusal.text)),
            Some(_) => {}
            None => return Err(failed("connection")("the service has closed it".into())),
        }
    }
}

/// Sends rows of scalars on a separate connection, in step with the frames they belong to.
fn send_scalars(address: SocketAddr, load: &Load, sent: &SendTimes) -> io::Result<()> {
    let mut to = connect(address)?;
    // A client that sends no frames requests no levels of them.
    send_to_service(&mut to, &ToService::Hello(StreamHello { levels: 0, ..hello(StreamRole::Scalars, 2) }), &[], 0)?;
    let names: Vec<String> = (0..load.scalars).map(|number| format!("scalar_{number}")).collect();
    for first in (0..load.frames).step_by(ROWS as usize) {
        let last = (first + ROWS).min(load.frames) - 1;
        while sent.at[last as usize].load(Relaxed) == 0 {
            if sent.stopped.load(Relaxed) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let value = |frame: u64, column: usize| Some(Scalar::Float((frame * 31 + column as u64) as f64));
        let rows: Vec<ScalarRow> = (first..=last)
            .map(|frame| (frame, (0..load.scalars).map(|column| value(frame, column)).collect()))
            .collect();
        let head = ScalarsHead::of(&names, &rows).map_err(io::Error::other)?;
        let body = head.body(&rows);
        send_to_service(&mut to, &ToService::Scalars(head), &[&body], CHECKSUM.of(&body))?;
    }
    send_to_service(&mut to, &ToService::End { complete: false, lost: 0 }, &[], 0)
}
