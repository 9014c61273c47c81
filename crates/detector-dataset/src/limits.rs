//! Limits that the parts of a dataset spec and of a layout share.

/// An object header holds attributes and links of less than 64 KiB each; names stay far below.
const NAME_BYTES_MAX: usize = 255;
/// A value is an attribute and must fit one message of an object header, which has less than 64 KiB including the name.
pub const VALUE_BYTES_MAX: usize = 60_000;
/// HDF5 limits a chunk to 4 GiB, and LZ4 does not accept blocks of 2 GiB.
pub const CHUNK_BYTES_MAX: u64 = 1 << 30;

/// Whether a member of a group may have this name.
pub fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && !matches!(name, "." | "..") && !name.contains(['/', '\0'])
}

/// Why no run can start with a dataset spec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the run cannot start: {0}")]
pub struct BadDatasetSpec(pub String);
