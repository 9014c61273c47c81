//! Versions of `formats/detector-stream.md`.

/// The oldest supported version.
pub const VERSION: u16 = 1;
/// The newest supported version.
pub const NEWEST_VERSION: u16 = 2;
/// First version in which scalars may be of other kinds than floats.
pub const KINDS_VERSION: u16 = 2;
