use super::iso_8601;
use crate::catalog::Catalog;
use crate::dataset_spec::nxmx::{MaskRegion, Nxmx};
use crate::dataset_spec::static_array::StaticArray;
use crate::dataset_spec::{DatasetSpec, Structure};
use crate::structure;
use std::collections::BTreeMap;
use varve_detector_hdf5::{ElementType, Group, Storage, TreeNode};

fn spec(nxmx: Nxmx) -> DatasetSpec {
    let structure = Structure::Nexus;
    DatasetSpec { structure, nxmx: Some(nxmx), ..DatasetSpec::new(ElementType::U16, vec![4, 6]) }
}

/// A member of each name of a group and the groups below it: the number of elements of a value, or 0.
fn names(group: &Group<'_>, path: &str, found: &mut BTreeMap<String, usize>) {
    for (name, node) in &group.members {
        let path = format!("{path}/{name}");
        let elements = match node {
            TreeNode::Group(below) => {
                names(below, &path, found);
                0
            }
            TreeNode::Dataset(dataset) => match &dataset.storage {
                Storage::Whole(value) => value.dims.iter().product::<u64>() as usize,
                _ => 0,
            },
            _ => 0,
        };
        assert!(found.insert(path.clone(), elements).is_none(), "two members {path}");
    }
}

fn members(spec: DatasetSpec) -> BTreeMap<String, usize> {
    spec.check().expect("valid");
    let (catalog, mut found) = (Catalog::new(spec), BTreeMap::new());
    names(&structure::tree(&catalog), "", &mut found);
    found
}

/// Promise: no array hides another member of a group.
#[test]
fn names_of_arrays_are_unique() {
    let mut spec = spec(Nxmx { pixel_size: Some([1e-4; 2]), distance: Some(0.1), ..Nxmx::default() });
    let names = ["x_pixel_size", "nimages", "ntrigger", "data", "distance", "pixel_mask", "flatfield", "a/data"];
    let array = |name: &&str| StaticArray::named(name, ElementType::U32, vec![4, 6], vec![0; 96]);
    spec.arrays = names.iter().map(array).collect();
    let found = members(spec);
    assert!(found.contains_key("/entry/instrument/detector/detectorSpecific/data"), "{found:?}");
}

/// A run that an earlier build began has regions and no array.
#[test]
fn regions_without_an_array_become_a_mask() {
    let region = MaskRegion { value: 1, offset: vec![0, 0], shape: vec![2, 2] };
    let spec = spec(Nxmx { pixel_mask: vec![region], ..Nxmx::default() });
    let found = members(spec.clone());
    assert_eq!(found.get("/entry/instrument/detector/pixel_mask"), Some(&24), "{found:?}");
    assert!(found.contains_key("/entry/instrument/detector/detectorSpecific/pixel_mask"), "{found:?}");
    let mut begun = spec;
    begun.complete_arrays();
    assert_eq!(members(begun).get("/entry/instrument/detector/pixel_mask"), Some(&0), "an array of the file");
}

#[test]
fn times_are_written_as_utc_dates() {
    let cases = [
        (0, "1970-01-01T00:00:00.000000Z"),
        (951_782_399_999_999, "1970-01-12T00:23:02.399999Z"),
        (951_827_696_000_000_000, "2000-02-29T12:34:56.000000Z"),
        (1_709_251_199_123_456_789, "2024-02-29T23:59:59.123456Z"),
        (1_709_251_200_000_000_000, "2024-03-01T00:00:00.000000Z"),
        (4_102_444_799_000_000_000, "2099-12-31T23:59:59.000000Z"),
        (u64::MAX, "2554-07-21T23:34:33.709551Z"),
    ];
    for (nanoseconds, text) in cases {
        assert_eq!(iso_8601(nanoseconds), text);
    }
}
