//! Reports of joined processes about what they have written.

use super::Run;
use crate::sink::RunSink;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use varve_detector_dataset::frame::AckLevel;
use varve_detector_dataset::journal_entry::{FrameEntry, JournalEntry};
use varve_detector_stream::{ErrorCode, StreamRefusal};

/// How long to wait for an earlier copy of the report that another thread may still be applying. It is shorter than the
/// writer's timeout, so that the writer receives the request to repeat its report.
const BEFORE_WAIT: Duration = Duration::from_secs(30);
/// Poll interval of that wait.
const LOOK: Duration = Duration::from_millis(2);

impl Run {
    /// Applies a joined process's report. A frame that another process sent before becomes a duplicate. If the report
    /// is repeated (`again`), all its frames are in the journal on return, whichever thread applies them.
    pub fn report(&self, entries: Vec<JournalEntry>, again: bool) -> Result<(), StreamRefusal> {
        let (mut new, mut fresh, mut before) = (Vec::new(), Vec::new(), Vec::new());
        let mut claims = self.claims.lock();
        for entry in entries {
            match entry {
                JournalEntry::ChunkGroup(chunk_group) => {
                    // Every frame is claimed, also after one that was not new.
                    let numbers = chunk_group.frames.iter().map(|frame| frame.number);
                    let claimed: Vec<u64> = numbers.filter(|number| claims[0].insert(*number)).collect();
                    if !claimed.is_empty() || chunk_group.again {
                        fresh.extend(claimed);
                        new.push(JournalEntry::ChunkGroup(chunk_group));
                    } else if again {
                        before.extend(chunk_group.frames);
                    } else {
                        self.tallies.duplicate.fetch_add(chunk_group.frames.len() as u64, Relaxed);
                        new.extend(
                            chunk_group.frames.iter().map(|frame| JournalEntry::Duplicate { frame: frame.number }),
                        );
                    }
                }
                JournalEntry::Duplicate { .. } | JournalEntry::Damaged { .. } if again => {}
                entry => new.push(entry),
            }
        }
        drop(claims);
        if let Err(refusal) = self.with(|sink| sink.report(new)) {
            self.give_back(&fresh);
            return Err(refusal);
        }
        self.await_written(&before)
    }

    /// Releases the claims on those of these frames that the writer does not have, so that they can be sent again.
    fn give_back(&self, fresh: &[u64]) {
        let lacks = |sink: &RunSink| {
            let lacking = fresh.iter().copied().filter(|number| sink.level(*number, 0).is_none());
            Ok(lacking.collect::<Vec<u64>>())
        };
        // A run that is over takes no more frames.
        let lacking = self.with(lacks).unwrap_or_default();
        let mut claims = self.claims.lock();
        lacking.into_iter().for_each(|number| claims[0].remove(number));
    }

    /// Waits until frames that were claimed before are in the journal.
    ///
    /// # Errors
    /// If the wait times out, or their claims were released: the process must report them once more.
    fn await_written(&self, frames: &[FrameEntry]) -> Result<(), StreamRefusal> {
        let deadline = Instant::now() + BEFORE_WAIT;
        for frame in frames {
            while !self.with(|sink| Ok(is_written(sink, frame)))? {
                if let Some(failure) = self.with(|sink| Ok(sink.state().failure))? {
                    return Err(StreamRefusal::new(ErrorCode::Failed, failure));
                }
                if Instant::now() > deadline || !self.claims.lock()[0].contains(frame.number) {
                    let text = format!("frame {} was reported before and is not in the journal yet", frame.number);
                    return Err(StreamRefusal::new(ErrorCode::Stopping, text));
                }
                std::thread::sleep(LOOK);
            }
        }
        Ok(())
    }
}

/// Whether some part of a frame has been received, and every received part is in the journal.
fn is_written(sink: &RunSink, frame: &FrameEntry) -> bool {
    let sources = sink.description().regions().len() as u32;
    let mut come = (0..sources).filter_map(|source| sink.level(frame.number, source)).peekable();
    come.peek().is_some() && come.all(|level| level >= AckLevel::Written)
}

#[cfg(test)]
mod tests;
