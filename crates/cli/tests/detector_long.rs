//! A long run over loopback: frames of 4 MB as fast as the service takes them (20,000 with `VARVE_SOAK=1`, which take
//! some 16 GB of the temporary directory). The service stays within its memory limit, and the file is little larger
//! than its content.

mod common;

use common::{soak, varve};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use varve_detector_dataset::dataset_spec::DatasetSpec;
use varve_detector_hdf5::ElementType;
use varve_detector_service::StartRequest;
use varve_detector_stream::client::{Client, ClientOptions, Outgoing};

const ROWS: u64 = 1024;
const COLUMNS: u64 = 2048;
const FRAME_BYTES: u64 = ROWS * COLUMNS * 2;
/// Number of different frames; each also carries its number.
const PATTERNS: u64 = 8;
const QUEUE_MIB: u64 = 32;
/// Memory besides the queue: the program itself, its threads' buffers, and frames between their receipt and the reuse
/// of their memory.
const BESIDE_QUEUE_MIB: u64 = 160;
const WAIT: Duration = Duration::from_secs(3600);

/// Reads frames back and checks the number that each carries.
const CHECK: &str = r#"
import sys
import h5py, hdf5plugin
import numpy as np
path, frames, rows, columns, patterns = sys.argv[1], *map(int, sys.argv[2:])
place = np.arange(rows * columns, dtype=np.uint64)
with h5py.File(path) as file:
    data = file["data"]
    assert data.shape == (frames, rows, columns) and data.dtype == np.uint16, data
    for number in {0, 1, frames // 2, frames - 2, frames - 1}:
        mixed = place * np.uint64(0x9E3779B97F4A7C15) + np.uint64(number % patterns)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        expected = ((mixed >> np.uint64(61)) & np.uint64(7)).astype(np.uint16)
        expected[:4] = np.frombuffer(np.uint64(number).tobytes(), dtype=np.uint16)
        assert np.array_equal(data[number].ravel(), expected), number
"#;

/// Three bits of noise in sixteen: bitshuffle+LZ4 compresses it to a little less than a fifth.
fn pattern(number: u64) -> Vec<u8> {
    let element = |place: u64| {
        let mixed = place.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(number);
        let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        ((mixed >> 61) & 7) as u16
    };
    (0..ROWS * COLUMNS).flat_map(|place| element(place).to_le_bytes()).collect()
}

/// The service, killed by its number whatever becomes of the test.
struct Service {
    child: Child,
    listen: String,
}

impl Service {
    fn start(root: &Path) -> Service {
        let queue = format!("{QUEUE_MIB}MiB");
        let mut child = varve()
            .args(["--json", "record", "serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--queue", &queue])
            .arg(root)
            .stdout(Stdio::piped())
            .spawn()
            .expect("varve runs");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        let reported: Value = serde_json::from_str(&line).expect("JSON");
        Service { listen: reported["listen"].as_str().expect("an address").to_owned(), child }
    }

    /// The peak of its memory, in MiB.
    fn peak_mib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux tells");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") >> 10
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn endless_run_uses_bounded_memory() {
    let frames: u64 = if soak() { 20_000 } else { 96 };
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(directory.path());
    let mut description = DatasetSpec::new(ElementType::U16, vec![ROWS, COLUMNS]);
    description.scan = vec![Some(frames)];
    let start = StartRequest::new("long", "long.h5".into(), description);
    let start = serde_json::to_string(&start).expect("JSON");
    let options = ClientOptions { start, window_bytes: 64 << 20, ..ClientOptions::new(&service.listen, "long") };
    let patterns: Vec<Vec<u8>> = (0..PATTERNS).map(pattern).collect();
    let begun = std::time::Instant::now();
    let client = Client::connect(options).expect("welcome");
    for number in 0..frames {
        let mut elements = patterns[(number % PATTERNS) as usize].clone();
        elements[..8].copy_from_slice(&number.to_le_bytes());
        let out = Outgoing {
            number,
            taken: 0,
            element: ElementType::U16,
            sides: vec![ROWS as u32, COLUMNS as u32],
            frames: 1,
            filter: String::new(),
            parts: vec![elements],
        };
        client.send(out, WAIT).expect("taken");
    }
    let finished = client.finish(WAIT).expect("finished");
    assert_eq!((finished.received, finished.dropped), (frames, 0));
    let peak = service.peak_mib();
    let path = directory.path().join("long.h5");
    let bytes = std::fs::metadata(&path).expect("the file").len();
    let megabytes_per_s = (frames * FRAME_BYTES) as f64 / 1e6 / begun.elapsed().as_secs_f64();
    println!("{frames} frames at {megabytes_per_s:.0} MB/s, {bytes} bytes, {peak} MiB of memory at most");
    assert!(peak <= QUEUE_MIB + BESIDE_QUEUE_MIB, "{peak} MiB");
    assert!(bytes * 4 <= frames * FRAME_BYTES, "{bytes} bytes are not a fourth");
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace");
    let output = Command::new(workspace.join("venv/bin/python"))
        .args(["-c", CHECK])
        .arg(&path)
        .args([frames, ROWS, COLUMNS, PATTERNS].map(|number| number.to_string()))
        .output()
        .expect("`make setup` brings it");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
