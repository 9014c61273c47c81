//! The content of a small file in memory: reads, writes, and which bytes the row does not have yet. Pure.

use std::ops::Range;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InlineBuffer {
    bytes: Vec<u8>,
    dirty: Option<Dirty>,
}

/// What was done since the content was last the row's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dirty {
    /// What was written: in order, apart from each other, none empty.
    written: Vec<Range<usize>>,
    /// The shortest length that the content was cut to: bytes of the row from there on are gone.
    kept: Option<usize>,
    /// All from here on was put to the end of what the row had, wherever that ends by now.
    appended: Option<usize>,
}

impl Dirty {
    fn add(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let first = self.written.partition_point(|before| before.end < range.start);
        let after = self.written.partition_point(|before| before.start <= range.end);
        let met = &self.written[first..after];
        let start = met.first().map_or(range.start, |met| met.start.min(range.start));
        let end = met.last().map_or(range.end, |met| met.end.max(range.end));
        self.written.splice(first..after, std::iter::once(start..end));
    }
}

/// What is to be done with content of somebody else, so that what was written here is in it.
pub(crate) struct Onto<'b> {
    /// First it is cut to this length, if it is longer.
    pub kept: Option<usize>,
    /// Then these are written there.
    pub written: Vec<(usize, &'b [u8])>,
    /// Then this is put to its end.
    pub appended: &'b [u8],
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
        self.touch(offset..end, None);
    }

    /// Writes `data` to the end.
    pub fn append(&mut self, data: &[u8]) {
        let before = self.bytes.len();
        let appended = match &self.dirty {
            Some(dirty) => dirty.appended,
            None => Some(before),
        };
        self.write(before, data);
        if let Some(dirty) = &mut self.dirty {
            dirty.appended = appended;
        }
    }

    /// Cuts, or extends with zeros.
    pub fn resize(&mut self, len: usize) {
        let before = self.bytes.len();
        self.bytes.resize(len, 0);
        if len <= before {
            self.touch(len..len, Some(len));
        } else {
            self.touch(before..len, None);
        }
    }

    /// Makes the bytes of `range` that exist zero.
    pub fn zero(&mut self, range: Range<usize>) {
        let len = self.bytes.len();
        let range = range.start.min(len)..range.end.min(len);
        self.bytes[range.clone()].fill(0);
        self.touch(range, None);
    }

    /// What was done here, for content that somebody else has changed.
    pub fn changes(&self) -> Option<Onto<'_>> {
        let Dirty { written, kept, appended } = self.dirty.as_ref()?;
        let end = appended.unwrap_or(self.len());
        let put = |range: &Range<usize>| (range.start, &self.bytes[range.start.min(end)..range.end.min(end)]);
        let written = written.iter().map(put).filter(|(_, bytes)| !bytes.is_empty()).collect();
        Some(Onto { kept: *kept, written, appended: &self.bytes[end..] })
    }

    /// Puts what was written here onto `theirs`, the row's content of now.
    pub fn onto(&self, theirs: Vec<u8>) -> InlineBuffer {
        let mut merged = InlineBuffer::clean(theirs);
        let Some(changes) = self.changes() else { return merged };
        if let Some(kept) = changes.kept.filter(|kept| *kept < merged.len()) {
            merged.resize(kept);
        }
        for (at, bytes) in changes.written {
            merged.write(at, bytes);
        }
        if !changes.appended.is_empty() {
            merged.append(changes.appended);
        }
        merged
    }

    fn touch(&mut self, range: Range<usize>, cut: Option<usize>) {
        let dirty = self.dirty.get_or_insert_default();
        if let Some(len) = cut {
            dirty.kept = Some(dirty.kept.map_or(len, |kept| kept.min(len)));
            // What was written there is cut, too.
            while let Some(last) = dirty.written.pop_if(|last| last.end > len) {
                if last.start < len {
                    dirty.written.push(last.start..len);
                }
            }
        }
        // [`Self::append`] knows better.
        dirty.appended = None;
        dirty.add(range);
    }
}

#[cfg(test)]
mod tests;
