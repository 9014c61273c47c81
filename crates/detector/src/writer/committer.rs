//! The committing thread, the only one that knows the catalog: several times a second it syncs what was written, marks it
//! durable in the journal, acknowledges it, and publishes it to readers.

use super::{Shared, now};
use crate::catalog::Catalog;
use crate::commit;
use crate::frame::Level;
use crate::journal::Entry;
use std::io;

pub(super) fn run(shared: &Shared, mut catalog: Catalog) -> io::Result<Catalog> {
    loop {
        let stop = {
            let mut stop = shared.stop.lock();
            if !*stop {
                shared.stopped.wait_for(&mut stop, shared.settings.commit_interval);
            }
            *stop
        };
        match round(shared, &mut catalog, stop) {
            Ok(()) if stop => return Ok(catalog),
            Ok(()) => {}
            Err(error) => {
                shared.fail(format!("committing {}: {error}", shared.path.display()));
                return Err(error);
            }
        }
    }
}

/// One commit. The last one is published by who finishes the run.
fn round(shared: &Shared, catalog: &mut Catalog, last: bool) -> io::Result<()> {
    let rows = std::mem::take(&mut *shared.rows.lock());
    if !rows.is_empty() {
        shared.enter(rows)?;
    }
    let (entries, covered, journal) = {
        let mut ledger = shared.ledger.lock();
        (std::mem::take(&mut ledger.unsynced), ledger.journal.entries(), ledger.journal.handle()?)
    };
    if entries.is_empty() {
        return Ok(());
    }
    shared.file.sync_data()?;
    let durable = now();
    shared.ledger.lock().journal.append(&[Entry::Durable { entries: covered, time: durable }])?;
    journal.sync_data()?;
    let frames = |entry: &Entry| match entry {
        Entry::Frame(frame) => Some(frame.number),
        _ => None,
    };
    let numbers: Vec<u64> = entries.iter().filter_map(frames).collect();
    for entry in &entries {
        catalog.apply(entry, durable);
    }
    shared.progress.lock().durable += numbers.len() as u64;
    (shared.acknowledge)(Level::Durable, &numbers);
    if !last {
        commit::publish(&shared.file, &shared.length, &shared.allocator, catalog)?;
        shared.progress.lock().published = catalog.frames.len() as u64;
    }
    Ok(())
}
