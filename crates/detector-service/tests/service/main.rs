//! The service over TCP, with the client of this crate and with handwritten bytes: the effects of clients on the
//! service and on each other, and the fate of their frames.

mod clients;
#[path = "../../../detector-writer/tests/common/mod.rs"]
mod common;
mod forms;
mod http;
mod losses;
mod raw;
mod runs;
mod scalars;
mod trust;

use common::frames;
use serde_json::json;
use std::path::Path;
use std::time::Duration;
use varve_detector_dataset::dataset_spec::DatasetSpec;
use varve_detector_filters::Encoder;
use varve_detector_hdf5::ElementType;
use varve_detector_service::{Config, Protection, Service, StartRequest};
use varve_detector_stream::client::{ClientOptions, Outgoing};
use varve_detector_writer::Settings;

const SIDE: u64 = 48;
const WAIT: Duration = Duration::from_secs(60);

fn settings() -> Settings {
    Settings { queue_bytes: 1 << 20, commit_interval: Duration::from_millis(20), ..Settings::default() }
}

fn config(root: &Path) -> Config {
    Config {
        listen: "127.0.0.1:0".parse().expect("an address"),
        http: Some("127.0.0.1:0".parse().expect("an address")),
        root: root.to_owned(),
        token: None,
        protection: Protection::default(),
        plugins: None,
        metadata: None,
        settings: settings(),
        runs_max: 4,
        connections_max: 16,
        idle: Duration::from_secs(10),
    }
}

fn description() -> DatasetSpec {
    let mut description = DatasetSpec::new(ElementType::U16, vec![SIDE, SIDE]);
    description.chunk = Some(vec![SIDE / 2, SIDE]);
    description.fill = Some(4321.0.into());
    description.scalars = vec!["energy".into(), "shutter".into()];
    description
}

fn start(name: &str) -> StartRequest {
    StartRequest::new(name, format!("{name}.h5").into(), description())
}

fn options(service: &Service, request: &StartRequest) -> ClientOptions {
    ClientOptions {
        start: serde_json::to_string(request).expect("JSON"),
        ..ClientOptions::new(&service.address().to_string(), &request.name)
    }
}

fn plain(number: u64) -> Outgoing {
    Outgoing {
        number,
        taken: 7,
        element: ElementType::U16,
        sides: vec![SIDE as u32, SIDE as u32],
        frames: 1,
        filter: String::new(),
        parts: vec![frames::frame(number, (SIDE * SIDE) as usize)],
    }
}

fn filtered(number: u64) -> Outgoing {
    let mut encoder = Encoder::new(description().filter, 2).expect("an encoder");
    let frame = frames::frame(number, (SIDE * SIDE) as usize);
    let chunks = frame.chunks(frame.len() / 2).map(|chunk| {
        let mut blob = Vec::new();
        encoder.encode(chunk, &mut blob).expect("filtered");
        blob
    });
    Outgoing { filter: "bslz4".into(), parts: chunks.collect(), ..plain(number) }
}

fn check(directory: &Path, name: &str, acknowledged: &[u64], exact: bool) {
    let reported = json!({"frame": [SIDE, SIDE], "fill": 4321, "acknowledged": acknowledged, "exact": exact});
    std::fs::write(directory.join(format!("{name}.json")), reported.to_string()).expect("written");
    assert_eq!(common::python("frames.py", &[directory]).trim(), "1");
    std::fs::remove_file(directory.join(format!("{name}.json"))).expect("removed");
}
