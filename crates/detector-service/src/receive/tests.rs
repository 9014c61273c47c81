use super::*;
use crate::board::ProgressBoard;
use crate::records::RunRecord;
use crate::{Config, Protection, Service};
use varve_detector_dataset::dataset_spec::{DatasetSpec, Region};
use varve_detector_hdf5::ElementType;
use varve_detector_stream::client::{Client, ClientOptions};
use varve_detector_writer::{Settings, Writer};

const WAIT: Duration = Duration::from_secs(60);

/// Promise: a connection whose thread panics ends, and releases its slots in the service and in the run.
#[test]
fn panicking_connection_thread_frees_its_slot() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = Config {
        listen: "127.0.0.1:0".parse().expect("an address"),
        http: None,
        root: directory.path().to_owned(),
        token: None,
        protection: Protection::default(),
        plugins: None,
        metadata: None,
        settings: Settings::default(),
        runs_max: 4,
        connections_max: 16,
        idle: Duration::from_secs(10),
    };
    let service = Service::start(config).expect("a service");
    let mut description = DatasetSpec::new(ElementType::U16, vec![8, 8]);
    let region = |row: u64| Region { offset: vec![row, 0], shape: vec![4, 8] };
    description.sources = vec![region(0), region(4)];
    let path = directory.path().join("run.h5");
    // The board has one source; a client of another source makes the thread panic.
    let board = Arc::new(ProgressBoard::default());
    let writer = Writer::create(&path, description.clone(), Settings::default(), board.clone()).expect("a run started");
    let record = RunRecord::of(StartRequest::new("run", "run.h5".into(), description));
    let run = Arc::new(Run::new(Arc::clone(&service.shared.home), record, path, (RunSink::Own(writer), board)));
    service.shared.runs.lock().insert("run".into(), Arc::clone(&run));
    let other = |client: u8| ClientOptions {
        source: 1,
        client: Some([client; 16]),
        retry: Duration::ZERO,
        ..ClientOptions::new(&service.address().to_string(), "run")
    };
    let ended = Client::connect(other(1)).err().expect("its thread panics");
    assert!(ended.to_string().contains("cannot reach"), "{ended}");
    let deadline = Instant::now() + WAIT;
    while service.shared.connections() > 0 || run.status().connections > 0 {
        let (all, of_run) = (service.shared.connections(), run.status().connections);
        assert!(Instant::now() < deadline, "{all} connections of the service, {of_run} of the run");
        std::thread::sleep(Duration::from_millis(5));
    }
    service.stop();
}
