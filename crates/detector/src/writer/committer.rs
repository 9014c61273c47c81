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
}

impl Committed {
    /// Makes what is known what readers see.
    pub(super) fn publish(&mut self, file: &File, own: &Own) -> io::Result<u64> {
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
    let failed = shared.failure().is_some();
    if !failed {
        shared.reach(Level::Durable, reached(&slabs));
    }
    if !last || failed {
        committed.publish(&shared.file, own)?;
        shared.progress.lock().published = committed.catalog.frames();
    }
    if failed {
        shared.reach(Level::Durable, reached(&slabs));
    }
    Ok(())
}
