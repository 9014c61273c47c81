//! Builds the file's groups and datasets from a layout's nodes and the run's state.

use super::parts::{frames, status_and_times, text, time_units, whole};
use crate::catalog::Catalog;
use crate::frame::{FrameStatus, Times};
use crate::layout::{
    AttributeSource, BadLayout, ConditionalName, DatasetSource, Layout, LayoutAttribute, LayoutDataset, LayoutGroup,
    Member, SourcePosition, When,
};
use crate::layout_columns::{LayoutColumns, PerFrame};
use std::collections::{BTreeMap, HashMap, HashSet};
use varve_detector_hdf5::{Attribute, Group, TreeNode, Value};

type Result<T> = std::result::Result<T, BadLayout>;

/// # Errors
/// If the layout refers to something that the run does not have, or a hard link has no target.
pub fn tree<'a>(layout: &Layout, catalog: &'a Catalog) -> Result<Group<'a>> {
    let mut placed = HashSet::new();
    let has_default = survey(&layout.root, &mut placed);
    let rest = match has_default || layout.default_to_root {
        true => unplaced(catalog, &placed),
        false => Vec::new(),
    };
    let mut builder = Builder { catalog, has_default, rest, links: BTreeMap::new() };
    let mut root = builder.group(&layout.root, "", true)?;
    let mut objects = HashSet::new();
    collect(&root, "", &mut objects);
    let targets = resolve(&builder.links, &objects)?;
    redirect(&mut root, "", &targets);
    Ok(root)
}

/// Collects the NDAttributes that datasets use, and returns whether a group is the default.
fn survey<'l>(group: &'l LayoutGroup, placed: &mut HashSet<&'l str>) -> bool {
    let mut has_default = group.is_default;
    for member in &group.members {
        match member {
            Member::Group(below) => has_default |= survey(below, placed),
            Member::Dataset(dataset) => {
                if let DatasetSource::Named(named) = &dataset.source {
                    placed.insert(&named.name);
                }
            }
            Member::HardLink(_) => {}
        }
    }
    has_default
}

/// Names of scalars, values and built-in attributes of the run that no dataset of the layout uses.
fn unplaced(catalog: &Catalog, placed: &HashSet<&str>) -> Vec<String> {
    let description = &catalog.description;
    let scalars = catalog.scalars.iter().map(|(scalar, _)| scalar.name.as_str());
    let own = scalars.clone().chain(description.values.keys().map(String::as_str));
    let builtin = PerFrame::BUILTIN.iter().map(|(name, _)| *name);
    let builtin = builtin.filter(|name| !scalars.clone().any(|scalar| scalar == *name));
    let builtin = builtin.filter(|name| !description.values.contains_key(*name));
    own.chain(builtin).filter(|name| !placed.contains(name)).map(str::to_owned).collect()
}

struct Builder<'a> {
    catalog: &'a Catalog,
    has_default: bool,
    /// Names that go to the default group.
    rest: Vec<String>,
    /// Target and position of each hard link, by path.
    links: BTreeMap<String, (String, SourcePosition)>,
}

impl<'a> Builder<'a> {
    fn group(&mut self, group: &LayoutGroup, path: &str, is_root: bool) -> Result<Group<'a>> {
        let mut made = Group { attributes: self.attributes(&group.attributes)?, members: Vec::new() };
        let mut extra = Vec::new();
        for member in &group.members {
            let (name, node) = match member {
                Member::Group(below) => {
                    let path = format!("{path}/{}", below.name);
                    (&below.name, TreeNode::Group(self.group(below, &path, false)?))
                }
                Member::Dataset(dataset) => {
                    // Without a default group, status and times lie beside the frames, because lost frames must be
                    // visible in every file.
                    if dataset.source == DatasetSource::Frames && !self.has_default {
                        extra.extend(status_and_times(self.catalog, Vec::new()));
                    }
                    (&dataset.name, self.dataset(dataset)?)
                }
                Member::HardLink(link) => {
                    self.links.insert(format!("{path}/{}", link.name), (link.target.clone(), link.at));
                    (&link.name, TreeNode::HardLink(link.target.clone()))
                }
            };
            made.members.push((name.clone(), node));
        }
        if group.is_default {
            extra.extend(status_and_times(self.catalog, Vec::new()));
        }
        if group.is_default || (is_root && !self.has_default) {
            for name in std::mem::take(&mut self.rest) {
                let named = ConditionalName { name: name.clone(), when: When::Frame };
                extra.push((name, self.named_dataset(&named, group.at, Vec::new())?));
            }
        }
        for (name, node) in extra {
            if made.members.iter().any(|(known, _)| *known == name) {
                return Err(BadLayout {
                    at: group.at,
                    why: format!(
                        "`{name}` belongs to no dataset, and its default group has a member of that name: rename the \
                        member, or place it with source=\"ndattribute\""
                    ),
                });
            }
            made.members.push((name, node));
        }
        Ok(made)
    }

    fn dataset(&self, dataset: &LayoutDataset) -> Result<TreeNode<'a>> {
        let attributes = self.attributes(&dataset.attributes)?;
        match &dataset.source {
            DatasetSource::Frames => Ok(TreeNode::Dataset(frames(self.catalog, attributes))),
            DatasetSource::Constant(value) => Ok(whole(value.clone(), attributes)),
            DatasetSource::Named(named) => self.named_dataset(named, dataset.at, attributes),
            DatasetSource::Times => Ok(self.times(attributes)),
        }
    }

    fn columns(&self) -> &'a LayoutColumns {
        self.catalog.layout.as_ref().expect("a run with a layout has them")
    }

    /// The table of times, one row per frame.
    fn times(&self, mut attributes: Vec<Attribute>) -> TreeNode<'a> {
        let columns = Attribute { name: "columns".into(), value: Value::texts(&Times::NAMES) };
        for attribute in time_units().into_iter().chain([columns]) {
            if !attributes.iter().any(|known| known.name == attribute.name) {
                attributes.push(attribute);
            }
        }
        TreeNode::Dataset(self.columns().times.dataset(attributes))
    }

    /// The dataset of an NDAttribute. Like areaDetector, it stores the NDAttribute's name in an attribute.
    fn named_dataset(
        &self,
        named: &ConditionalName,
        at: SourcePosition,
        mut attributes: Vec<Attribute>,
    ) -> Result<TreeNode<'a>> {
        if !attributes.iter().any(|attribute| attribute.name == "NDAttrName") {
            attributes.push(text("NDAttrName", &named.name));
        }
        if named.when == When::Frame
            && let Some(values) = self.per_frame(&named.name)
        {
            let column = match values {
                PerFrame::Scalar(column) => column,
                _ => self.columns().named(&named.name).expect("what is no scalar is built in"),
            };
            return Ok(TreeNode::Dataset(column.dataset(attributes)));
        }
        Ok(whole(self.single(named, at)?, attributes))
    }

    fn attributes(&self, attributes: &[LayoutAttribute]) -> Result<Vec<Attribute>> {
        let value = |attribute: &LayoutAttribute| match &attribute.source {
            AttributeSource::Constant(value) => Ok(value.clone()),
            AttributeSource::Named(named) => self.single(named, attribute.at),
        };
        let made =
            |attribute: &LayoutAttribute| Ok(Attribute { name: attribute.name.clone(), value: value(attribute)? });
        attributes.iter().map(made).collect()
    }

    fn per_frame(&self, name: &str) -> Option<PerFrame<'a>> {
        let description = &self.catalog.description;
        if let Some((_, column)) = self.catalog.scalars.iter().find(|(scalar, _)| scalar.name == name) {
            return Some(PerFrame::Scalar(column));
        }
        if description.values.contains_key(name) {
            return None;
        }
        PerFrame::BUILTIN.iter().find(|(builtin, _)| *builtin == name).map(|(_, values)| *values)
    }

    /// A single value of the run or of one of its frames.
    fn single(&self, named: &ConditionalName, at: SourcePosition) -> Result<Value> {
        if let Some(value) = self.catalog.description.values.get(&named.name) {
            return Ok(value.value());
        }
        let values = self.per_frame(&named.name).ok_or_else(|| BadLayout {
            at,
            why: format!(
                "the run has no `{}`: name it in `scalars` if every frame has one, or give its value in `values`",
                named.name
            ),
        })?;
        let mut data = Vec::new();
        let mut has_one = |frame: &u64| {
            data.clear();
            append(values, self.catalog, *frame, &mut data)
        };
        let mut frames = 0..self.catalog.frames();
        let found = match named.when {
            When::Open => frames.find(&mut has_one),
            When::Frame | When::Close => frames.rev().find(&mut has_one),
        };
        if found.is_none() {
            data.clear();
            append(values, self.catalog, u64::MAX, &mut data);
        }
        Ok(Value { datatype: values.datatype(), dims: Vec::new(), data })
    }
}

/// Appends the value of `frame` and returns whether there is one.
fn append(values: PerFrame<'_>, catalog: &Catalog, frame: u64, out: &mut Vec<u8>) -> bool {
    if let PerFrame::Scalar(column) = values {
        out.extend_from_slice(column.get(frame));
        return column.has(frame);
    }
    out.extend(values.of(frame, catalog.time_of(frame, 0)));
    catalog.status_of(frame) != FrameStatus::Missing
}

/// Collects the paths of groups and datasets.
fn collect(group: &Group<'_>, path: &str, objects: &mut HashSet<String>) {
    for (name, node) in &group.members {
        let below = format!("{path}/{name}");
        match node {
            TreeNode::Group(group) => collect(group, &below, objects),
            TreeNode::Dataset(_) => {}
            TreeNode::HardLink(_) | TreeNode::SoftLink(_) => continue,
        }
        objects.insert(below);
    }
}

/// The object that each hard link leads to, possibly through other hard links.
fn resolve(
    links: &BTreeMap<String, (String, SourcePosition)>,
    objects: &HashSet<String>,
) -> Result<HashMap<String, String>> {
    let mut targets = HashMap::new();
    for (path, (target, at)) in links {
        let mut object = target;
        let mut steps = 0;
        while let Some((next, _)) = links.get(object).filter(|_| steps <= links.len()) {
            object = next;
            steps += 1;
        }
        if !objects.contains(object) {
            let why = match links.contains_key(object) {
                true => format!("the hard link to `{target}` is part of a cycle"),
                false => format!("the hard link points to `{target}`, but the file has no `{object}`"),
            };
            return Err(BadLayout { at: *at, why });
        }
        targets.insert(path.clone(), object.clone());
    }
    Ok(targets)
}

fn redirect(group: &mut Group<'_>, path: &str, targets: &HashMap<String, String>) {
    for (name, node) in &mut group.members {
        let below = format!("{path}/{name}");
        match node {
            TreeNode::Group(group) => redirect(group, &below, targets),
            TreeNode::HardLink(target) => target.clone_from(&targets[&below]),
            TreeNode::Dataset(_) | TreeNode::SoftLink(_) => {}
        }
    }
}
