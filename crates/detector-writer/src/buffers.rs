//! Pool of buffers for frames and chunks. New memory costs a page fault for every page, which for a megabyte takes
//! longer than copying it.

use parking_lot::Mutex;

/// Limit for pooled buffers: those between a written frame and the next received one.
const KEPT_MAX: usize = 8;
/// Smaller buffers are cheap to allocate.
const WORTH_BYTES: usize = 64 << 10;

#[derive(Debug, Default)]
pub struct Buffers(Mutex<Vec<Vec<u8>>>);

impl Buffers {
    /// Returns a buffer with capacity for `bytes`; it may be empty or contain old data.
    pub fn get(&self, bytes: usize) -> Vec<u8> {
        if bytes >= WORTH_BYTES {
            let mut kept = self.0.lock();
            // A buffer that is much too large would be missing for its own size, and uses more memory than is accounted
            // for.
            let fits = |buffer: &Vec<u8>| (bytes..=2 * bytes).contains(&buffer.capacity());
            // The most recent one may still be in a CPU cache.
            if let Some(at) = kept.iter().rposition(fits) {
                return kept.remove(at);
            }
        }
        Vec::with_capacity(bytes)
    }

    /// Returns a buffer to the pool.
    pub fn put(&self, buffer: Vec<u8>) {
        if buffer.capacity() < WORTH_BYTES {
            return;
        }
        let mut kept = self.0.lock();
        let oldest = (kept.len() >= KEPT_MAX).then(|| kept.remove(0));
        kept.push(buffer);
        drop(kept);
        drop(oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_where_it_fits_and_few_are_kept() {
        let buffers = Buffers::default();
        let mut first = buffers.get(WORTH_BYTES);
        first.push(1);
        let place = first.as_ptr();
        buffers.put(first);
        let again = buffers.get(WORTH_BYTES);
        assert_eq!(again.as_ptr(), place);
        buffers.put(again);
        assert!(buffers.get(4 * WORTH_BYTES).capacity() >= 4 * WORTH_BYTES, "too small a one is left");
        for _ in 0..2 * KEPT_MAX {
            buffers.put(Vec::with_capacity(WORTH_BYTES));
        }
        assert_eq!(buffers.0.lock().len(), KEPT_MAX);
    }
}
