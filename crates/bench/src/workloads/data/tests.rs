use super::rank::{DataRank, Transfer, transfers};
use super::*;
use crate::progress::ProgressDisplay;
use crate::ranks::RankContext;
use crate::ranks::link::ThreadLink;
use crate::workloads::campaign::tests::on_threads;
use std::path::Path;

fn options(pattern: DataPattern) -> DataOptions {
    DataOptions {
        pattern,
        bytes: 600_000,
        transfer_bytes: 65_536,
        block_bytes: 100_000,
        verify: true,
        files: 1500,
        operations: 50,
        ..DataOptions::default()
    }
}

fn config(path: &Path, options: DataOptions) -> DataConfig {
    DataConfig { campaign: on_threads(&[path]), options, clients: vec![1, 3], repeat: 2 }
}

/// Promise: the ranks of each pattern cover the file, each byte once.
#[test]
fn transfers_of_all_ranks_cover_the_file_once() {
    for pattern in [DataPattern::Segmented, DataPattern::Strided, DataPattern::Frames] {
        let options = options(pattern);
        let mut all: Vec<Transfer> = (0..3).flat_map(|owner| transfers(&options, 3, owner)).collect();
        all.sort_by_key(|transfer| transfer.offset);
        let mut end = 0;
        for Transfer { offset, bytes } in all {
            assert_eq!(offset, end, "{pattern}");
            assert!(bytes > 0 && bytes <= options.transfer_bytes);
            end = offset + bytes;
        }
        assert_eq!(end, 3 * options.bytes, "{pattern}");
    }
}

#[test]
fn each_pattern_is_measured_verified_and_removed() {
    for pattern in DataPattern::ALL {
        let dir = tempfile::tempdir().unwrap();
        let results = run(&config(dir.path(), options(pattern))).unwrap();
        assert_eq!(results.error, None, "{pattern}");
        let found = |metric: &str| {
            let mut of_metric = results.results.iter().filter(|measured| measured.metric == metric);
            of_metric.any(|measured| measured.samples.len() == 2 && measured.samples[0] > 0.0)
        };
        let expected: &[&str] = match pattern {
            DataPattern::OpenFiles => &["open_cold", "open_warm"],
            DataPattern::RandomRead => &["write", "random_read"],
            _ => &["write", "write_overall", "write_drained", "read"],
        };
        for metric in expected {
            assert!(found(metric), "{pattern} {metric}: {:?}", results.results);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

/// Promise: data that the memory can hold is marked where the caches were not dropped.
#[test]
fn reads_of_memory_are_marked() {
    let dir = tempfile::tempdir().unwrap();
    let results = run(&config(dir.path(), DataOptions { drop_caches: false, ..options(DataPattern::NToN) })).unwrap();
    for measured in results.results.iter().filter(|measured| measured.metric == "read") {
        assert!(measured.marks.contains(MARK_PAGE_CACHE));
    }
    let drained = results.results.iter().find(|measured| measured.metric == "write_drained").unwrap();
    assert_eq!(drained.marks.iter().collect::<Vec<_>>(), [MARK_DRAINED], "they reached the store");
}

/// Promise: verification finds a planted flipped byte, and names its place.
#[test]
fn verification_finds_a_planted_flipped_byte() {
    for pattern in [DataPattern::NToN, DataPattern::Segmented, DataPattern::Strided] {
        let dir = tempfile::tempdir().unwrap();
        let options = options(pattern);
        let progress = ProgressDisplay::new(false, 0);
        let link = ThreadLink::new(1, &progress);
        let context = RankContext::new(0, 1, &link);
        let via = "path:/x".to_owned();
        let rank = DataRank { via, directory: dir.path().to_owned(), options: &options, context: &context, seed: 5 };
        rank.write().unwrap();
        rank.read().unwrap();
        let mut content = std::fs::read(rank.path(0)).unwrap();
        assert_eq!(content.len() as u64, options.bytes);
        content[432_109] ^= 0x10;
        std::fs::write(rank.path(0), &content).unwrap();
        let error = rank.read().unwrap_err().to_string();
        assert!(error.contains("byte 432109 of") && error.contains("was written"), "{pattern}: {error}");
    }
}

#[test]
fn senseless_sizes_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |change: fn(&mut DataOptions)| {
        let mut options = options(DataPattern::Strided);
        change(&mut options);
        run(&config(dir.path(), options)).unwrap_err().to_string()
    };
    assert!(refused(|options| options.bytes = 0).contains("at least 1 byte"));
    assert!(refused(|options| options.block_bytes = 7).contains("whole number of blocks"));
    assert!(refused(|options| options.direct = true).contains("multiples of 4096"));
    let library = DataConfig {
        campaign: CampaignConfig { via: vec![Via::Library("/v".to_owned())], ..on_threads(&[]) },
        ..config(dir.path(), options(DataPattern::NToN))
    };
    assert!(run(&library).unwrap_err().to_string().contains("directories only"));
}
