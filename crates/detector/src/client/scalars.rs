//! Scalars under way: those that were sent stay here until the service has said that they are in its journal, and the frames
//! that they belong to are safe, too; those of a connection that broke before go out again on the next one.

use super::Outgoing;
use crate::stream::scalars::{ScalarRow, ScalarsHead};
use crate::stream::{BadMessage, KINDS_VERSION};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) struct Coded {
    pub head: ScalarsHead,
    pub rows: Vec<ScalarRow>,
}

impl Coded {
    /// Whether a service of this version takes them.
    pub fn check(&self, version: u16) -> Result<(), BadMessage> {
        if version >= KINDS_VERSION || self.head.is_plain() {
            return Ok(());
        }
        let text = format!(
            "the service speaks version {version} of the stream, which has floats alone; integers and texts need \
             {KINDS_VERSION}: send floats, or use a newer service"
        );
        Err(BadMessage(text))
    }
}

/// What was sent, in the order in which it was.
#[derive(Default)]
pub(crate) struct SentScalars(Vec<SentEntry>);

struct SentEntry {
    /// On which it was sent.
    connection: u16,
    /// Of the PINGs on that connection, the one whose answer says that these are in the journal.
    ping: u64,
    in_journal: bool,
    scalars: Arc<Coded>,
}

impl SentScalars {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// These are sent on a connection, whose PING of this number follows them.
    pub fn add(&mut self, connection: u16, ping: u64, scalars: Arc<Coded>) {
        self.0.push(SentEntry { connection, ping, in_journal: false, scalars });
    }

    /// So many PINGs of a connection have been answered. `kept`: frames that are not safe yet, by first number.
    pub fn hear(&mut self, connection: u16, pongs: u64, kept: &BTreeMap<u64, Arc<Outgoing>>) {
        for sent in self.0.iter_mut().filter(|sent| sent.connection == connection) {
            sent.in_journal |= sent.ping <= pongs;
        }
        self.settle(kept);
    }

    /// Lets go what is safe: a loss of power takes from the journal what no frame was durable after.
    pub fn settle(&mut self, kept: &BTreeMap<u64, Arc<Outgoing>>) {
        let is_kept = |number: u64| {
            kept.range(..=number).next_back().is_some_and(|(_, before)| before.numbers().contains(&number))
        };
        self.0.retain(|sent| !sent.in_journal || sent.scalars.rows.iter().any(|(number, _)| is_kept(*number)));
    }

    /// What must go out again, for its connection broke.
    pub fn take(&mut self, connection: u16) -> Vec<Arc<Coded>> {
        self.0.extract_if(.., |sent| sent.connection == connection).map(|sent| sent.scalars).collect()
    }

    /// What must go out again, for something of it came damaged.
    pub fn take_unsure(&mut self, connection: u16) -> Vec<Arc<Coded>> {
        let is_unsure = |sent: &mut SentEntry| sent.connection == connection && !sent.in_journal;
        self.0.extract_if(.., is_unsure).map(|sent| sent.scalars).collect()
    }
}
