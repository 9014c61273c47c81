use super::*;
use proptest::prelude::*;

fn filters() -> Vec<Filter> {
    ["raw", "gzip:1", "shuffle+gzip:6", "lz4", "shuffle+lz4", "zstd:1", "shuffle+zstd:3", "bslz4", "bszstd:2"]
        .iter()
        .map(|name| name.parse().expect("a filter's name"))
        .collect()
}

proptest! {
    #[test]
    fn every_filter_round_trips(
        element in prop::sample::select(vec![1_usize, 2, 4, 8]),
        count in 0_usize..20_000,
        noise in any::<u64>(),
        spread in 1_u64..1000,
    ) {
        let mut state = noise | 1;
        let chunk: Vec<u8> = (0..count * element).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((state >> 33) % spread) as u8
        }).collect();
        for filter in filters() {
            let mut encoder = Encoder::new(filter, element).unwrap();
            let mut encoded = b"before".to_vec();
            encoder.encode(&chunk, &mut encoded).unwrap();
            let mut again = Vec::new();
            encoder.encode(&chunk, &mut again).unwrap();
            prop_assert_eq!(&encoded[6..], &again[..], "{} twice", filter);
            let decoded = Decoder { filter, element_bytes: element }.decode(&again, chunk.len()).unwrap();
            prop_assert!(decoded == chunk, "{} of {} elements of {}", filter, count, element);
        }
    }

    #[test]
    fn damaged_chunks_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), length in 0_usize..600) {
        for filter in filters() {
            // Any result is fine, as long as it returns.
            let answer = Decoder { filter, element_bytes: 2 }.decode(&bytes, length);
            prop_assert!(answer.is_err() || answer.is_ok_and(|plain| plain.len() == length));
        }
    }
}

#[test]
fn filter_names_round_trip_and_bad_ones_are_refused() {
    for filter in filters() {
        assert_eq!(filter.to_string().parse::<Filter>(), Ok(filter));
    }
    for (name, why) in [
        ("brotli", "no such compression"),
        ("gzip:10", "not within 1 to 9"),
        ("gzip:x", "not a number"),
        ("bslz4:3", "takes no level"),
        ("shuffle+bslz4", "shuffle works only"),
        ("shuffle+raw", "shuffle works only"),
    ] {
        let error = name.parse::<Filter>().expect_err(name).to_string();
        assert!(error.contains(why) && error.contains("use raw, gzip"), "{error}");
    }
}

/// Promise: a chunk is accepted whatever compression level was used, if readers decode it in the same way.
#[test]
fn compression_level_keeps_the_filter() {
    let filter = |name: &str| name.parse::<Filter>().unwrap();
    for (one, other, same) in [
        ("zstd", "zstd:9", true),
        ("gzip:1", "gzip", true),
        ("bszstd:22", "bszstd", true),
        ("bslz4", "bslz4", true),
        ("zstd", "shuffle+zstd", false),
        ("lz4", "bslz4", false),
        ("gzip:3", "zstd:3", false),
        ("raw", "lz4", false),
    ] {
        assert_eq!(filter(one).reads_as(&filter(other)), same, "{one}, {other}");
    }
}

/// Promise: a chunk that arrives in pieces is filtered to the same bytes as a whole one.
#[test]
fn piecewise_and_whole_encoding_agree() {
    for filter in filters().into_iter().filter(Filter::takes_blocks) {
        for (element, bytes) in [(1, 30_001), (2, 65_536), (4, 100_004), (8, 8 * 3)] {
            let plain: Vec<u8> = (0..bytes).map(|byte: u32| (byte.wrapping_mul(byte) / 7) as u8).collect();
            let mut encoder = Encoder::new(filter, element).expect("an encoder");
            let (mut whole, mut pieces) = (Vec::new(), Vec::new());
            encoder.encode(&plain, &mut whole).expect("filtered");
            encoder.begin(plain.len(), &mut pieces);
            for piece in plain.chunks(2 * encoder.block_bytes()) {
                encoder.add(piece, &mut pieces).expect("filtered");
            }
            assert!(whole == pieces, "{filter}, {bytes} bytes of {element}");
        }
    }
}
