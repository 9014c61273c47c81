use super::*;
use std::time::Duration;
use varve_detector_filters::Filter;

#[test]
fn lustre_layouts_are_read() {
    let plain = |magic: u32, stripe: u32, count: u16| {
        let mut bytes = magic.to_le_bytes().to_vec();
        bytes.extend([0; 20]);
        bytes.extend(stripe.to_le_bytes());
        bytes.extend(count.to_le_bytes());
        bytes.extend([0; 2]);
        bytes
    };
    for magic in [0x0bd1_0bd0, 0x0bd3_0bd0] {
        assert_eq!(store::lustre_layout(&plain(magic, 1 << 20, 4)), Some((1 << 20, 4)));
    }
    // Two components: small files on one target, large ones on eight.
    let mut composite = vec![0; 32 + 2 * 48];
    composite[..4].copy_from_slice(&0x0bd6_0bd0_u32.to_le_bytes());
    composite[14..16].copy_from_slice(&2_u16.to_le_bytes());
    for (entry, stripe, count) in [(0, 1 << 16, 1), (1, 4 << 20, 8)] {
        let offset = composite.len() as u32;
        composite[32 + entry * 48 + 24..][..4].copy_from_slice(&offset.to_le_bytes());
        composite.extend(plain(0x0bd1_0bd0, stripe, count));
    }
    assert_eq!(store::lustre_layout(&composite), Some((4 << 20, 8)));
    for cut in 0..composite.len() {
        store::lustre_layout(&composite[..cut]);
    }
    assert_eq!(store::lustre_layout(b"nothing of the kind"), None);
}

#[test]
fn chunks_are_neither_tiny_nor_huge() {
    assert_eq!(chunks(&[2527, 2463], ElementType::I32, 25.0), [None]);
    assert_eq!(chunks(&[64, 64], ElementType::U16, 1000.0), [None, Some(vec![128, 64, 64])]);
    assert_eq!(chunks(&[64, 64], ElementType::U16, 10.0), [None, Some(vec![10, 64, 64])]);
    assert_eq!(chunks(&[16_384, 16_384], ElementType::U32, 1.0), [Some(vec![1024, 16_384])]);
    let store = |stripe_bytes| Store { file_system: "x".into(), block_bytes: 4096, stripe_bytes, stripe_count: None };
    assert_eq!(alignment(&store(None)), 4 << 20);
    assert_eq!(alignment(&store(Some(512 << 10))), 1 << 20);
    assert_eq!(alignment(&store(Some(16 << 20))), 16 << 20);
}

#[test]
fn smallest_file_with_enough_margin_is_chosen() {
    let trial = |filter, ratio, frames_per_s| Trial { chunk: None, filter, writers: 1, ratio, frames_per_s };
    let together =
        |filter, ratio, frames_per_s| Trial { chunk: Some(vec![2, 8, 8]), ..trial(filter, ratio, frames_per_s) };
    let trials = [trial(Filter::RAW, 1.0, 100.0), trial(Filter::BSLZ4, 6.0, 40.0)];
    assert_eq!(choose(&trials, 20.0).ratio, 6.0);
    assert_eq!(choose(&trials, 30.0).ratio, 1.0);
    assert_eq!(choose(&trials, 300.0).ratio, 1.0);
    let trials = [together(Filter::BSLZ4, 5.9, 30.0), trial(Filter::BSLZ4, 6.0, 60.0), trial(Filter::RAW, 1.0, 50.0)];
    assert_eq!(choose(&trials, 20.0).chunk, Some(vec![2, 8, 8]), "fewer chunks where they are fast enough");
    assert_eq!(choose(&trials, 30.0).chunk, None);
    assert_eq!(choose(&trials, 300.0).chunk, None);
}

/// Issue 5: the probes leave no files in the directory, and the advice is usable for a run.
#[test]
fn probe_leaves_the_directory_unchanged() {
    let directory = tempfile::tempdir().expect("a directory");
    let name = "300x200xu16".to_owned();
    let request = AdviceRequest {
        directory: directory.path().to_owned(),
        model: name.parse().expect("a model"),
        name,
        rate: 0.001,
        ratio: 4.0,
        time: Duration::from_millis(500),
        threads_max: 2,
    };
    let advice = advise(&request).expect("advised");
    assert_eq!(std::fs::read_dir(directory.path()).expect("there").count(), 0);
    assert!(advice.reaches() && advice.margin > 1.0, "{advice:?}");
    assert_eq!((advice.filters.len(), advice.writes.len(), advice.trials.len()), (5, 4, 2));
    let text = serde_json::to_string(&advice).expect("JSON");
    assert_eq!(serde_json::from_str::<Advice>(&text).expect("read"), advice);
    let mut description = DatasetSpec::new(ElementType::U16, vec![200, 300]);
    description.follow(&advice).expect("it fits");
    description.check().expect("a run");
    let mut other = DatasetSpec::new(ElementType::U16, vec![200, 301]);
    assert!(other.follow(&advice).expect_err("other frames").contains("the run has frames of [200, 301] u16"));
}
