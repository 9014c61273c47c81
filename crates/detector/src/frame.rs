//! A frame on its way in, and what is known of it afterwards.

/// What one element of a frame is, in memory as in the file.
pub use crate::hdf5::ElementType;
use serde::{Deserialize, Serialize};

/// Nanoseconds since 1970.
pub type Nanoseconds = u64;

#[derive(Clone, Debug)]
pub struct Frame {
    /// Counted from 0.
    pub number: u64,
    /// When the detector says that it took it; 0 if it does not say.
    pub taken: Nanoseconds,
    pub payload: Payload,
}

#[derive(Clone, Debug)]
pub enum Payload {
    /// All elements, row-major, little-endian.
    Plain(Vec<u8>),
    /// Each chunk as the run's filter makes it, row-major; written as they are.
    Filtered(Vec<Blob>),
}

/// A chunk as the run's filter makes it.
#[derive(Clone, Debug)]
pub struct Blob {
    pub bytes: Vec<u8>,
    /// Their XXH3, where whoever brought them has computed it.
    pub xxh3: Option<u64>,
}

impl From<Vec<u8>> for Blob {
    fn from(bytes: Vec<u8>) -> Blob {
        Blob { bytes, xxh3: None }
    }
}

impl Payload {
    /// Bytes that it takes in memory.
    pub fn bytes(&self) -> usize {
        match self {
            Payload::Plain(bytes) => bytes.len(),
            Payload::Filtered(blobs) => blobs.iter().map(|blob| blob.bytes.len()).sum(),
        }
    }
}

/// What a frame's acknowledgement means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AckLevel {
    /// It is in the writer's memory.
    Memory,
    /// Chunk and journal record have been handed to the kernel: it survives the death of the writer.
    Written,
    /// Chunk and journal record have been synced: it survives the loss of power.
    Durable,
}

/// What became of a frame; in the file an enumeration of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum FrameStatus {
    /// Never came; reads as the fill value.
    Missing = 0,
    Received = 1,
    /// Came, and its bytes were changed on their way, or were not those that were written when the file was recovered;
    /// reads as the fill value.
    Damaged = 2,
    /// Came more than once; the first is kept.
    Duplicate = 3,
    /// Came after a frame of a higher number had been published.
    Late = 4,
    /// Some of its regions never came; they read as the fill value.
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
    /// If it is none of [`FrameStatus::NAMES`].
    pub fn from_byte(byte: u8) -> FrameStatus {
        use FrameStatus::*;
        [Missing, Received, Damaged, Duplicate, Late, Partial][usize::from(byte)]
    }
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
