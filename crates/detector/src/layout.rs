//! The structure of a file by description: XML as areaDetector's HDF5 writer (NDFileHDF5) takes it. What its parser
//! passes over in silence, an element or attribute misspelt, is refused here with its line. What each element becomes
//! is in `formats/layout.md`; [`crate::structure`] makes groups and datasets of it.

mod parse;

use crate::hdf5::Value;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A layout read and found well-formed. It keeps its text, which is how it goes through JSON and into the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Layout {
    text: String,
    pub(crate) root: LayoutGroup,
    /// Where no group is the default, what is placed nowhere goes to the root group.
    pub(crate) default_to_root: bool,
}

/// Line and column, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourcePosition {
    pub line: u32,
    pub column: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LayoutGroup {
    pub name: String,
    pub at: SourcePosition,
    /// Takes what is placed nowhere.
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
    /// The first that has one.
    Open,
    /// All; in an attribute the last, as each replaces the one before.
    Frame,
    /// The last that has one.
    Close,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HardLink {
    pub name: String,
    pub at: SourcePosition,
    pub target: String,
}

/// A layout that no file can be made after.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("layout, line {}, column {}: {why}", at.line, at.column)]
pub struct BadLayout {
    pub at: SourcePosition,
    pub why: String,
}

impl Layout {
    /// # Errors
    /// If it is no XML or no layout; says where and why.
    pub fn parse(text: &str) -> Result<Layout, BadLayout> {
        parse::layout(text)
    }

    /// The path of the group that takes what is placed nowhere, from the root, which is empty; `None` if none does.
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
