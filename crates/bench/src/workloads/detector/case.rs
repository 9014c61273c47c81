//! The cases, by the names that later readers rely on.

use super::pipeline::{self, Load, Measured};
use super::{DetectorConfig, Material, h5py};
use crate::Result;
use std::path::Path;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    Precompressed,
    Raw,
    Scalars(usize),
    H5py,
    Rate(u32),
}

/// Compressed frames go by so much faster that a run of as many would be over at once.
const PRECOMPRESSED_TIMES: u64 = 3;

impl Case {
    /// Those that go as fast as they can, as they are run in each turn: neighbours that are compared run one after the
    /// other.
    pub fn fast() -> Vec<Case> {
        vec![Case::Precompressed, Case::Raw, Case::H5py, Case::Scalars(0), Case::Scalars(30)]
    }

    pub fn name(self) -> String {
        match self {
            Case::Precompressed => "precompressed".into(),
            Case::Raw => "raw-bslz4".into(),
            Case::Scalars(count) => format!("scalars-{count}"),
            Case::H5py => "h5py".into(),
            Case::Rate(rate) => format!("rate-{rate}"),
        }
    }

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
        let load = Load { precompressed: false, frames: config.frames, rate: None, scalars: 0 };
        let load = match self {
            Case::Precompressed => Load { precompressed: true, frames: config.frames * PRECOMPRESSED_TIMES, ..load },
            Case::Raw | Case::H5py => load,
            Case::Scalars(scalars) => Load { scalars, ..load },
            Case::Rate(rate) => {
                let frames = (f64::from(rate) * config.rate_seconds).ceil() as u64;
                Load { rate: Some(rate.into()), frames: frames.max(2), ..load }
            }
        };
        match (self, &config.python) {
            (Case::H5py, None) => Ok(None),
            (Case::H5py, Some(python)) => h5py::run(python, material, directory, &load).map(Some),
            _ => pipeline::run(material, directory, &load).map(Some),
        }
    }
}
