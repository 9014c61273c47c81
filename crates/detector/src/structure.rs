//! The location of all objects in the file: the built-in layouts, and [`layout`], which follows a layout file.

mod layout;
mod mask;
mod nxmx;

pub(crate) use layout::{LayoutColumns, NUMBERED_MAX};
pub(crate) use mask::Mask;

use crate::catalog::Catalog;
use crate::column::Column;
use crate::dataset_spec::{DatasetSpec, RunValue, ScalarColumn, Structure};
use crate::frame::Times;
use crate::hdf5::{Attribute, Dataset, Datatype, Group, Storage, TreeNode, Value};
use crate::layout::BadLayout;

/// The root's attribute with the run's advice.
const ADVICE: &str = "varve_advice";

/// The tree of a run's file, from the state of `catalog`.
pub fn tree(catalog: &Catalog) -> Group<'_> {
    let mut root = structured(catalog);
    if let Some(advice) = &catalog.description.advice {
        root.attributes.push(text(ADVICE, &serde_json::to_string(advice).expect("an advice is JSON")));
    }
    root
}

fn structured(catalog: &Catalog) -> Group<'_> {
    match &catalog.description.structure {
        Structure::Raw => {
            let mut root = Group::default();
            root.members.push(("data".into(), TreeNode::Dataset(frames(catalog, Vec::new()))));
            root.members.extend(beside(catalog, |_| Vec::new()));
            root
        }
        Structure::Nexus => nexus(catalog),
        Structure::Layout(layout) => layout::tree(layout, catalog).expect("checked before the run started"),
    }
}

/// # Errors
/// If no file can be made from the spec, whose shape and names are already checked.
pub fn check(description: &DatasetSpec) -> Result<(), BadLayout> {
    match &description.structure {
        Structure::Raw | Structure::Nexus => Ok(()),
        Structure::Layout(layout) => layout::tree(layout, &Catalog::new(description.clone())).map(|_| ()),
    }
}

fn text(name: &str, text: &str) -> Attribute {
    Attribute { name: name.into(), value: Value::text(text) }
}

fn class(name: &str) -> Vec<Attribute> {
    vec![text("NX_class", name)]
}

/// NXentry with an NXdetector that contains the frames and an NXdata that refers to them, and NXmx metadata if given.
fn nexus(catalog: &Catalog) -> Group<'_> {
    const FRAMES: &str = "/entry/instrument/detector/data";
    let nxmx = catalog.description.nxmx.as_ref();
    let mut detector = Group { attributes: class("NXdetector"), members: Vec::new() };
    let signal = vec![text("long_name", "frames")];
    detector.members.push(("data".into(), TreeNode::Dataset(frames(catalog, signal))));
    detector.members.extend(nxmx.map(|nxmx| nxmx::detector(nxmx, catalog)).unwrap_or_default());
    detector.members.extend(beside(catalog, class));
    let mut instrument =
        Group { attributes: class("NXinstrument"), members: vec![("detector".into(), TreeNode::Group(detector))] };
    instrument.members.extend(nxmx.map(nxmx::instrument).unwrap_or_default());
    let mut data =
        Group { attributes: class("NXdata"), members: vec![("data".into(), TreeNode::HardLink(FRAMES.into()))] };
    data.attributes.push(text("signal", "data"));
    let mut axes = vec!["."; catalog.chunks.grid().rank()];
    let axis = nxmx.and_then(|nxmx| nxmx.goniometer.as_ref()).filter(|_| catalog.description.scan.len() == 1);
    if let Some(axis) = axis {
        axes[0] = &axis.name;
        data.members.push((axis.name.clone(), TreeNode::HardLink(nxmx::path_of(axis))));
    }
    data.attributes.push(Attribute { name: "axes".into(), value: Value::texts(&axes) });
    let mut entry = Group { attributes: class("NXentry"), members: Vec::new() };
    entry.attributes.push(text("default", "data"));
    entry.members.extend(nxmx.map(|nxmx| nxmx::entry(nxmx, catalog)).unwrap_or_default());
    entry.members.push(("instrument".into(), TreeNode::Group(instrument)));
    entry.members.push(("data".into(), TreeNode::Group(data)));
    let mut attributes = class("NXroot");
    attributes.push(text("default", "entry"));
    Group { attributes, members: vec![("entry".into(), TreeNode::Group(entry))] }
}

fn frames(catalog: &Catalog, attributes: Vec<Attribute>) -> Dataset<'_> {
    let description = &catalog.description;
    let storage = Storage::Chunked {
        datatype: Datatype::Number(description.element),
        chunks: &catalog.chunks,
        kind: description.index_kind(),
        filters: description.filter_messages(),
        fill: Some(description.fill_element()),
    };
    Dataset { attributes, storage }
}

/// Status, times and scalars of each frame, and the values of the run.
fn beside<'a>(catalog: &'a Catalog, collection: impl Fn(&str) -> Vec<Attribute>) -> Vec<(String, TreeNode<'a>)> {
    let mut members = status_and_times(catalog, collection("NXcollection"));
    if !catalog.scalars.is_empty() {
        let column = |(scalar, column): &'a (ScalarColumn, Column)| {
            (scalar.name.clone(), TreeNode::Dataset(column.dataset(Vec::new())))
        };
        let columns = catalog.scalars.iter().map(column);
        let scalars = Group { attributes: collection("NXcollection"), members: columns.collect() };
        members.push(("scalars".to_owned(), TreeNode::Group(scalars)));
    }
    if !catalog.description.values.is_empty() {
        let values =
            catalog.description.values.iter().map(|(name, value)| (name.clone(), whole(run_value(value), Vec::new())));
        let values = Group { attributes: collection("NXcollection"), members: values.collect() };
        members.push(("values".to_owned(), TreeNode::Group(values)));
    }
    members
}

fn status_and_times(catalog: &Catalog, attributes: Vec<Attribute>) -> Vec<(String, TreeNode<'_>)> {
    let times = Times::NAMES.iter().zip(&catalog.times);
    let times = times.map(|(name, column)| ((*name).to_owned(), TreeNode::Dataset(column.dataset(time_units()))));
    let times = Group { attributes, members: times.collect() };
    let status = TreeNode::Dataset(catalog.status.dataset(Vec::new()));
    vec![("frame_status".to_owned(), status), ("times".to_owned(), TreeNode::Group(times))]
}

fn run_value(value: &RunValue) -> Value {
    match value {
        RunValue::Integer(value) => Value::integer(*value),
        RunValue::Float(value) => Value::float(*value),
        RunValue::Text(value) => Value::text(value),
    }
}

fn whole<'a>(value: Value, attributes: Vec<Attribute>) -> TreeNode<'a> {
    TreeNode::Dataset(Dataset { attributes, storage: Storage::Whole(value) })
}

fn time_units() -> Vec<Attribute> {
    vec![text("units", "ns"), text("start", "1970-01-01T00:00:00Z")]
}
