//! The structure of a file, given in the XML format of areaDetector's HDF5 writer (NDFileHDF5). areaDetector's parser
//! ignores misspelt elements and attributes; this one refuses them and reports the line. `formats/layout.md` describes
//! the result of each element; [`crate::structure`] builds the groups and datasets.

mod parse;

use crate::hdf5::Value;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A valid layout. It keeps its text, which represents it in JSON and in the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Layout {
    text: String,
    pub(crate) root: LayoutGroup,
    /// Whether objects without a location go to the root group if no group is the default.
    pub(crate) default_to_root: bool,
}

/// Line and column, counted from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourcePosition {
    pub line: u32,
    pub column: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LayoutGroup {
    pub name: String,
    pub at: SourcePosition,
    /// Whether objects without a location go to this group.
    pub is_default: bool,
    pub attributes: Vec<LayoutAttribute>,
    pub members: Vec<Member>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Member {
    Group(LayoutGroup),
    Dataset(LayoutDataset),
    HardLink(HardLink),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LayoutDataset {
    pub name: String,
    pub at: SourcePosition,
    pub attributes: Vec<LayoutAttribute>,
    pub source: DatasetSource,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DatasetSource {
    Frames,
    Constant(Value),
    /// An NDAttribute.
    Named(ConditionalName),
    /// The five times of each frame: areaDetector's `timestamp`, which has no source.
    Times,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LayoutAttribute {
    pub name: String,
    pub at: SourcePosition,
    pub source: AttributeSource,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AttributeSource {
    Constant(Value),
    Named(ConditionalName),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConditionalName {
    pub name: String,
    pub when: When,
}

/// Which frames' values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// The value of the first frame that has one.
    Open,
    /// The values of all frames. In an attribute each value replaces the previous one, so the last remains.
    Frame,
    /// The value of the last frame that has one.
    Close,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HardLink {
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

impl Layout {
    /// # Errors
    /// If it is not XML or not a layout. The error says where and why.
    pub fn parse(text: &str) -> Result<Layout, BadLayout> {
        parse::layout(text)
    }

    /// Path of the group that takes objects without a location; the root's path is empty. `None` if there is no such
    /// group.
    pub(crate) fn default_group(&self) -> Option<String> {
        fn find(group: &LayoutGroup, path: &str) -> Option<String> {
            if group.is_default {
                return Some(path.to_owned());
            }
            group.members.iter().find_map(|member| match member {
                Member::Group(below) => find(below, &format!("{path}/{}", below.name)),
                Member::Dataset(_) | Member::HardLink(_) => None,
            })
        }
        find(&self.root, "").or_else(|| self.default_to_root.then(String::new))
    }
}

impl TryFrom<String> for Layout {
    type Error = BadLayout;

    fn try_from(text: String) -> Result<Layout, BadLayout> {
        Layout::parse(&text)
    }
}

impl From<Layout> for String {
    fn from(layout: Layout) -> String {
        layout.text
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests;
