//! Memory for written data.
//!
//! A virtual machine's host reclaims memory that its guest does not use. Fetching a page again takes several times as
//! long as writing it, so a run would measure the host. The benchmark therefore touches pages before the run and frees
//! them to the kernel, which has them available for the run. A host reclaims only memory that has been free for
//! seconds.

use crate::{Result, interrupt};

/// Bytes fetched at a time; an interrupt is checked in between.
const PIECE_BYTES: usize = 64 << 20;
/// Share of the available memory; the rest is for other needs of the run.
const SHARE: f64 = 0.75;

/// Makes the kernel hold `bytes` of memory available, as far as there is that much.
pub fn fetch(bytes: f64) -> Result<()> {
    let bytes = available_bytes().map_or(bytes, |available| bytes.min(available * SHARE));
    let mut pieces = Vec::new();
    while ((pieces.len() * PIECE_BYTES) as f64) < bytes {
        interrupt::check()?;
        // Not zero: the kernel only promises zero pages and does not fetch them.
        pieces.push(std::hint::black_box(vec![1_u8; PIECE_BYTES]));
    }
    Ok(())
}

/// Memory available without swapping, as the kernel estimates it.
fn available_bytes() -> Option<f64> {
    let reported = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kibibytes = reported.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?.trim().strip_suffix("kB")?;
    Some(kibibytes.trim().parse::<f64>().ok()? * 1024.0)
}
