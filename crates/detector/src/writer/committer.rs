//! The committing thread, the only one that knows the catalog: several times a second it syncs what was written, marks it
//! durable in the journal, acknowledges it, and publishes it to readers.

use super::ground::Own;
use super::now;
use super::pipeline::{Shared, reached};
use crate::catalog::Catalog;
use crate::commit::{PublishError, publish};
use crate::frame::Level;
use crate::journal::{Entry, SlabEntry};
use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

/// What the committer knows, and hands to who finishes the run.
pub(super) struct Committed {
    pub catalog: Catalog,
    /// Bytes that the last commit took in the file.
    commit_bytes: u64,
    /// Bytes of chunks that readers do not find yet, and since when there has been anything that they do not.
    unpublished: u64,
    since: Option<Instant>,
    /// When it was last published.
    published: Instant,
    /// Frames, each without the sources that are missing, which the journal does not call durable: a commit does.
    owed: Vec<(u64, Vec<u32>)>,
}

/// A round publishes if what came is worth it: a commit is to take no more than this part of it.
const PART: u64 = 64;

impl Committed {
    pub(super) fn new(catalog: Catalog) -> Committed {
        Committed { catalog, commit_bytes: 0, unpublished: 0, since: None, published: Instant::now(), owed: Vec::new() }
    }

    /// After a round in which anything came or not, and so many bytes of chunks; whether to publish now. `interval`: rounds
    /// are no further apart, commits hardly closer, and what rounds made durable is published within three: with half a
    /// second, readers find what was durable two seconds ago.
    fn is_due(&mut self, came: bool, bytes: u64, interval: Duration) -> bool {
        if came {
            self.since.get_or_insert_with(Instant::now);
        }
        self.unpublished += bytes;
        let much = self.unpublished >= PART * self.commit_bytes && self.published.elapsed() >= interval * 9 / 10;
        self.since.is_some_and(|since| much || since.elapsed() >= interval * 3 / 2)
    }

    /// Makes what is known what readers see; answers the file's end as they see it.
    pub(super) fn publish(&mut self, file: &File, own: &Own) -> Result<u64, PublishError> {
        let published = publish(own.space(file), &own.room, &mut self.catalog)?;
        (self.commit_bytes, self.unpublished, self.since) = (published.bytes, 0, None);
        self.published = Instant::now();
        Ok(published.end)
    }
}

pub(super) fn run(shared: &Shared, own: &Own, mut committed: Committed) -> io::Result<Committed> {
    shared.rounds("committing", |last| round(shared, own, &mut committed, last))?;
    Ok(committed)
}

/// One commit. The last one is published by who finishes the run, unless it has failed.
fn round(shared: &Shared, own: &Own, committed: &mut Committed, last: bool) -> io::Result<()> {
    if let Err(error) = shared.enter_rows(own) {
        shared.fail_at("the journal of", &error);
    }
    let (entries, covered, journal) = own.take()?;
    let (came, mut bytes) = (!entries.is_empty(), 0);
    if came {
        shared.file.sync_data()?;
        let durable = now();
        let marked = own.ledger.lock().journal.append(&[Entry::Durable { entries: covered, time: durable }]);
        // Where the journal has no room any more, publishing makes durable, and the run ends.
        if let Err(error) = marked.and_then(|()| journal.sync_data()) {
            shared.fail_at("the journal of", &error);
        }
        for entry in &entries {
            committed.catalog.apply(entry, durable);
        }
        let slab = |entry: Entry| match entry {
            Entry::Slab(slab) => Some(slab),
            _ => None,
        };
        let slabs: Vec<SlabEntry> = entries.into_iter().filter_map(slab).collect();
        bytes = slabs.iter().flat_map(|slab| &slab.chunks).map(|chunk| chunk.size).sum();
        committed.owed.extend(reached(&slabs));
    }
    let (due, failed) = (committed.is_due(came, bytes, shared.settings.commit_interval), shared.failure().is_some());
    if !failed {
        shared.reach(Level::Durable, std::mem::take(&mut committed.owed));
    }
    let shown = match failed && committed.since.is_some() || due && !last {
        true => show(shared, own, committed)?,
        false => true,
    };
    // Another process may report what it has written when all else has ended.
    if !shown && last && own.waits() { round(shared, own, committed, last) } else { Ok(()) }
}

/// Publishes in the midst of the run, or after its failure; `false`: that is left to the next round.
fn show(shared: &Shared, own: &Own, committed: &mut Committed) -> io::Result<bool> {
    match committed.publish(&shared.file, own) {
        Ok(_) => {}
        // There is room for what has been entered, only not in two commits: the next round publishes all.
        Err(PublishError::NoRoom(error)) => {
            shared.fail_at("committing", &error);
            return Ok(false);
        }
        Err(PublishError::Io(error)) => return Err(error),
    }
    shared.progress.lock().published = committed.catalog.frames();
    shared.reach(Level::Durable, std::mem::take(&mut committed.owed));
    Ok(true)
}
