//! The whole pipeline writes runs, and h5py reads them back: every frame is in its place, every lost one is missing.

#[path = "../common/mod.rs"]
mod common;
mod crash;
mod damage;
mod dead_space;
mod follow;
mod forms;
mod full_disk;
mod headless;
mod random;
mod shares;

use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use varve_detector_dataset::dataset_spec::{DatasetSpec, Region};
use varve_detector_writer::Settings;

const WAIT: Duration = Duration::from_secs(60);

fn settings() -> Settings {
    Settings {
        threads: 3,
        queue_bytes: 1 << 20,
        stripe_bytes: 16 << 10,
        extent_bytes: 64 << 10,
        commit_interval: Duration::from_millis(5),
        // Tests put journals back.
        replaces_file: false,
        ..Settings::default()
    }
}

fn quiet() -> Arc<dyn varve_detector_writer::Listener> {
    Arc::new(())
}

/// Cuts a frame along its first side, and leaves the last row out if there are several.
fn strips(frame: &[u64], count: u64) -> Vec<Region> {
    let rows = frame[0].saturating_sub(1);
    if count == 1 || rows < count {
        return Vec::new();
    }
    let strip = |number: u64| {
        let (first, end) = (number * rows / count, (number + 1) * rows / count);
        let zeros = vec![0; frame.len() - 1];
        Region { offset: [vec![first], zeros].concat(), shape: [vec![end - first], frame[1..].to_vec()].concat() }
    };
    (0..count).map(strip).collect()
}

/// The part of a whole frame that a source sends.
fn cut(frame: &[u8], sides: &[u64], region: &Region) -> Vec<u8> {
    let row = sides[1..].iter().product::<u64>() as usize * 2;
    let first = region.offset[0] as usize;
    frame[first * row..(first + region.shape[0] as usize) * row].to_vec()
}

fn names(description: &DatasetSpec) -> Vec<String> {
    description.scalars.iter().map(|column| column.name.clone()).collect()
}

fn tell(directory: &Path, name: &str, description: &DatasetSpec, acknowledged: &[u64], exact: bool) {
    let reported = json!({
        "frame": description.frame, "fill": description.fill, "acknowledged": acknowledged, "exact": exact,
        "scalars": if exact { names(description) } else { Vec::new() },
    });
    std::fs::write(directory.join(format!("{name}.json")), reported.to_string()).expect("the description written");
}
