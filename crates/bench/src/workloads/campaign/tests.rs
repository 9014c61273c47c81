//! Promises of a campaign: figures until a failure are kept and marked, and only the run's own directory is removed.

use super::*;
use crate::workloads::data::{DataOptions, DataPattern};
use std::path::Path;
use std::time::Duration;

/// A campaign of these directories whose clients are threads.
pub(crate) fn on_threads(directories: &[&Path]) -> CampaignConfig {
    CampaignConfig {
        via: directories.iter().map(|directory| Via::Path((*directory).to_owned())).collect(),
        launcher: LauncherConfig {
            processes: false,
            launched: None,
            rendezvous: "/".into(),
            program: ("/bin/false".into(), Vec::new()),
            silence_max: Duration::from_secs(30),
        },
        outputs: Vec::new(),
        progress: false,
        arguments: Vec::new(),
    }
}

fn point() -> Point {
    let options =
        DataOptions { pattern: DataPattern::NToN, bytes: 100_000, transfer_bytes: 4096, ..DataOptions::default() };
    Point { workload: "data", clients: 2, parameters: Parameters::new(), work: RankWork::Data(options) }
}

fn written(phases: &[PhaseRecord]) -> Vec<Figure> {
    let write = phases.iter().filter(|phase| phase.phase == "write");
    write.map(|write| Figure::rate("write", "MiB/s", write.bytes as f64, "write")).collect()
}

#[test]
fn failure_keeps_earlier_figures_and_removes_its_directory() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut campaign = Campaign::open(&on_threads(&[a.path(), b.path()]), "bench data", 2, None).unwrap();
    campaign.turn(&point(), 0, &written).unwrap();
    // The second target loses the run's directory, as when another user removes it.
    let own = std::fs::read_dir(b.path()).unwrap().next().unwrap().unwrap().path();
    std::fs::remove_dir_all(own).unwrap();
    let outcome = campaign.turn(&point(), 1, &written);
    assert!(outcome.is_err());
    // A file that appeared beside it in the meantime is not the run's.
    std::fs::write(a.path().join("precious"), b"1").unwrap();
    let results = campaign.finish(outcome).unwrap();
    assert!(results.error.as_deref().is_some_and(|error| error.contains("cannot")), "{:?}", results.error);
    let samples: Vec<usize> = results.results.iter().map(|found| found.samples.len()).collect();
    assert_eq!(samples, [2, 1]);
    assert!(results.results.iter().all(|found| found.marks.contains(crate::results::MARK_PARTIAL)));
    assert!(results.to_text().contains("The run ended early"));
    let left: Vec<_> = std::fs::read_dir(a.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["precious"]);
    assert_eq!(std::fs::read_dir(b.path()).unwrap().count(), 0);
}

#[test]
fn targets_on_one_file_system_are_named() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let config = CampaignConfig { outputs: vec![a.path().join("x.csv")], ..on_threads(&[a.path(), b.path()]) };
    let campaign = Campaign::open(&config, "bench data", 1, None).unwrap();
    let warnings = &campaign.results.warnings;
    assert!(warnings[0].contains("on one file system"), "{warnings:?}");
    assert!(warnings[1].contains("x.csv is on the file system of path:"), "{warnings:?}");
    campaign.finish(Ok(())).unwrap();
}

#[test]
fn read_only_target_is_refused_and_stays_as_it_is() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: it needs root for a read-only mount");
        return;
    }
    let error = Campaign::open(&on_threads(&[Path::new("/proc/sys")]), "bench data", 1, None).err().unwrap();
    assert!(matches!(error, Error::Usage(_)), "{error}");
}
