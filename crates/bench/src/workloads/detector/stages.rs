//! Each stage of the pipeline alone, on all processors: its processor time per byte.

use super::Material;
use crate::measure::cpu_seconds;
use crate::{Error, Result, interrupt};
use std::fs::{File, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use varve_detector_filters::{Encoder, Filter};
use varve_detector_hdf5::ElementType;
use varve_detector_stream::link::{Incoming, send_to_service};
use varve_detector_stream::{FrameHead, ToService};

/// The bytes that a writer gathers before it writes.
const STRIPE_BYTES: usize = 4 << 20;
/// Minimum duration of a stage's measurement: many ticks of the clock that counts CPU time.
const SPAN: Duration = Duration::from_millis(700);
/// Loopback replies at once or never.
const DEADLINE: Duration = Duration::from_secs(30);

/// One stage alone.
#[derive(Clone, Copy, Debug)]
pub struct StageRun {
    /// The rate with all processors.
    pub bytes_per_s: f64,
    pub cpu_s_per_byte: f64,
}

/// Bytes are those that the stage moves: uncompressed ones for `simulate`, `receive_frames` and `compress`, compressed
/// ones otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Stages {
    pub simulate: StageRun,
    pub receive_frames: StageRun,
    pub receive_chunks: StageRun,
    pub compress: StageRun,
    pub pwrite: StageRun,
}

pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Stages {
    pub(super) fn measure(material: &Material, directory: &Path, frames: u64) -> Result<Stages> {
        Ok(Stages {
            simulate: simulate(material)?,
            receive_frames: receive(&[material.simulator.frame(0)], material)?,
            receive_chunks: receive(&material.chunks, material)?,
            compress: compress(material)?,
            pwrite: pwrite(material, directory, frames)?,
        })
    }

    /// The stages between two measurements, while the cases ran. The speed of processors varies from second to second
    /// if others have a share of the host.
    pub fn between(before: Stages, after: Stages) -> Stages {
        Stages {
            simulate: StageRun::between(before.simulate, after.simulate),
            receive_frames: StageRun::between(before.receive_frames, after.receive_frames),
            receive_chunks: StageRun::between(before.receive_chunks, after.receive_chunks),
            compress: StageRun::between(before.compress, after.compress),
            pwrite: StageRun::between(before.pwrite, after.pwrite),
        }
    }

    /// The upper limit of the pipeline with raw frames, in uncompressed bytes a second.
    pub fn limit_raw(&self, ratio: f64) -> f64 {
        let each = [self.simulate, self.receive_frames, self.compress].map(|stage| stage.cpu_s_per_byte);
        processors() as f64 / (each.iter().sum::<f64>() + self.pwrite.cpu_s_per_byte / ratio)
    }

    /// The upper limit of the pipeline with precompressed frames, in compressed bytes a second. The simulator makes
    /// these frames before the run and costs nothing during it.
    pub fn limit_precompressed(&self) -> f64 {
        processors() as f64 / (self.receive_chunks.cpu_s_per_byte + self.pwrite.cpu_s_per_byte)
    }
}

type Work<'w> = Box<dyn FnMut() -> Result<u64> + Send + 'w>;

/// Repeats `work` on `threads` threads; `work` returns the number of bytes it has moved.
fn stage<'w>(threads: usize, work: impl Fn(usize) -> Result<Work<'w>>) -> Result<StageRun> {
    let mut works = (0..threads).map(work).collect::<Result<Vec<_>>>()?;
    // The first pass touches memory for the first time, so it is not measured.
    for work in &mut works {
        work()?;
    }
    let (begun, cpu) = (Instant::now(), cpu_seconds());
    let bytes = AtomicU64::new(0);
    let moved = &bytes;
    std::thread::scope(|scope| {
        let threads: Vec<_> = works
            .into_iter()
            .map(|mut work| {
                scope.spawn(move || {
                    while begun.elapsed() < SPAN {
                        interrupt::check()?;
                        moved.fetch_add(work()?, Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|payload| Err(crate::workloads::panicked(&*payload))))
    })?;
    Ok(StageCost::since(begun, cpu, bytes.into_inner()).stage())
}

/// The cost of moving a number of bytes.
#[derive(Default)]
struct StageCost {
    bytes: u64,
    time: Duration,
    cpu_s: f64,
}

impl StageCost {
    fn since(begun: Instant, cpu: f64, bytes: u64) -> StageCost {
        StageCost { bytes, time: begun.elapsed(), cpu_s: cpu_seconds() - cpu }
    }

    fn add(&mut self, other: &StageCost) {
        self.bytes += other.bytes;
        self.time += other.time;
        self.cpu_s += other.cpu_s;
    }

    fn stage(&self) -> StageRun {
        let bytes = self.bytes as f64;
        StageRun { bytes_per_s: bytes / self.time.as_secs_f64(), cpu_s_per_byte: self.cpu_s / bytes }
    }
}

impl StageRun {
    /// The mean of two measurements.
    fn between(before: StageRun, after: StageRun) -> StageRun {
        StageRun {
            bytes_per_s: (before.bytes_per_s + after.bytes_per_s) / 2.0,
            cpu_s_per_byte: (before.cpu_s_per_byte + after.cpu_s_per_byte) / 2.0,
        }
    }
}

fn simulate(material: &Material) -> Result<StageRun> {
    let simulator = &material.simulator;
    stage(processors(), |thread| {
        let (mut number, mut frame) = (thread as u64, Vec::new());
        Ok(Box::new(move || {
            simulator.frame_into(number, &mut frame);
            number += processors() as u64;
            Ok(frame.len() as u64)
        }))
    })
}

fn compress(material: &Material) -> Result<StageRun> {
    let frames: Vec<Vec<u8>> = (0..8).map(|number| material.simulator.frame(number)).collect();
    let frames = &frames;
    let element: ElementType = material.simulator.model().element;
    stage(processors(), |thread| {
        let mut encoder =
            Encoder::new(Filter::BSLZ4, element.size()).map_err(|error| Error::Usage(error.to_string()))?;
        let (mut number, mut out) = (thread, Vec::new());
        Ok(Box::new(move || {
            out.clear();
            let frame = &frames[number % frames.len()];
            encoder
                .encode(frame, &mut out)
                .map_err(|error| Error::Ceiling { name: "compression", reason: error.to_string() })?;
            number += processors();
            Ok(frame.len() as u64)
        }))
    })
}

/// Writes chunks, gathered as a writer gathers them, into new files again and again, as many bytes as a run has. Each
/// thread has a file of its own: in one file the threads would spin for its lock, which is no cost of writing.
fn pwrite(material: &Material, directory: &Path, frames: u64) -> Result<StageRun> {
    let stripe: Vec<u8> = material.chunks.iter().flatten().copied().cycle().take(STRIPE_BYTES).collect();
    let total = frames as f64 * material.chunk_bytes();
    let share = (total as usize / processors()).next_multiple_of(STRIPE_BYTES);
    let mut spent = StageCost::default();
    super::memory::fetch((share * processors()) as f64)?;
    while spent.time < SPAN {
        spent.add(&write_files(directory, &stripe, share as u64)?);
    }
    Ok(spent.stage())
}

fn write_files(directory: &Path, stripe: &[u8], share: u64) -> Result<StageCost> {
    let fail = || Error::io(format!("cannot write files in {}", directory.display()));
    let paths: Vec<_> = (0..processors()).map(|thread| directory.join(format!("pwrite-{thread}"))).collect();
    let make = |path| {
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        file.set_len(share)?;
        Ok(file)
    };
    let files = paths.iter().map(make).collect::<io::Result<Vec<_>>>().map_err(fail())?;
    let write = |file: &File| -> Result<()> {
        for at in (0..share).step_by(STRIPE_BYTES) {
            interrupt::check()?;
            file.write_all_at(stripe, at).map_err(fail())?;
        }
        Ok(())
    };
    let (begun, cpu) = (Instant::now(), cpu_seconds());
    std::thread::scope(|scope| {
        let threads: Vec<_> = files.iter().map(|file| scope.spawn(|| write(file))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|payload| Err(crate::workloads::panicked(&*payload))))
    })?;
    let spent = StageCost::since(begun, cpu, share * files.len() as u64);
    paths.iter().try_for_each(std::fs::remove_file).map_err(fail())?;
    Ok(spent)
}

/// Sends messages over loopback TCP from one thread and receives them on another.
fn receive(bodies: &[Vec<u8>], material: &Material) -> Result<StageRun> {
    let fail = || Error::io("loopback");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(fail())?;
    let mut to = TcpStream::connect(listener.local_addr().map_err(fail())?).map_err(fail())?;
    let (from, _) = listener.accept().map_err(fail())?;
    for stream in [&to, &from] {
        stream
            .set_read_timeout(Some(DEADLINE))
            .and_then(|()| stream.set_write_timeout(Some(DEADLINE)))
            .map_err(fail())?;
    }
    let model = material.simulator.model();
    let head = FrameHead {
        number: 0,
        taken: 0,
        element: model.element,
        frames: 1,
        sides: vec![model.height as u32, model.width as u32],
        filter: String::new(),
        chunks: Vec::new(),
    };
    let (begun, cpu) = (Instant::now(), cpu_seconds());
    let received = std::thread::scope(|scope| {
        let receiver = scope.spawn(move || drain(from));
        let mut bodies = bodies.iter().cycle();
        let sent = loop {
            let body = bodies.next().expect("an endless cycle of at least one");
            let message = ToService::Frame { head: head.clone(), again: false };
            if let Err(error) = send_to_service(&mut to, &message, &[body], super::pipeline::CHECKSUM.of(body)) {
                break Err(error);
            }
            if begun.elapsed() >= SPAN || interrupt::raised() {
                break Ok(());
            }
        };
        drop(to);
        let received = receiver.join().unwrap_or_else(|_| Err(io::Error::other("the receiver has panicked")));
        sent.and(received)
    });
    let bytes = received.map_err(fail())?;
    interrupt::check()?;
    Ok(StageCost::since(begun, cpu, bytes).stage())
}

/// Reads messages to the end, as the service does.
fn drain(from: TcpStream) -> io::Result<u64> {
    let mut from = Incoming::new(from);
    let (mut bytes, mut body) = (0, Vec::new());
    while let Some((header, _)) = from.from_client().map_err(io::Error::other)? {
        if !from.body(&header, super::pipeline::CHECKSUM, &mut body).map_err(io::Error::other)? {
            return Err(io::Error::other("a body's checksum differs"));
        }
        bytes += body.len() as u64;
    }
    Ok(bytes)
}
