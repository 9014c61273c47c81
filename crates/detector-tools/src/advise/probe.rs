//! The measurements: filters on simulated frames, the store under parallel writes, and whole runs.

use super::probe_file::scratch;
use super::request::{AdviceRequest, AdviseError};
use super::store;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use varve_detector_dataset::advice::{FilterProbe, Store, Trial, WriteProbe};
use varve_detector_dataset::dataset_spec::DatasetSpec;
use varve_detector_dataset::frame::{Frame, Payload};
use varve_detector_dataset::time::unix_nanos;
use varve_detector_filters::{Compression, Encoder, Filter};
use varve_detector_writer::{Settings, Writer};

/// Number of filters that are tried in whole runs.
pub const FILTERS_TRIED: usize = 2;
/// Numbers of writers that the store is probed with.
const WRITERS: [usize; 4] = [1, 2, 4, 8];
/// Upper limit of bytes written by one probe of the store. A probe also uses at most an eighth of the free space.
const PROBE_BYTES_MAX: u64 = 2 << 30;
/// Timeout of one submit; a longer wait means that the store hangs.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Probe<'w> {
    request: &'w AdviceRequest,
    frames: Vec<Vec<u8>>,
    bytes_max: u64,
}

fn candidates() -> [Filter; 5] {
    let filter = |compression| Filter { shuffle: false, compression };
    [
        Filter::RAW,
        filter(Compression::Lz4),
        Filter::BSLZ4,
        filter(Compression::BitshuffleZstd { level: 1 }),
        Filter { shuffle: true, compression: Compression::Gzip { level: 1 } },
    ]
}

impl<'w> Probe<'w> {
    pub fn new(request: &'w AdviceRequest, frames: Vec<Vec<u8>>) -> io::Result<Probe<'w>> {
        let bytes_max = (store::room(&request.directory)? / 8).min(PROBE_BYTES_MAX);
        Ok(Probe { request, frames, bytes_max })
    }

    /// # Errors
    /// If the store has too little free space for a probe.
    pub fn check_room(&self, free: u64) -> Result<(), AdviseError> {
        let needed = 8 * (64 << 20).max(8 * self.frame_bytes());
        match free < needed {
            true => Err(AdviseError::Room { path: self.request.directory.clone(), free, needed }),
            false => Ok(()),
        }
    }

    fn frame_bytes(&self) -> u64 {
        self.frames[0].len() as u64
    }

    /// Properties that the file system reports for a file in the directory.
    pub fn store(&self) -> io::Result<Store> {
        let place = scratch(&self.request.directory, "look");
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&place.0)?;
        store::look(&file)
    }

    pub fn filters(&self, time: Duration) -> io::Result<Vec<FilterProbe>> {
        let each = time / candidates().len() as u32;
        candidates().into_iter().map(|filter| self.filter(filter, each)).collect()
    }

    /// All threads compress, each its own frames, until the time is up.
    fn filter(&self, filter: Filter, time: Duration) -> io::Result<FilterProbe> {
        let (frames, stored) = (AtomicU64::new(0), AtomicU64::new(0));
        let begun = Instant::now();
        let work = |thread: usize| -> io::Result<()> {
            let mut encoder = Encoder::new(filter, self.request.model.element.size()).map_err(io::Error::other)?;
            let mut out = Vec::new();
            for number in thread.. {
                out.clear();
                encoder.encode(&self.frames[number % self.frames.len()], &mut out).map_err(io::Error::other)?;
                frames.fetch_add(1, Relaxed);
                stored.fetch_add(out.len() as u64, Relaxed);
                if begun.elapsed() >= time {
                    break;
                }
            }
            Ok(())
        };
        in_parallel(self.request.threads_max, work)?;
        let (frames, stored) = (frames.into_inner(), stored.into_inner());
        let ratio = (frames * self.frame_bytes()) as f64 / stored as f64;
        let frames_per_s = rounded(frames as f64 / begun.elapsed().as_secs_f64());
        Ok(FilterProbe { filter, ratio: rounded(ratio), frames_per_s })
    }

    pub fn writes(&self, alignment: u64, time: Duration) -> io::Result<Vec<WriteProbe>> {
        let each = time / WRITERS.len() as u32;
        WRITERS.into_iter().map(|writers| self.write(writers, alignment, each)).collect()
    }

    /// Each writer fills its own part of the file, in blocks that begin and end at multiples of `alignment`.
    fn write(&self, writers: usize, alignment: u64, time: Duration) -> io::Result<WriteProbe> {
        const BLOCK_BYTES_MAX: u64 = 64 << 20;
        let block = self.frame_bytes().next_multiple_of(alignment).clamp(alignment, BLOCK_BYTES_MAX.max(alignment));
        let blocks = (self.bytes_max / writers as u64 / block).max(1);
        let place = scratch(&self.request.directory, "write");
        let file = OpenOptions::new().write(true).create_new(true).open(&place.0)?;
        // Random bytes, so that a store with its own compression gains nothing.
        let bytes = varve_env::random::Seeded::new(block).bytes(block as usize);
        let written = AtomicU64::new(0);
        let begun = Instant::now();
        in_parallel(writers, |writer| {
            for number in 0..blocks {
                file.write_all_at(&bytes, (writer as u64 * blocks + number) * block)?;
                written.fetch_add(block, Relaxed);
                if begun.elapsed() >= time {
                    break;
                }
            }
            file.sync_data()
        })?;
        let bytes_per_s = written.into_inner() as f64 / begun.elapsed().as_secs_f64();
        Ok(WriteProbe { writers, block_bytes: block, bytes_per_s: bytes_per_s.round() })
    }

    /// Writes a whole run, submitting frames as fast as the writer accepts them.
    ///
    /// # Errors
    /// If the run fails.
    pub fn trial(
        &self,
        description: DatasetSpec,
        (writers, alignment): (usize, u64),
        time: Duration,
    ) -> Result<Trial, AdviseError> {
        let place = scratch(&self.request.directory, "run.h5");
        let (chunk, filter) = (description.chunk.clone(), description.filter);
        let settings = Settings {
            threads: writers,
            stripe_bytes: alignment,
            queue_bytes: (64 << 20).max(4 * self.frames[0].len()),
            ..Settings::default()
        };
        let writer = Writer::create(&place.0, description, settings, Arc::new(()))?;
        let begun = Instant::now();
        let mut number = 0;
        while number == 0 || (begun.elapsed() < time && writer.progress().stored_bytes < self.bytes_max) {
            let plain = self.frames[number as usize % self.frames.len()].clone();
            writer.submit(Frame { number, taken: unix_nanos(), payload: Payload::Plain(plain) }, PATIENCE)?;
            number += 1;
        }
        let progress = writer.observer();
        writer.finish()?;
        let frames_per_s = rounded(number as f64 / begun.elapsed().as_secs_f64());
        let ratio = rounded((number * self.frame_bytes()) as f64 / progress().stored_bytes.max(1) as f64);
        Ok(Trial { chunk, filter, writers, ratio, frames_per_s })
    }
}

/// Runs `work` on `threads` threads at once and returns the first error.
fn in_parallel(threads: usize, work: impl Fn(usize) -> io::Result<()> + Sync) -> io::Result<()> {
    std::thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = (0..threads.max(1)).map(|thread| scope.spawn(move || work(thread))).collect();
        let panicked = |_| Err(io::Error::other("a probe thread panicked"));
        running.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(panicked))
    })
}

/// Rounds to three decimals, so that the number survives a round trip through JSON.
pub fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
