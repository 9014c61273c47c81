//! The committing thread, the only one that knows the catalog: several times a second it syncs what was written, marks it
//! durable in the journal, acknowledges it, and publishes it to readers.

use super::ground::Own;
use super::now;
use super::pipeline::{Shared, reached};
use crate::catalog::Catalog;
use crate::commit::Publisher;
use crate::frame::Level;
use crate::journal::{Entry, SlabEntry};
use std::fs::File;
use std::io;

/// What the committer knows, and hands to who finishes the run.
pub(super) struct Committed {
    pub catalog: Catalog,
    pub publisher: Publisher,
    /// Bytes of chunks that readers do not find yet, and for how many rounds there have been such.
    unpublished: u64,
    rounds: u32,
}

/// A round publishes if what came is worth it: a commit is to take no more than this part of it.
const PART: u64 = 64;
/// Otherwise at the last of so many rounds: with three of half a second, readers find what was durable two seconds ago.
const ROUNDS: u32 = 3;

impl Committed {
    pub(super) fn new(catalog: Catalog, publisher: Publisher) -> Committed {
        Committed { catalog, publisher, unpublished: 0, rounds: 0 }
    }

    /// Counts a round, in which anything came or not, and so many bytes of chunks; whether to publish now.
    fn is_due(&mut self, came: bool, bytes: u64) -> bool {
        self.rounds += u32::from(came || self.rounds > 0);
        self.unpublished += bytes;
        self.rounds >= ROUNDS || self.rounds > 0 && self.unpublished >= PART * self.publisher.used()
    }

    /// Makes what is known what readers see.
    pub(super) fn publish(&mut self, file: &File, own: &Own) -> io::Result<u64> {
        (self.unpublished, self.rounds) = (0, 0);
        self.publisher.publish(file, &own.length, &own.allocator, &mut self.catalog)
    }
}

pub(super) fn run(shared: &Shared, own: &Own, mut committed: Committed) -> io::Result<Committed> {
    shared.rounds("committing", |last| round(shared, own, &mut committed, last))?;
    Ok(committed)
}

/// One commit. The last one is published by who finishes the run.
fn round(shared: &Shared, own: &Own, committed: &mut Committed, last: bool) -> io::Result<()> {
    let rows = shared.rows.lock().take();
    if !rows.is_empty() {
        own.enter(rows)?;
    }
    let (entries, covered, journal) = {
        let mut ledger = own.ledger.lock();
        (std::mem::take(&mut ledger.unsynced), ledger.journal.entries(), ledger.journal.handle()?)
    };
    if entries.is_empty() {
        if committed.is_due(false, 0) && !last {
            show(shared, own, committed)?;
        }
        return Ok(());
    }
    shared.file.sync_data()?;
    let durable = now();
    let marked = own.ledger.lock().journal.append(&[Entry::Durable { entries: covered, time: durable }]);
    // Where the journal has no room any more, publishing makes durable, and the run ends.
    match marked.and_then(|()| journal.sync_data()) {
        Ok(()) => {}
        Err(error) => shared.fail(format!("the journal of {}: {error}", shared.path.display())),
    }
    for entry in &entries {
        committed.catalog.apply(entry, durable);
    }
    let slab = |entry: Entry| match entry {
        Entry::Slab(slab) => Some(slab),
        _ => None,
    };
    let slabs: Vec<SlabEntry> = entries.into_iter().filter_map(slab).collect();
    let bytes = slabs.iter().flat_map(|slab| &slab.chunks).map(|chunk| chunk.size).sum();
    let (due, failed) = (committed.is_due(true, bytes), shared.failure().is_some());
    if !failed {
        shared.reach(Level::Durable, reached(&slabs));
    }
    if failed || due && !last {
        show(shared, own, committed)?;
    }
    if failed {
        shared.reach(Level::Durable, reached(&slabs));
    }
    Ok(())
}

/// Publishes in the midst of the run.
fn show(shared: &Shared, own: &Own, committed: &mut Committed) -> io::Result<()> {
    committed.publish(&shared.file, own)?;
    shared.progress.lock().published = committed.catalog.frames();
    Ok(())
}
