//! Promises of mdtest: every file is handled exactly once, by a client other than its owner; complete runs report and
//! leave nothing.

use super::*;
use crate::ceilings::EMPTY_DIRECTORY;
use std::collections::BTreeSet;
use std::path::Path;

fn plan(clients: usize, files: u64) -> Plan {
    MdtestConfig { files, ..MdtestConfig::default() }.plan(clients, 0)
}

#[test]
fn every_phase_covers_every_file_once() {
    for (clients, files) in [(1, 1), (1, 1000), (2, 7), (3, 100), (4, 4), (8, 1001)] {
        let plan = plan(clients, files);
        for phase in [Phase::Create, Phase::Stat, Phase::Read, Phase::Delete, Phase::Mkdir, Phase::Rmdir] {
            let mut seen = BTreeSet::new();
            for rank in 0..clients {
                let (owner, order) = (plan.owner(phase, rank), plan.order(phase, rank));
                for position in 0..order.len() {
                    assert!(seen.insert((owner, order.at(position))), "{phase:?} comes twice to a file");
                }
            }
            assert_eq!(seen.len() as u64, files, "{phase:?}, {clients} clients");
        }
    }
}

#[test]
fn clients_shift_to_files_of_other_clients() {
    for clients in 2..10 {
        for phase in [Phase::Stat, Phase::Read, Phase::Delete, Phase::Rmdir] {
            assert!((0..clients).all(|rank| plan(clients, 100).owner(phase, rank) != rank), "{phase:?}, {clients}");
        }
    }
    assert_eq!(plan(1, 10).owner(Phase::Stat, 0), 0);
}

#[test]
fn random_order_depends_on_seed_only() {
    let order = |plan: &Plan, phase| match plan.order(phase, 0) {
        FileOrder::Rising(_) => panic!("not shuffled"),
        FileOrder::Shuffled(numbers) => numbers,
    };
    let first = plan(2, 2000);
    let rising: Vec<u32> = (0..1000).collect();
    assert_eq!(order(&first, Phase::Stat), order(&first, Phase::Stat));
    assert_ne!(order(&first, Phase::Stat), order(&first, Phase::Delete));
    assert_ne!(order(&first, Phase::Stat), order(&Plan { seed: 2, ..first.clone() }, Phase::Stat));
    assert_ne!(order(&first, Phase::Stat), rising);
}

#[test]
fn numbers_are_appended_in_decimal() {
    for number in [0, 9, 10, 4096, u64::MAX] {
        let mut text = String::from("x.");
        plan::push_decimal(&mut text, number);
        assert_eq!(text, format!("x.{number}"));
    }
}

fn quick(via: &[&Path]) -> MdtestConfig {
    MdtestConfig {
        via: via.iter().map(|path| Via::Path(path.to_path_buf())).collect(),
        files: 300,
        clients: vec![1, 3],
        repeat: 2,
        progress: false,
        ..MdtestConfig::default()
    }
}

fn entries(directory: &Path) -> usize {
    std::fs::read_dir(directory).unwrap().count()
}

#[test]
fn run_alternates_two_targets_and_cleans_up() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let report = run(&quick(&[a.path(), b.path()])).unwrap();
    assert_eq!(report.results.len(), 2 * 2 * 3);
    for result in &report.results {
        assert_eq!((result.via.as_str(), result.files), ("path", 300));
        assert_eq!(result.ops_per_s.samples.len(), 2);
        assert!(result.ops_per_s.min > 0.0 && result.ops_per_s.min <= result.ops_per_s.median);
        assert!(result.latency_us.p50 > 0.0 && result.latency_us.p50 <= result.latency_us.p999);
    }
    assert_eq!(report.ratios.len(), 2 * 3, "the second directory to the first");
    assert!(report.ratios.iter().all(|ratio| ratio.target == b.path().display().to_string() && ratio.pairs == 2));
    assert_eq!((entries(a.path()), entries(b.path())), (0, 0));
}

#[test]
fn run_with_content_reads_and_run_with_directories_makes_them() {
    let dir = tempfile::tempdir().unwrap();
    let written = MdtestConfig { write_bytes: 3901, unique_dirs: true, ..quick(&[dir.path()]) };
    assert_eq!(run(&written).unwrap().phases_of_one_client(), ["create", "stat", "read", "delete"]);
    let directories = MdtestConfig { directories: true, warm_up: false, ..quick(&[dir.path()]) };
    assert_eq!(run(&directories).unwrap().phases_of_one_client(), ["mkdir", "rmdir"]);
    assert_eq!(entries(dir.path()), 0);
}

/// Promise: beside a prefilled directory, an empty directory of the same target is measured.
#[test]
fn a_filled_directory_is_measured_beside_an_empty_one() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let report = run(&MdtestConfig { prefill: 200, ..quick(&[a.path(), b.path()]) }).unwrap();
    assert_eq!(report.phases_of_one_client(), ["create", "stat", "delete", "create", "stat", "delete"]);
    let to_empty: Vec<_> = report.ratios.iter().filter(|ratio| ratio.to == EMPTY_DIRECTORY).collect();
    assert_eq!(to_empty.len(), 2 * 2 * 3, "two targets with two numbers of clients, each to its own");
    assert!(to_empty.iter().all(|ratio| ratio.pairs == 2));
    assert_eq!((entries(a.path()), entries(b.path())), (0, 0));
}

impl BenchReport {
    fn phases_of_one_client(&self) -> Vec<&str> {
        self.results.iter().filter(|result| result.clients == 1).map(|result| result.phase.as_str()).collect()
    }
}

#[test]
fn failed_run_names_the_phase_and_cleans_up() {
    // The second target's directory is gone before the run opens it. The first target's working directory must be
    // removed too.
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    let error = run(&quick(&[dir.path(), &missing])).unwrap_err();
    assert!(error.to_string().contains("missing"), "{error}");
    assert_eq!(entries(dir.path()), 0);
}

#[test]
fn failing_client_ends_the_pass_for_all() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("shared")).unwrap();
    std::fs::write(dir.path().join("shared/file.mdtest.1.50"), b"").unwrap();
    let target = crate::target::DirectoryTarget::open("path", dir.path()).unwrap();
    let progress = ProgressDisplay::new(false, 0);
    let error = pass::run(&target, ".", &plan(3, 300), &progress).err().unwrap();
    assert!(matches!(&error, Error::Operation { operation: "create", .. }), "{error}");
    assert!(error.to_string().contains("file.mdtest.1.50"), "{error}");
}

#[test]
fn invalid_settings_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let base = || quick(&[dir.path()]);
    for config in [
        MdtestConfig { via: Vec::new(), ..base() },
        MdtestConfig { clients: Vec::new(), ..base() },
        MdtestConfig { clients: vec![0], ..base() },
        MdtestConfig { clients: vec![301], ..base() },
        MdtestConfig { repeat: 0, ..base() },
        MdtestConfig { files: FILES_MAX + 1, ..base() },
        MdtestConfig { directories: true, write_bytes: 1, ..base() },
        MdtestConfig { unique_dirs: true, prefill: 1, ..base() },
        MdtestConfig { write_bytes: WRITE_BYTES_MAX + 1, ..base() },
    ] {
        assert!(matches!(run(&config), Err(Error::Usage(_))));
    }
}
