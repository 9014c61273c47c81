//! Where frames and scalars lie in the file, for programs that describe the file before it exists.

use super::{check, tree};
use crate::catalog::Catalog;
use crate::dataset_spec::DatasetSpec;
use serde::Serialize;
use std::ptr;
use varve_detector_hdf5::{ChunkMap, Datatype, ElementType, Group, Storage, TreeNode};

/// A dataset that grows with the frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DatasetPlace {
    /// The scalar whose values it has; `None`: the frames.
    pub name: Option<String>,
    pub path: String,
    /// Type of the elements as numpy writes it.
    pub dtype: String,
    /// `None`: the side grows without limit.
    pub shape: Vec<Option<u64>>,
    pub chunk: Vec<u64>,
}

/// The datasets of the frames and of the scalars. Empty if the layout does not fit the run, as a record of an earlier
/// version may be.
pub fn places(description: &DatasetSpec) -> Vec<DatasetPlace> {
    let mut description = description.clone();
    // A mask takes memory, and is no dataset that grows.
    if let Some(nxmx) = &mut description.nxmx {
        nxmx.pixel_mask.clear();
    }
    if check(&description).is_err() {
        return Vec::new();
    }
    let catalog = Catalog::new(description);
    let mut found = Vec::new();
    walk(&catalog, &tree(&catalog), "", &mut found);
    found
}

fn walk(catalog: &Catalog, group: &Group<'_>, path: &str, found: &mut Vec<DatasetPlace>) {
    for (member, node) in &group.members {
        let path = format!("{path}/{member}");
        match node {
            TreeNode::Group(below) => walk(catalog, below, &path, found),
            TreeNode::Dataset(dataset) => {
                let Storage::Chunked { datatype, chunks, .. } = &dataset.storage else { continue };
                let Some(name) = name_of(catalog, chunks) else { continue };
                let grid = chunks.grid();
                let (shape, chunk) = (grid.max().to_vec(), grid.chunk().to_vec());
                found.push(DatasetPlace { name, path, dtype: numpy(datatype), shape, chunk });
            }
            TreeNode::HardLink(_) | TreeNode::SoftLink(_) => {}
        }
    }
}

/// The scalar that these chunks hold, or `Some(None)` for the frames.
fn name_of(catalog: &Catalog, chunks: &ChunkMap) -> Option<Option<String>> {
    if ptr::eq(chunks, &catalog.chunks) {
        return Some(None);
    }
    let mut scalars = catalog.scalars.iter();
    scalars.find(|(_, column)| ptr::eq(chunks, column.chunks())).map(|(scalar, _)| Some(scalar.name.clone()))
}

fn numpy(datatype: &Datatype) -> String {
    match datatype {
        Datatype::Number(element @ (ElementType::U8 | ElementType::I8)) => format!("|{}1", &element.name()[..1]),
        Datatype::Number(element) => format!("<{}{}", &element.name()[..1], element.size()),
        Datatype::Text(bytes) | Datatype::Ascii(bytes) => format!("|S{bytes}"),
        Datatype::Enumeration(_) => "|u1".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_and_scalars_are_found_in_each_structure() {
        let place = |name: Option<&str>, path: &str, dtype: &str, shape: &[Option<u64>], chunk: &[u64]| DatasetPlace {
            name: name.map(str::to_owned),
            path: path.into(),
            dtype: dtype.into(),
            shape: shape.to_vec(),
            chunk: chunk.to_vec(),
        };
        let mut description = DatasetSpec::new(ElementType::U16, vec![6, 8]);
        description.scalars = vec!["angle".into()];
        let rows = Catalog::new(description.clone()).scalars[0].1.chunks().grid().chunk().to_vec();
        let found = places(&description);
        let frames = place(None, "/data", "<u2", &[None, Some(6), Some(8)], &[1, 6, 8]);
        assert_eq!(found, [frames, place(Some("angle"), "/scalars/angle", "<f8", &[None], &rows)]);
        description.structure = crate::dataset_spec::Structure::Nexus;
        let paths: Vec<String> = places(&description).into_iter().map(|place| place.path).collect();
        assert_eq!(paths, ["/entry/instrument/detector/data", "/entry/instrument/detector/scalars/angle"]);
    }
}
