//! The rules of POSIX as pure functions: one file per verb.
//!
//! This crate has no async code, clock, randomness or I/O. The driver calls [`Verb::decide`], and the verb either
//! decides or returns the keys that it must see first ([`MissingKeys`]). The driver in `varve_meta::shards` fetches the
//! rows and calls again until no key is missing, and then commits; it never interprets a rule. The rows may be in
//! several shards, which the verb does not know.

mod access;
mod create;
mod create_unnamed;
mod get_attributes;
mod link;
mod list;
mod locate;
mod lookup;
mod make_directory;
mod names;
mod node;
mod open;
mod partitions;
mod read_link;
mod reader;
#[cfg(any(test, feature = "testing"))]
pub mod reference;
mod remove_directory;
mod rename;
mod revive_directory;
mod rule;
mod set_attributes;
mod size;
mod unlink;
mod verb;
mod verbs;
mod write_inline;
mod xattr;

pub use create::{Create, NewNode};
pub use create_unnamed::CreateUnnamed;
pub use get_attributes::{DirectoryNode, GetAttributes, GetDirectory, PartitionTotals};
pub use link::{LINKS_MAX, Link};
pub use list::List;
pub use lookup::Lookup;
pub use make_directory::MakeDirectory;
pub use node::{At, Entry, Node, NodeContent, SizeState};
pub use open::{Granted, Open, OpenMode};
pub use partitions::cut_off;
pub use read_link::ReadLink;
pub use remove_directory::RemoveDirectory;
pub use rename::{Rename, RenameFlags};
pub use revive_directory::ReviveDirectory;
pub use set_attributes::ChangeAttributes;
pub use size::{
    AbandonTruncate, BackingFile, FindTruncate, FinishTruncate, MarkSizeStale, Promote, RaiseSize, RecordSize,
    nobody_writes, size_state,
};
pub use unlink::{RemovedName, Unlink};
pub use verb::{Context, Decision, Effect, KeyState, MissingKeys, PendingTruncate, Refusal, Verb, View};
pub use write_inline::WriteInline;
pub use xattr::{GetXattr, ListXattrs, RemoveXattr, SetXattr, XattrMode};

#[cfg(test)]
mod tests;
