//! Frames that arrive together in pre-filtered chunks of several frames.

use super::check;
use super::outcome::WriteError;
use super::pipeline::Pipeline;
use super::queue::{FramePart, WaitPolicy};
use super::shared::PipelineShared;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use varve_detector_dataset::frame::{AckLevel, Blob, Frame, Payload};
use varve_detector_dataset::time::{Nanoseconds, unix_nanos};
use varve_detector_filters::Decoder;

impl Pipeline {
    /// Submits frames of one source that share pre-filtered chunks: all frames of these chunks, or the first ones if
    /// the others come later or never. If all frames came before, they keep their content.
    ///
    /// # Errors
    /// Same as [`Pipeline::submit`], and [`WriteError::Frame`] if only some of the frames came before.
    pub fn submit_chunk_group(
        &self,
        source: u32,
        (numbers, taken): (Range<u64>, Nanoseconds),
        chunks: Vec<Blob>,
        patience: WaitPolicy,
    ) -> Result<(), WriteError> {
        let shared = &self.shared;
        let (first, last) = (numbers.start, numbers.end.saturating_sub(1));
        let refused = |why| WriteError::Frame { number: first, why };
        shared
            .check_number(last, 0)
            .and_then(|()| check::chunk_group(&shared.description, &self.shapes, source, &numbers, &chunks))
            .map_err(refused)?;
        let (chunk_group, _) = shared.description.chunk_group_of(first);
        if shared.description.frames_of(chunk_group).count() as u64 > numbers.end - first {
            // Further frames may be added later, which requires decoding the chunks. Chunks that cannot be decoded are
            // refused now.
            let apart = |chunk: &Blob| shared.decode(chunk.bytes.clone()).map(drop);
            chunks.iter().try_for_each(apart).map_err(|error| refused(format!("cannot read a chunk: {error}")))?;
        }
        let before: Vec<(u64, Option<AckLevel>)> =
            numbers.clone().map(|number| (number, shared.levels.take(number, source))).collect();
        if before.iter().any(|(_, level)| level.is_some()) {
            return self.came_before(source, &before);
        }
        let mut chunks = Some(chunks);
        let part = |number: u64| {
            // The first part has the chunks of all.
            let payload = Payload::Filtered(chunks.take().unwrap_or_default());
            FramePart { frame: Frame { number, taken, payload }, source, received: unix_nanos() }
        };
        if let Err(refused) = shared.queue.push(numbers.clone().map(part).collect(), patience) {
            numbers.clone().for_each(|number| shared.levels.give_back(number, source));
            return Err(self.refused(&refused, numbers.end - numbers.start));
        }
        let numbers: Vec<u64> = numbers.collect();
        shared.took(&numbers);
        shared.highest.fetch_max(last, Ordering::Relaxed);
        shared.listener.reached(AckLevel::Memory, &numbers);
        Ok(())
    }

    /// Handles frames of which some came before. `before` has the level of each frame before this call.
    fn came_before(&self, source: u32, before: &[(u64, Option<AckLevel>)]) -> Result<(), WriteError> {
        let new = before.iter().filter(|(_, level)| level.is_none());
        new.clone().for_each(|(number, _)| self.shared.levels.give_back(*number, source));
        if new.count() > 0 {
            let came = before.iter().find(|(_, level)| level.is_some()).map_or(0, |(number, _)| *number);
            let why = format!("frame {came} of its chunks arrived before; send the others uncompressed");
            return Err(WriteError::Frame { number: before[0].0, why });
        }
        for (number, level) in before {
            self.mark_duplicate(*number)?;
            level.iter().for_each(|level| self.shared.listener.reached(*level, &[*number]));
        }
        Ok(())
    }
}

impl PipelineShared {
    /// Decodes a filtered chunk.
    pub(super) fn decode(&self, mut filtered: Vec<u8>) -> io::Result<Vec<u8>> {
        let description = &self.description;
        if let Some(plugin) = &self.plugin {
            let stored = std::mem::take(&mut filtered);
            plugin.decode(&stored, &mut filtered).map_err(io::Error::other)?;
        }
        let decoder = Decoder { filter: description.filter, element_bytes: description.element.size() };
        decoder.decode(&filtered, description.chunk_bytes()).map_err(io::Error::other)
    }
}
