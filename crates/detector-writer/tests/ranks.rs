//! Issue 5: four ranks under `mpirun` read disjoint slices of a finished file with parallel HDF5 and get equal data.

mod common;

use common::frames;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use varve_detector_dataset::dataset_spec::{DatasetSpec, Structure};
use varve_detector_dataset::frame::{Frame, Payload};
use varve_detector_hdf5::ElementType;
use varve_detector_writer::{Settings, Writer};

#[test]
fn four_ranks_read_disjoint_slices() {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, filter, scan) in
        [("fixed", "bslz4", Some(1500)), ("extensible", "shuffle+gzip:1", None), ("raw", "raw", None)]
    {
        let path = directory.path().join(format!("{name}.h5"));
        let mut description = DatasetSpec::new(ElementType::U16, vec![12, 20]);
        description.filter = filter.parse().expect("a filter's name");
        description.scan = vec![scan];
        description.structure = Structure::Nexus;
        description.fill = Some(777.0.into());
        let writer = Writer::create(&path, description, Settings::default(), Arc::new(())).expect("a run started");
        // More than 1,024 chunks, with every seventh frame lost.
        for number in (0..1500).filter(|number| number % 7 != 3) {
            let payload = Payload::Plain(frames::frame(number, 12 * 20));
            writer.submit(Frame { number, taken: 0, payload }, Duration::from_secs(60)).expect("a frame taken");
        }
        writer.finish().expect("a run finished");
        let script = common::workspace().join("crates/detector-writer/tests/ranks.py");
        let mut ranks = Command::new("mpirun");
        // Debian's own Python has the parallel h5py. One processor may run several ranks.
        ranks.args(["--allow-run-as-root", "--oversubscribe", "-n", "4", "/usr/bin/python3", "-B"]);
        let printed = common::printed(common::with_plugins(ranks.arg(script).arg(&path).arg("777")));
        assert_eq!(printed.trim(), "4 1500", "{name}");
    }
}
