//! The content of a small file in memory: reads, writes, and the bytes that the row does not have yet. It does no I/O.

use std::ops::Range;
use varve_types::Timestamp;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InlineBuffer {
    bytes: Vec<u8>,
    dirty: Option<Dirty>,
    sent: Option<UnconfirmedWrite>,
}

/// Content that was sent to the row with unknown outcome: the row may have it, or may still get it. Until that is
/// known, the row is sent nothing else, so that there is only one such content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnconfirmedWrite {
    pub bytes: Vec<u8>,
    /// The mtime that was sent with it.
    pub mtime: Option<Timestamp>,
    /// It was sent to leave the row, rather than to stay in it.
    pub moves: bool,
    /// Changes since it was sent.
    since: Option<Dirty>,
}

/// Changes since the content was last the row's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dirty {
    /// Written ranges: ordered, disjoint, none empty.
    written: Vec<Range<usize>>,
    /// The shortest length that was set: bytes of the row from there on are gone, and the bytes that follow are known
    /// here.
    kept: Option<usize>,
    /// The content was extended to this length, if it was shorter.
    reached: Option<usize>,
    /// All bytes from here on are to be appended to the row's content, wherever that ends by now. `None` if a length
    /// was set.
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

    /// Like [`InlineBuffer::append`].
    fn append(&mut self, range: Range<usize>) {
        match self.kept {
            // The end of the content is known.
            Some(_) => self.add(range),
            None => self.appended = self.appended.or(Some(range.start)),
        }
    }

    /// The bytes of `range` were set; the content is now `len` bytes long.
    fn touch(&mut self, range: Range<usize>, len: usize) {
        if self.appended.is_some_and(|appended| range.end > appended) {
            self.fix_place(len);
        }
        self.add(range);
    }

    /// Like [`InlineBuffer::resize`], for content of `before` bytes.
    fn resize(&mut self, before: usize, len: usize) {
        self.fix_place(before);
        self.kept = Some(self.kept.map_or(len, |kept| kept.min(len)));
        // Writes beyond the new length are cut, too.
        while let Some(last) = self.written.pop_if(|last| last.end > len) {
            if last.start < len {
                self.written.push(last.start..len);
            }
        }
    }

    /// Like [`InlineBuffer::reach`], for content of `before` bytes.
    fn reach(&mut self, before: usize, len: usize) {
        self.fix_place(before);
        self.reached = self.reached.max(Some(len));
    }

    /// Fixes appended bytes at their present offset, in content of `len` bytes.
    fn fix_place(&mut self, len: usize) {
        if let Some(appended) = self.appended.take() {
            self.add(appended..len);
        }
    }
}

/// The changes to apply to another client's content, so that it includes the local ones.
pub(crate) struct Onto<'b> {
    /// First, truncate it to this length, if it is longer.
    pub kept: Option<usize>,
    /// Then write these bytes at these offsets.
    pub written: Vec<(usize, &'b [u8])>,
    /// Then extend it to this length with zeros, if it is shorter.
    pub reached: usize,
    /// Then append these bytes.
    pub appended: &'b [u8],
}

impl InlineBuffer {
    /// The content as the row has it.
    pub fn clean(bytes: Vec<u8>) -> InlineBuffer {
        InlineBuffer { bytes, dirty: None, sent: None }
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

    pub fn sent(&self) -> Option<&UnconfirmedWrite> {
        self.sent.as_ref()
    }

    /// Records that the row has the content that was sent: the present content, or the content of a send with unknown
    /// outcome.
    pub fn written_back(&mut self) {
        self.dirty = self.sent.take().and_then(|sent| sent.since);
    }

    /// Records that this content was sent, and that the row may have it or get it.
    pub fn mark_outcome_unknown(&mut self, mtime: Option<Timestamp>, moves: bool) {
        if self.dirty.is_some() {
            self.sent = Some(UnconfirmedWrite { bytes: self.bytes.clone(), mtime, moves, since: None });
        }
    }

    /// Records that `count` more of the appended bytes are written at their final offset.
    pub fn appended_is_placed(&mut self, count: usize) {
        if let Some(appended) = self.dirty.as_mut().and_then(|dirty| dirty.appended.as_mut()) {
            *appended += count;
        }
    }

    /// Copies from `offset` on; returns the number of bytes copied.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let Some(rest) = usize::try_from(offset).ok().and_then(|offset| self.bytes.get(offset..)) else { return 0 };
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        count
    }

    /// Whether appended bytes still have no fixed offset. An operation that ends beyond them, at `end`, must wait until
    /// they have one.
    pub fn awaits_place(&self, end: usize) -> bool {
        let appended = self.dirty.as_ref().and_then(|dirty| dirty.appended);
        appended.is_some_and(|appended| end > appended)
    }

    /// Writes `data` at `offset`, with zeros before it where the content was shorter.
    pub fn write(&mut self, offset: usize, data: &[u8]) {
        let end = offset + data.len();
        if end > self.len() {
            self.bytes.resize(end, 0);
        }
        self.bytes[offset..end].copy_from_slice(data);
        self.touch(offset..end);
    }

    /// Writes `data` to the end.
    pub fn append(&mut self, data: &[u8]) {
        let before = self.len();
        self.bytes.extend_from_slice(data);
        self.note(|dirty| dirty.append(before..before + data.len()));
    }

    /// Sets the length: truncates, or extends with zeros.
    pub fn resize(&mut self, len: usize) {
        let before = self.len();
        self.bytes.resize(len, 0);
        self.note(|dirty| dirty.resize(before, len));
    }

    /// Extends with zeros to `len`, if it is shorter.
    pub fn reach(&mut self, len: usize) {
        let before = self.len();
        self.bytes.resize(len.max(before), 0);
        self.note(|dirty| dirty.reach(before, len));
    }

    /// Zeroes the existing bytes of `range`.
    pub fn zero(&mut self, range: Range<usize>) {
        let len = self.len();
        let range = range.start.min(len)..range.end.min(len);
        self.bytes[range.clone()].fill(0);
        self.touch(range);
    }

    /// The local changes, for content that another client has changed.
    pub fn changes(&self) -> Option<Onto<'_>> {
        let Dirty { written, kept, reached, appended } = self.dirty.as_ref()?;
        let end = appended.unwrap_or(self.len());
        let written = written.iter().map(|range| (range.start, &self.bytes[range.clone()])).collect();
        let reached = if kept.is_some() { end } else { reached.unwrap_or(0) };
        Some(Onto { kept: *kept, written, reached, appended: &self.bytes[end..] })
    }

    /// Applies the local changes to `theirs`, the row's present content, which is assumed not to include an earlier
    /// send.
    pub fn onto(&self, mut theirs: Vec<u8>) -> InlineBuffer {
        let Some(changes) = self.changes() else { return InlineBuffer::clean(theirs) };
        theirs.truncate(changes.kept.unwrap_or(usize::MAX));
        for (at, bytes) in changes.written {
            theirs.resize(theirs.len().max(at + bytes.len()), 0);
            theirs[at..at + bytes.len()].copy_from_slice(bytes);
        }
        theirs.resize(theirs.len().max(changes.reached), 0);
        let end = theirs.len();
        theirs.extend_from_slice(changes.appended);
        let dirty = self.dirty.clone().map(|dirty| Dirty { appended: dirty.appended.map(|_| end), ..dirty });
        InlineBuffer { bytes: theirs, dirty, sent: None }
    }

    fn touch(&mut self, range: Range<usize>) {
        let len = self.len();
        self.note(|dirty| dirty.touch(range.clone(), len));
    }

    /// Records a change: since the content was the row's, and since it was sent.
    fn note(&mut self, done: impl Fn(&mut Dirty)) {
        done(self.dirty.get_or_insert_default());
        if let Some(sent) = &mut self.sent {
            done(sent.since.get_or_insert_default());
        }
    }
}

#[cfg(test)]
mod tests;
