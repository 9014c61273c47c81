//! Records of the log, stored side by side in blocks. A block lives until the last of its bytes is released, and some
//! dozens of records share the cost of one allocation. A record keeps at most one block in memory, and so does an idle
//! log.

use bytes::{Bytes, BytesMut};

const BLOCK_BYTES: usize = 16 * 1024;

#[derive(Default)]
pub(super) struct Blocks {
    block: BytesMut,
}

impl Blocks {
    /// Runs `append` and returns the bytes that it appended, which must be `bytes` long unless it fails.
    pub fn lay<E>(&mut self, bytes: usize, append: impl FnOnce(&mut BytesMut) -> Result<(), E>) -> Result<Bytes, E> {
        if bytes > BLOCK_BYTES / 4 {
            let mut alone = BytesMut::with_capacity(bytes);
            return append(&mut alone).map(|()| alone.freeze());
        }
        if self.block.capacity() < bytes {
            self.block = BytesMut::with_capacity(BLOCK_BYTES);
        }
        let appended = append(&mut self.block);
        let bytes = self.block.split();
        appended.map(|()| bytes.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: every run holds the appended bytes, whatever else is in its block, and a failed append is in none.
    #[test]
    fn blocks_return_appended_bytes() {
        let mut blocks = Blocks::default();
        let of = |number: usize| vec![number as u8; number * 37 % 6000];
        let runs: Vec<Bytes> = (0..200)
            .map(|number| {
                let failed = blocks.lay(1, |out| {
                    out.extend_from_slice(&[0xff]);
                    Err(number)
                });
                assert_eq!(failed, Err(number));
                let laid: Result<Bytes, usize> = blocks.lay(of(number).len(), |out| {
                    out.extend_from_slice(&of(number));
                    Ok(())
                });
                laid.unwrap()
            })
            .collect();
        for (number, run) in runs.iter().enumerate() {
            assert_eq!(*run, of(number));
        }
        // One byte lies between neighbouring runs of one block.
        let beside = |pair: &[Bytes]| pair[0].as_ptr_range().end.addr() + 1 == pair[1].as_ptr().addr();
        assert!(runs.windows(2).filter(|pair| beside(pair)).count() > 50);
        assert!(blocks.block.capacity() <= BLOCK_BYTES);
    }
}
