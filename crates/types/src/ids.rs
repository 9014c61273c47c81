//! Identifiers. Each is a newtype, so the compiler rejects a shard id in place of an inode id.

use std::fmt;

/// One metadata shard of a volume: a fenced LSM table in the store. At most 2^16 of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The number of shards of a volume: a power of two from 1 to 4096, fixed at format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardCount(u16);

impl ShardCount {
    /// The largest count a volume may be formatted with; it bounds a directory's partition map to 512 bytes.
    pub const MAX: u16 = 4096;

    /// `None` unless `count` is a power of two from 1 to [`ShardCount::MAX`].
    pub fn new(count: u16) -> Option<ShardCount> {
        (count.is_power_of_two() && count <= Self::MAX).then_some(ShardCount(count))
    }

    pub fn get(self) -> u16 {
        self.0
    }

    /// log2 of the count: how often a directory's hash space can be halved before every shard holds a partition.
    pub fn depth_max(self) -> u8 {
        self.0.trailing_zeros() as u8
    }

    pub fn all(self) -> impl Iterator<Item = ShardId> {
        (0..self.0).map(ShardId)
    }
}

/// Identifies a file or directory for the lifetime of the volume. The top 16 bits are the shard that created it; the
/// low 48 bits are a counter that never repeats. The root directory is 1 (shard 0, counter 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeId(pub u64);

impl InodeId {
    pub const ROOT: InodeId = InodeId(1);
    /// A larger counter would overflow into the shard's bits.
    pub const COUNTER_MAX: u64 = (1 << 48) - 1;

    /// # Panics
    /// If `counter` is above [`InodeId::COUNTER_MAX`]: 2^48 inodes in a shard are a broken invariant, not an input.
    pub fn new(shard: ShardId, counter: u64) -> InodeId {
        assert!(counter <= Self::COUNTER_MAX, "inode counter {counter} of shard {shard} overflows 48 bits");
        InodeId((u64::from(shard.0) << 48) | counter)
    }

    /// The shard that created this inode. It is the home of a directory, and it holds the inode row of a file once
    /// there is one.
    pub fn shard(self) -> ShardId {
        ShardId((self.0 >> 48) as u16)
    }
}

impl fmt::Display for InodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// Number of one ownership of a shard. The next owner has exactly the next epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// A session of one client process with a server. The client chooses the number at random; 0 is never a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// Counts how often the content in a row was replaced or moved from the row to a backing file. A writer with an older
/// generation must read the row again. The counter wraps around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayoutGeneration(pub u32);

impl LayoutGeneration {
    pub fn next(self) -> LayoutGeneration {
        LayoutGeneration(self.0.wrapping_add(1))
    }
}

/// A volume's identity: 16 random bytes made at format, shown as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct VolumeId(pub [u8; 16]);

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VolumeId({self})")
    }
}

impl std::str::FromStr for VolumeId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let malformed = || format!("a volume id is 32 hexadecimal digits, not {text:?}");
        if text.len() != 32 || !text.is_ascii() {
            return Err(malformed());
        }
        let mut bytes = [0; 16];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).map_err(|_| malformed())?;
        }
        Ok(VolumeId(bytes))
    }
}
