//! Where in the file everything lies: the built-in layouts.

use crate::catalog::Catalog;
use crate::description::StructureName;
use crate::frame::{FrameStatus, Times};
use crate::hdf5::{Attribute, Dataset, Datatype, ElementType, Group, Node, Storage, Value};

/// The tree of a run's file as far as `catalog` knows.
pub fn tree(catalog: &Catalog) -> Group<'_> {
    match catalog.description.structure {
        StructureName::Raw => {
            let mut root = Group::default();
            root.members.push(("data".into(), Node::Dataset(frames(catalog, Vec::new()))));
            root.members.extend(beside(catalog, |_| Vec::new()));
            root
        }
        StructureName::Nexus => nexus(catalog),
    }
}

fn text(name: &str, text: &str) -> Attribute {
    Attribute { name: name.into(), value: Value::text(text) }
}

fn class(name: &str) -> Vec<Attribute> {
    vec![text("NX_class", name)]
}

/// NXentry with an NXdetector that holds the frames and an NXdata that names them.
fn nexus(catalog: &Catalog) -> Group<'_> {
    const FRAMES: &str = "/entry/instrument/detector/data";
    let mut detector = Group { attributes: class("NXdetector"), members: Vec::new() };
    let signal = vec![text("long_name", "frames")];
    detector.members.push(("data".into(), Node::Dataset(frames(catalog, signal))));
    detector.members.extend(beside(catalog, class));
    let instrument =
        Group { attributes: class("NXinstrument"), members: vec![("detector".into(), Node::Group(detector))] };
    let mut attributes = class("NXdata");
    attributes.push(text("signal", "data"));
    let data = Group { attributes, members: vec![("data".into(), Node::HardLink(FRAMES.into()))] };
    let mut attributes = class("NXentry");
    attributes.push(text("default", "data"));
    let entry = Group {
        attributes,
        members: vec![("instrument".into(), Node::Group(instrument)), ("data".into(), Node::Group(data))],
    };
    let mut attributes = class("NXroot");
    attributes.push(text("default", "entry"));
    Group { attributes, members: vec![("entry".into(), Node::Group(entry))] }
}

fn frames(catalog: &Catalog, attributes: Vec<Attribute>) -> Dataset<'_> {
    let description = &catalog.description;
    let storage = Storage::Chunked {
        datatype: Datatype::Number(description.element),
        chunks: &catalog.chunks,
        kind: catalog.chunks.grid().index_kind(),
        filters: description.filter.messages(description.element.size(), description.chunk_bytes() as u64),
        fill: Some(description.fill_element()),
    };
    Dataset { attributes, storage }
}

/// Status, times and scalars of each frame.
fn beside<'a>(catalog: &'a Catalog, collection: impl Fn(&str) -> Vec<Attribute>) -> Vec<(String, Node<'a>)> {
    let whole = |datatype, data: Vec<u8>, attributes| {
        let value = Value { datatype, dims: vec![catalog.frames.len() as u64], data };
        Node::Dataset(Dataset { attributes, storage: Storage::Whole(value) })
    };
    let status = catalog.frames.iter().map(|frame| frame.status as u8).collect();
    let status = whole(Datatype::Enumeration(FrameStatus::NAMES.to_vec()), status, Vec::new());
    let arrays: Vec<[u64; 5]> = catalog.frames.iter().map(|frame| frame.times.as_array()).collect();
    let times = Times::NAMES.iter().enumerate().map(|(which, name)| {
        let data = arrays.iter().flat_map(|times| times[which].to_le_bytes()).collect();
        let unit = vec![text("units", "ns"), text("start", "1970-01-01T00:00:00Z")];
        ((*name).to_owned(), whole(Datatype::Number(ElementType::U64), data, unit))
    });
    let times = Group { attributes: collection("NXcollection"), members: times.collect() };
    let mut members = vec![("frame_status".to_owned(), status), ("times".to_owned(), Node::Group(times))];
    if !catalog.scalars.is_empty() {
        let columns = catalog.description.scalars.iter().zip(&catalog.scalars).map(|(name, column)| {
            let values = (0..catalog.frames.len()).map(|frame| column.get(frame).copied().unwrap_or(f64::NAN));
            let data = values.flat_map(f64::to_le_bytes).collect();
            (name.clone(), whole(Datatype::Number(ElementType::F64), data, Vec::new()))
        });
        let scalars = Group { attributes: collection("NXcollection"), members: columns.collect() };
        members.push(("scalars".to_owned(), Node::Group(scalars)));
    }
    members
}
