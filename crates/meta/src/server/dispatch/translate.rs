//! The shared nouns of verbs and the wire, one into the other.

use crate::namespace::{Entry, Node, NodeContent, Removed, SizeState};
use crate::namespace::{NewNode, OpenMode, Refusal as Rule, RenameFlags, XattrMode};
use crate::shards::{Cause, Refusal};
use varve_wire::{EntryReply, Failure, FileContent, NodeReply, Reply, WireMap};

pub fn failure(refusal: Refusal) -> Failure {
    match refusal {
        Refusal::Rule(Rule::Errno(errno)) => super::errno(errno),
        Refusal::Rule(Rule::NotHere) => Failure::NotHere,
        Refusal::Rule(Rule::Stale(generation)) => Failure::Stale { generation: generation.0 },
        Refusal::Rule(Rule::MustPromote) => Failure::MustPromote,
        Refusal::Rule(Rule::Torn(inode)) => failed(
            format!("a name means inode {inode}, which is missing: the volume is damaged; run `varve fsck`").into(),
        ),
        Refusal::Moved { directory, map } => Failure::Moved { directory: directory.0, map: WireMap::from(&map) },
        Refusal::Busy => Failure::Busy,
        Refusal::Failed(cause) => failed(cause),
    }
}

pub fn failed(cause: Cause) -> Failure {
    Failure::Server { errno: cause.errno.number(), message: cause.reason }
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

fn size_state(size: SizeState) -> varve_wire::SizeState {
    match size {
        SizeState::Settled => varve_wire::SizeState::Settled,
        SizeState::Unsettled { at_least } => varve_wire::SizeState::Unsettled { at_least },
    }
}

/// Whether the backing file must be asked for its size.
pub fn is_unsettled(node: &Node) -> bool {
    matches!(node.content, NodeContent::Backing(SizeState::Unsettled { .. }))
}

pub fn is_unsettled_reply(node: &NodeReply) -> bool {
    matches!(node.content, FileContent::Backing(varve_wire::SizeState::Unsettled { .. }))
}

pub fn entry(entry: &Entry) -> EntryReply {
    match entry {
        Entry::Node(file) => EntryReply::Node(node(file)),
        Entry::Elsewhere { inode, kind } => EntryReply::Elsewhere { inode: inode.0, kind: (*kind).into() },
    }
}

pub fn removed(removed: &Removed) -> Reply {
    Reply::Removed { last_name_of: removed.last_name_of.map(|inode| inode.0), at: removed.at.into() }
}

pub fn new_node(node: varve_wire::NewNode) -> NewNode {
    match node {
        varve_wire::NewNode::Regular => NewNode::Regular,
        varve_wire::NewNode::Symlink { target } => NewNode::Symlink { target: target.into() },
        varve_wire::NewNode::Fifo => NewNode::Fifo,
        varve_wire::NewNode::Socket => NewNode::Socket,
        varve_wire::NewNode::CharDevice { rdev } => NewNode::CharDevice { rdev },
        varve_wire::NewNode::BlockDevice { rdev } => NewNode::BlockDevice { rdev },
    }
}

pub fn rename_flags(flags: varve_wire::RenameFlags) -> RenameFlags {
    match flags {
        varve_wire::RenameFlags::Replace => RenameFlags::Replace,
        varve_wire::RenameFlags::NoReplace => RenameFlags::NoReplace,
        varve_wire::RenameFlags::Exchange => RenameFlags::Exchange,
    }
}

pub fn open_mode(mode: varve_wire::OpenMode) -> OpenMode {
    match mode {
        varve_wire::OpenMode::Read => OpenMode::Read,
        varve_wire::OpenMode::Write => OpenMode::Write,
        varve_wire::OpenMode::ReadWrite => OpenMode::ReadWrite,
    }
}

pub fn xattr_mode(mode: varve_wire::XattrMode) -> XattrMode {
    match mode {
        varve_wire::XattrMode::CreateOrReplace => XattrMode::CreateOrReplace,
        varve_wire::XattrMode::Create => XattrMode::Create,
        varve_wire::XattrMode::Replace => XattrMode::Replace,
    }
}
