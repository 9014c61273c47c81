//! Names of directory entries and their hashes.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// One component of a path: 1 to 255 bytes, no `/`, no NUL, neither `.` nor `..` (POSIX.1-2024 3.141; bytes above 127
/// are allowed). A request uses the hash of its name many times and stores the name in several places, so the hash is
/// computed once and clones share the bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Name {
    hash: NameHash,
    bytes: Arc<[u8]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("a name may not be empty")]
    Empty,
    #[error("a name may have at most {} bytes", Name::BYTES_MAX)]
    TooLong,
    #[error("a name may hold neither '/' nor NUL")]
    ForbiddenByte,
    #[error("'.' and '..' are not names of entries")]
    Dots,
}

impl Name {
    pub const BYTES_MAX: usize = 255;

    pub fn new(bytes: &[u8]) -> Result<Name, NameError> {
        match bytes {
            [] => Err(NameError::Empty),
            b"." | b".." => Err(NameError::Dots),
            _ if bytes.len() > Self::BYTES_MAX => Err(NameError::TooLong),
            _ if bytes.contains(&b'/') || bytes.contains(&0) => Err(NameError::ForbiddenByte),
            _ => Ok(Name { hash: NameHash::of(bytes), bytes: bytes.into() }),
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn hash(&self) -> NameHash {
        self.hash
    }
}

/// Hashes the bytes, not [`NameHash`]: that has no seed, so a user could choose names that all collide in a map.
impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes.hash(state);
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Name) -> std::cmp::Ordering {
        self.bytes.cmp(&other.bytes)
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Name) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.bytes))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", String::from_utf8_lossy(&self.bytes))
    }
}

/// The position of a name in its directory: the upper 63 bits of XXH3-64 of its bytes, never below [`NameHash::FIRST`].
/// It orders the rows of a directory, determines the partition, and serves as readdir cookie (63 bits, because `d_off`
/// is signed; the values below `FIRST` stand for the start, `.` and `..`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameHash(pub u64);

impl NameHash {
    pub const BITS: u8 = 63;
    pub const FIRST: NameHash = NameHash(16);
    pub const LAST: NameHash = NameHash((1 << 63) - 1);

    pub fn of(name: &[u8]) -> NameHash {
        NameHash((xxhash_rust::xxh3::xxh3_64(name) >> 1).max(Self::FIRST.0))
    }
}
