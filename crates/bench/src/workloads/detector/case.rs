//! The cases, by the names that later readers rely on.

use super::pipeline::{self, Load, Measured};
use super::{DetectorConfig, Material, h5py, memory, writers};
use crate::Result;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    Precompressed,
    Raw,
    Scalars(usize),
    H5py,
    /// Four processes; into one file, or each into its own.
    Writers {
        one: bool,
    },
    Rate(u32),
}

/// Compressed frames go by so much faster that a run of as many would be over at once.
const PRECOMPRESSED_TIMES: u64 = 3;
/// The scalars of the case that has some.
pub const SCALARS: usize = 30;

impl Case {
    /// Those that go as fast as they can, as they are run in each turn: neighbours that are compared run one after the
    /// other.
    pub const FAST: [Case; 7] = [
        Case::Precompressed,
        Case::Raw,
        Case::H5py,
        Case::Scalars(0),
        Case::Scalars(SCALARS),
        Case::Writers { one: true },
        Case::Writers { one: false },
    ];

    /// Bytes of a frame, as this case counts them.
    pub(super) fn frame_bytes(self, material: &Material) -> f64 {
        if self == Case::Precompressed { material.chunk_bytes() } else { material.frame_bytes() }
    }

    /// `None`: it cannot be measured here.
    pub(super) fn run(
        self,
        config: &DetectorConfig,
        material: &Material,
        directory: &Path,
    ) -> Result<Option<Measured>> {
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
            Case::Precompressed => Load { precompressed: true, frames: config.frames * PRECOMPRESSED_TIMES, ..shared },
            Case::H5py | Case::Writers { .. } => all,
            Case::Raw => shared,
            Case::Scalars(scalars) => Load { scalars, ..shared },
            Case::Rate(rate) => {
                let frames = (f64::from(rate) * config.rate_seconds).ceil() as u64;
                Load { rate: Some(rate.into()), frames: frames.max(2), ..all }
            }
        };
        memory::fetch(load.frames as f64 * material.chunk_bytes())?;
        match (self, &config.python) {
            (Case::H5py, None) => Ok(None),
            (Case::H5py, Some(python)) => h5py::run(python, material, directory, &load).map(Some),
            (Case::Writers { one }, _) => writers::run(&config.program, one, material, directory, &load).map(Some),
            _ => pipeline::run(material, directory, &load).map(Some),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Case::Precompressed => f.write_str("precompressed"),
            Case::Raw => f.write_str("raw-bslz4"),
            Case::Scalars(count) => write!(f, "scalars-{count}"),
            Case::H5py => f.write_str("h5py"),
            Case::Writers { one: true } => write!(f, "writers-{}-one-file", writers::WRITERS),
            Case::Writers { one: false } => write!(f, "writers-{}-four-files", writers::WRITERS),
            Case::Rate(rate) => write!(f, "rate-{rate}"),
        }
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Case, String> {
        if let Some(rate) = name.strip_prefix("rate-").and_then(|rate| rate.parse().ok()) {
            return Ok(Case::Rate(rate));
        }
        let known = Case::FAST.into_iter().find(|case| case.to_string() == name);
        known.ok_or_else(|| {
            let names = Case::FAST.map(|case| case.to_string());
            format!("there is no case `{name}`; there are {} and rate-HZ", names.join(", "))
        })
    }
}
