//! A received frame, its status and its times.

use crate::time::Nanoseconds;
use serde::{Deserialize, Serialize};
/// Type of the elements of a frame, in memory and in the file.
pub use varve_detector_hdf5::ElementType;

#[derive(Clone, Debug)]
pub struct Frame {
    /// Numbered from 0.
    pub number: u64,
    /// Time of exposure as the detector reports it; 0 if unknown.
    pub taken: Nanoseconds,
    pub payload: Payload,
}

#[derive(Clone, Debug)]
pub enum Payload {
    /// All elements, row-major, little-endian.
    Plain(Vec<u8>),
    /// Chunks already compressed with the run's filter, row-major; they are written unchanged.
    Filtered(Vec<Blob>),
}

/// A chunk compressed with the run's filter.
#[derive(Clone, Debug)]
pub struct Blob {
    pub bytes: Vec<u8>,
    /// XXH3 of the bytes, if the receiver has already computed it.
    pub xxh3: Option<u64>,
}

impl From<Vec<u8>> for Blob {
    fn from(bytes: Vec<u8>) -> Blob {
        Blob { bytes, xxh3: None }
    }
}

impl Payload {
    /// Bytes of the payload in memory.
    pub fn bytes(&self) -> usize {
        match self {
            Payload::Plain(bytes) => bytes.len(),
            Payload::Filtered(blobs) => blobs.iter().map(|blob| blob.bytes.len()).sum(),
        }
    }
}

/// Guarantee that an acknowledgement of a frame gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AckLevel {
    /// The frame is in the writer's memory.
    Memory,
    /// Chunk and journal record have been handed to the kernel: the frame survives the death of the writer.
    Written,
    /// Chunk and journal record have been synced: the frame survives a power loss.
    Durable,
}

/// Status of a frame; an enumeration of bytes in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum FrameStatus {
    /// The frame was not received; it reads as the fill value.
    Missing = 0,
    Received = 1,
    /// The frame arrived corrupted, or recovery found bytes other than those written. It reads as the fill value.
    Damaged = 2,
    /// The frame was received more than once; the first copy is kept.
    Duplicate = 3,
    /// The frame was received after a frame with a higher number had been published.
    Late = 4,
    /// Some regions were not received; they read as the fill value.
    Partial = 5,
}

impl FrameStatus {
    pub const NAMES: [(&'static str, u8); 6] =
        [("missing", 0), ("received", 1), ("damaged", 2), ("duplicate", 3), ("late", 4), ("partial", 5)];

    /// Whether all of the frame is in the file.
    pub fn is_whole(self) -> bool {
        matches!(self, FrameStatus::Received | FrameStatus::Duplicate | FrameStatus::Late)
    }

    /// # Panics
    /// If the byte is not one of [`FrameStatus::NAMES`].
    pub fn from_byte(byte: u8) -> FrameStatus {
        use FrameStatus::*;
        [Missing, Received, Damaged, Duplicate, Late, Partial][usize::from(byte)]
    }
}

/// Number of frames by status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FrameCounts {
    /// One past the highest frame number received. For a complete run: all frames of a bounded scan.
    pub frames: u64,
    pub received: u64,
    pub missing: u64,
    pub damaged: u64,
    pub duplicate: u64,
    pub late: u64,
    pub partial: u64,
}

/// The five times of a frame; 0 where unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    pub detector: Nanoseconds,
    pub received: Nanoseconds,
    pub compressed: Nanoseconds,
    pub written: Nanoseconds,
    pub durable: Nanoseconds,
}

impl Times {
    pub const NAMES: [&'static str; 5] = ["detector", "received", "compressed", "written", "durable"];

    pub fn as_array(&self) -> [Nanoseconds; 5] {
        [self.detector, self.received, self.compressed, self.written, self.durable]
    }
}
