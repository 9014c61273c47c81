//! The attributes that stat returns, and those that setattr may change.

/// The type of a file, as in the upper bits of `st_mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    Regular,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

/// Permission bits with set-user-id, set-group-id and sticky: the low 12 bits of `st_mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mode(pub u16);

impl Mode {
    pub const MASK: u16 = 0o7777;
    pub const SET_UID: u16 = 0o4000;
    pub const SET_GID: u16 = 0o2000;
    pub const STICKY: u16 = 0o1000;

    /// Keeps the low 12 bits.
    pub fn new(bits: u32) -> Mode {
        Mode(bits as u16 & Self::MASK)
    }

    pub fn bits(self) -> u16 {
        self.0
    }

    pub fn has(self, bits: u16) -> bool {
        self.0 & bits != 0
    }

    pub fn without(self, bits: u16) -> Mode {
        Mode(self.0 & !bits)
    }
}

/// A point in time: seconds since 1970-01-01 UTC (negative before) and nanoseconds from 0 to 999,999,999.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    pub seconds: i64,
    pub nanoseconds: u32,
}

impl Timestamp {
    /// Earlier than every other timestamp: the time of an event that has not happened.
    pub const NEVER: Timestamp = Timestamp { seconds: i64::MIN, nanoseconds: 0 };
}

/// The attributes of one file. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    pub kind: FileKind,
    pub mode: Mode,
    pub uid: u32,
    pub gid: u32,
    /// Number of hard links of a file; for a directory, 2 plus the number of its subdirectories.
    pub nlink: u32,
    pub size: u64,
    /// Device number of a character or block device, else 0 (the encoding of Linux's `dev_t`, 32 bits).
    pub rdev: u32,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub btime: Timestamp,
}

impl Attributes {
    /// Link count of a directory whose subdirectories are not counted. A counted link count is at least 2.
    pub const NLINK_UNKNOWN: u32 = 1;

    /// 512-byte blocks as `st_blocks` counts them, for content whose allocation is not queried from the store.
    pub fn blocks(&self) -> u64 {
        self.size.div_ceil(512)
    }
}

/// A time to set: the server's clock or a given value (utimensat(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    Now,
    To(Timestamp),
}

/// The changes of a setattr; `None` leaves a field unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    pub mode: Option<Mode>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    pub ctime: Option<Timestamp>,
}
