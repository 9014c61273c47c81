//! The location of all objects in the file: the built-in layouts, and [`layout`], which follows a layout file.

mod layout;
mod nxmx;
mod parts;
mod places;

pub use places::{DatasetPlace, places};

use crate::catalog::Catalog;
use crate::column::Column;
use crate::dataset_spec::{DatasetSpec, ScalarColumn, Structure};
use crate::layout::BadLayout;
use parts::{class, frames, status_and_times, text, whole};
use varve_detector_hdf5::{Attribute, Group, TreeNode, Value};

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
    let axis = nxmx.and_then(nxmx::moving_axis).filter(|_| catalog.description.scan.len() == 1);
    if let Some(axis) = axis {
        axes[0] = &axis.name;
        data.members.push((axis.name.clone(), TreeNode::HardLink(nxmx::path_of(axis))));
    }
    data.attributes.push(Attribute { name: "axes".into(), value: Value::texts(&axes) });
    // Programs for DECTRIS files look for the frames there.
    if nxmx.is_some() && catalog.chunks.grid().rank() == 3 {
        data.members.push(("data_000001".into(), TreeNode::HardLink(FRAMES.into())));
    }
    let mut entry = Group { attributes: class("NXentry"), members: Vec::new() };
    entry.attributes.push(text("default", "data"));
    entry.members.extend(nxmx.map(|nxmx| nxmx::entry(nxmx, catalog)).unwrap_or_default());
    entry.members.push(("instrument".into(), TreeNode::Group(instrument)));
    entry.members.push(("data".into(), TreeNode::Group(data)));
    let mut attributes = class("NXroot");
    attributes.push(text("default", "entry"));
    Group { attributes, members: vec![("entry".into(), TreeNode::Group(entry))] }
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
            catalog.description.values.iter().map(|(name, value)| (name.clone(), whole(value.value(), Vec::new())));
        let values = Group { attributes: collection("NXcollection"), members: values.collect() };
        members.push(("values".to_owned(), TreeNode::Group(values)));
    }
    members
}
