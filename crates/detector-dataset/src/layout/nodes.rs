//! Nodes of a parsed layout.

use varve_detector_hdf5::Value;

/// Line and column, counted from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourcePosition {
    pub line: u32,
    pub column: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutGroup {
    pub name: String,
    pub at: SourcePosition,
    /// Whether objects without a location go to this group.
    pub is_default: bool,
    pub attributes: Vec<LayoutAttribute>,
    pub members: Vec<Member>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Member {
    Group(LayoutGroup),
    Dataset(LayoutDataset),
    HardLink(HardLink),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutDataset {
    pub name: String,
    pub at: SourcePosition,
    pub attributes: Vec<LayoutAttribute>,
    pub source: DatasetSource,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DatasetSource {
    Frames,
    Constant(Value),
    /// An NDAttribute.
    Named(ConditionalName),
    /// The five times of each frame: areaDetector's `timestamp`, which has no source.
    Times,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutAttribute {
    pub name: String,
    pub at: SourcePosition,
    pub source: AttributeSource,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttributeSource {
    Constant(Value),
    Named(ConditionalName),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionalName {
    pub name: String,
    pub when: When,
}

/// Which frames' values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The value of the first frame that has one.
    Open,
    /// The values of all frames. In an attribute each value replaces the previous one, so the last remains.
    Frame,
    /// The value of the last frame that has one.
    Close,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HardLink {
    pub name: String,
    pub at: SourcePosition,
    pub target: String,
}

/// Error of a layout that cannot be used for a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("layout, line {}, column {}: {why}", at.line, at.column)]
pub struct BadLayout {
    pub at: SourcePosition,
    pub why: String,
}
