//! Readers that follow a run.

use super::common::{self, frames};
use super::{WAIT, quiet, settings};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;
use varve_detector_dataset::dataset_spec::DatasetSpec;
use varve_detector_dataset::frame::{Frame, Payload};
use varve_detector_hdf5::ElementType;
use varve_detector_writer::{Settings, Writer};

/// Promise: the Python follower yields every frame of a run once, in order, and ends with the run.
#[test]
fn follower_yields_every_frame_until_the_end() {
    const FRAMES: u64 = 1200;
    const SIDE: u64 = 24;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let description = DatasetSpec::new(ElementType::U16, vec![SIDE, SIDE]);
    let settings = Settings { commit_interval: Duration::from_millis(40), replaces_file: true, ..settings() };
    let writer = Writer::create(&path, description, settings, quiet()).expect("a run started");
    let mut command = Command::new(common::interpreter());
    command.arg(common::workspace().join("crates/detector-writer/tests/follow_file.py")).arg(&path);
    command.args([FRAMES.to_string(), SIDE.to_string()]).stdout(Stdio::piped());
    let follower = command.spawn().expect("a follower started");
    for number in 0..FRAMES {
        let payload = Payload::Plain(frames::frame(number, (SIDE * SIDE) as usize));
        writer.submit(Frame { number, taken: 0, payload }, WAIT).expect("a frame taken");
        thread::sleep(Duration::from_millis(4));
    }
    writer.finish().expect("a run finished");
    let output = follower.wait_with_output().expect("its end");
    assert!(output.status.success(), "the follower failed");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), FRAMES.to_string());
}
