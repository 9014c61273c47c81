//! Promises of streams: reads return the written data, rates and ratios are reported, nothing is left behind.

use super::*;

fn quick(via: Vec<Via>) -> StreamConfig {
    StreamConfig {
        via,
        bytes: 3 * 1024 * 1024 + 5,
        block_bytes: 1 << 20,
        clients: vec![1, 2],
        repeat: 2,
        drop_caches: false,
        progress: false,
        ..StreamConfig::default()
    }
}

#[test]
fn streams_are_measured_in_turns_and_clean_up() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let report = run(&quick(vec![Via::Path(a.path().into()), Via::Path(b.path().into())])).unwrap();
    assert_eq!(report.results.len(), 2 * 2 * 3);
    assert!(report.results.iter().all(|result| result.mib_per_s.as_ref().is_some_and(|rate| rate.median > 0.0)));
    assert_eq!(report.ratios.len(), 6);
    assert!(report.warnings.iter().any(|warning| warning == NOT_ASKED));
    for dir in [a, b] {
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

#[test]
fn stream_workload_refuses_library_target() {
    assert!(matches!(run(&quick(vec![Via::Library("/v".into())])), Err(Error::Usage(_))));
    assert!(matches!(run(&quick(Vec::new())), Err(Error::Usage(_))));
}

#[test]
fn blocks_do_not_repeat_within_themselves() {
    let block = block(4096 + 3);
    assert_eq!(block.len(), 4099);
    assert_ne!(block[..2048], block[2048..4096]);
}
