//! Whether a frame can be written. What passes here cannot make a thread of the writer fail.

use crate::description::Description;
use crate::frame::{Frame, Payload};
use crate::hdf5::index::Element;
use crate::writer::assemble::Shapes;

/// The index of an array has 32 bits.
const CHUNKS_MAX: u64 = u32::MAX as u64;
/// How far a frame's number may be above all before it. A number read wrong must not make tables of that length.
const JUMP_MAX: u64 = 1 << 22;

/// `highest`: the highest number so far.
pub(super) fn number(description: &Description, number: u64, highest: u64) -> Result<(), String> {
    if let Some(frames) = description.frames_max()
        && number >= frames
    {
        return Err(format!("the scan has {frames} frames, numbered from 0"));
    }
    if number > highest + JUMP_MAX || number >= CHUNKS_MAX / description.chunks_per_frame() {
        return Err(format!("the highest number so far is {highest}; one so far above it is taken for damage"));
    }
    Ok(())
}

pub(super) fn frame(description: &Description, shapes: &Shapes, source: u32, frame: &Frame) -> Result<(), String> {
    let Some(region) = shapes.regions.get(source as usize) else {
        return Err(format!("it comes from source {source}, the run has {}", shapes.regions.len()));
    };
    let blobs = match &frame.payload {
        Payload::Plain(bytes) => {
            let expected = region.shape.iter().product::<u64>() as usize * description.element.size();
            return match bytes.len() == expected {
                true => Ok(()),
                false => Err(format!("it has {} bytes instead of {expected}", bytes.len())),
            };
        }
        Payload::Filtered(blobs) => blobs,
    };
    if description.slab_frames() > 1 {
        return Err("it is compressed, but a chunk holds several frames; send it plain".into());
    }
    let Some(chunks) = shapes.chunks_of(source) else {
        return Err("it is compressed, but its region is not made of whole chunks; send it plain".into());
    };
    if blobs.len() != chunks.len() {
        return Err(format!("it has {} chunks instead of {}", blobs.len(), chunks.len()));
    }
    let bytes = description.chunk_bytes();
    let most = if description.is_unfiltered() { bytes as u64 } else { Element::new(true, bytes as u64).size_max() };
    let unfit =
        |length: &usize| *length == 0 || *length as u64 > most || (description.is_unfiltered() && *length != bytes);
    match blobs.iter().map(|blob| blob.bytes.len()).find(unfit) {
        Some(length) => Err(format!("a chunk of {length} bytes cannot be one of {bytes} filtered")),
        None => Ok(()),
    }
}
