//! Memory that frames and chunks lay in and others will lie in: fresh memory costs a fault of every page, which for a
//! megabyte is more than its copy.

use parking_lot::Mutex;

/// Buffers kept at most: those between a frame written and the next one received.
const KEPT_MAX: usize = 8;
/// Smaller ones cost nothing to make.
const WORTH_BYTES: usize = 64 << 10;

#[derive(Debug, Default)]
pub struct Buffers(Mutex<Vec<Vec<u8>>>);

impl Buffers {
    /// A buffer for `bytes`; it may be empty, or hold what is not needed any more.
    pub fn get(&self, bytes: usize) -> Vec<u8> {
        if bytes >= WORTH_BYTES {
            let mut kept = self.0.lock();
            // One that is much too large would be missed by whom it fits, and holds more memory than is counted.
            let fits = |buffer: &Vec<u8>| (bytes..=2 * bytes).contains(&buffer.capacity());
            // The last one may still be in a processor's cache.
            if let Some(at) = kept.iter().rposition(fits) {
                return kept.remove(at);
            }
        }
        Vec::with_capacity(bytes)
    }

    /// Keeps a buffer that is not needed any more.
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
