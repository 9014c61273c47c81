//! Where a file's content and size are: promotion to a backing file, and who knows that file's size.
//!
//! ```text
//!            Promote                  SettleSize                 set size, O_TRUNC
//! Inline ──────────────▶ Unsettled ◀────────────▶ Settled ──────────────────────▶ Truncating(size)
//!                            ▲       UnsettleSize                                        │
//!                            └── FinishTruncate (Settled if not open), AbandonTruncate ◀─┘
//! ```
//!
//! As in [`super::WriteInline`], the right to write was checked when the file was opened.

use super::locate::{Found, Located};
use super::reader::Reader;
use super::{At, Context, Decision, Effect, Node, Refusal, Rule, Seen, View, commit};
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
    type Rows<'a> = Found<'a>;

    fn look<'a>(&'a self, reader: &Reader<'a>) -> Option<Found<'a>> {
        Found::look(&self.at, reader)
    }

    fn rule(&self, found: Found<'_>, context: &Context<'_>) -> Result<Decision<Node>, Refusal> {
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
        row.content = Content::Backing(BackingSize::Unsettled);
        row.generation = LayoutGeneration(row.generation.0 + 1);
        let (uid, gid, mode) = (row.attributes.uid, row.attributes.gid, row.attributes.mode);
        let effects = vec![Effect::Own { inode: file.inode, uid, gid, mode }];
        let outcome = Node::of(file.inode, &row, file.by_inode());
        Ok(Decision::Commit { changes: vec![file.put(row)], effects, outcome })
    }
}

/// A writer begins: the backing file's size and mtime count from here on.
#[derive(Clone, Debug)]
pub struct UnsettleSize {
    pub at: At,
    pub generation: LayoutGeneration,
}

impl Rule for UnsettleSize {
    type Outcome = Node;
    type Rows<'a> = Found<'a>;

    fn look<'a>(&'a self, reader: &Reader<'a>) -> Option<Found<'a>> {
        Found::look(&self.at, reader)
    }

    fn rule(&self, found: Found<'_>, context: &Context<'_>) -> Result<Decision<Node>, Refusal> {
        let (file, size) = backing(found, self.generation)?;
        let mut row = file.row.clone();
        row.attributes.mode = file.guard().mode_after_write(context.caller);
        let mut effects: Vec<Effect> = own_if_changed(&file, &row).into_iter().collect();
        match size {
            BackingSize::Unsettled => {}
            BackingSize::Settled => {
                row.content = Content::Backing(BackingSize::Unsettled);
                effects.push(Effect::Unsettled(file.inode));
            }
            // A truncate that was cut short governs: it is done again before the reply, and leaves the size unsettled.
            BackingSize::Truncating(size) => effects.push(Effect::Truncate { at: self.at.clone(), size }),
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
#[derive(Clone, Debug)]
pub struct SettleSize {
    pub at: At,
    pub generation: LayoutGeneration,
    pub size: u64,
    pub mtime: Timestamp,
}

impl Rule for SettleSize {
    type Outcome = Node;
    type Rows<'a> = Found<'a>;

    fn look<'a>(&'a self, reader: &Reader<'a>) -> Option<Found<'a>> {
        Found::look(&self.at, reader)
    }

    fn rule(&self, found: Found<'_>, _context: &Context<'_>) -> Result<Decision<Node>, Refusal> {
        let (file, size) = backing(found, self.generation)?;
        match size {
            // Settled already: this is a retry, or tells an older size than who settled it.
            BackingSize::Settled => Ok(Decision::Answer(file.node())),
            // The size was measured before the cut, which governs and is done again.
            BackingSize::Truncating(size) => {
                let effects = vec![Effect::Truncate { at: self.at.clone(), size }];
                Ok(Decision::Commit { changes: Vec::new(), effects, outcome: file.node() })
            }
            BackingSize::Unsettled => {
                let mut row = file.row.clone();
                row.attributes.size = self.size;
                row.attributes.mtime = self.mtime;
                // As who had it open saw it: written when its content was last written, not now.
                row.attributes.ctime = row.attributes.ctime.max(self.mtime);
                row.content = Content::Backing(BackingSize::Settled);
                let node = Node::of(file.inode, &row, file.by_inode());
                Ok(commit(vec![file.put(row)], node))
            }
        }
    }
}

/// [`Effect::Truncate`] to `size` has been done. While a session has the file open it may be writing, and a size that
/// is taken from the backing file is never wrong.
#[derive(Clone, Debug)]
pub struct FinishTruncate {
    pub at: At,
    pub size: u64,
}

impl Rule for FinishTruncate {
    type Outcome = ();
    type Rows<'a> = Found<'a>;

    fn look<'a>(&'a self, reader: &Reader<'a>) -> Option<Found<'a>> {
        Found::look(&self.at, reader)
    }

    fn rule(&self, found: Found<'_>, context: &Context<'_>) -> Result<Decision<()>, Refusal> {
        let file = found.file(Errno::EISDIR)?;
        // Another truncate has been decided since: its own effect follows.
        if file.row.content != Content::Backing(BackingSize::Truncating(self.size)) {
            return Ok(Decision::Answer(()));
        }
        let mut row = file.row.clone();
        let open = (context.is_open)(file.inode);
        row.content = Content::Backing(if open { BackingSize::Unsettled } else { BackingSize::Settled });
        Ok(commit(vec![file.put(row)], ()))
    }
}

/// [`Effect::Truncate`] to `size` was refused by the store (EFBIG, ENOSPC): the backing file is as it was, and its size
/// is the file's again. Else the row would ask for ever for what cannot be done.
#[derive(Clone, Debug)]
pub struct AbandonTruncate {
    pub at: At,
    pub size: u64,
}

impl Rule for AbandonTruncate {
    type Outcome = ();
    type Rows<'a> = Found<'a>;

    fn look<'a>(&'a self, reader: &Reader<'a>) -> Option<Found<'a>> {
        Found::look(&self.at, reader)
    }

    fn rule(&self, found: Found<'_>, _: &Context<'_>) -> Result<Decision<()>, Refusal> {
        let file = found.file(Errno::EISDIR)?;
        if file.row.content != Content::Backing(BackingSize::Truncating(self.size)) {
            return Ok(Decision::Answer(()));
        }
        let mut row = file.row.clone();
        row.content = Content::Backing(BackingSize::Unsettled);
        Ok(commit(vec![file.put(row)], ()))
    }
}

/// Whether the row says that nobody may be writing the file's backing file: there is none, or its size is settled.
pub fn nobody_writes(seen: &dyn View, at: &At) -> bool {
    let key = match at {
        At::Entry { parent, name, .. } => Key::Entry(*parent, name.clone()),
        At::Inode(inode) => Key::Inode(*inode),
    };
    let row = match seen.row(&key) {
        Seen::Present(Row::Inode(row)) => row,
        Seen::Present(Row::Entry(entry)) => match &entry.body {
            EntryBody::Node(row) => row,
            EntryBody::Directory(_) | EntryBody::Reference(_) => return false,
        },
        _ => return false,
    };
    matches!(row.content, Content::Inline(_) | Content::Backing(BackingSize::Settled))
}

fn is_backing(row: &NodeRow) -> bool {
    matches!(row.content, Content::Backing(_))
}

/// A file whose content is in the backing file of this `generation`.
fn backing<'a>(found: Found<'a>, generation: LayoutGeneration) -> Result<(Located<'a>, BackingSize), Refusal> {
    let file = found.file(Errno::EISDIR)?;
    match file.row.content {
        _ if file.row.generation != generation => Err(Refusal::Stale(file.row.generation)),
        Content::Backing(size) => Ok((file, size)),
        _ => Err(Errno::EINVAL.into()),
    }
}

/// The effect that a backing file needs where its row's mode or owner changes.
pub(super) fn own_if_changed(file: &Located<'_>, row: &NodeRow) -> Option<Effect> {
    let (was, is) = (&file.row.attributes, &row.attributes);
    let changed = (was.mode, was.uid, was.gid) != (is.mode, is.uid, is.gid);
    (changed && is_backing(row)).then_some(Effect::Own { inode: file.inode, uid: is.uid, gid: is.gid, mode: is.mode })
}
