//! Columns that a layout file may request for every frame.

use crate::column::Column;
use crate::frame::Times;
use crate::time::Nanoseconds;
use std::ops::Range;
use varve_detector_hdf5::{Datatype, ElementType};

/// A value of each frame.
#[derive(Clone, Copy, Debug)]
pub enum PerFrame<'a> {
    Scalar(&'a Column),
    Number,
    /// Seconds since the EPICS epoch.
    TimeStamp,
    Seconds,
    Nanoseconds,
}

/// Seconds from 1970 to the EPICS epoch in 1990.
const EPICS_EPOCH_SECONDS: u64 = 631_152_000;
const NANOSECONDS: u64 = 1_000_000_000;

impl PerFrame<'_> {
    /// Built-in NDAttributes of areaDetector.
    pub const BUILTIN: [(&'static str, PerFrame<'static>); 4] = [
        ("NDArrayUniqueId", PerFrame::Number),
        ("NDArrayTimeStamp", PerFrame::TimeStamp),
        ("NDArrayEpicsTSSec", PerFrame::Seconds),
        ("NDArrayEpicsTSnSec", PerFrame::Nanoseconds),
    ];

    pub fn datatype(self) -> Datatype {
        match self {
            PerFrame::Scalar(column) => column.datatype().clone(),
            PerFrame::TimeStamp => Datatype::Number(ElementType::F64),
            PerFrame::Number => Datatype::Number(ElementType::U64),
            PerFrame::Seconds | PerFrame::Nanoseconds => Datatype::Number(ElementType::U32),
        }
    }

    /// The value of a frame with the detector time `detector`; for a scalar, the value in its column.
    pub fn of(self, frame: u64, detector: Nanoseconds) -> Vec<u8> {
        let since = |unit| detector / unit - EPICS_EPOCH_SECONDS.min(detector / NANOSECONDS) * (NANOSECONDS / unit);
        match self {
            PerFrame::Scalar(column) => column.get(frame).to_vec(),
            PerFrame::Number => frame.to_le_bytes().to_vec(),
            PerFrame::TimeStamp => {
                let seconds = if detector == 0 { f64::NAN } else { since(1) as f64 / NANOSECONDS as f64 };
                seconds.to_le_bytes().to_vec()
            }
            PerFrame::Seconds => (since(NANOSECONDS) as u32).to_le_bytes().to_vec(),
            PerFrame::Nanoseconds => ((detector % NANOSECONDS) as u32).to_le_bytes().to_vec(),
        }
    }
}

/// areaDetector's built-in attributes and the table of times, as columns of which a commit writes the changed chunks.
#[derive(Debug)]
pub struct LayoutColumns {
    /// In the order of [`PerFrame::BUILTIN`].
    builtin: [Column; 4],
    pub times: Column,
}

/// Limit for the missing frames that are numbered at once. Each takes 8 bytes in memory and in the file.
pub const NUMBERED_MAX: u64 = 1 << 24;

impl LayoutColumns {
    pub fn new() -> LayoutColumns {
        LayoutColumns {
            builtin: PerFrame::BUILTIN.map(|(_, which)| Column::new(which.datatype(), which.of(0, 0))),
            times: Column::wide(Datatype::Number(ElementType::U64), Times::NAMES.len() as u64),
        }
    }

    /// Numbers these frames, received or missing. Frames beyond [`NUMBERED_MAX`], with which a run of an earlier
    /// program may end, stay unnumbered.
    pub fn number(&mut self, frames: Range<u64>) {
        for frame in frames.take(NUMBERED_MAX as usize) {
            self.builtin[0].set(frame, &PerFrame::Number.of(frame, 0));
        }
    }

    pub fn set(&mut self, frame: u64, times: &Times) {
        for ((_, which), column) in PerFrame::BUILTIN.into_iter().zip(&mut self.builtin) {
            column.set(frame, &which.of(frame, times.detector));
        }
        self.times.set(frame, &times.as_array().map(u64::to_le_bytes).concat());
    }

    pub fn columns(&mut self) -> impl Iterator<Item = &mut Column> {
        self.builtin.iter_mut().chain([&mut self.times])
    }

    pub fn named(&self, name: &str) -> Option<&Column> {
        let at = PerFrame::BUILTIN.iter().position(|(builtin, _)| *builtin == name)?;
        self.builtin.get(at)
    }
}
