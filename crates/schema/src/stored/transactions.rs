//! The stored representation of intents, decisions and replies, which transactions over several shards and retries
//! need.

use super::nouns::{EncodedBytes, RawBytes, StoredTime, Unsound, list};
use crate::codec;
use crate::{Change, DecisionRow, IntentRow, ReadRecord, ReplyRecord};
use serde::{Deserialize, Serialize, Serializer};
use varve_types::{InodeId, Name, NameHash, SessionId, ShardId};

/// Keys and rows inside an intent have the same bytes as in the table, so they need no separate format.
#[derive(Serialize, Deserialize)]
pub(crate) enum StoredChange<'a> {
    Put(#[serde(borrow)] EncodedBytes<'a>, #[serde(borrow)] EncodedBytes<'a>),
    Delete(#[serde(borrow)] EncodedBytes<'a>),
    Tally {
        directory: u64,
        #[serde(borrow)]
        name: RawBytes<'a>,
        entries: i64,
        subdirectories: i64,
        at: StoredTime,
    },
}

impl<'a> From<&'a Change> for StoredChange<'a> {
    fn from(change: &'a Change) -> StoredChange<'a> {
        match change {
            Change::Put(key, row) => StoredChange::Put(codec::encode_key(key).into(), codec::encode_row(row).into()),
            Change::Delete(key) => StoredChange::Delete(codec::encode_key(key).into()),
            Change::Tally { directory, name, entries, subdirectories, at } => StoredChange::Tally {
                directory: directory.0,
                name: RawBytes(name.as_bytes()),
                entries: *entries,
                subdirectories: *subdirectories,
                at: (*at).into(),
            },
        }
    }
}

impl StoredChange<'_> {
    pub(crate) fn to_change(&self) -> Result<Change, Unsound> {
        Ok(match self {
            StoredChange::Put(key, row) => {
                let key = codec::decode_key(&key.0).map_err(|e| e.to_string())?;
                // An intent changes a volume's rows, never another intent, so decoding cannot recurse without end.
                if key.kind() == crate::Kind::Intent {
                    return Err("an intent nested in an intent".to_owned());
                }
                let row = codec::decode_row(key.kind(), &row.0).map_err(|e| e.to_string())?;
                Change::put(key, row)
            }
            StoredChange::Delete(key) => Change::Delete(codec::decode_key(&key.0).map_err(|e| e.to_string())?),
            StoredChange::Tally { directory, name, entries, subdirectories, at } => Change::Tally {
                directory: InodeId(*directory),
                name: Name::new(name.0).map_err(|e| e.to_string())?,
                entries: *entries,
                subdirectories: *subdirectories,
                at: at.to_time()?,
            },
        })
    }
}

#[derive(Serialize, Deserialize)]
struct StoredRead<'a>(#[serde(borrow)] EncodedBytes<'a>, Option<u64>);

#[derive(Serialize, Deserialize)]
pub(crate) struct StoredIntent<'a> {
    #[serde(deserialize_with = "list")]
    participants: Vec<u16>,
    #[serde(borrow, deserialize_with = "list")]
    changes: Vec<StoredChange<'a>>,
    #[serde(borrow, deserialize_with = "list")]
    reads: Vec<StoredRead<'a>>,
    #[serde(borrow)]
    reply: Option<StoredReply<'a>>,
}

impl<'a> From<&'a IntentRow> for StoredIntent<'a> {
    fn from(row: &'a IntentRow) -> StoredIntent<'a> {
        StoredIntent {
            participants: row.participants.iter().map(|shard| shard.0).collect(),
            changes: row.changes.iter().map(Into::into).collect(),
            reads: row.reads.iter().map(|read| StoredRead(codec::encode_key(&read.key).into(), read.digest)).collect(),
            reply: row.reply.as_ref().map(Into::into),
        }
    }
}

impl StoredIntent<'_> {
    pub(crate) fn to_row(&self) -> Result<IntentRow, Unsound> {
        Ok(IntentRow {
            participants: self.participants.iter().map(|shard| ShardId(*shard)).collect(),
            changes: self.changes.iter().map(StoredChange::to_change).collect::<Result<_, _>>()?,
            reads: self
                .reads
                .iter()
                .map(|StoredRead(key, digest)| {
                    let key = codec::decode_key(&key.0).map_err(|e| e.to_string())?;
                    Ok(ReadRecord { key, digest: *digest })
                })
                .collect::<Result<_, Unsound>>()?,
            reply: self.reply.as_ref().map(StoredReply::to_record),
        })
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct StoredDecision {
    #[serde(deserialize_with = "list")]
    participants: Vec<u16>,
}

impl From<&DecisionRow> for StoredDecision {
    fn from(row: &DecisionRow) -> StoredDecision {
        StoredDecision { participants: row.participants.iter().map(|shard| shard.0).collect() }
    }
}

impl StoredDecision {
    pub(crate) fn to_row(&self) -> DecisionRow {
        DecisionRow { participants: self.participants.iter().map(|shard| ShardId(*shard)).collect() }
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct StoredReply<'a> {
    session: u64,
    slot: u32,
    number: u64,
    about: Option<(u64, u64)>,
    #[serde(borrow)]
    reply: RawBytes<'a>,
}

impl<'a> From<&'a ReplyRecord> for StoredReply<'a> {
    fn from(record: &'a ReplyRecord) -> StoredReply<'a> {
        StoredReply {
            session: record.session.0,
            slot: record.slot,
            number: record.number,
            about: record.about.map(|(directory, hash)| (directory.0, hash.0)),
            reply: RawBytes(&record.reply),
        }
    }
}

impl StoredReply<'_> {
    pub(crate) fn to_record(&self) -> ReplyRecord {
        ReplyRecord {
            session: SessionId(self.session),
            slot: self.slot,
            number: self.number,
            about: self.about.map(|(directory, hash)| (InodeId(directory), NameHash(hash))),
            reply: self.reply.to_bytes(),
        }
    }
}

/// Serializes as [`StoredReplies`].
pub(crate) struct WrittenReplies<'a>(pub &'a [ReplyRecord]);

impl Serialize for WrittenReplies<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(StoredReply::from))
    }
}

#[derive(Deserialize)]
pub(crate) struct StoredReplies<'a>(#[serde(borrow, deserialize_with = "list")] Vec<StoredReply<'a>>);

impl StoredReplies<'_> {
    pub(crate) fn to_records(&self) -> Vec<ReplyRecord> {
        self.0.iter().map(StoredReply::to_record).collect()
    }
}
