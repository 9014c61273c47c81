//! The head of a message of frames.

use super::bad_message::{BadMessage, bad};
use super::read::MessageReader;
use varve_detector_hdf5::ElementType;

fn element_code(element: ElementType) -> u8 {
    1 + ElementType::ALL.iter().position(|known| *known == element).expect("all are there") as u8
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameHead {
    /// Number of the first frame, as sent; it is not validated.
    pub number: u64,
    /// Time of exposure in nanoseconds since 1970; 0 if the detector does not report it.
    pub taken: u64,
    pub element: ElementType,
    /// Number of consecutive frames.
    pub frames: u32,
    /// Sides of the source's part of a frame, slowest first.
    pub sides: Vec<u32>,
    /// Name of the filter of pre-filtered chunks; empty for plain elements.
    pub filter: String,
    /// Size of each chunk in bytes; empty for plain elements.
    pub chunks: Vec<u32>,
}

impl FrameHead {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut head = self.number.to_le_bytes().to_vec();
        head.extend(self.taken.to_le_bytes());
        head.extend([element_code(self.element), self.sides.len() as u8, self.filter.len() as u8, 0]);
        head.extend(self.frames.to_le_bytes());
        head.extend((self.chunks.len() as u32).to_le_bytes());
        head.extend([0; 4]);
        head.extend(self.sides.iter().flat_map(|side| side.to_le_bytes()));
        head.extend(self.filter.as_bytes());
        head.extend(self.chunks.iter().flat_map(|bytes| bytes.to_le_bytes()));
        head
    }

    pub(super) fn decode(reader: &mut MessageReader<'_>) -> Result<FrameHead, BadMessage> {
        let (number, taken) = (reader.u64()?, reader.u64()?);
        let (code, rank, filter_bytes) = (reader.u8()?, reader.u8()?, reader.u8()?);
        reader.u8()?;
        let (frames, chunks) = (reader.u32()?, reader.u32()?);
        reader.u32()?;
        let Some(element) = ElementType::ALL.get(usize::from(code).wrapping_sub(1)).copied() else {
            return bad(format!("a frame has elements of type {code}; there are 1 to {}", ElementType::ALL.len()));
        };
        if !(1..=3).contains(&rank) || frames == 0 {
            return bad(format!("a frame message has {rank} sides and {frames} frames from {number} on"));
        }
        if (chunks == 0) != (filter_bytes == 0) {
            return bad("a frame has chunks without a filter's name, or a name without chunks");
        }
        let mut sides = Vec::with_capacity(rank.into());
        for _ in 0..rank {
            sides.push(reader.u32()?);
        }
        let filter = reader.text(filter_bytes.into(), "a filter's name")?;
        // The head contains all of them and is limited in size, so the bytes exist before a list is allocated.
        let Some(listed) = (chunks as usize).checked_mul(4) else { return bad("a frame of too many chunks") };
        let sizes = reader.bytes(listed)?.chunks_exact(4);
        let chunks = sizes.map(|bytes| u32::from_le_bytes(bytes.try_into().expect("4 bytes"))).collect();
        Ok(FrameHead { number, taken, element, frames, sides, filter, chunks })
    }
}
