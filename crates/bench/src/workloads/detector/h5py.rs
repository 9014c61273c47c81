//! The reference: one h5py process that is fed by the same stream (`h5py.py`).

use super::Material;
use super::pipeline::{Load, Numbers, PipelineMeasurement, SendTimes, connect, hello, send_frames};
use crate::environment::Watch;
use crate::measure::{Latencies, cpu_seconds};
use crate::{Error, Result};
use serde::Deserialize;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use varve_detector_stream::link::send_to_service;
use varve_detector_stream::{StreamRole, ToService};

const PROGRAM: &str = include_str!("h5py.py");

#[derive(Deserialize)]
struct H5pyReport {
    frames: u64,
    cpu_s: f64,
    latencies_ns: Vec<u64>,
}

/// Whether this Python has the modules that the process needs.
pub fn works(python: &Path) -> bool {
    let asked = Command::new(python)
        .args(["-c", "import h5py, hdf5plugin"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    asked.is_ok_and(|status| status.success())
}

pub fn run(python: &PathBuf, material: &Material, directory: &Path, load: &Load) -> Result<PipelineMeasurement> {
    let path = directory.join("h5py.h5");
    let model = material.simulator.model();
    let mut process = Command::new(python)
        .args(["-c", PROGRAM])
        .arg(&path)
        .args([load.frames, model.height, model.width].map(|number| number.to_string()))
        .arg(model.element.name())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(Error::io(format!("cannot start {}", python.display())))?;
    let fed = feed(&mut process, material, load);
    if fed.is_err() {
        // The process waits for frames that will not come. It may also have ended already.
        let _ = process.kill();
    }
    let status = process.wait().map_err(Error::io("the h5py process"))?;
    let measured = fed?;
    if !status.success() {
        let why = io::Error::other(format!("it ended with {status}"));
        return Err(Error::Io { what: "the h5py process".into(), source: why });
    }
    std::fs::remove_file(&path).map_err(Error::io(format!("cannot remove {}", path.display())))?;
    Ok(measured)
}

fn feed(process: &mut Child, material: &Material, load: &Load) -> Result<PipelineMeasurement> {
    let fail = || Error::io("the h5py process");
    let mut said = BufReader::new(process.stdout.take().expect("piped above"));
    let mut line = String::new();
    said.read_line(&mut line).map_err(fail())?;
    let port: u16 = line.trim().parse().map_err(|_| fail()(io::Error::other("it did not print its port")))?;
    let mut to = connect(([127, 0, 0, 1], port).into()).map_err(fail())?;
    send_to_service(&mut to, &ToService::Hello(hello(StreamRole::Frames, 1)), &[], 0).map_err(fail())?;
    let (watch, cpu, sent) = (Watch::start(), cpu_seconds(), SendTimes::new(load.frames));
    let begun = std::time::Instant::now();
    send_frames(&mut to, material, load, &Numbers::of(load), &sent).map_err(fail())?;
    line.clear();
    said.read_line(&mut line).map_err(fail())?;
    let seconds = begun.elapsed().as_secs_f64();
    if line.is_empty() {
        return Err(fail()(io::Error::other("it ended without its figures; its output is above")));
    }
    let reported: H5pyReport = serde_json::from_str(&line)?;
    let mut latencies = Latencies::default();
    reported.latencies_ns.iter().for_each(|latency| latencies.record(Duration::from_nanos(*latency)));
    let cpu_s = cpu_seconds() - cpu + reported.cpu_s;
    Ok(PipelineMeasurement {
        frames: reported.frames,
        dropped: sent.lost(),
        seconds,
        cpu_s,
        others: watch.others(cpu_s),
        latencies,
    })
}
