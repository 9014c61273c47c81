use super::{metadata, structure};
use std::path::{Path, PathBuf};
use varve_detector_dataset::dataset_spec::DatasetSpec;
use varve_detector_hdf5::ElementType;

/// Promise: the example files can be used as they are, with the simulator's default model.
#[test]
fn example_layout_and_metadata_are_accepted() {
    let example = |name: &str| -> PathBuf { Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name) };
    let pilatus = || DatasetSpec::new(ElementType::I32, vec![2527, 2463]);
    let mut described = pilatus();
    described.structure = structure(Path::new("nexus")).expect("built in");
    metadata(&example("beamline.toml")).expect("metadata").add_to(&mut described);
    assert_eq!(described.check(), Ok(()));
    assert!(described.nxmx.is_some() && described.values.len() == 2, "{described:?}");
    let mut laid_out = pilatus();
    laid_out.structure = structure(&example("beamline.xml")).expect("a layout");
    assert_eq!(laid_out.check(), Ok(()));
}
