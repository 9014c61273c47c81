//! The committing thread, the only one that uses the catalog. Several times a second it syncs the written chunks, marks
//! them as durable in the journal, acknowledges them, and publishes them to readers.

use super::extent_source::Own;
use super::shared::{PipelineShared, reached};
use std::fs::File;
use std::io;
use std::time::{Duration, Instant};
use varve_detector_dataset::catalog::Catalog;
use varve_detector_dataset::frame::AckLevel;
use varve_detector_dataset::journal_entry::{ChunkGroupEntry, JournalEntry};
use varve_detector_dataset::time::unix_nanos;
use varve_detector_file::commit::{PublishError, publish};

/// State of the committer, handed over when the run is finished.
pub(super) struct CommitterState {
    pub catalog: Catalog,
    /// Bytes that the last commit took in the file.
    commit_bytes: u64,
    /// Bytes of chunks that are not visible to readers yet, and since when anything has been unpublished.
    unpublished: u64,
    since: Option<Instant>,
    /// When the last commit was published.
    published: Instant,
    /// Frames with their missing sources that the journal does not mark as durable; publication makes them durable.
    owed: Vec<(u64, Vec<u32>)>,
}

/// A round publishes only if a commit takes at most this part of the new data.
const PART: u64 = 64;

impl CommitterState {
    pub(super) fn new(catalog: Catalog) -> CommitterState {
        CommitterState {
            catalog,
            commit_bytes: 0,
            unpublished: 0,
            since: None,
            published: Instant::now(),
            owed: Vec::new(),
        }
    }

    /// Decides after a round whether to publish now. `came`: whether the round had any entries; `bytes`: size of their
    /// chunks. `interval`: maximum time between rounds. Commits are hardly closer than that, and data made durable in a
    /// round are published within three. With an interval of half a second, readers find frames that were durable two
    /// seconds ago.
    fn is_due(&mut self, came: bool, bytes: u64, interval: Duration) -> bool {
        if came {
            self.since.get_or_insert_with(Instant::now);
        }
        self.unpublished += bytes;
        let much = self.unpublished >= PART * self.commit_bytes && self.published.elapsed() >= interval * 9 / 10;
        self.since.is_some_and(|since| much || since.elapsed() >= interval * 3 / 2)
    }

    /// Publishes the catalog and returns the end of the file as readers see it.
    pub(super) fn publish(&mut self, file: &File, own: &Own) -> Result<u64, PublishError> {
        let published = publish(own.space(file), &own.room, &mut self.catalog)?;
        (self.commit_bytes, self.unpublished, self.since) = (published.bytes, 0, None);
        self.published = Instant::now();
        Ok(published.end)
    }
}

pub(super) fn run(shared: &PipelineShared, own: &Own, mut committed: CommitterState) -> io::Result<CommitterState> {
    shared.rounds("committing", |last| round(shared, own, &mut committed, last))?;
    Ok(committed)
}

/// One commit. The last one is published when the run is finished, unless the run has failed.
fn round(shared: &PipelineShared, own: &Own, committed: &mut CommitterState, last: bool) -> io::Result<()> {
    if let Err(error) = shared.enter_rows(own) {
        shared.fail_at("the journal of", &error);
    }
    let (entries, covered, journal) = own.take()?;
    let (came, mut bytes) = (!entries.is_empty(), 0);
    if came {
        shared.file.sync_data()?;
        let durable = unix_nanos();
        let marked = own.ledger.lock().journal.append(&[JournalEntry::Durable { entries: covered, time: durable }]);
        // If the journal is full, publication makes frames durable, and the run ends.
        if let Err(error) = marked.and_then(|()| journal.sync_data()) {
            shared.fail_at("the journal of", &error);
        }
        for entry in &entries {
            committed.catalog.apply(entry, durable);
        }
        let chunk_group = |entry: JournalEntry| match entry {
            JournalEntry::ChunkGroup(chunk_group) => Some(chunk_group),
            _ => None,
        };
        let chunk_groups: Vec<ChunkGroupEntry> = entries.into_iter().filter_map(chunk_group).collect();
        bytes = chunk_groups.iter().flat_map(|chunk_group| &chunk_group.chunks).map(|chunk| chunk.size).sum();
        committed.owed.extend(reached(&chunk_groups));
    }
    let (due, failed) = (committed.is_due(came, bytes, shared.settings.commit_interval), shared.failure().is_some());
    if !failed {
        shared.reach(AckLevel::Durable, std::mem::take(&mut committed.owed));
    }
    let shown = match failed && committed.since.is_some() || due && !last {
        true => show(shared, own, committed)?,
        false => true,
    };
    // Another process may report its writes after everything else has ended.
    if !shown && last && own.waits() { round(shared, own, committed, last) } else { Ok(()) }
}

/// Publishes during the run or after its failure; `false`: publication is left to the next round.
fn show(shared: &PipelineShared, own: &Own, committed: &mut CommitterState) -> io::Result<bool> {
    match committed.publish(&shared.file, own) {
        Ok(_) => {}
        // Space is reserved for everything entered, but not for two commits: the next round publishes all of it.
        Err(PublishError::NoRoom(error)) => {
            shared.fail_at("committing", &error);
            return Ok(false);
        }
        Err(PublishError::Io(error)) => return Err(error),
    }
    shared.progress.lock().published = committed.catalog.frames();
    shared.reach(AckLevel::Durable, std::mem::take(&mut committed.owed));
    Ok(true)
}
