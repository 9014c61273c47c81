//! All verbs, with their outcomes.

use super::create::Create;
use super::create_unnamed::CreateUnnamed;
use super::get_attributes::{DirectoryNode, GetAttributes, GetDirectory};
use super::link::Link;
use super::list::List;
use super::lookup::Lookup;
use super::make_directory::MakeDirectory;
use super::node::{Entry, Node};
use super::open::Open;
use super::read_link::ReadLink;
use super::remove_directory::RemoveDirectory;
use super::rename::Rename;
use super::revive_directory::ReviveDirectory;
use super::rule::{Rule, decide};
use super::set_attributes::ChangeAttributes;
use super::size::{AbandonTruncate, FindTruncate, FinishTruncate, MarkSizeStale, Promote, RaiseSize, RecordSize};
use super::unlink::{RemovedName, Unlink};
use super::verb::{Context, Decision, MissingKeys, PendingTruncate, Verb, View};
use super::write_inline::WriteInline;
use super::xattr::{GetXattr, ListXattrs, RemoveXattr, SetXattr};
use bytes::Bytes;

macro_rules! verbs {
    ($($verb:ident => $outcome:ty;)*) => {
        $(impl Verb for $verb {
            type Outcome = $outcome;

            const REMOVES_DIRECTORY: bool = <$verb as Rule>::REMOVES_DIRECTORY;

            fn decide(&self, seen: &dyn View, context: &Context<'_>) -> Result<Decision<$outcome>, MissingKeys> {
                decide(self, seen, context)
            }
        })*
    };
}

verbs! {
    Lookup => Entry;
    Create => Node;
    CreateUnnamed => Node;
    MakeDirectory => Node;
    ReviveDirectory => Node;
    Unlink => RemovedName;
    RemoveDirectory => RemovedName;
    Rename => RemovedName;
    Link => Entry;
    List => ();
    GetAttributes => Node;
    GetDirectory => DirectoryNode;
    ChangeAttributes => Node;
    Open => Node;
    WriteInline => Node;
    Promote => Node;
    MarkSizeStale => Node;
    RaiseSize => Node;
    RecordSize => Node;
    FindTruncate => Option<PendingTruncate>;
    FinishTruncate => bool;
    AbandonTruncate => ();
    ReadLink => Bytes;
    GetXattr => Bytes;
    SetXattr => ();
    ListXattrs => Vec<Bytes>;
    RemoveXattr => ();
}
