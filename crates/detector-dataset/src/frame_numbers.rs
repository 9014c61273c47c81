//! Which frame numbers a run accepts. Tables have an entry for every number, so sparse numbers cost memory.

use crate::dataset_spec::{DatasetSpec, NUMBERS_A_FRAME, PLACES_FREE, PLACES_MAX};

/// Maximum distance of a frame's number above all earlier ones. A corrupted number must not create tables of that
/// length.
pub const JUMP_MAX: u64 = 1 << 22;

/// `taken`: number of frames taken so far.
pub fn density(number: u64, taken: u64) -> Result<(), String> {
    let most = JUMP_MAX.saturating_add(taken.saturating_mul(NUMBERS_A_FRAME));
    match number <= most {
        true => Ok(()),
        false => Err(format!(
            "a number above {most} is not accepted after {taken} frames: each frame allows {NUMBERS_A_FRAME} more"
        )),
    }
}

/// `taken`: number of frames taken so far.
pub fn gaps(description: &DatasetSpec, number: u64, taken: u64) -> Result<(), String> {
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
pub fn near(number: u64, highest: u64) -> Result<(), String> {
    let most = highest.saturating_add(JUMP_MAX);
    match number <= most {
        true => Ok(()),
        false => Err(format!(
            "a number above {most} counts as damaged until a frame with a nearer number arrives; a run whose first frame \
            has such a number is started with it as `first_frame`"
        )),
    }
}

/// `highest`: the highest number so far.
pub fn number(description: &DatasetSpec, number: u64, highest: u64) -> Result<(), String> {
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
