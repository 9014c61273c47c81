//! The fuzz targets: one function per decoder, which accepts any bytes.

mod config;
mod detector_stream;
pub mod handshake;
mod journal;
mod layout;
mod log;
mod names;
pub mod peer;
mod pva;
mod record;
mod rows;
mod rpc;
mod stream2;
mod volume;
mod wire;

use crate::allocation::peak_bytes;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

/// A decoder under test.
pub struct FuzzTarget {
    pub name: &'static str,
    /// Whether the bytes were decoded. Panics if an invariant is violated.
    pub reads: fn(&[u8]) -> bool,
    /// Longer inputs find nothing new.
    pub bytes_max: usize,
    /// Peak memory of the decoder, in addition to [`FuzzTarget::memory_per_byte`] for each input byte.
    pub memory_max: usize,
    pub memory_per_byte: usize,
    /// Cost of a run relative to the cheapest target.
    pub cost: usize,
}

/// Vectors of unknown length start with at most this capacity, whatever length is claimed (serde's rule), and a growing
/// vector exists twice while it is copied.
const CAUTIOUS_BYTES: usize = 4 << 20;

pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "rows", reads: rows::reads, cost: 1, ..FuzzTarget::SMALL },
    FuzzTarget { name: "log", reads: log::reads, cost: 2, ..FuzzTarget::SMALL },
    FuzzTarget { name: "wire", reads: wire::reads, cost: 2, ..FuzzTarget::SMALL },
    FuzzTarget { name: "rpc", reads: rpc::reads, cost: 4, ..FuzzTarget::SMALL },
    // A list grows only as its items arrive.
    FuzzTarget { name: "peer", reads: peer::reads, cost: 2, memory_max: 4096, ..FuzzTarget::SMALL },
    FuzzTarget { name: "config", reads: config::reads, cost: 100, ..FuzzTarget::SMALL },
    FuzzTarget { name: "volume", reads: volume::reads, cost: 40, ..FuzzTarget::SMALL },
    FuzzTarget { name: "journal", reads: journal::reads, cost: 20, ..FuzzTarget::SMALL },
    // A command of a ZeroMQ peer has up to 64 KiB; a message is read in pieces of 16 MiB.
    FuzzTarget { name: "stream2", reads: stream2::reads, cost: 8, memory_max: 20 << 20, ..FuzzTarget::SMALL },
    // A message is read in pieces of 16 MiB.
    FuzzTarget { name: "pva", reads: pva::reads, cost: 8, memory_max: 20 << 20, ..FuzzTarget::SMALL },
    FuzzTarget { name: "detector_stream", reads: detector_stream::reads, cost: 4, ..FuzzTarget::SMALL },
    FuzzTarget { name: "layout", reads: layout::reads, cost: 20, ..FuzzTarget::SMALL },
    // Each run exchanges keys.
    FuzzTarget { name: "handshake", reads: handshake::reads, cost: 40, ..FuzzTarget::SMALL },
    FuzzTarget { name: "record", reads: record::reads, cost: 20, ..FuzzTarget::SMALL },
    FuzzTarget { name: "names", reads: names::reads, cost: 40, ..FuzzTarget::SMALL },
];

impl FuzzTarget {
    const SMALL: FuzzTarget = FuzzTarget {
        name: "",
        reads: |_| false,
        bytes_max: 4096,
        memory_max: CAUTIOUS_BYTES,
        memory_per_byte: 200,
        cost: 1,
    };

    /// Runs the decoder.
    ///
    /// # Panics
    /// If the decoder panics, or takes more memory than its limit.
    pub fn run_bounded(&self, bytes: &[u8]) {
        let peak = peak_bytes(|| {
            (self.reads)(bytes);
        });
        let limit = self.memory_max + self.memory_per_byte * bytes.len();
        assert!(peak <= limit, "{} bytes made {} allocate {peak} at once, more than {limit}", bytes.len(), self.name);
    }
}

pub fn find(name: &str) -> Option<&'static FuzzTarget> {
    TARGETS.iter().find(|target| target.name == name)
}

/// The corpus files of a target.
pub struct Corpus {
    pub files: BTreeMap<String, Vec<u8>>,
}

impl Corpus {
    pub fn directory(target: &FuzzTarget) -> PathBuf {
        PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus")).join(target.name)
    }

    pub fn read(target: &FuzzTarget) -> io::Result<Corpus> {
        let mut files = BTreeMap::new();
        for entry in std::fs::read_dir(Corpus::directory(target))? {
            let entry = entry?;
            files.insert(entry.file_name().to_string_lossy().into_owned(), std::fs::read(entry.path())?);
        }
        Ok(Corpus { files })
    }
}

/// Splits off the first byte, which selects one of a target's decoders.
fn choice(bytes: &[u8]) -> Option<(u8, &[u8])> {
    bytes.split_first().map(|(first, rest)| (*first, rest))
}
