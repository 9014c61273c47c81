//! The outcome of a decision, and what one run of a verb keeps from one decision to the next.

use super::opens_elsewhere::{AskedFiles, Grant};
use super::resident::BatchNumber;
use super::transaction_parts::PreparedRemoval;
use varve_env::clock::Instant;
use varve_posix::{Effect, Refusal};
use varve_schema::{Change, Key, ReplyRecord};
use varve_types::{InodeId, Timestamp};

/// State of one run of a verb: what it has locked and stored so far.
pub(super) struct TxnContext {
    /// The id for the inode that the verb creates, if it creates one.
    pub fresh: InodeId,
    /// Rows of `fresh` already stored at its home.
    pub placed: Option<Vec<Key>>,
    /// The time in these rows, with which the name is decided too.
    pub placed_at: Option<Timestamp>,
    /// A name for `fresh` may be decided: then its rows stay.
    pub named: bool,
    /// Rows of a directory that another shard keeps locked until its removal is decided.
    pub held: Option<PreparedRemoval>,
    /// All inodes are taken to be open.
    pub as_if_open: bool,
    /// Answers of other shards about open files.
    pub asked: AskedFiles,
    /// `Busy` goes to the client, which asks again: the change may be decided, or rows may be stored at another shard.
    pub ends_busy: bool,
    /// The missing inode when rows of other shards contradicted each other.
    pub torn: Option<InodeId>,
}

impl TxnContext {
    pub fn of(fresh: InodeId) -> TxnContext {
        TxnContext {
            fresh,
            placed: None,
            placed_at: None,
            named: false,
            held: None,
            as_if_open: false,
            asked: AskedFiles::default(),
            ends_busy: false,
            torn: None,
        }
    }
}

/// A decision in its own shard.
pub(super) struct Decided<O> {
    pub outcome: DecisionOutcome<O>,
    /// The latest batch that holds a change of a row seen.
    pub newest: BatchNumber,
    /// A use of a file that is still to be registered at another shard.
    pub grant: Option<Grant>,
}

/// The outcome of a decision in its own shard.
pub(super) enum DecisionOutcome<O> {
    /// No decision: these keys must be fetched first.
    Missing(Vec<Key>),
    /// No decision: the shards in the numbers of these files must be asked first whether they are open.
    Unasked(Vec<InodeId>),
    /// No decision: another session may hold a lease that it ends, until that time.
    Leased {
        until: Instant,
    },
    Refused(Refusal),
    Answered(O),
    Done {
        outcome: O,
        effects: Vec<Effect>,
        batch: BatchNumber,
    },
    /// The rows of a fresh inode must be stored at its home before its entry is stored here.
    FreshElsewhere {
        rows: Vec<Change>,
        at: Timestamp,
    },
    Several {
        own: Vec<Change>,
        elsewhere: Vec<Change>,
        effects: Vec<Effect>,
        outcome: O,
        reply: Option<ReplyRecord>,
        /// Files with rows at other shards that the decision takes to be open nowhere.
        unopened: Vec<InodeId>,
    },
}
