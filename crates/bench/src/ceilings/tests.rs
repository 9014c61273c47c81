//! Promises of the ceilings: frames as large as a create's, every variant measured, nothing left in the store.

use super::*;
use crate::target::Via;

#[test]
fn message_sizes_match_a_create() {
    let sizes = request_reply::MessageSizes::of_a_create().unwrap();
    assert!((40..120).contains(&sizes.request), "{sizes:?}");
    assert!((60..160).contains(&sizes.reply), "{sizes:?}");
}

#[test]
fn every_variant_of_request_and_reply_is_measured() {
    let rates = request_reply::measure(3, 2).unwrap();
    assert_eq!(rates.len(), 6);
    assert!(rates.iter().all(|(name, _)| name.starts_with(REQUEST_REPLY)), "{rates:?}");
    assert!(rates.iter().all(|(_, rate)| *rate > 100.0), "{rates:?}");
}

#[test]
fn fsync_probe_counts_and_leaves_no_files() {
    let store = tempfile::tempdir().unwrap();
    assert!(store::fsyncs_per_second(store.path()).unwrap() > 1.0);
    assert_eq!(std::fs::read_dir(store.path()).unwrap().count(), 0);
}

#[test]
fn store_is_measured_once() {
    let parent = tempfile::tempdir().unwrap();
    let store = parent.path().join("volume");
    std::fs::create_dir(&store).unwrap();
    let library = Via::Library(format!("file://{}", store.display()));
    let config = CeilingsConfig::default();
    let beside = Some(parent.path().canonicalize().unwrap());
    assert_eq!(store::directory(&config, std::slice::from_ref(&library)), beside);
    let path = Via::Path(parent.path().to_owned());
    assert_eq!(store::directory(&config, &[library.clone(), path.clone()]), None);
    assert_eq!(store::fsync_directory(&config, &[library, path]), beside);
    let without = CeilingsConfig { measure_store: false, ..CeilingsConfig::default() };
    assert_eq!(store::fsync_directory(&without, &[Via::Library(store.display().to_string())]), None);
}
