//! Four processes that receive frames, compress and write them: into one file, which this process commits, or each into
//! a file of its own.

use super::Material;
use super::pipeline::{
    self, BenchConnection, Load, Numbers, PipelineMeasurement, RUN, SendTimes, ServiceReplies, failed, hello,
};
use crate::environment::Watch;
use crate::measure::{Latencies, cpu_seconds, cpu_seconds_of};
use crate::{Error, Result, interrupt};
use serde::Deserialize;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use varve_detector_service::{Service, StartRequest};
use varve_detector_stream::{StreamHello, StreamRole};

pub const WRITERS: u64 = 4;

/// Runs the case with one file, or with four.
pub fn run(
    program: &Path,
    one: bool,
    material: &Material,
    directory: &Path,
    load: &Load,
) -> Result<PipelineMeasurement> {
    let root = directory.join("writers");
    std::fs::create_dir(&root).map_err(Error::io("cannot make the writers' directory"))?;
    let measured =
        if one { one_file(program, material, &root, load) } else { four_files(program, material, &root, load) };
    std::fs::remove_dir_all(&root).map_err(Error::io("cannot remove the files of the writers"))?;
    measured
}

fn one_file(program: &Path, material: &Material, root: &Path, load: &Load) -> Result<PipelineMeasurement> {
    let service = Service::start(pipeline::config(root)).map_err(|error| failed("service")(error.to_string()))?;
    let request = StartRequest { sources: WRITERS as u16, ..pipeline::start_request(material, load) };
    service.shared().begin(request).map_err(|refusal| failed("run")(refusal.text))?;
    let (address, root) = (service.address().to_string(), root.display().to_string());
    let fed = Processes::start(program, |writer| {
        let source = writer.to_string();
        ["record", "join", &address, RUN, "--directory", &root, "--source", &source].map(str::to_owned).to_vec()
    })
    .and_then(|processes| {
        let sent = SendTimes::new(load.frames);
        let parts = (0..WRITERS).map(|writer| Load { first: writer, step: WRITERS, ..*load });
        processes.feed(material, &hello(StreamRole::Frames, 1), parts.map(|part| (part, &sent)).collect())
    });
    service.stop();
    let (mut measured, reported) = fed?;
    // Each process reports on the whole run.
    reported.iter().try_for_each(|reported| reported.check(load.frames))?;
    measured.frames = reported[0].received;
    measured.dropped = reported[0].dropped;
    Ok(measured)
}

fn four_files(program: &Path, material: &Material, root: &Path, load: &Load) -> Result<PipelineMeasurement> {
    let parts: Vec<Load> =
        (0..WRITERS).map(|writer| Load { frames: (load.frames - writer).div_ceil(WRITERS), ..*load }).collect();
    let sent: Vec<SendTimes> = parts.iter().map(|part| SendTimes::new(part.frames)).collect();
    let directories: Vec<PathBuf> = (0..WRITERS).map(|writer| root.join(writer.to_string())).collect();
    for directory in &directories {
        std::fs::create_dir(directory).map_err(Error::io("cannot make a writer's directory"))?;
    }
    let processes = Processes::start(program, |writer| {
        let directory = directories[writer as usize].display().to_string();
        let at = "127.0.0.1:0";
        ["record", "serve", &directory, "--listen", at, "--http", at].map(str::to_owned).to_vec()
    })?;
    let start = serde_json::to_string(&pipeline::start_request(material, &parts[0]))?;
    let hello = StreamHello { start, ..hello(StreamRole::Frames, 1) };
    let (mut measured, reported) = processes.feed(material, &hello, parts.iter().copied().zip(&sent).collect())?;
    parts.iter().zip(&reported).try_for_each(|(part, reported)| reported.check(part.frames))?;
    measured.frames = reported.iter().map(|reported| reported.received).sum();
    measured.dropped = reported.iter().map(|reported| reported.dropped).sum();
    Ok(measured)
}

/// The line that a process prints once it can be reached.
#[derive(Deserialize)]
struct WriterReady {
    listen: SocketAddr,
}

/// The four processes, ended in all cases.
struct Processes(Vec<(Child, SocketAddr)>);

impl Processes {
    fn start(program: &Path, arguments: impl Fn(u64) -> Vec<String>) -> Result<Processes> {
        let fail = || Error::io(format!("a process of {}", program.display()));
        let mut processes = Processes(Vec::new());
        for writer in 0..WRITERS {
            let mut child = Command::new(program)
                .args(["--json"])
                .args(arguments(writer))
                // One writing thread for each: the processes share the processors.
                .args(["--threads", "1"])
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
                .map_err(fail())?;
            let mut said = BufReader::new(child.stdout.take().expect("piped above"));
            let mut line = String::new();
            // Added at once, so that it is ended in all cases.
            processes.0.push((child, SocketAddr::from(([127, 0, 0, 1], 0))));
            said.read_line(&mut line).map_err(fail())?;
            if line.is_empty() {
                return Err(failed("writer")("it ended before it took frames; its output is above".into()));
            }
            let serving: WriterReady = serde_json::from_str(&line)?;
            processes.0[writer as usize].1 = serving.listen;
        }
        Ok(processes)
    }

    /// Feeds each process its part, from the time when all are ready until all are done. The frames are not counted
    /// yet.
    fn feed(
        self,
        material: &Material,
        hello: &StreamHello,
        parts: Vec<(Load, &SendTimes)>,
    ) -> Result<(PipelineMeasurement, Vec<ServiceReplies>)> {
        let ways = self
            .0
            .iter()
            .map(|(_, address)| BenchConnection::open(*address, hello.clone()))
            .collect::<Result<Vec<_>>>()?;
        let (watch, begun, cpu) = (Watch::start(), Instant::now(), self.cpu_seconds()?);
        let reported = std::thread::scope(|scope| {
            let fed: Vec<_> = ways
                .into_iter()
                .zip(&parts)
                .map(|(way, (load, sent))| scope.spawn(move || way.feed(material, load, &Numbers::of(load), sent)))
                .collect();
            fed.into_iter()
                .map(|fed| fed.join().unwrap_or_else(|payload| Err(crate::workloads::panicked(&*payload))))
                .collect::<Result<Vec<_>>>()
        });
        interrupt::check()?;
        let reported = reported?;
        let (seconds, cpu_s) = (begun.elapsed().as_secs_f64(), self.cpu_seconds()? - cpu);
        let mut measured = PipelineMeasurement {
            frames: 0,
            dropped: 0,
            seconds,
            cpu_s,
            others: watch.others(cpu_s),
            latencies: Latencies::default(),
        };
        reported.iter().for_each(|reported| measured.latencies.add(&reported.latencies));
        Ok((measured, reported))
    }

    /// CPU seconds of these processes and this one.
    fn cpu_seconds(&self) -> Result<f64> {
        self.0.iter().try_fold(cpu_seconds(), |sum, (child, _)| Ok(sum + cpu_seconds_of(child.id())?))
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for (child, _) in &mut self.0 {
            // Its run is over, and it may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
