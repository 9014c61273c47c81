//! The committing thread, the only one that knows the catalog: several times a second it syncs what was written, marks it
//! durable in the journal, acknowledges it, and publishes it to readers.

use super::{Shared, now};
use crate::catalog::Catalog;
use crate::frame::Level;
use crate::journal::Entry;
use std::io;

pub(super) fn run(shared: &Shared, mut catalog: Catalog) -> io::Result<Catalog> {
    shared.rounds("committing", |last| round(shared, &mut catalog, last))?;
    Ok(catalog)
}

impl Shared {
    /// Does `round` at every interval and once more, as the last, when the writing threads have ended.
    pub(super) fn rounds(&self, what: &str, mut round: impl FnMut(bool) -> io::Result<()>) -> io::Result<()> {
        loop {
            let last = {
                let mut stop = self.stop.lock();
                if !*stop {
                    self.stopped.wait_for(&mut stop, self.settings.commit_interval);
                }
                *stop
            };
            match round(last) {
                Ok(()) if last => return Ok(()),
                Ok(()) => {}
                Err(error) => {
                    self.fail(format!("{what} {}: {error}", self.path.display()));
                    return Err(error);
                }
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
        let entries = std::mem::take(&mut ledger.unsynced);
        let journal = ledger.journal.as_ref().expect("who commits has the journal");
        (entries, journal.entries(), journal.handle()?)
    };
    if entries.is_empty() {
        return Ok(());
    }
    shared.file.sync_data()?;
    let durable = now();
    let mark = [Entry::Durable { entries: covered, time: durable }];
    shared.ledger.lock().journal.as_mut().expect("who commits has the journal").append(&mark)?;
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
        shared.publish(catalog)?;
        shared.progress.lock().published = catalog.frames.len() as u64;
    }
    Ok(())
}
