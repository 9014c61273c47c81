//! The results of the detector service benchmark, as data, which is also the JSON, and as text.

use super::case::{PipelineCase, SCALARS};
use super::pipeline::PipelineMeasurement;
use super::stages::{Stages, processors};
use super::{DetectorConfig, Material};
use crate::Result;
use crate::environment::{Environment, mount_of};
use crate::measure::{Interval, Latencies, PAIRS_FOR_INTERVAL, Spread, paired_ratios};
use crate::report::SCHEMA_VERSION;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// Its JSON is stable for later commands and other programs: `schema_version`, `command`, `results` and `ceilings` keep
/// their form, other keys are only ever added.
#[derive(Debug, Serialize)]
pub struct DetectorReport {
    pub schema_version: u32,
    /// `bench detector`.
    pub command: &'static str,
    pub results: Vec<CaseResult>,
    pub ceilings: Vec<Ceiling>,
    pub ratios: Vec<CaseRatio>,
    pub settings: BTreeMap<&'static str, serde_json::Value>,
    pub environment: Environment,
    pub warnings: Vec<String>,
    pub arguments: Vec<String>,
    #[serde(skip)]
    turns: Vec<BenchTurn>,
}

#[derive(Debug, Serialize)]
pub struct CaseResult {
    pub case: String,
    /// Frames of one run.
    pub frames: u64,
    /// The median of all turns.
    pub frames_per_s: f64,
    pub bytes_per_s: f64,
    /// Dropped frames of all turns together.
    pub dropped: u64,
    /// From the sending of a frame, or at a rate from its due time, until the service acknowledges it as written.
    pub latency_ms: LatencyMs,
    pub cpu_ms_per_frame: f64,
    /// Share of the processors' time that other processes and the hypervisor took during the run. The limits do not
    /// include it.
    pub others: f64,
    /// Frames a second of each turn.
    pub samples: Vec<f64>,
}

#[derive(Debug, Serialize)]
pub struct LatencyMs {
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

/// A limit, or a stage alone.
#[derive(Debug, Serialize)]
pub struct Ceiling {
    pub name: &'static str,
    pub bytes_per_s: f64,
    /// Present for a stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_s_per_byte: Option<f64>,
}

/// One case divided by another, or by its limit, turn by turn.
#[derive(Debug, Serialize)]
pub struct CaseRatio {
    pub name: &'static str,
    pub median: f64,
    pub min: f64,
    pub max: f64,
    /// The promised minimum.
    pub bar: f64,
    /// Whether the interval's lower end reaches the bar; without an interval, whether the median does.
    pub holds: bool,
    /// The interval of the median, if there were enough turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<Interval>,
}

/// Results that were measured one after the other.
#[derive(Debug)]
pub struct BenchTurn {
    stages: Stages,
    limit_raw: f64,
    limit_precompressed: f64,
    cases: Vec<(PipelineCase, Sample)>,
}

#[derive(Clone)]
struct Sample {
    measured: PipelineMeasurement,
    frame_bytes: f64,
}

impl std::fmt::Debug for Sample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.1} frames/s", self.frames_per_s())
    }
}

impl Sample {
    fn frames_per_s(&self) -> f64 {
        self.measured.frames as f64 / self.measured.seconds
    }

    fn bytes_per_s(&self) -> f64 {
        self.frames_per_s() * self.frame_bytes
    }
}

impl BenchTurn {
    pub(super) fn new(stages: Stages, material: &Material) -> BenchTurn {
        BenchTurn {
            stages,
            limit_raw: stages.limit_raw(material.frame_bytes() / material.chunk_bytes()),
            limit_precompressed: stages.limit_precompressed(),
            cases: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, case: PipelineCase, measured: PipelineMeasurement, material: &Material) {
        self.cases.push((case, Sample { measured, frame_bytes: case.frame_bytes(material) }));
    }

    fn rate(&self, case: PipelineCase) -> Option<f64> {
        self.cases.iter().find(|(known, _)| *known == case).map(|(_, sample)| sample.bytes_per_s())
    }
}

/// Name, bar, and the two rates of one turn.
type Compared = (&'static str, f64, fn(&BenchTurn) -> Option<(f64, f64)>);

/// The promised ratios, each with its bar.
const COMPARED: [Compared; 5] = [
    ("precompressed/limit", 0.85, |turn| Some((turn.rate(PipelineCase::Precompressed)?, turn.limit_precompressed))),
    ("raw-bslz4/limit", 0.85, |turn| Some((turn.rate(PipelineCase::Raw)?, turn.limit_raw))),
    ("raw-bslz4/h5py", 1.3, |turn| Some((turn.rate(PipelineCase::Raw)?, turn.rate(PipelineCase::H5py)?))),
    ("scalars-30/scalars-0", 0.97, |turn| {
        Some((turn.rate(PipelineCase::Scalars(SCALARS))?, turn.rate(PipelineCase::Scalars(0))?))
    }),
    ("one-file/four-files", 0.9, |turn| {
        Some((turn.rate(PipelineCase::Writers { one: true })?, turn.rate(PipelineCase::Writers { one: false })?))
    }),
];

/// Lower values are the kernel's own threads and the coarseness of its ticks.
const OTHERS_WORTH_SAYING: f64 = 0.03;

fn median(samples: &[f64]) -> f64 {
    Spread::of(samples).map_or(0.0, |spread| spread.median)
}

impl DetectorReport {
    pub fn begin(config: &DetectorConfig, directory: &Path) -> Result<DetectorReport> {
        let mount = mount_of(directory).map_err(crate::Error::io(directory.display().to_string()))?;
        let settings = BTreeMap::from([
            ("directory", directory.display().to_string().into()),
            ("filesystem", mount.filesystem.into()),
            ("width", config.model.width.into()),
            ("height", config.model.height.into()),
            ("element", config.model.element.name().into()),
            ("compress_ratio", config.compress_ratio.into()),
            ("frames", config.frames.into()),
            ("connections", config.connections.into()),
            ("repeat", config.repeat.into()),
            ("rate_seconds", config.rate_seconds.into()),
            ("processors", processors().into()),
        ]);
        let mut warnings = Vec::new();
        if config.python.is_none() && config.cases.contains(&PipelineCase::H5py) {
            warnings.push("No Python with h5py and hdf5plugin was found: the case h5py is left out.".to_owned());
        }
        Ok(DetectorReport {
            schema_version: SCHEMA_VERSION,
            command: "bench detector",
            results: Vec::new(),
            ceilings: Vec::new(),
            ratios: Vec::new(),
            settings,
            environment: Environment::default(),
            warnings,
            arguments: config.arguments.clone(),
            turns: Vec::new(),
        })
    }

    pub fn add(&mut self, turn: BenchTurn) {
        self.turns.push(turn);
    }

    pub(super) fn add_rate(&mut self, case: PipelineCase, measured: PipelineMeasurement, material: &Material) {
        let sample = Sample { measured, frame_bytes: case.frame_bytes(material) };
        self.results.push(CaseResult::of(case, &[&sample]));
    }

    pub fn finish(mut self, environment: Environment) -> DetectorReport {
        let fast = PipelineCase::FAST.into_iter().filter_map(|case| {
            let samples: Vec<&Sample> = self
                .turns
                .iter()
                .flat_map(|turn| turn.cases.iter().filter(|(known, _)| *known == case).map(|(_, sample)| sample))
                .collect();
            (!samples.is_empty()).then(|| CaseResult::of(case, &samples))
        });
        let fast: Vec<CaseResult> = fast.collect();
        self.results.splice(0..0, fast);
        // A run with rates only has no turns, and so no stages.
        if !self.turns.is_empty() {
            self.ceilings = ceilings(&self.turns);
        }
        for (name, bar, of) in COMPARED {
            let (these, those): (Vec<f64>, Vec<f64>) = self.turns.iter().filter_map(of).unzip();
            if let Some((Spread { median, min, max, .. }, interval)) = paired_ratios(&these, &those) {
                let holds = interval.map_or(median, |Interval { low, .. }| low) >= bar;
                self.ratios.push(CaseRatio { name, median, min, max, bar, holds, interval });
            }
        }
        let near = |ratio: &CaseRatio| ratio.interval.is_none() && (ratio.median / ratio.bar - 1.0).abs() < 0.2;
        if self.ratios.iter().any(near) {
            self.warnings.push(format!(
                "Ratios near their bars mean little without an interval: --repeat {PAIRS_FOR_INTERVAL} or more gives \
                 one."
            ));
        }
        if let Some(most) = self.results.iter().max_by(|one, other| one.others.total_cmp(&other.others))
            && most.others > OTHERS_WORTH_SAYING
        {
            self.warnings.push(format!(
                "Other processes used {:.0}% of the processors during `{}`. The limits assume idle processors: ratios \
                 to them, and to neighbours, mean little.",
                most.others * 100.0,
                most.case
            ));
        }
        self.warnings.extend(environment.warnings());
        self.environment = environment;
        self
    }

    /// One line, for `--json`.
    pub fn to_json(&self) -> Result<String> {
        Ok(serde_json::to_string(self)?)
    }

    pub fn to_text(&self) -> String {
        let mut text = format!(
            "{:<24}{:>8}{:>12}{:>10}{:>9}{:>11}{:>11}{:>14}{:>10}\n",
            "case", "frames", "frames/s", "MB/s", "dropped", "p50 ms", "p99 ms", "CPU ms/frame", "others"
        );
        for result in &self.results {
            let _ = writeln!(
                text,
                "{:<24}{:>8}{:>12.1}{:>10.1}{:>9}{:>11.2}{:>11.2}{:>14.3}{:>9.1}%",
                result.case,
                result.frames,
                result.frames_per_s,
                result.bytes_per_s / 1e6,
                result.dropped,
                result.latency_ms.p50,
                result.latency_ms.p99,
                result.cpu_ms_per_frame,
                result.others * 100.0
            );
        }
        let _ = writeln!(text, "\n{:<24}{:>12}{:>16}", "ceiling", "MB/s", "CPU ns/byte");
        for ceiling in &self.ceilings {
            let cpu = ceiling.cpu_s_per_byte.map_or(String::new(), |cpu| format!("{:.3}", cpu * 1e9));
            let _ = writeln!(text, "{:<24}{:>12.1}{cpu:>16}", ceiling.name, ceiling.bytes_per_s / 1e6);
        }
        self.ratios_text(&mut text);
        for warning in &self.warnings {
            let _ = writeln!(text, "\nwarning: {warning}");
        }
        text
    }

    fn ratios_text(&self, text: &mut String) {
        let _ =
            writeln!(text, "\n{:<24}{:>8}{:>8}{:>8}{:>16}{:>8}", "ratio", "median", "min", "max", "interval", "bar");
        for CaseRatio { name, median, min, max, bar, holds, interval } in &self.ratios {
            let interval =
                interval.map_or(String::new(), |Interval { low, high, .. }| format!("{low:.3} to {high:.3}"));
            let holds = if *holds { "holds" } else { "does not hold" };
            let _ = writeln!(text, "{name:<24}{median:>8.3}{min:>8.3}{max:>8.3}{interval:>16}{bar:>8.2}  {holds}");
        }
    }
}

fn ceilings(turns: &[BenchTurn]) -> Vec<Ceiling> {
    let over = |value: fn(&BenchTurn) -> f64| median(&turns.iter().map(value).collect::<Vec<_>>());
    vec![
        limit("precompressed", over(|turn| turn.limit_precompressed)),
        limit("raw-bslz4", over(|turn| turn.limit_raw)),
        stage(
            "loopback-receive",
            over(|turn| turn.stages.receive_frames.bytes_per_s),
            over(|turn| turn.stages.receive_frames.cpu_s_per_byte),
        ),
        stage("pwrite", over(|turn| turn.stages.pwrite.bytes_per_s), over(|turn| turn.stages.pwrite.cpu_s_per_byte)),
        stage(
            "compression",
            over(|turn| turn.stages.compress.bytes_per_s),
            over(|turn| turn.stages.compress.cpu_s_per_byte),
        ),
        stage(
            "loopback-receive-chunks",
            over(|turn| turn.stages.receive_chunks.bytes_per_s),
            over(|turn| turn.stages.receive_chunks.cpu_s_per_byte),
        ),
        stage(
            "simulator",
            over(|turn| turn.stages.simulate.bytes_per_s),
            over(|turn| turn.stages.simulate.cpu_s_per_byte),
        ),
    ]
}

fn limit(name: &'static str, bytes_per_s: f64) -> Ceiling {
    Ceiling { name, bytes_per_s, cpu_s_per_byte: None }
}

fn stage(name: &'static str, bytes_per_s: f64, cpu_s_per_byte: f64) -> Ceiling {
    Ceiling { name, bytes_per_s, cpu_s_per_byte: Some(cpu_s_per_byte) }
}

impl CaseResult {
    fn of(case: PipelineCase, samples: &[&Sample]) -> CaseResult {
        let all = |value: fn(&Sample) -> f64| samples.iter().map(|sample| value(sample)).collect::<Vec<f64>>();
        let mut latencies = Latencies::default();
        samples.iter().for_each(|sample| latencies.add(&sample.measured.latencies));
        let percentiles = latencies.percentiles();
        let ms = |microseconds: f64| microseconds / 1e3;
        CaseResult {
            case: case.to_string(),
            frames: samples[0].measured.frames,
            frames_per_s: median(&all(Sample::frames_per_s)),
            bytes_per_s: median(&all(Sample::bytes_per_s)),
            dropped: samples.iter().map(|sample| sample.measured.dropped).sum(),
            latency_ms: LatencyMs {
                p50: ms(percentiles.p50),
                p99: ms(percentiles.p99),
                p999: ms(percentiles.p999),
                max: ms(percentiles.max),
            },
            cpu_ms_per_frame: median(&all(|sample| sample.measured.cpu_s * 1e3 / sample.measured.frames.max(1) as f64)),
            others: (median(&all(|sample| sample.measured.others)) * 1e3).round() / 1e3,
            samples: all(Sample::frames_per_s),
        }
    }
}
