//! The cases, by names that later readers rely on.

use super::pipeline::{self, Load, PipelineMeasurement};
use super::{DetectorConfig, Material, h5py, memory, writers};
use crate::Result;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipelineCase {
    Precompressed,
    Raw,
    Scalars(usize),
    H5py,
    /// Four processes that write into one file, or each into its own.
    Writers {
        one: bool,
    },
    Rate(u32),
}

/// Compressed frames pass so much faster that a run with the same number would end at once.
const PRECOMPRESSED_TIMES: u64 = 3;
/// The number of scalars of the case with scalars.
pub const SCALARS: usize = 30;

impl PipelineCase {
    /// The cases without a rate, in the order of a turn. Cases that are compared with each other are adjacent.
    pub const FAST: [PipelineCase; 7] = [
        PipelineCase::Precompressed,
        PipelineCase::Raw,
        PipelineCase::H5py,
        PipelineCase::Scalars(0),
        PipelineCase::Scalars(SCALARS),
        PipelineCase::Writers { one: true },
        PipelineCase::Writers { one: false },
    ];

    /// Bytes of a frame, as this case counts them.
    pub(super) fn frame_bytes(self, material: &Material) -> f64 {
        if self == PipelineCase::Precompressed { material.chunk_bytes() } else { material.frame_bytes() }
    }

    /// Returns `None` if the case cannot be measured here.
    pub(super) fn run(
        self,
        config: &DetectorConfig,
        material: &Material,
        directory: &Path,
    ) -> Result<Option<PipelineMeasurement>> {
        let all = Load {
            precompressed: false,
            frames: config.frames,
            first: 0,
            step: 1,
            rate: None,
            scalars: 0,
            connections: 1,
        };
        let shared = Load { connections: config.connections, ..all };
        let load = match self {
            PipelineCase::Precompressed => {
                Load { precompressed: true, frames: config.frames * PRECOMPRESSED_TIMES, ..shared }
            }
            PipelineCase::H5py | PipelineCase::Writers { .. } => all,
            PipelineCase::Raw => shared,
            PipelineCase::Scalars(scalars) => Load { scalars, ..shared },
            PipelineCase::Rate(rate) => {
                let frames = (f64::from(rate) * config.rate_seconds).ceil() as u64;
                Load { rate: Some(rate.into()), frames: frames.max(2), ..all }
            }
        };
        memory::fetch(load.frames as f64 * material.chunk_bytes())?;
        match (self, &config.python) {
            (PipelineCase::H5py, None) => Ok(None),
            (PipelineCase::H5py, Some(python)) => h5py::run(python, material, directory, &load).map(Some),
            (PipelineCase::Writers { one }, _) => {
                writers::run(&config.program, one, material, directory, &load).map(Some)
            }
            _ => pipeline::run(material, directory, &load).map(Some),
        }
    }
}

impl fmt::Display for PipelineCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PipelineCase::Precompressed => f.write_str("precompressed"),
            PipelineCase::Raw => f.write_str("raw-bslz4"),
            PipelineCase::Scalars(count) => write!(f, "scalars-{count}"),
            PipelineCase::H5py => f.write_str("h5py"),
            PipelineCase::Writers { one: true } => write!(f, "writers-{}-one-file", writers::WRITERS),
            PipelineCase::Writers { one: false } => write!(f, "writers-{}-four-files", writers::WRITERS),
            PipelineCase::Rate(rate) => write!(f, "rate-{rate}"),
        }
    }
}

impl FromStr for PipelineCase {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<PipelineCase, String> {
        if let Some(rate) = name.strip_prefix("rate-").and_then(|rate| rate.parse().ok()) {
            return Ok(PipelineCase::Rate(rate));
        }
        let known = PipelineCase::FAST.into_iter().find(|case| case.to_string() == name);
        known.ok_or_else(|| {
            let names = PipelineCase::FAST.map(|case| case.to_string());
            format!("there is no case `{name}`; there are {} and rate-HZ", names.join(", "))
        })
    }
}
