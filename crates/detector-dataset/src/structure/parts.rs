//! Objects that every structure has.

use crate::catalog::Catalog;
use crate::frame::Times;
use varve_detector_hdf5::{Attribute, Dataset, Datatype, Group, Storage, TreeNode, Value};

pub fn text(name: &str, text: &str) -> Attribute {
    Attribute { name: name.into(), value: Value::text(text) }
}

pub fn class(name: &str) -> Vec<Attribute> {
    vec![text("NX_class", name)]
}

pub fn frames(catalog: &Catalog, attributes: Vec<Attribute>) -> Dataset<'_> {
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

pub fn status_and_times(catalog: &Catalog, attributes: Vec<Attribute>) -> Vec<(String, TreeNode<'_>)> {
    let times = Times::NAMES.iter().zip(&catalog.times);
    let times = times.map(|(name, column)| ((*name).to_owned(), TreeNode::Dataset(column.dataset(time_units()))));
    let times = Group { attributes, members: times.collect() };
    let first = catalog.description.first_frame;
    let numbering = (first > 0).then(|| Attribute { name: "first_frame".into(), value: Value::unsigned(first) });
    let status = TreeNode::Dataset(catalog.status.dataset(numbering.into_iter().collect()));
    vec![("frame_status".to_owned(), status), ("times".to_owned(), TreeNode::Group(times))]
}

pub fn whole<'a>(value: Value, attributes: Vec<Attribute>) -> TreeNode<'a> {
    TreeNode::Dataset(Dataset { attributes, storage: Storage::Whole(value) })
}

pub fn time_units() -> Vec<Attribute> {
    vec![text("units", "ns"), text("start", "1970-01-01T00:00:00Z")]
}
