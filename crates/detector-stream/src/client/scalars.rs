//! Scalars in flight. Sent scalars stay here until the service has confirmed that they are in its journal and the
//! frames they belong to are safe. Scalars of a connection that broke earlier are sent again on the next one.

use super::outgoing::Outgoing;
use crate::scalars::{ScalarRow, ScalarsHead};
use crate::{BadMessage, KINDS_VERSION};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) struct Coded {
    pub head: ScalarsHead,
    pub rows: Vec<ScalarRow>,
}

impl Coded {
    /// Whether a service of this version accepts these kinds of values.
    pub fn check(&self, version: u16) -> Result<(), BadMessage> {
        if version >= KINDS_VERSION || self.head.is_plain() {
            return Ok(());
        }
        let text = format!(
            "the service uses stream version {version}, which supports only floats; integers and texts need version \
            {KINDS_VERSION}: send floats, or use a newer service"
        );
        Err(BadMessage(text))
    }
}

/// Sent scalars, in the order of sending.
#[derive(Default)]
pub(crate) struct SentScalars(Vec<SentEntry>);

struct SentEntry {
    /// Number of the connection that carried them.
    connection: u16,
    /// Number of the PING on that connection whose PONG confirms that these scalars are in the journal.
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

    /// Adds scalars sent on a connection; PING number `ping` follows them.
    pub fn add(&mut self, connection: u16, ping: u64, scalars: Arc<Coded>) {
        self.0.push(SentEntry { connection, ping, in_journal: false, scalars });
    }

    /// Notes that the first `pongs` PINGs of a connection are answered. `kept`: frames that are not safe yet, by first
    /// number.
    pub fn hear(&mut self, connection: u16, pongs: u64, kept: &BTreeMap<u64, Arc<Outgoing>>) {
        for sent in self.0.iter_mut().filter(|sent| sent.connection == connection) {
            sent.in_journal |= sent.ping <= pongs;
        }
        self.settle(kept);
    }

    /// Drops scalars that are safe. A power loss removes journal entries behind the last durable frame, so scalars stay
    /// until their frames are safe.
    pub fn settle(&mut self, kept: &BTreeMap<u64, Arc<Outgoing>>) {
        let is_kept = |number: u64| {
            kept.range(..=number).next_back().is_some_and(|(_, before)| before.numbers().contains(&number))
        };
        self.0.retain(|sent| !sent.in_journal || sent.scalars.rows.iter().any(|(number, _)| is_kept(*number)));
    }

    /// Takes the scalars to resend because their connection broke.
    pub fn take(&mut self, connection: u16) -> Vec<Arc<Coded>> {
        self.0.extract_if(.., |sent| sent.connection == connection).map(|sent| sent.scalars).collect()
    }

    /// Takes the scalars to resend because some of them arrived damaged.
    pub fn take_unsure(&mut self, connection: u16) -> Vec<Arc<Coded>> {
        let is_unsure = |sent: &mut SentEntry| sent.connection == connection && !sent.in_journal;
        self.0.extract_if(.., is_unsure).map(|sent| sent.scalars).collect()
    }
}
