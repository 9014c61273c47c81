//! The stored representation of the shared types.

use bytes::Bytes;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use varve_types::{Attributes, FileKind, Mode, PartitionMap, ShardCount, Timestamp};

/// Description of an invalid value in a stored row.
pub(crate) type Unsound = String;

/// A byte string, preceded by its length.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct RawBytes<'a>(#[serde(borrow, with = "serde_bytes")] pub(super) &'a [u8]);

impl RawBytes<'_> {
    /// Copies the bytes, so that a row in memory does not keep the whole block that it was read from.
    pub(super) fn to_bytes(self) -> Bytes {
        Bytes::copy_from_slice(self.0)
    }
}

/// [`RawBytes`] that were encoded for this message.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct EncodedBytes<'a>(#[serde(borrow, with = "serde_bytes")] pub(crate) Cow<'a, [u8]>);

impl From<Vec<u8>> for EncodedBytes<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        EncodedBytes(Cow::Owned(bytes))
    }
}

/// Reads a list that takes memory only as its items arrive, whatever length it claims.
pub(crate) fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    struct Items<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Items<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(item) = items.next_element()? {
                list.push(item);
            }
            Ok(list)
        }
    }

    deserializer.deserialize_seq(Items(PhantomData))
}

fn words<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Cow<'static, [u64]>, D::Error> {
    list(deserializer).map(Cow::Owned)
}

/// Seconds and nanoseconds.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct StoredTime(i64, u32);

impl From<Timestamp> for StoredTime {
    fn from(t: Timestamp) -> StoredTime {
        StoredTime(t.seconds, t.nanoseconds)
    }
}

impl StoredTime {
    pub(super) fn to_time(self) -> Result<Timestamp, Unsound> {
        match self.1 {
            0..=999_999_999 => Ok(Timestamp { seconds: self.0, nanoseconds: self.1 }),
            more => Err(format!("invalid time: {more} nanoseconds")),
        }
    }
}

#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) enum StoredKind {
    Regular,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

impl From<FileKind> for StoredKind {
    fn from(kind: FileKind) -> StoredKind {
        match kind {
            FileKind::Regular => StoredKind::Regular,
            FileKind::Directory => StoredKind::Directory,
            FileKind::Symlink => StoredKind::Symlink,
            FileKind::Fifo => StoredKind::Fifo,
            FileKind::Socket => StoredKind::Socket,
            FileKind::CharDevice => StoredKind::CharDevice,
            FileKind::BlockDevice => StoredKind::BlockDevice,
        }
    }
}

impl From<StoredKind> for FileKind {
    fn from(kind: StoredKind) -> FileKind {
        match kind {
            StoredKind::Regular => FileKind::Regular,
            StoredKind::Directory => FileKind::Directory,
            StoredKind::Symlink => FileKind::Symlink,
            StoredKind::Fifo => FileKind::Fifo,
            StoredKind::Socket => FileKind::Socket,
            StoredKind::CharDevice => FileKind::CharDevice,
            StoredKind::BlockDevice => FileKind::BlockDevice,
        }
    }
}

pub(super) fn to_mode(bits: u16) -> Result<Mode, Unsound> {
    if bits & !Mode::MASK == 0 { Ok(Mode(bits)) } else { Err(format!("invalid mode {bits:o}")) }
}

#[derive(Serialize, Deserialize)]
pub(super) struct StoredAttributes {
    kind: StoredKind,
    mode: u16,
    uid: u32,
    gid: u32,
    nlink: u32,
    size: u64,
    rdev: u32,
    atime: StoredTime,
    mtime: StoredTime,
    ctime: StoredTime,
    btime: StoredTime,
}

impl From<&Attributes> for StoredAttributes {
    fn from(a: &Attributes) -> StoredAttributes {
        StoredAttributes {
            kind: a.kind.into(),
            mode: a.mode.bits(),
            uid: a.uid,
            gid: a.gid,
            nlink: a.nlink,
            size: a.size,
            rdev: a.rdev,
            atime: a.atime.into(),
            mtime: a.mtime.into(),
            ctime: a.ctime.into(),
            btime: a.btime.into(),
        }
    }
}

impl StoredAttributes {
    pub(super) fn to_attributes(&self) -> Result<Attributes, Unsound> {
        Ok(Attributes {
            kind: self.kind.into(),
            mode: to_mode(self.mode)?,
            uid: self.uid,
            gid: self.gid,
            nlink: self.nlink,
            size: self.size,
            rdev: self.rdev,
            atime: self.atime.to_time()?,
            mtime: self.mtime.to_time()?,
            ctime: self.ctime.to_time()?,
            btime: self.btime.to_time()?,
        })
    }
}

/// The volume's shard count and the map's words.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredMap<'a>(u16, #[serde(deserialize_with = "words")] Cow<'a, [u64]>);

impl<'a> From<&'a PartitionMap> for StoredMap<'a> {
    fn from(map: &'a PartitionMap) -> StoredMap<'a> {
        StoredMap(map.shards().get(), Cow::Borrowed(map.words()))
    }
}

impl StoredMap<'_> {
    pub(crate) fn to_map(&self) -> Result<PartitionMap, Unsound> {
        ShardCount::new(self.0)
            .and_then(|shards| PartitionMap::from_words(shards, self.1.to_vec()))
            .ok_or_else(|| format!("invalid partition map of {} shards: words {:x?}", self.0, self.1))
    }
}
