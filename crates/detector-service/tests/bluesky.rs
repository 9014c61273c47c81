//! The Python package: it is built as a wheel and installed, and a RunEngine of Bluesky records with its detector for
//! ophyd-async and a real service.

#[path = "../../detector-writer/tests/common/mod.rs"]
mod common;

use std::path::Path;
use std::process::Command;
use std::time::Duration;
use varve_detector_service::{Config, Protection, Service};
use varve_detector_writer::Settings;

fn service(root: &Path) -> Service {
    let config = Config {
        listen: ([127, 0, 0, 1], 0).into(),
        http: Some(([127, 0, 0, 1], 0).into()),
        root: root.to_owned(),
        token: None,
        protection: Protection::default(),
        plugins: None,
        settings: Settings { threads: 2, commit_interval: Duration::from_millis(50), ..Settings::default() },
        runs_max: 4,
        connections_max: 8,
        idle: Duration::from_secs(60),
        metadata: None,
    };
    Service::start(config).expect("a service")
}

/// Builds the wheel from a copy of the sources, and returns the directory where it is unpacked.
fn installed(directory: &Path) -> std::path::PathBuf {
    let (source, wheels, place) = (directory.join("source"), directory.join("wheels"), directory.join("installed"));
    common::printed(Command::new("cp").arg("-r").arg(common::workspace().join("clients/python")).arg(&source));
    let pip = |arguments: &[&str]| {
        let mut command = Command::new(common::interpreter());
        command.args(["-m", "pip", "--quiet", "--disable-pip-version-check"]).args(arguments);
        command
    };
    common::printed(pip(&["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir"]).arg(&wheels).arg(&source));
    let wheel = std::fs::read_dir(&wheels).expect("built").next().expect("a wheel").expect("readable").path();
    let version = format!("varve_detector-{}-py3-none-any.whl", env!("CARGO_PKG_VERSION"));
    assert!(wheel.ends_with(&version), "{} does not have the version of the workspace", wheel.display());
    common::printed(pip(&["install", "--no-deps", "--no-index", "--target"]).arg(&place).arg(&wheel));
    place
}

/// Promise: the documents of a run name its file and datasets, with their types, shapes and chunks.
#[test]
fn bluesky_documents_describe_the_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let (root, library) = (directory.path().join("data"), installed(directory.path()));
    std::fs::create_dir(&root).expect("created");
    let service = service(&root);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run_engine.py");
    let mut command = Command::new(common::interpreter());
    command.arg(script).arg(service.http().expect("it listens").to_string()).arg(service.address().to_string());
    let printed = common::printed(command.arg(root.canonicalize().expect("there")).arg(library));
    assert!(printed.ends_with("right\n"), "{printed}");
    service.stop();
}
