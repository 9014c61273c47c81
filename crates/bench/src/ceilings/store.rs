//! The store's own rates: the same phases in a plain directory of the store, and its fsyncs per second.

use super::CeilingsConfig;
use crate::target::Via;
use crate::{Error, Result};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Duration of the fsync measurement, per turn.
const FSYNC_TIME: Duration = Duration::from_millis(300);
/// The size of an append: about as much as a worker's log writes for a handful of calls.
const APPEND_BYTES: usize = 4096;

/// The directory for the store's own rates. `None` if a `path:` target lies on the store's file system, because those
/// phases are then measured anyway.
pub fn directory(config: &CeilingsConfig, via: &[Via]) -> Option<PathBuf> {
    let directory = fsync_directory(config, via)?;
    let device = device(&directory);
    let beside = via.iter().any(|via| matches!(via, Via::Path(path) if device == self::device(path)));
    (!beside).then_some(directory)
}

/// The directory for the fsync measurement: the configured one, else the directory that holds the first library's
/// store. It lies beside the volume, never in it, unless the volume is a file system of its own.
pub fn fsync_directory(config: &CeilingsConfig, via: &[Via]) -> Option<PathBuf> {
    if !config.measure_store {
        return None;
    }
    config.store.clone().or_else(|| {
        let store = via.iter().find(|via| matches!(via, Via::Library(_)))?.directory();
        let store = std::fs::canonicalize(store).ok()?;
        let beside = store.parent().filter(|parent| device(parent) == device(&store)).map(Path::to_owned);
        Some(beside.unwrap_or(store))
    })
}

fn device(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|metadata| metadata.dev())
}

/// Appends of 4 KiB per second to one file by one thread, each followed by fdatasync.
pub fn fsyncs_per_second(directory: &Path) -> Result<f64> {
    static FILES: AtomicU64 = AtomicU64::new(0);
    let number = FILES.fetch_add(1, Relaxed);
    let path = directory.join(format!("varve-bench-fsync.{}.{number}", std::process::id()));
    let fail = || Error::io(format!("fsync rate of {}", directory.display()));
    let mut file = std::fs::OpenOptions::new().append(true).create_new(true).open(&path).map_err(fail())?;
    let mut append = || {
        let begun = Instant::now();
        let mut fsyncs = 0_u32;
        while begun.elapsed() < FSYNC_TIME {
            file.write_all(&[0x5a; APPEND_BYTES])?;
            file.sync_data()?;
            fsyncs += 1;
        }
        Ok(f64::from(fsyncs) / begun.elapsed().as_secs_f64())
    };
    let rate = append().map_err(fail());
    std::fs::remove_file(&path).map_err(fail())?;
    rate
}
