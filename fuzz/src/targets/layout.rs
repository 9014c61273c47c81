//! Layout files of detector runs: XML, applied to a run that has a scalar and a value.

use varve_detector_dataset::dataset_spec::{DatasetSpec, RunValue, Structure};
use varve_detector_dataset::layout::Layout;
use varve_detector_hdf5::ElementType;

pub fn reads(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    match Layout::parse(text) {
        Ok(layout) => {
            let mut description = DatasetSpec::new(ElementType::U8, vec![2, 2]);
            description.values.insert("Model".into(), RunValue::Text("Eiger".into()));
            description.structure = Structure::Layout(layout);
            // Any parsed layout is either a valid file structure or refused.
            description.check().is_ok()
        }
        Err(bad) => {
            assert!(bad.at.line > 0 && bad.at.column > 0, "{bad}");
            false
        }
    }
}
