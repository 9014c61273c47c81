//! Checks whether a frame can be written. An accepted frame cannot make a writing thread fail.

use super::assemble::Shapes;
use std::ops::Range;
use varve_detector_dataset::dataset_spec::{DatasetSpec, Region};
use varve_detector_dataset::frame::{Blob, Frame, Payload};

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
