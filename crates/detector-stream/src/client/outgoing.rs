//! Frames and scalars that a client sends.

use crate::scalars::ScalarRow;
use varve_detector_hdf5::ElementType;

/// One frame or several consecutive ones.
#[derive(Clone, Debug)]
pub struct Outgoing {
    pub number: u64,
    pub taken: u64,
    pub element: ElementType,
    pub sides: Vec<u32>,
    pub frames: u32,
    /// Name of the filter of pre-filtered chunks; empty for plain elements.
    pub filter: String,
    /// The plain elements as one part, or one part per chunk.
    pub parts: Vec<Vec<u8>>,
}

impl Outgoing {
    pub(super) fn bytes(&self) -> usize {
        self.parts.iter().map(Vec::len).sum()
    }

    pub(super) fn numbers(&self) -> std::ops::Range<u64> {
        self.number..self.number + u64::from(self.frames)
    }
}

/// Scalars of frames, by name. A missing value is `None`; all other values of one name have the same kind.
#[derive(Clone, Debug)]
pub struct Scalars {
    pub names: Vec<String>,
    pub rows: Vec<ScalarRow>,
}
