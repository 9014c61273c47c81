//! Where a file's content and size are: promotion to a backing file, and who knows that file's size.
//!
//! ```text
//!            Promote                  SettleSize                 set size, O_TRUNC
//! Inline ──────────────▶ Stale ◀────────────▶ Settled ──────────────────────▶ Truncating(size)
//!                            ▲       UnsettleSize                                        │
//!                            └── FinishTruncate (Settled if not open), AbandonTruncate ◀─┘
//! ```
//!
//! While it is stale, the row says how many bytes the backing file has at least. `RaiseSize` raises that when so many
//! are on disk, `MarkSizeStale` lowers it before the writer cuts the file: whatever is lost with power, a file that is
//! shorter was cut by something else.
//!
//! As in [`super::WriteInline`], the right to write was checked when the file was opened.

use super::locate::{Located, LocatedRow};
use super::reader::RowReader;
use super::{At, Context, Decision, Effect, KeyState, Node, Refusal, Rule, SizeState, View, commit};
use crate::tables::{BackingSize, Content, EntryBody, Key, NodeRow, Row};
use varve_types::{Errno, LayoutGeneration, Timestamp};

/// The backing file, of `size` bytes and fsynced, holds the content from here on. Stale unless the content is in the row
/// and of this `generation`, which rises.
#[derive(Clone, Debug)]
pub struct Promote {
    pub at: At,
    pub generation: LayoutGeneration,
    pub size: u64,
}

impl Rule for Promote {
    type Outcome = Node;
    type Rows<'a> = LocatedRow<'a>;

    fn look<'a>(&'a self, reader: &RowReader<'a>) -> Option<LocatedRow<'a>> {
        LocatedRow::look(&self.at, reader)
    }

    fn rule(&self, found: LocatedRow<'_>, context: &Context<'_>) -> Result<Decision<Node>, Refusal> {
        let file = found.file(Errno::EISDIR)?;
        let in_row = matches!(file.row.content, Content::Inline(_));
        if file.row.generation != self.generation || (is_backing(file.row) && !in_row) {
            return Err(Refusal::Stale(file.row.generation));
        }
        if !in_row {
            return Err(Errno::EINVAL.into());
        }
        let mut row = file.written(context.caller, context.now);
        row.attributes.size = self.size;
        row.content = Content::Backing(BackingSize::Stale { at_least: self.size });
        row.generation = row.generation.next();
        let (uid, gid, mode) = (row.attributes.uid, row.attributes.gid, row.attributes.mode);
        let effects = vec![Effect::Own { inode: file.inode, uid, gid, mode }];
        let outcome = Node::of(file.inode, &row, file.by_inode());
        Ok(Decision::Commit { changes: vec![file.put(row)], effects, outcome })
    }
}

/// A backing file of one generation: what the verbs about its size look at.
#[derive(Clone, Debug)]
pub struct BackingFile {
    pub at: At,
    pub generation: LayoutGeneration,
}

/// A verb about the size of a backing file.
trait SizeRule {
    fn file(&self) -> &BackingFile;

    /// `size`: what the row says of it.
    fn size_rule(&self, file: Located<'_>, size: BackingSize, context: &Context<'_>)
    -> Result<Decision<Node>, Refusal>;
}

impl<V: SizeRule> Rule for V {
    type Outcome = Node;
    type Rows<'a> = LocatedRow<'a>;

    fn look<'a>(&'a self, reader: &RowReader<'a>) -> Option<LocatedRow<'a>> {
        LocatedRow::look(&self.file().at, reader)
    }

    fn rule(&self, found: LocatedRow<'_>, context: &Context<'_>) -> Result<Decision<Node>, Refusal> {
        let file = found.file(Errno::EISDIR)?;
        match file.row.content {
            _ if file.row.generation != self.file().generation => Err(Refusal::Stale(file.row.generation)),
            Content::Backing(size) => self.size_rule(file, size, context),
            _ => Err(Errno::EINVAL.into()),
        }
    }
}

/// A writer begins: the backing file's size and mtime count from here on. It may cut the file to `at_least` bytes, and not
/// further before it asks again.
#[derive(Clone, Debug)]
pub struct MarkSizeStale {
    pub file: BackingFile,
    pub at_least: u64,
}

impl SizeRule for MarkSizeStale {
    fn file(&self) -> &BackingFile {
        &self.file
    }

    fn size_rule(
        &self,
        file: Located<'_>,
        size: BackingSize,
        context: &Context<'_>,
    ) -> Result<Decision<Node>, Refusal> {
        let mut row = file.row.clone();
        row.attributes.mode = file.guard().mode_after_write(context.caller);
        let mut effects: Vec<Effect> = own_if_changed(&file, &row).into_iter().collect();
        match size {
            BackingSize::Stale { at_least } if at_least <= self.at_least => {}
            BackingSize::Authoritative | BackingSize::Stale { .. } => {
                let known = if let BackingSize::Stale { at_least } = size { at_least } else { row.attributes.size };
                row.content = Content::Backing(BackingSize::Stale { at_least: known.min(self.at_least) });
                effects.push(Effect::SizeStale(file.inode));
            }
            // A truncate that was cut short governs: it is done again before the reply, and leaves the size stale.
            BackingSize::Truncating(_) => {
                effects.push(Effect::Truncate { at: self.file.at.clone(), decided: None });
            }
        }
        if row == *file.row && effects.is_empty() {
            return Ok(Decision::Answer(file.node()));
        }
        let outcome = Node::of(file.inode, &row, file.by_inode());
        Ok(Decision::Commit { changes: vec![file.put(row)], effects, outcome })
    }
}

/// The writer is done until it unsettles again: the size and mtime that the backing file has, and has on disk. So a settled
/// row never says what a loss of power could take from the file.
///
/// A size below what the row knows is not taken: something else has cut the file, and the row goes on to say so.
#[derive(Clone, Debug)]
pub struct RecordSize {
    pub file: BackingFile,
    pub size: u64,
    pub mtime: Timestamp,
}

impl SizeRule for RecordSize {
    fn file(&self) -> &BackingFile {
        &self.file
    }

    fn size_rule(&self, file: Located<'_>, size: BackingSize, _: &Context<'_>) -> Result<Decision<Node>, Refusal> {
        match size {
            BackingSize::Stale { at_least } if self.size < at_least => Ok(Decision::Answer(file.node())),
            // Settled already: this is a retry, or tells an older size than who settled it.
            BackingSize::Authoritative => Ok(Decision::Answer(file.node())),
            // The size was measured before the cut, which governs and is done again.
            BackingSize::Truncating(_) => {
                let effects = vec![Effect::Truncate { at: self.file.at.clone(), decided: None }];
                Ok(Decision::Commit { changes: Vec::new(), effects, outcome: file.node() })
            }
            BackingSize::Stale { .. } => {
                let mut row = file.row.clone();
                row.attributes.size = self.size;
                row.attributes.mtime = self.mtime;
                // As who had it open saw it: written when its content was last written, not now.
                row.attributes.ctime = row.attributes.ctime.max(self.mtime);
                row.content = Content::Backing(BackingSize::Authoritative);
                let node = Node::of(file.inode, &row, file.by_inode());
                Ok(commit(vec![file.put(row)], node))
            }
        }
    }
}

/// The backing file, whose size nobody else changes, has so many bytes on disk.
#[derive(Clone, Debug)]
pub struct RaiseSize {
    pub file: BackingFile,
    pub at_least: u64,
}

impl SizeRule for RaiseSize {
    fn file(&self) -> &BackingFile {
        &self.file
    }

    fn size_rule(&self, file: Located<'_>, size: BackingSize, _: &Context<'_>) -> Result<Decision<Node>, Refusal> {
        match size {
            BackingSize::Stale { at_least } if at_least < self.at_least => {
                let content = Content::Backing(BackingSize::Stale { at_least: self.at_least });
                let row = NodeRow { content, ..file.row.clone() };
                let node = Node::of(file.inode, &row, file.by_inode());
                Ok(commit(vec![file.put(row)], node))
            }
            // The row says as much or more, or it is being cut and does not say it any more.
            _ => Ok(Decision::Answer(file.node())),
        }
    }
}

/// A truncate that a row asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingTruncate {
    pub size: u64,
    /// The times of the row, which tell it from another one to the same size. What does not cut the file may change the ctime.
    pub ctime: Timestamp,
    pub mtime: Timestamp,
}

impl PendingTruncate {
    pub(super) fn of(row: &NodeRow) -> Option<PendingTruncate> {
        let NodeRow { attributes, content: Content::Backing(BackingSize::Truncating(size)), .. } = row else {
            return None;
        };
        Some(PendingTruncate { size: *size, ctime: attributes.ctime, mtime: attributes.mtime })
    }

    fn is_of(&self, row: &NodeRow) -> bool {
        PendingTruncate::of(row)
            .is_some_and(|found| found.size == self.size && (found.ctime == self.ctime || found.mtime == self.mtime))
    }
}

/// Which truncate, if any, is to be done: that of the last decision, unless somebody has done it since.
#[derive(Clone, Debug)]
pub struct FindTruncate {
    pub at: At,
}

impl Rule for FindTruncate {
    type Outcome = Option<PendingTruncate>;
    type Rows<'a> = LocatedRow<'a>;

    fn look<'a>(&'a self, reader: &RowReader<'a>) -> Option<LocatedRow<'a>> {
        LocatedRow::look(&self.at, reader)
    }

    fn rule(&self, found: LocatedRow<'_>, _: &Context<'_>) -> Result<Decision<Option<PendingTruncate>>, Refusal> {
        Ok(Decision::Answer(PendingTruncate::of(found.file(Errno::EISDIR)?.row)))
    }
}

/// [`Effect::Truncate`], as it was `begun`, has been done. A session that has the file open may be writing it, and a size that
/// is taken from the backing file is never wrong. The outcome is whether nothing is left to be done: where another truncate
/// has been decided since, somebody may have written in between, and the file is to be cut once more.
#[derive(Clone, Debug)]
pub struct FinishTruncate {
    pub at: At,
    pub begun: PendingTruncate,
}

impl Rule for FinishTruncate {
    type Outcome = bool;
    type Rows<'a> = LocatedRow<'a>;

    fn look<'a>(&'a self, reader: &RowReader<'a>) -> Option<LocatedRow<'a>> {
        LocatedRow::look(&self.at, reader)
    }

    fn rule(&self, found: LocatedRow<'_>, context: &Context<'_>) -> Result<Decision<bool>, Refusal> {
        let file = found.file(Errno::EISDIR)?;
        match PendingTruncate::of(file.row) {
            Some(begun) if begun == self.begun => {}
            other => return Ok(Decision::Answer(other.is_none())),
        }
        let mut row = file.row.clone();
        let open = (context.may_be_open)(file.inode);
        let size_stale = BackingSize::Stale { at_least: self.begun.size };
        row.content = Content::Backing(if open { size_stale } else { BackingSize::Authoritative });
        // On disk the row says until then that the file is to be cut, which who has it open may write by then.
        let effects = if open { vec![Effect::SizeStale(file.inode)] } else { Vec::new() };
        Ok(Decision::Commit { changes: vec![file.put(row)], effects, outcome: true })
    }
}

/// [`Effect::Truncate`], as it was `begun`, was not done, or perhaps not: the store refused it (EFBIG, ENOSPC) or failed. The
/// backing file's size is the file's again, of which nothing is known. Else the row would ask for ever for what cannot be done,
/// or for what must not be done any more. Somebody may have moved the row from its entry meanwhile, and it is followed.
#[derive(Clone, Debug)]
pub struct AbandonTruncate {
    pub at: At,
    pub begun: PendingTruncate,
}

impl Rule for AbandonTruncate {
    type Outcome = ();
    type Rows<'a> = LocatedRow<'a>;

    fn look<'a>(&'a self, reader: &RowReader<'a>) -> Option<LocatedRow<'a>> {
        LocatedRow::follow(&self.at, reader)
    }

    fn rule(&self, found: LocatedRow<'_>, _: &Context<'_>) -> Result<Decision<()>, Refusal> {
        let file = found.file(Errno::EISDIR)?;
        if !self.begun.is_of(file.row) {
            return Ok(Decision::Answer(()));
        }
        let mut row = file.row.clone();
        row.content = Content::Backing(BackingSize::Stale { at_least: 0 });
        // That it was to be cut need not be on disk, and the next one to write it finds it stale.
        let effects = vec![Effect::SizeStale(file.inode)];
        Ok(Decision::Commit { changes: vec![file.put(row)], effects, outcome: () })
    }
}

/// Whether the row says that nobody may be writing the file's backing file: there is none, or its size is settled.
pub fn nobody_writes(seen: &dyn View, at: &At) -> bool {
    let content = row_at(seen, at).map(|row| &row.content);
    matches!(content, Some(Content::Inline(_) | Content::Backing(BackingSize::Authoritative)))
}

/// What the row says of the size of its backing file.
pub fn size_state(seen: &dyn View, at: &At) -> Option<SizeState> {
    match row_at(seen, at)?.content {
        Content::Backing(size) => Some(size.into()),
        _ => None,
    }
}

fn row_at<'a>(seen: &'a dyn View, at: &At) -> Option<&'a NodeRow> {
    let key = match at {
        At::Entry { parent, name, .. } => Key::Entry(*parent, name.clone()),
        At::Inode(inode) => Key::Inode(*inode),
    };
    match seen.row(&key) {
        KeyState::Present(Row::Inode(row)) => Some(row),
        KeyState::Present(Row::Entry(entry)) => match &entry.body {
            EntryBody::Node(row) => Some(row),
            EntryBody::Directory(_) | EntryBody::Reference(_) => None,
        },
        _ => None,
    }
}

fn is_backing(row: &NodeRow) -> bool {
    matches!(row.content, Content::Backing(_))
}

/// The effect that a backing file needs where its row's mode or owner changes.
pub(super) fn own_if_changed(file: &Located<'_>, row: &NodeRow) -> Option<Effect> {
    let (was, is) = (&file.row.attributes, &row.attributes);
    let changed = (was.mode, was.uid, was.gid) != (is.mode, is.uid, is.gid);
    (changed && is_backing(row)).then_some(Effect::Own { inode: file.inode, uid: is.uid, gid: is.gid, mode: is.mode })
}
