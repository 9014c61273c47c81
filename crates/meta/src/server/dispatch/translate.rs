//! Translates types between the verbs and the protocol.

use crate::shards::{Cause, Page, ShardRefusal};
use varve_posix::{Entry, Node, NodeContent, RemovedName, SizeState};
use varve_posix::{NewNode, OpenMode, Refusal as Rule, RenameFlags, XattrMode};
use varve_proto::{
    CallFailure, EntryReply, FileContent, ListedPartition, NameEntry, NamesVersion, NodeReply, Reply, WireMap,
};
use varve_schema::{EntryBody, EntryRow};
use varve_types::{FileKind, Name};

pub fn failure(refusal: ShardRefusal) -> CallFailure {
    match refusal {
        ShardRefusal::Rule(Rule::Errno(errno)) => super::errno(errno),
        ShardRefusal::Rule(Rule::NotHere) => CallFailure::NotHere,
        ShardRefusal::Rule(Rule::Stale(generation)) => CallFailure::Stale { generation: generation.0 },
        ShardRefusal::Rule(Rule::MustPromote) => CallFailure::MustPromote,
        ShardRefusal::Rule(Rule::Torn(inode)) => {
            failed(format!("a name refers to missing inode {inode}: the volume is damaged; run `varve fsck`").into())
        }
        ShardRefusal::Moved { directory, map } => {
            CallFailure::Moved { directory: directory.0, map: WireMap::from(&map) }
        }
        ShardRefusal::Busy => CallFailure::Busy,
        ShardRefusal::Failed(cause) => failed(cause),
    }
}

pub fn failed(cause: Cause) -> CallFailure {
    CallFailure::Server { errno: cause.errno.number(), message: cause.reason }
}

pub fn node(node: &Node) -> NodeReply {
    NodeReply {
        inode: node.inode.0,
        attributes: node.attributes.into(),
        content: match &node.content {
            NodeContent::Inline(data) => FileContent::Inline { data: data.as_ref().map(|data| data.to_vec()) },
            NodeContent::Backing(size) => FileContent::Backing(size_state(*size)),
            NodeContent::None => FileContent::None,
        },
        generation: node.generation.0,
        by_inode: node.by_inode,
    }
}

fn size_state(size: SizeState) -> varve_proto::SizeState {
    match size {
        SizeState::Authoritative => varve_proto::SizeState::Authoritative,
        SizeState::Stale { at_least } => varve_proto::SizeState::Stale { at_least },
    }
}

/// Whether the size must be read from the backing file.
pub fn is_size_stale_reply(node: &NodeReply) -> bool {
    matches!(node.content, FileContent::Backing(varve_proto::SizeState::Stale { .. }))
}

pub fn listed_partition(page: &Page) -> ListedPartition {
    ListedPartition {
        first: page.range.first.0,
        last: page.range.last.0,
        version: page.version.map(|version| NamesVersion { loaded: version.loaded, batch: version.batch.0 }),
    }
}

pub fn name_entry(name: &Name, row: &EntryRow) -> NameEntry {
    let kind = match &row.body {
        EntryBody::Node(node) => node.attributes.kind,
        EntryBody::Directory(_) => FileKind::Directory,
        EntryBody::Reference(kind) => *kind,
    };
    NameEntry { name: name.as_bytes().to_vec(), hash: name.hash().0, inode: row.inode.0, kind: kind.into() }
}

pub fn entry(entry: &Entry) -> EntryReply {
    match entry {
        Entry::Node(file) => EntryReply::Node(node(file)),
        Entry::Elsewhere { inode, kind } => EntryReply::Elsewhere { inode: inode.0, kind: (*kind).into() },
    }
}

pub fn removed(removed: &RemovedName) -> Reply {
    Reply::Removed { last_name_of: removed.last_name_of.map(|inode| inode.0), at: removed.at.into() }
}

pub fn new_node(node: varve_proto::NewNode) -> NewNode {
    match node {
        varve_proto::NewNode::Regular => NewNode::Regular,
        varve_proto::NewNode::Symlink { target } => NewNode::Symlink { target: target.into() },
        varve_proto::NewNode::Fifo => NewNode::Fifo,
        varve_proto::NewNode::Socket => NewNode::Socket,
        varve_proto::NewNode::CharDevice { rdev } => NewNode::CharDevice { rdev },
        varve_proto::NewNode::BlockDevice { rdev } => NewNode::BlockDevice { rdev },
    }
}

pub fn rename_flags(flags: varve_proto::RenameFlags) -> RenameFlags {
    match flags {
        varve_proto::RenameFlags::Replace => RenameFlags::Replace,
        varve_proto::RenameFlags::NoReplace => RenameFlags::NoReplace,
        varve_proto::RenameFlags::Exchange => RenameFlags::Exchange,
        varve_proto::RenameFlags::Whiteout => RenameFlags::Whiteout,
        varve_proto::RenameFlags::WhiteoutNoReplace => RenameFlags::WhiteoutNoReplace,
    }
}

pub fn open_mode(mode: varve_proto::OpenMode) -> OpenMode {
    match mode {
        varve_proto::OpenMode::Read => OpenMode::Read,
        varve_proto::OpenMode::Write => OpenMode::Write,
        varve_proto::OpenMode::ReadWrite => OpenMode::ReadWrite,
        varve_proto::OpenMode::Execute => OpenMode::Execute,
    }
}

pub fn xattr_mode(mode: varve_proto::XattrMode) -> XattrMode {
    match mode {
        varve_proto::XattrMode::CreateOrReplace => XattrMode::CreateOrReplace,
        varve_proto::XattrMode::Create => XattrMode::Create,
        varve_proto::XattrMode::Replace => XattrMode::Replace,
    }
}
