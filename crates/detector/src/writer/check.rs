//! Checks whether a frame can be written. An accepted frame cannot make a writing thread fail.

use crate::dataset_spec::{DatasetSpec, NUMBERS_A_FRAME, PLACES_FREE, PLACES_MAX, Region};
use crate::frame::{Blob, Frame, Payload};
use crate::writer::assemble::Shapes;
use std::ops::Range;

/// Maximum distance of a frame's number above all earlier ones. A corrupted number must not create tables of that
/// length.
const JUMP_MAX: u64 = 1 << 22;

/// `taken`: number of frames taken so far.
pub(super) fn density(number: u64, taken: u64) -> Result<(), String> {
    let most = JUMP_MAX.saturating_add(taken.saturating_mul(NUMBERS_A_FRAME));
    match number <= most {
        true => Ok(()),
        false => Err(format!(
            "a number above {most} is not accepted after {taken} frames: each frame allows {NUMBERS_A_FRAME} more"
        )),
    }
}

/// `taken`: number of frames taken so far.
pub(super) fn gaps(description: &DatasetSpec, number: u64, taken: u64) -> Result<(), String> {
    let each = description.places_a_frame();
    let most = PLACES_FREE.saturating_add(taken.saturating_mul(each));
    match description.places(number) {
        Some(places) if places > most => Err(format!(
            "its last chunk would be place {places} of the index, and one above {most} is not accepted after {taken} \
            frames: each frame allows {each} more"
        )),
        _ => Ok(()),
    }
}

/// `highest`: the highest number so far.
pub(crate) fn near(number: u64, highest: u64) -> Result<(), String> {
    let most = highest.saturating_add(JUMP_MAX);
    match number <= most {
        true => Ok(()),
        false => Err(format!("a number above {most} counts as damaged until a frame with a nearer number arrives")),
    }
}

/// `highest`: the highest number so far.
pub(crate) fn number(description: &DatasetSpec, number: u64, highest: u64) -> Result<(), String> {
    if let Some(frames) = description.frames_max()
        && number >= frames
    {
        return Err(format!("the scan has {frames} frames, numbered from 0"));
    }
    near(number, highest)?;
    let most = PLACES_MAX / description.chunks_per_frame();
    if number >= most {
        return Err(format!("a file holds at most {most} frames of {} chunks", description.chunks_per_frame()));
    }
    if !description.takes_frame(number) {
        return Err(format!(
            "its last chunk would be place {} of the index, which has {PLACES_MAX}: let `scan_max` leave less between frames",
            description.places(number).unwrap_or(u64::MAX)
        ));
    }
    Ok(())
}

pub(super) fn frame(description: &DatasetSpec, shapes: &Shapes, source: u32, frame: &Frame) -> Result<(), String> {
    let region = region(shapes, source)?;
    let chunks = match &frame.payload {
        Payload::Plain(bytes) => {
            let expected = region.shape.iter().product::<u64>() as usize * description.element.size();
            return match bytes.len() == expected {
                true => Ok(()),
                false => Err(format!("it has {} bytes instead of {expected}", bytes.len())),
            };
        }
        Payload::Filtered(chunks) => chunks,
    };
    if description.chunk_group_frames() > 1 {
        return Err(format!(
            "it is compressed, and a chunk holds {} frames: send them together, or uncompressed",
            description.chunk_group_frames()
        ));
    }
    blobs(description, shapes, source, chunks)
}

fn region(shapes: &Shapes, source: u32) -> Result<&Region, String> {
    shapes
        .regions
        .get(source as usize)
        .ok_or_else(|| format!("it is from source {source}, the run has {} sources", shapes.regions.len()))
}

/// Checks chunks that contain these frames together.
pub(super) fn chunk_group(
    description: &DatasetSpec,
    shapes: &Shapes,
    source: u32,
    numbers: &Range<u64>,
    chunks: &[Blob],
) -> Result<(), String> {
    region(shapes, source)?;
    let (chunk_group, _) = description.chunk_group_of(numbers.start);
    let fits = numbers.clone().eq(description.frames_of(chunk_group).take((numbers.end - numbers.start) as usize));
    if numbers.is_empty() || !fits {
        let first = description.frames_of(chunk_group).next().unwrap_or(0);
        return Err(format!(
            "{} frames do not fill a chunk from its beginning: one begins at frame {first}, and holds {}",
            numbers.end - numbers.start,
            description.chunk_group_frames()
        ));
    }
    blobs(description, shapes, source, chunks)
}

fn blobs(description: &DatasetSpec, shapes: &Shapes, source: u32, blobs: &[Blob]) -> Result<(), String> {
    let Some(chunks) = shapes.chunks_of(source) else {
        return Err("it is compressed, but its region does not consist of whole chunks; send it uncompressed".into());
    };
    if blobs.len() != chunks.len() {
        return Err(format!("it has {} chunks instead of {}", blobs.len(), chunks.len()));
    }
    let bytes = description.chunk_bytes();
    let unfit = |length: &usize| !description.takes_chunk(*length as u64);
    match blobs.iter().map(|blob| blob.bytes.len()).find(unfit) {
        Some(length) => Err(format!("a chunk of {length} bytes cannot be {bytes} bytes filtered")),
        // Only the plug-in's library knows its format.
        None if description.plugin.is_some() => Ok(()),
        None => blobs.iter().try_for_each(|blob| {
            let framed = description.filter.check(&blob.bytes, description.element.size(), bytes);
            framed
                .map_err(|why| format!("a chunk does not decode to {bytes} bytes with `{}`: {why}", description.filter))
        }),
    }
}
