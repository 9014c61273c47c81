//! The content of a small file in memory: reads, writes, and which bytes the row does not have yet. Pure.

use std::ops::Range;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InlineBuffer {
    bytes: Vec<u8>,
    dirty: Option<Dirty>,
}

/// What was done since the content was last the row's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dirty {
    /// Written bytes lie in here; not all in here were written.
    pub written: Range<usize>,
    /// The shortest length that the content had meanwhile: bytes of the row from there on are gone.
    pub kept: usize,
}

impl InlineBuffer {
    /// The content as the row has it.
    pub fn clean(bytes: Vec<u8>) -> InlineBuffer {
        InlineBuffer { bytes, dirty: None }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn dirty(&self) -> Option<&Dirty> {
        self.dirty.as_ref()
    }

    /// The row has this content now.
    pub fn written_back(&mut self) {
        self.dirty = None;
    }

    /// Copies from `offset` on; the number of bytes copied.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let Some(rest) = usize::try_from(offset).ok().and_then(|offset| self.bytes.get(offset..)) else { return 0 };
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        count
    }

    /// Writes `data` at `offset`, with zeros before it where the content was shorter.
    pub fn write(&mut self, offset: usize, data: &[u8]) {
        let before = self.bytes.len();
        let end = offset + data.len();
        if offset == before {
            self.bytes.extend_from_slice(data);
        } else {
            if end > before {
                self.bytes.resize(end, 0);
            }
            self.bytes[offset..end].copy_from_slice(data);
        }
        self.touch(offset.min(before)..end, before);
    }

    /// Cuts, or extends with zeros.
    pub fn resize(&mut self, len: usize) {
        let before = self.bytes.len();
        self.bytes.resize(len, 0);
        if len <= before {
            self.touch(len..len, len);
        } else {
            self.touch(before..len, before);
        }
    }

    /// Makes the bytes of `range` that exist zero.
    pub fn zero(&mut self, range: Range<usize>) {
        let len = self.bytes.len();
        let range = range.start.min(len)..range.end.min(len);
        self.bytes[range.clone()].fill(0);
        self.touch(range, len);
    }

    /// Puts what was written here onto `theirs`, the row's content of now.
    pub fn onto(&self, theirs: Vec<u8>) -> InlineBuffer {
        let Some(dirty) = &self.dirty else { return InlineBuffer::clean(theirs) };
        let mut merged = InlineBuffer::clean(theirs);
        if dirty.kept < merged.len() {
            merged.resize(dirty.kept);
        }
        let written = dirty.written.start.min(self.len())..dirty.written.end.min(self.len());
        merged.write(written.start, &self.bytes[written]);
        merged
    }

    fn touch(&mut self, range: Range<usize>, kept: usize) {
        match &mut self.dirty {
            Some(dirty) => {
                dirty.kept = dirty.kept.min(kept);
                if dirty.written.is_empty() {
                    dirty.written = range;
                } else if !range.is_empty() {
                    dirty.written = dirty.written.start.min(range.start)..dirty.written.end.max(range.end);
                }
            }
            None => self.dirty = Some(Dirty { written: range, kept }),
        }
    }
}

#[cfg(test)]
mod tests;
