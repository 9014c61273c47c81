//! The structure of a file, given in the XML format of areaDetector's HDF5 writer (NDFileHDF5). areaDetector's parser
//! ignores misspelt elements and attributes; this one refuses them and reports the line. `formats/layout.md` describes
//! the result of each element; [`crate::structure`] builds the groups and datasets.

mod nodes;
mod parse;

pub use nodes::{
    AttributeSource, ConditionalName, DatasetSource, LayoutAttribute, LayoutDataset, LayoutGroup, Member, When,
};
pub use nodes::{BadLayout, SourcePosition};

use serde::{Deserialize, Serialize};
use std::fmt;

/// A valid layout. It keeps its text, which represents it in JSON and in the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Layout {
    text: String,
    pub root: LayoutGroup,
    /// Whether objects without a location go to the root group if no group is the default.
    pub default_to_root: bool,
}

impl Layout {
    /// # Errors
    /// If it is not XML or not a layout. The error says where and why.
    pub fn parse(text: &str) -> Result<Layout, BadLayout> {
        let (root, default_to_root) = parse::layout(text)?;
        Ok(Layout { text: text.to_owned(), root, default_to_root })
    }

    /// Path of the group that takes objects without a location; the root's path is empty. `None` if there is no such
    /// group.
    pub fn default_group(&self) -> Option<String> {
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
