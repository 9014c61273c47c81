//! Encoding of a tree of groups and datasets.

use super::datatype::{Datatype, ElementType};
use super::filter::{self, FilterMessage};
use super::index::{self, ChunkMap, IndexKind};
use super::message::{self, AllocationTime};
use super::object::{self, ObjectHeader};
use super::{FileImage, bytes::Block};
use std::collections::HashMap;

/// A small value: an attribute, or a dataset that never grows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    pub datatype: Datatype,
    /// Empty: a scalar.
    pub dims: Vec<u64>,
    /// Row-major, little-endian.
    pub data: Vec<u8>,
}

impl Value {
    /// ASCII with a terminating zero if the text is ASCII, else UTF-8.
    pub fn text(text: &str) -> Value {
        Value { dims: Vec::new(), ..Value::texts(&[text]) }
    }

    /// See [`Value::text`].
    pub fn texts(texts: &[&str]) -> Value {
        let longest = texts.iter().map(|text| text.len()).max().unwrap_or(0);
        let is_ascii = texts.iter().all(|text| text.is_ascii());
        // HDF5 has no datatype of zero bytes.
        let width = if is_ascii { longest + 1 } else { longest };
        let datatype = if is_ascii { Datatype::Ascii(width) } else { Datatype::Text(width) };
        let mut data = Vec::with_capacity(width * texts.len());
        for (number, text) in texts.iter().enumerate() {
            data.extend_from_slice(text.as_bytes());
            data.resize((number + 1) * width, 0);
        }
        Value { datatype, dims: vec![texts.len() as u64], data }
    }

    pub fn integer(value: i64) -> Value {
        Value { datatype: Datatype::Number(ElementType::I64), dims: Vec::new(), data: value.to_le_bytes().to_vec() }
    }

    pub fn unsigned(value: u64) -> Value {
        Value { datatype: Datatype::Number(ElementType::U64), dims: Vec::new(), data: value.to_le_bytes().to_vec() }
    }

    pub fn float(value: f64) -> Value {
        Value { datatype: Datatype::Number(ElementType::F64), dims: Vec::new(), data: value.to_le_bytes().to_vec() }
    }

    pub fn floats(values: &[f64]) -> Value {
        let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Value { datatype: Datatype::Number(ElementType::F64), dims: vec![values.len() as u64], data }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute {
    pub name: String,
    pub value: Value,
}

#[derive(Debug, Default)]
pub struct Group<'a> {
    pub attributes: Vec<Attribute>,
    pub members: Vec<(String, TreeNode<'a>)>,
}

#[derive(Debug)]
pub enum TreeNode<'a> {
    Group(Group<'a>),
    Dataset(Dataset<'a>),
    /// Another name for the object at this absolute path.
    HardLink(String),
    SoftLink(String),
}

#[derive(Debug)]
pub struct Dataset<'a> {
    pub attributes: Vec<Attribute>,
    pub storage: Storage<'a>,
}

#[derive(Debug)]
pub enum Storage<'a> {
    /// One value, written with the tree.
    Whole(Value),
    Chunked {
        datatype: Datatype,
        chunks: &'a ChunkMap,
        kind: IndexKind,
        filters: Vec<FilterMessage>,
        /// One element; `None` reads as zero.
        fill: Option<Vec<u8>>,
    },
    /// Contiguous plain elements that lie in the file already.
    Placed { datatype: Datatype, dims: Vec<u64>, address: u64 },
}

/// A hard link of the tree has no target.
#[derive(Debug, thiserror::Error)]
#[error(
    "the hard link `{link}` points to `{target}`, which is not an object of the file; give the absolute path of an \
    existing object"
)]
pub struct NoTarget {
    pub link: String,
    pub target: String,
}

/// Data up to this size are stored in the dataset's object header.
const COMPACT_MAX: usize = 4096;

/// Writes the whole tree to `image` and returns the address of the root group's object header.
///
/// # Errors
/// If a hard link has no target.
pub fn encode(image: &mut FileImage, root: &Group<'_>) -> Result<u64, NoTarget> {
    let mut counts = HashMap::new();
    count_links(root, "", &mut counts);
    let mut writer = TreeWriter { image, counts, addresses: HashMap::new() };
    writer.datasets(root, "");
    writer.reserve_groups(root, "");
    writer.groups(root, "")?;
    Ok(writer.addresses[""])
}

/// Path of a member of a group; the root's path is empty.
fn path_below(path: &str, name: &str) -> String {
    format!("{path}/{name}")
}

fn count_links(group: &Group<'_>, path: &str, counts: &mut HashMap<String, u32>) {
    for (name, node) in &group.members {
        match node {
            TreeNode::Group(below) => count_links(below, &path_below(path, name), counts),
            TreeNode::HardLink(target) => *counts.entry(target.trim_end_matches('/').to_owned()).or_insert(0) += 1,
            TreeNode::Dataset(_) | TreeNode::SoftLink(_) => {}
        }
    }
}

struct TreeWriter<'i> {
    image: &'i mut FileImage,
    /// Number of hard links to each path besides its own name.
    counts: HashMap<String, u32>,
    addresses: HashMap<String, u64>,
}

impl TreeWriter<'_> {
    /// Writes the datasets first, because groups contain their addresses.
    fn datasets(&mut self, group: &Group<'_>, path: &str) {
        for (name, node) in &group.members {
            let path = path_below(path, name);
            match node {
                TreeNode::Group(below) => self.datasets(below, &path),
                TreeNode::Dataset(dataset) => {
                    let address = self.dataset(dataset, &path);
                    self.addresses.insert(path, address);
                }
                TreeNode::HardLink(_) | TreeNode::SoftLink(_) => {}
            }
        }
    }

    fn dataset(&mut self, dataset: &Dataset<'_>, path: &str) -> u64 {
        let mut header = ObjectHeader::default();
        match &dataset.storage {
            Storage::Whole(value) => {
                header.message(message::DATASPACE, &message::dataspace(&value.dims, None));
                header.message(message::DATATYPE, &value.datatype.encode());
                header.message(message::FILL_VALUE, &message::fill_value(AllocationTime::Late, None));
                header.message(message::LAYOUT, &self.whole(&value.data));
            }
            Storage::Chunked { datatype, chunks, kind, filters, fill } => {
                self.chunked(&mut header, datatype, chunks, *kind, filters, fill.as_deref());
            }
            Storage::Placed { datatype, dims, address } => {
                header.message(message::DATASPACE, &message::dataspace(dims, None));
                header.message(message::DATATYPE, &datatype.encode());
                header.message(message::FILL_VALUE, &message::fill_value(AllocationTime::Late, None));
                let bytes = dims.iter().product::<u64>() * datatype.size() as u64;
                header.message(message::LAYOUT, &contiguous(*address, bytes));
            }
        }
        for (kind, data) in attributes(&dataset.attributes) {
            header.message(kind, &data);
        }
        if let Some(links) = self.counts.get(path) {
            header.message(message::REFERENCE_COUNT, &message::reference_count(links + 1));
        }
        self.image.append(&header.encode())
    }

    fn chunked(
        &mut self,
        header: &mut ObjectHeader,
        datatype: &Datatype,
        chunks: &ChunkMap,
        kind: IndexKind,
        filters: &[FilterMessage],
        fill: Option<&[u8]>,
    ) {
        let grid = chunks.grid();
        let allocation = match kind {
            IndexKind::Implicit { .. } => AllocationTime::Early,
            _ => AllocationTime::Incremental,
        };
        header.message(message::DATASPACE, &message::dataspace(grid.dims(), Some(grid.max())));
        header.message(message::DATATYPE, &datatype.encode());
        header.message(message::FILL_VALUE, &message::fill_value(allocation, fill));
        header.message(message::LAYOUT, &index::encode(self.image, kind, chunks));
        if !filters.is_empty() {
            header.message(message::FILTERS, &filter::encode(filters));
        }
    }

    /// Data layout, version 3: compact or contiguous.
    fn whole(&mut self, data: &[u8]) -> Vec<u8> {
        let mut block = Block::new();
        if data.len() <= COMPACT_MAX {
            block.byte(3).byte(0).short(data.len() as u16).bytes(data);
        } else {
            return contiguous(self.image.append(data), data.len() as u64);
        }
        block.into_bytes()
    }

    /// Reserves space for all groups before any is written, because groups link to each other and hard links may link
    /// to them from anywhere.
    fn reserve_groups(&mut self, group: &Group<'_>, path: &str) {
        let length = object::length(
            self.messages(group, path, |_| Some(0)).expect("lengths need no target").iter().map(|(_, data)| data.len()),
        );
        let address = self.image.reserve(length);
        self.addresses.insert(path.to_owned(), address);
        for (name, node) in &group.members {
            if let TreeNode::Group(below) = node {
                self.reserve_groups(below, &path_below(path, name));
            }
        }
    }

    fn groups(&mut self, group: &Group<'_>, path: &str) -> Result<(), NoTarget> {
        let mut header = ObjectHeader::default();
        for (kind, data) in self.messages(group, path, |target| self.addresses.get(target).copied())? {
            header.message(kind, &data);
        }
        let address = self.addresses[path];
        self.image.fill(address, &header.encode());
        for (name, node) in &group.members {
            if let TreeNode::Group(below) = node {
                self.groups(below, &path_below(path, name))?;
            }
        }
        Ok(())
    }

    fn messages(
        &self,
        group: &Group<'_>,
        path: &str,
        address: impl Fn(&str) -> Option<u64>,
    ) -> Result<Vec<(u8, Vec<u8>)>, NoTarget> {
        let mut messages =
            vec![(message::LINK_INFO, message::link_info()), (message::GROUP_INFO, message::group_info())];
        for (name, node) in &group.members {
            let below = path_below(path, name);
            let target = match node {
                TreeNode::Group(_) | TreeNode::Dataset(_) => below.as_str(),
                TreeNode::HardLink(target) => target.trim_end_matches('/'),
                TreeNode::SoftLink(target) => {
                    messages.push((message::LINK, message::soft_link(name, target)));
                    continue;
                }
            };
            let address = address(target).ok_or_else(|| NoTarget { link: below.clone(), target: target.to_owned() })?;
            messages.push((message::LINK, message::hard_link(name, address)));
        }
        messages.extend(attributes(&group.attributes));
        if let Some(links) = self.counts.get(path) {
            messages.push((message::REFERENCE_COUNT, message::reference_count(links + 1)));
        }
        Ok(messages)
    }
}

/// Data layout, version 3: contiguous.
fn contiguous(address: u64, bytes: u64) -> Vec<u8> {
    let mut block = Block::new();
    block.byte(3).byte(1).long(address).long(bytes);
    block.into_bytes()
}

/// Messages for an object's attributes, preceded by the attribute info message.
fn attributes(attributes: &[Attribute]) -> impl Iterator<Item = (u8, Vec<u8>)> {
    let encode = |Attribute { name, value: Value { datatype, dims, data } }: &Attribute| {
        (message::ATTRIBUTE, message::attribute(name, datatype, dims, data))
    };
    let info = (!attributes.is_empty()).then(|| (message::ATTRIBUTE_INFO, message::attribute_info()));
    info.into_iter().chain(attributes.iter().map(encode))
}
