//! Memory for what is written.
//!
//! A virtual machine's host takes back what its guest does not use, and fetching a page again takes several times as long as
//! writing it: what is measured then is the host. So pages are fetched before, and given to the kernel, which has them at
//! hand for the run; a host takes back only what has been free for seconds.

use crate::{Result, interrupt};

/// Fetched at a time, between which an interrupt is seen.
const PIECE_BYTES: usize = 64 << 20;
/// Of what is available; the rest is for what else the run needs.
const SHARE: f64 = 0.75;

/// Has the kernel hold as many bytes at hand, as far as there are so many.
pub fn fetch(bytes: f64) -> Result<()> {
    let bytes = available_bytes().map_or(bytes, |available| bytes.min(available * SHARE));
    let mut pieces = Vec::new();
    while ((pieces.len() * PIECE_BYTES) as f64) < bytes {
        interrupt::check()?;
        // Not zero, which would be promised and not fetched.
        pieces.push(std::hint::black_box(vec![1_u8; PIECE_BYTES]));
    }
    Ok(())
}

/// Without swapping, as the kernel estimates it.
fn available_bytes() -> Option<f64> {
    let reported = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kibibytes = reported.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?.trim().strip_suffix("kB")?;
    Some(kibibytes.trim().parse::<f64>().ok()? * 1024.0)
}
