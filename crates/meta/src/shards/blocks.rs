//! Short runs of bytes that lie side by side in blocks, which live until the last of their bytes is let go: some hundred runs
//! share the cost of one allocation, and who makes them now and then holds no more than one block.

use bytes::{Bytes, BytesMut};

const BLOCK_BYTES: usize = 16 * 1024;

#[derive(Default)]
pub(super) struct Blocks {
    scratch: Vec<u8>,
    block: BytesMut,
}

impl Blocks {
    /// What `append` has appended.
    pub fn lay(&mut self, append: impl FnOnce(&mut Vec<u8>)) -> Bytes {
        self.scratch.clear();
        append(&mut self.scratch);
        self.take()
    }

    /// The same, unless it fails.
    pub fn try_lay<E>(&mut self, append: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<Bytes, E> {
        self.scratch.clear();
        append(&mut self.scratch)?;
        Ok(self.take())
    }

    fn take(&mut self) -> Bytes {
        if self.scratch.len() > BLOCK_BYTES / 4 {
            return std::mem::take(&mut self.scratch).into();
        }
        if self.block.capacity() < self.scratch.len() {
            self.block = BytesMut::with_capacity(BLOCK_BYTES);
        }
        self.block.extend_from_slice(&self.scratch);
        self.block.split().freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: every run is what was appended, whatever else lies in its block, and what failed is in none.
    #[test]
    fn runs_are_what_was_appended() {
        let mut blocks = Blocks::default();
        let of = |number: usize| vec![number as u8; number * 37 % 6000];
        let runs: Vec<Bytes> = (0..200)
            .map(|number| {
                let failed = blocks.try_lay(|out| {
                    out.push(0xff);
                    Err(number)
                });
                assert_eq!(failed, Err(number));
                blocks.lay(|out| out.extend(of(number)))
            })
            .collect();
        for (number, run) in runs.iter().enumerate() {
            assert_eq!(*run, of(number));
        }
        let beside = |pair: &[Bytes]| pair[0].as_ptr_range().end == pair[1].as_ptr();
        assert!(runs.windows(2).filter(|pair| beside(pair)).count() > 50);
        assert!(blocks.block.capacity() <= BLOCK_BYTES && blocks.scratch.capacity() <= 2 * BLOCK_BYTES);
    }
}
