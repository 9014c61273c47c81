//! Parser from XML to layout nodes.

use super::nodes::{
    AttributeSource, BadLayout, ConditionalName, DatasetSource, HardLink, LayoutAttribute, LayoutDataset, LayoutGroup,
    Member, SourcePosition, When,
};
use crate::limits::{VALUE_BYTES_MAX, is_name};
use roxmltree::{Document, Node, ParsingOptions};
use varve_detector_hdf5::{Datatype, ElementType, Value};

/// Layouts have some kilobytes; a run's journal begins with its layout.
const TEXT_BYTES_MAX: usize = 1 << 20;
/// Limit for elements and the text between them: ten times the largest known layout. Each name and link is compared
/// with all others.
const NODES_MAX: u32 = 10_000;
/// Limit for the nesting of groups, which are walked recursively.
const DEPTH_MAX: usize = 64;

type Result<T> = std::result::Result<T, BadLayout>;

/// The root, and whether objects without a location go to it if no group is the default.
pub fn layout(text: &str) -> Result<(LayoutGroup, bool)> {
    let nowhere = |why| BadLayout { at: SourcePosition { line: 1, column: 1 }, why };
    if text.len() > TEXT_BYTES_MAX {
        return Err(nowhere(format!("the text has more than {TEXT_BYTES_MAX} bytes")));
    }
    // Document types are refused, because their entities could expand to any length.
    let options = ParsingOptions { nodes_limit: NODES_MAX, ..ParsingOptions::default() };
    let document = Document::parse_with_options(text, options).map_err(|error| {
        if matches!(error, roxmltree::Error::NodesLimitReached) {
            return nowhere(format!("it has more than {NODES_MAX} elements and texts"));
        }
        let at = SourcePosition { line: error.pos().row, column: error.pos().col };
        BadLayout { at, why: format!("cannot parse the XML: {error}") }
    })?;
    let root = document.root_element();
    // areaDetector does not check this name, and some of its own examples have `xml`.
    if !matches!(root.tag_name().name(), "hdf5_layout" | "xml") {
        return Err(bad(root, format!("the root element is `{}`; it must be `hdf5_layout`", root.tag_name().name())));
    }
    known(root, &["auto_ndattr_default"])?;
    let default_to_root = flag(root, "auto_ndattr_default", true)?;
    let mut parser = Parser::default();
    let root = parser.group(root, 0)?;
    let Some(frames) = parser.choose()? else {
        return Err(BadLayout {
            at: root.at,
            why: "no dataset has source=\"detector\"; the frames need one with det_default=\"true\"".into(),
        });
    };
    if let Some(other) = parser.frames.iter().find(|other| other.at != frames) {
        return Err(BadLayout {
            at: other.at,
            why: "this is a second dataset with source=\"detector\"; a run has one dataset of frames: \
                  leave the other out, or record what belongs there as a run of its own; frames are not sent to one of \
                  several datasets by an NDAttribute (`detector_data_destination`)"
                .into(),
        });
    }
    Ok((root, default_to_root))
}

/// A dataset with source="detector".
struct Frames {
    at: SourcePosition,
    is_default: bool,
}

#[derive(Default)]
struct Parser {
    frames: Vec<Frames>,
    has_default_group: bool,
}

impl Parser {
    /// Chooses the dataset for the frames: the default one, or the only one.
    fn choose(&self) -> Result<Option<SourcePosition>> {
        let mut defaults = self.frames.iter().filter(|frames| frames.is_default);
        let chosen = defaults.next();
        match defaults.next() {
            Some(second) => Err(BadLayout { at: second.at, why: "a second dataset has det_default=\"true\"".into() }),
            None => Ok(chosen.or(self.frames.first()).map(|frames| frames.at)),
        }
    }

    /// Parses a group or the root element.
    fn group(&mut self, node: Node, depth: usize) -> Result<LayoutGroup> {
        let is_root = depth == 0;
        if depth > DEPTH_MAX {
            return Err(bad(node, format!("groups are nested more than {DEPTH_MAX} deep")));
        }
        let mut group = LayoutGroup {
            name: String::new(),
            at: position(node),
            is_default: false,
            attributes: Vec::new(),
            members: Vec::new(),
        };
        if !is_root {
            known(node, &["name", "ndattr_default"])?;
            group.name = name(node)?;
            group.is_default = flag(node, "ndattr_default", false)?;
            if group.is_default && std::mem::replace(&mut self.has_default_group, true) {
                return Err(bad(node, "a second group has ndattr_default=\"true\"; only one can be the default"));
            }
        }
        for child in children(node)? {
            let member = match child.tag_name().name() {
                "attribute" => {
                    push_attribute(&mut group.attributes, child)?;
                    continue;
                }
                "global" if is_root => {
                    global(child)?;
                    continue;
                }
                "group" => Member::Group(self.group(child, depth + 1)?),
                "dataset" => Member::Dataset(self.dataset(child)?),
                "hardlink" => Member::HardLink(hard_link(child)?),
                other => {
                    let may = if is_root { "`group`, `global`" } else { "`group`, `dataset`, `attribute`, `hardlink`" };
                    return Err(bad(child, format!("`{other}` is not allowed here in a layout; allowed are {may}")));
                }
            };
            if group.members.iter().any(|known| known.name() == member.name()) {
                let within = if is_root { "the root".to_owned() } else { format!("group `{}`", group.name) };
                return Err(bad(child, format!("{within} has two members called `{}`", member.name())));
            }
            group.members.push(member);
        }
        Ok(group)
    }

    fn dataset(&mut self, node: Node) -> Result<LayoutDataset> {
        known(node, &["name", "source", "type", "value", "ndattribute", "det_default", "when"])?;
        let name = name(node)?;
        let is_default = flag(node, "det_default", false)?;
        let source = match node.attribute("source") {
            Some("detector") => {
                self.frames.push(Frames { at: position(node), is_default });
                DatasetSource::Frames
            }
            Some("constant") => DatasetSource::Constant(constant(node)?),
            // areaDetector fills a dataset of this name itself, whatever its source attribute is.
            Some("ndattribute") | None if name == "timestamp" && node.attribute("ndattribute").is_none() => {
                DatasetSource::Times
            }
            Some("ndattribute") => DatasetSource::Named(named(node)?),
            source => return Err(unknown_source(node, source, "`detector`, `constant` or `ndattribute`")),
        };
        if is_default && source != DatasetSource::Frames {
            return Err(bad(node, "det_default=\"true\" is for a dataset with source=\"detector\""));
        }
        let mut attributes = Vec::new();
        for child in children(node)? {
            match child.tag_name().name() {
                "attribute" => push_attribute(&mut attributes, child)?,
                other => return Err(bad(child, format!("`{other}` is not allowed in a dataset; only `attribute` is"))),
            }
        }
        Ok(LayoutDataset { name, at: position(node), attributes, source })
    }
}

impl Member {
    fn name(&self) -> &str {
        match self {
            Member::Group(group) => &group.name,
            Member::Dataset(dataset) => &dataset.name,
            Member::HardLink(link) => &link.name,
        }
    }
}

fn push_attribute(attributes: &mut Vec<LayoutAttribute>, node: Node) -> Result<()> {
    known(node, &["name", "source", "type", "value", "ndattribute", "when"])?;
    childless(node)?;
    let name = name(node)?;
    if attributes.iter().any(|known| known.name == name) {
        return Err(bad(node, format!("the attribute `{name}` is given twice")));
    }
    let source = match node.attribute("source") {
        Some("constant") => {
            let value = constant(node)?;
            if value.data.len() > VALUE_BYTES_MAX {
                return Err(bad(node, format!("an attribute has at most {VALUE_BYTES_MAX} bytes; make it a dataset")));
            }
            AttributeSource::Constant(value)
        }
        Some("ndattribute") => AttributeSource::Named(named(node)?),
        source => return Err(unknown_source(node, source, "`constant` or `ndattribute`")),
    };
    attributes.push(LayoutAttribute { name, at: position(node), source });
    Ok(())
}

fn unknown_source(node: Node, source: Option<&str>, may: &str) -> BadLayout {
    match source {
        Some(source) => bad(node, format!("source=\"{source}\" is unknown; give {may}")),
        None => bad(node, format!("`source` is missing; give {may}")),
    }
}

fn hard_link(node: Node) -> Result<HardLink> {
    known(node, &["name", "target"])?;
    childless(node)?;
    let target = required(node, "target")?;
    if target.trim_matches('/').is_empty() {
        return Err(bad(
            node,
            "`target` is empty or the root itself; give the path of an object of the file, from the root on",
        ));
    }
    let target = format!("/{}", target.trim_matches('/'));
    Ok(HardLink { name: name(node)?, at: position(node), target })
}

/// Parses the NDAttribute that selects the dataset for the frames. With a single dataset of frames it has no effect.
fn global(node: Node) -> Result<()> {
    known(node, &["name", "ndattribute"])?;
    childless(node)?;
    required(node, "ndattribute")?;
    match required(node, "name")? {
        "detector_data_destination" => Ok(()),
        other => Err(bad(node, format!("the global `{other}` is unknown; there is only `detector_data_destination`"))),
    }
}

fn named(node: Node) -> Result<ConditionalName> {
    let name = required(node, "ndattribute")?.to_owned();
    let when = match node.attribute("when") {
        None | Some("OnFileWrite" | "OnFrame") => When::Frame,
        Some("OnFileOpen") => When::Open,
        Some("OnFileClose") => When::Close,
        Some(other) => {
            let why = format!("when=\"{other}\" is unknown; give `OnFileOpen`, `OnFileClose` or `OnFileWrite`");
            return Err(bad(node, why));
        }
    };
    Ok(ConditionalName { name, when })
}

/// A constant; several numbers are separated by commas.
fn constant(node: Node) -> Result<Value> {
    let text = node.attribute("value").unwrap_or_default();
    let numbers = |datatype: ElementType, data: Vec<u8>, count: usize| Value {
        datatype: Datatype::Number(datatype),
        dims: if count == 1 { Vec::new() } else { vec![count as u64] },
        data,
    };
    let wrong = |part: &str, kind| bad(node, format!("value=\"{text}\": `{part}` is not a valid {kind}"));
    let parts = text.split(',').map(str::trim);
    match node.attribute("type") {
        None | Some("string") => Ok(Value::text(text)),
        Some("int") => {
            let parsed = parts.map(|part| part.parse::<i64>().map_err(|_| wrong(part, "integer of 64 bits")));
            let parsed = parsed.collect::<Result<Vec<i64>>>()?;
            // 32-bit integers as areaDetector writes them, if all numbers fit.
            let narrow: Option<Vec<i32>> = parsed.iter().map(|number| i32::try_from(*number).ok()).collect();
            Ok(match narrow {
                Some(narrow) => {
                    numbers(ElementType::I32, narrow.iter().flat_map(|n| n.to_le_bytes()).collect(), narrow.len())
                }
                None => numbers(ElementType::I64, parsed.iter().flat_map(|n| n.to_le_bytes()).collect(), parsed.len()),
            })
        }
        Some("float") => {
            let parsed = parts.map(|part| part.parse::<f64>().map_err(|_| wrong(part, "number")));
            let parsed = parsed.collect::<Result<Vec<f64>>>()?;
            Ok(numbers(ElementType::F64, parsed.iter().flat_map(|n| n.to_le_bytes()).collect(), parsed.len()))
        }
        Some(other) => Err(bad(node, format!("type=\"{other}\" is unknown; give `int`, `float` or `string`"))),
    }
}

fn position(node: Node) -> SourcePosition {
    let at = node.document().text_pos_at(node.range().start);
    SourcePosition { line: at.row, column: at.col }
}

fn bad(node: Node, why: impl Into<String>) -> BadLayout {
    BadLayout { at: position(node), why: why.into() }
}

/// Attributes with a namespace, such as the location of a schema, do not belong to the layout.
fn known(node: Node, names: &[&str]) -> Result<()> {
    let mut own = node.attributes().filter(|attribute| attribute.namespace().is_none());
    match own.find(|attribute| !names.contains(&attribute.name())) {
        Some(attribute) => {
            let (element, given) = (node.tag_name().name(), attribute.name());
            Err(bad(node, format!("`{element}` has no attribute `{given}`; it has {}", names.join(", "))))
        }
        None => Ok(()),
    }
}

fn required<'a>(node: Node<'a, '_>, name: &str) -> Result<&'a str> {
    node.attribute(name)
        .filter(|value| !value.is_empty())
        .ok_or_else(|| bad(node, format!("`{}` needs the attribute `{name}`", node.tag_name().name())))
}

fn name(node: Node) -> Result<String> {
    let name = required(node, "name")?;
    match is_name(name) {
        true => Ok(name.to_owned()),
        false => Err(bad(
            node,
            format!("name=\"{name}\" is not a valid name: it is too long, or `.` or `..`, or contains `/`"),
        )),
    }
}

fn flag(node: Node, name: &str, otherwise: bool) -> Result<bool> {
    match node.attribute(name) {
        None => Ok(otherwise),
        Some("true" | "1") => Ok(true),
        Some("false" | "0") => Ok(false),
        Some(other) => Err(bad(node, format!("{name}=\"{other}\" is neither `true` nor `false`"))),
    }
}

/// The child elements of `node`, which may contain nothing else but comments and white space.
fn children<'a, 'input>(node: Node<'a, 'input>) -> Result<Vec<Node<'a, 'input>>> {
    let written = |child: &Node| child.is_text() && child.text().is_some_and(|text| !text.trim().is_empty());
    match node.children().find(written) {
        Some(text) => {
            let blank = text.text().map_or(0, |words| words.len() - words.trim_start().len());
            let at = text.document().text_pos_at(text.range().start + blank);
            let at = SourcePosition { line: at.row, column: at.col };
            Err(BadLayout { at, why: "a layout has no text between its elements".into() })
        }
        None => Ok(node.children().filter(Node::is_element).collect()),
    }
}

fn childless(node: Node) -> Result<()> {
    match children(node)?.first() {
        Some(child) => Err(bad(*child, format!("`{}` cannot contain elements", node.tag_name().name()))),
        None => Ok(()),
    }
}
