//! Where a file's content is, and which size is authoritative: promotion to a backing file, and the size of that file.
//!
//! ```text
//!           Promote             RecordSize                    set size, O_TRUNC
//! Inline ──────────────▶ Stale ◀────────────▶ Authoritative ──────────────────────▶ Truncating(size)
//!                          ▲   MarkSizeStale                                                 │
//!                          └── FinishTruncate (Authoritative if not open), AbandonTruncate ◀─┘
//! ```
//!
//! While the size is stale, the row has a minimum size of the backing file. `RaiseSize` raises the minimum when that
//! many bytes are on disk, and `MarkSizeStale` lowers it before the writer truncates the file. So whatever is lost in a
//! power failure, a shorter file was truncated by something else.
//!
//! As in [`super::WriteInline`], the right to write was checked when the file was opened.

use super::locate::{Located, LocatedRow};
use super::node::{At, Node, SizeState};
use super::reader::RowReader;
use super::rule::Rule;
use super::verb::{Context, Decision, Effect, KeyState, PendingTruncate, Refusal, View, commit};
use varve_schema::{BackingSize, Content, EntryBody, Key, NodeRow, Row};
use varve_types::{Errno, LayoutGeneration, Timestamp};

/// Moves the content to the backing file, which has `size` bytes and is fsynced. Refused as stale unless the content is
/// in the row and of this `generation`, which is then incremented.
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
        Ok(Decision::Commit { changes: file.put_without_xattrs(row), effects, outcome })
    }
}

/// A backing file of one generation, the subject of the verbs about its size.
#[derive(Clone, Debug)]
pub struct BackingFile {
    pub at: At,
    pub generation: LayoutGeneration,
}

/// A verb about the size of a backing file.
trait SizeRule {
    fn file(&self) -> &BackingFile;

    /// `size`: the row's state of the file's size.
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

/// A writer starts: the backing file's size and mtime count from here on. The writer may truncate the file to
/// `at_least` bytes, and must ask again before it truncates the file further.
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
        // Root keeps the privileges here, because it may not write. The kernel removes them before it does.
        let mut row = match context.caller.keeps_set_id() {
            true => file.row.clone(),
            false => file.without_privileges(file.guard().mode_after_write(context.caller)),
        };
        let mut effects: Vec<Effect> = own_if_changed(&file, &row).into_iter().collect();
        match size {
            BackingSize::Stale { at_least } if at_least <= self.at_least => {}
            BackingSize::Authoritative | BackingSize::Stale { .. } => {
                let known = if let BackingSize::Stale { at_least } = size { at_least } else { row.attributes.size };
                row.content = Content::Backing(BackingSize::Stale { at_least: known.min(self.at_least) });
                effects.push(Effect::SizeStale(file.inode));
            }
            // An interrupted truncate has priority: it is repeated before the reply, and leaves the size stale.
            BackingSize::Truncating(_) => {
                effects.push(Effect::Truncate { at: self.file.at.clone(), decided: None });
            }
        }
        if row == *file.row && effects.is_empty() {
            return Ok(Decision::Answer(file.node()));
        }
        let outcome = Node::of(file.inode, &row, file.by_inode());
        Ok(Decision::Commit { changes: file.put_without_xattrs(row), effects, outcome })
    }
}

/// The writer has finished until the next [`MarkSizeStale`]: records the size and mtime that the backing file has, also
/// on disk. So a row with an authoritative size never states a size that the file could lose in a power failure.
///
/// A size below the row's minimum is not recorded: something else has truncated the file, and the row keeps showing
/// that.
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
            // The size is already recorded: this call is a retry, or it has an older size than the recorded one.
            BackingSize::Authoritative => Ok(Decision::Answer(file.node())),
            // The size was measured before the truncate, which has priority and is repeated.
            BackingSize::Truncating(_) => {
                let effects = vec![Effect::Truncate { at: self.file.at.clone(), decided: None }];
                Ok(Decision::Commit { changes: Vec::new(), effects, outcome: file.node() })
            }
            BackingSize::Stale { .. } => {
                let mut row = file.row.clone();
                row.attributes.size = self.size;
                row.attributes.mtime = self.mtime;
                // As sessions that had the file open saw it: the content was last written at that mtime, not now.
                row.attributes.ctime = row.attributes.ctime.max(self.mtime);
                row.content = Content::Backing(BackingSize::Authoritative);
                let node = Node::of(file.inode, &row, file.by_inode());
                Ok(commit(vec![file.put(row)], node))
            }
        }
    }
}

/// Raises the minimum size: the backing file, whose size no other session changes, has this many bytes on disk.
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
            // The row already states at least that size, or a truncate is pending and the row states no minimum.
            _ => Ok(Decision::Answer(file.node())),
        }
    }
}

/// Returns the pending truncate, if any: that of the last decision, unless it has been done since.
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

/// Records that [`Effect::Truncate`], as it was `begun`, has been done. The size becomes stale if a session has the
/// file open and may be writing it: a size read from the backing file is never wrong. The outcome says whether nothing
/// is left to do. If another truncate has been decided since, a writer may have written in between, and the file must
/// be truncated once more.
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
        // Until this change is on disk, the row on disk requires a truncate, which must not destroy what a session with
        // the file open writes from now on.
        let effects = if open { vec![Effect::SizeStale(file.inode)] } else { Vec::new() };
        Ok(Decision::Commit { changes: vec![file.put(row)], effects, outcome: true })
    }
}

/// Records that [`Effect::Truncate`], as it was `begun`, was not done, or possibly not: the store refused it (EFBIG,
/// ENOSPC) or failed. The backing file's size counts again, and no minimum of it is known. Otherwise the row would
/// forever require a truncate that cannot be done or must no longer be done. The row may have moved from its entry to
/// an inode row since; the verb follows it.
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
        // The change must reach the disk: the pending truncate may not be there yet, and the next writer finds the size
        // stale already and does not wait for the disk.
        let effects = vec![Effect::SizeStale(file.inode)];
        Ok(Decision::Commit { changes: vec![file.put(row)], effects, outcome: () })
    }
}

/// Whether the row guarantees that nobody writes the file's backing file: there is none, or its size is authoritative.
pub fn nobody_writes(seen: &dyn View, at: &At) -> bool {
    let content = row_at(seen, at).map(|row| &row.content);
    matches!(content, Some(Content::Inline(_) | Content::Backing(BackingSize::Authoritative)))
}

/// The row's size state of its backing file.
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

/// The effect that updates the backing file after a change of the row's mode or owner.
pub(super) fn own_if_changed(file: &Located<'_>, row: &NodeRow) -> Option<Effect> {
    let (was, is) = (&file.row.attributes, &row.attributes);
    let changed = (was.mode, was.uid, was.gid) != (is.mode, is.uid, is.gid);
    (changed && is_backing(row)).then_some(Effect::Own { inode: file.inode, uid: is.uid, gid: is.gid, mode: is.mode })
}
