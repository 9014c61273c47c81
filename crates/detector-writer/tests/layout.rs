//! h5py reads back runs with layout files: every group, dataset, attribute and link is in its place.

mod common;

use common::frames;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use varve_detector_dataset::dataset_spec::{DatasetSpec, RunValue, Structure};
use varve_detector_dataset::frame::{Frame, Payload};
use varve_detector_dataset::layout::Layout;
use varve_detector_file::recover::recover;
use varve_detector_hdf5::ElementType;
use varve_detector_writer::{Settings, Writer};

/// Seconds since 1970; a frame a second.
const START: u64 = 1_700_000_000;

fn description(layout: &str) -> DatasetSpec {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/layouts").join(layout);
    let text = std::fs::read_to_string(path).expect("the layout");
    let mut description = DatasetSpec::new(ElementType::U16, vec![8, 16]);
    description.structure = Structure::Layout(Layout::parse(&text).expect("a layout"));
    description.scalars = ["Angle", "ImageKey", "RingCurrent"].map(Into::into).to_vec();
    description.values = BTreeMap::from([
        ("Manufacturer".to_owned(), RunValue::Text("Größe & Söhne".into())),
        ("Title".to_owned(), RunValue::Text("a tooth".into())),
        ("Binning".to_owned(), RunValue::Integer(2)),
    ]);
    description
}

/// Ten frames. Frame 3 never arrives, and frame 0 has no angle.
fn write(path: &Path, description: DatasetSpec) -> Writer {
    let settings = Settings { commit_interval: Duration::from_millis(5), ..Settings::default() };
    let writer = Writer::create(path, description, settings, Arc::new(())).expect("a run started");
    for number in (0..10).filter(|number| *number != 3) {
        let payload = Payload::Plain(frames::frame(number, 8 * 16));
        let taken = (START + number) * 1_000_000_000 + 250_000_000;
        writer.submit(Frame { number, taken, payload }, Duration::from_secs(10)).expect("a frame taken");
        let mut values = vec![(1, f64::from(number as u32 % 3)), (2, 299.5)];
        if number > 0 {
            values.push((0, number as f64 * 0.5));
        }
        writer.scalars(number, values).expect("scalars taken");
    }
    writer
}

#[test]
fn layouts_are_followed() {
    let directory = tempfile::tempdir().expect("a directory");
    for layout in ["tomography", "plain"] {
        let path = directory.path().join(format!("{layout}.h5"));
        write(&path, description(&format!("{layout}.xml"))).finish().expect("a run finished");
    }
    assert_eq!(common::python("layout.py", &[directory.path()]).trim(), "2");
    copies_have_all_attributes(directory.path(), &["tomography", "plain"]);
}

/// `h5repack` asks the library for the number of attributes of an object, and copies that many.
fn copies_have_all_attributes(directory: &Path, names: &[&str]) {
    for name in names {
        let (path, copy) = (directory.join(format!("{name}.h5")), directory.join(format!("{name}.copy")));
        common::printed(common::with_plugins(&mut Command::new("h5repack")).arg(&path).arg(&copy));
        let counted = common::python("attributes.py", &[&path, &copy]);
        assert!(counted.trim().parse::<u32>().expect("a count") > 2, "{name}: {counted}");
    }
}

/// The journal holds the layout: a file that is recovered has the same structure.
#[test]
fn recovered_files_follow_their_layout() {
    let directory = tempfile::tempdir().expect("a directory");
    for layout in ["tomography", "plain"] {
        let path = directory.path().join(format!("{layout}.h5"));
        drop(write(&path, description(&format!("{layout}.xml"))));
        recover(&path).expect("a run recovered");
    }
    assert_eq!(common::python("layout.py", &[directory.path()]).trim(), "2");
}

#[test]
fn nxmx_is_written_where_its_fields_are_given() {
    let directory = tempfile::tempdir().expect("a directory");
    let nxmx = r#"{
        "title": "lysozyme, 10 frames", "instrument": "P11", "source": "PETRA III", "sample": "lysozyme 7",
        "wavelength": 1.0332, "total_flux": 2.5e12, "beam_size": [2e-5, 1e-5], "description": "simulated",
        "serial_number": "60-0001", "type": "pixel", "distance": 0.25, "beam_center": [6.5, 3.25],
        "pixel_size": [1.72e-4, 1.5e-4], "sensor_material": "Si", "sensor_thickness": 4.5e-4, "count_time": 0.039,
        "frame_time": 0.04, "bit_depth_readout": 20, "saturation_value": 65534, "underload_value": 0,
        "threshold_energy": [6350.0], "flatfield_applied": true,
        "pixel_mask": [{"value": 1, "offset": [0, 4], "shape": [8, 2]}, {"value": 2, "offset": [3, 5], "shape": [2, 4]}],
        "goniometer": {"vector": [-1, 0, 0], "start": 90, "increment": 0.1}
    }"#;
    let mut description = DatasetSpec::new(ElementType::U16, vec![8, 16]);
    description.structure = Structure::Nexus;
    description.scalars = ["Angle", "ImageKey", "RingCurrent"].map(Into::into).to_vec();
    description.nxmx = Some(serde_json::from_str(nxmx).expect("fields of NXmx"));
    write(&directory.path().join("nxmx.h5"), description.clone()).finish().expect("a run finished");
    // A run without a field that NXmx requires does not claim to be NXmx.
    description.nxmx.as_mut().expect("given").sensor_material = None;
    drop(write(&directory.path().join("part.h5"), description.clone()));
    recover(&directory.path().join("part.h5")).expect("a run recovered");
    description.nxmx = None;
    write(&directory.path().join("without.h5"), description).finish().expect("a run finished");
    assert_eq!(common::python("nxmx.py", &[directory.path()]).trim(), "3");
    copies_have_all_attributes(directory.path(), &["nxmx", "part", "without"]);
}
