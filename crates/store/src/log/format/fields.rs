//! Fields of the structures, and the errors of bytes that are none.

/// Sequence number and count, before the rows of a batch.
pub(super) const BATCH_PREFIX_BYTES: usize = 12;

/// Reads fields of known lengths off the front of checked bytes.
pub(super) struct Fields<'a>(pub &'a [u8]);

impl Fields<'_> {
    pub fn array<const LENGTH: usize>(&mut self) -> [u8; LENGTH] {
        let (taken, rest) = self.0.split_at(LENGTH);
        self.0 = rest;
        taken.try_into().expect("split at its length")
    }

    pub fn skip(&mut self, length: usize) {
        self.0 = &self.0[length..];
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }
}

/// Why bytes are not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogFormatError {
    #[error("no record begins here")]
    Magic,
    #[error("its length is wrong")]
    Length,
    #[error("its checksum is wrong")]
    Checksum,
    #[error("its version is {0}")]
    Version(u32),
    #[error("it belongs to another position")]
    Place,
    #[error("a row has unknown flags")]
    Flags,
    #[error("it has no rows")]
    Empty,
    #[error("its group is out of order")]
    Order,
    #[error("it ends before its fsynced length")]
    Cut,
}
