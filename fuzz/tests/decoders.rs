//! No decoder panics or takes more memory than its limit, on the corpus and on many mutations of it; data of earlier
//! versions can still be read.

use std::panic::{AssertUnwindSafe, catch_unwind};
use varve_env::random::Seeded;
use varve_fuzz::mutation::mutated;
use varve_fuzz::targets::{Corpus, FuzzTarget, TARGETS, find};

/// Mutations per target, for targets that take microseconds; slower ones get fewer.
const MUTATIONS: usize = 400_000;

fn soak() -> bool {
    std::env::var_os("VARVE_SOAK").is_some_and(|value| value == "1")
}

fn try_out(target: &FuzzTarget, bytes: &[u8]) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| target.run_bounded(bytes))).map_err(|_| {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{} fails on {hex}\nkeep the bytes in fuzz/corpus/{}/ with the fix", target.name, target.name)
    })
}

fn fuzz(name: &str) {
    let target = find(name).unwrap_or_else(|| panic!("no target {name}"));
    let corpus = Corpus::read(target).expect("the corpus is there");
    for (file, bytes) in &corpus.files {
        try_out(target, bytes).unwrap_or_else(|failure| panic!("{file}: {failure}"));
    }
    let seeds: Vec<Vec<u8>> = corpus.files.into_values().collect();
    let mut random = Seeded::new(0x0076_6172_7665);
    let rounds = MUTATIONS / target.cost * if soak() { 50 } else { 1 };
    for round in 0..rounds {
        let bytes = mutated(&seeds, &mut random, target.bytes_max);
        try_out(target, &bytes).unwrap_or_else(|failure| panic!("mutation {round}: {failure}"));
    }
}

#[test]
fn keys_and_rows() {
    fuzz("rows");
}

#[test]
fn log_files() {
    fuzz("log");
}

#[test]
fn messages() {
    fuzz("wire");
}

#[test]
fn calls_of_a_connection() {
    fuzz("rpc");
}

#[test]
fn messages_between_shards() {
    fuzz("peer");
}

#[test]
fn handshakes() {
    fuzz("handshake");
}

#[test]
fn records_of_a_connection() {
    fuzz("record");
}

#[test]
fn the_configuration() {
    fuzz("config");
}

#[test]
fn volume_file_and_server_records() {
    fuzz("volume");
}

#[test]
fn names_and_urls() {
    fuzz("names");
}

#[test]
fn the_journal_of_a_run() {
    fuzz("journal");
}

#[test]
fn stream2_messages() {
    fuzz("stream2");
}

#[test]
fn pvaccess_messages() {
    fuzz("pva");
}

#[test]
fn the_stream_of_detectors() {
    fuzz("detector_stream");
}

#[test]
fn layouts_of_detector_files() {
    fuzz("layout");
}

/// Detects a target that no test above runs, or that `make fuzz` does not name.
#[test]
fn every_target_is_run() {
    let source = include_str!("decoders.rs");
    let makefile = include_str!("../../Makefile");
    let named = makefile.lines().find_map(|line| line.strip_prefix("FUZZ_TARGETS ?= ")).expect("make fuzz has targets");
    for target in TARGETS {
        assert!(source.contains(&format!("fuzz(\"{}\")", target.name)), "{} is not run", target.name);
        assert!(named.split(' ').any(|name| name == target.name), "make fuzz leaves {} out", target.name);
    }
}

/// Bytes of a supported version can be read.
#[test]
fn golden_bytes_are_read() {
    for target in TARGETS {
        let corpus = Corpus::read(target).expect("the corpus is there");
        let golden: Vec<_> = corpus.files.iter().filter(|(file, _)| file.starts_with("golden-")).collect();
        assert!(!golden.is_empty(), "{} has no golden bytes", target.name);
        for (file, bytes) in golden {
            assert!((target.reads)(bytes), "{}/{file} is not read any more", target.name);
        }
    }
}

/// Rewrites the golden `Hello` after a change of the protocol's version, which it proves with the key:
/// `cargo test -p varve-fuzz --test decoders rewrite_golden_hello -- --ignored`
#[test]
#[ignore = "writes into the corpus"]
fn rewrite_golden_hello() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/handshake/golden-hello");
    std::fs::write(file, varve_fuzz::targets::handshake::golden_hello()).expect("the corpus can be written");
}

/// Rewrites the golden messages between shards after a change of their version:
/// `cargo test -p varve-fuzz --test decoders rewrite_golden_peer -- --ignored`
#[test]
#[ignore = "writes into the corpus"]
fn rewrite_golden_peer_messages() {
    let directory = Corpus::directory(find("peer").expect("there is such a target"));
    for (file, bytes) in varve_fuzz::targets::peer::golden() {
        std::fs::write(directory.join(file), bytes).expect("the corpus can be written");
    }
}

/// The measurement counts allocations.
#[test]
fn memory_is_measured() {
    let peak = varve_fuzz::allocation::peak_bytes(|| drop(std::hint::black_box(vec![1_u8; 3 << 20])));
    assert!((3 << 20..4 << 20).contains(&peak), "{peak} bytes measured");
}
