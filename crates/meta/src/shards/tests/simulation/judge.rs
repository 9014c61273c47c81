//! Compares the results of concurrent calls, and the tree after them, with the reference file system: there must be an
//! order of the calls in which it gives the same results and the same tree. A call that has ended before another began
//! comes first. A call with an unknown outcome may be left out.

use super::calls::{Answer, Call, DIRECTORY_MODE, FILE_MODE, XATTR};
use super::clients::{CallResult, Done};
use super::tree::{Picture, differences, picture_of};
use std::collections::{BTreeMap, HashSet};
use varve_posix::reference::{Body, Reference};
use varve_posix::{NewNode, Refusal, XattrMode};
use varve_types::{Credentials, Errno, InodeId, SetAttributes, Timestamp};

/// The inode that a call makes, if the client has not learnt its id.
fn unknown_inode(number: usize) -> InodeId {
    InodeId(u64::MAX - number as u64)
}

fn is_unknown(inode: InodeId) -> bool {
    inode.0 > u64::MAX - 1_000
}

pub struct Judge {
    reference: Reference,
}

/// Calls and the tree after them.
struct Case<'a> {
    calls: &'a [Done],
    found: &'a Picture,
    /// Numbers of calls already ordered, as bits, with the tree after them.
    tried: HashSet<(u32, Picture)>,
    /// The inodes of the tree before, and those of which a client has learnt that its call has made them.
    known: HashSet<InodeId>,
}

impl Judge {
    /// Begins with an empty root directory.
    pub fn new() -> Judge {
        let mut reference = Reference::new(Timestamp { seconds: 1, nanoseconds: 0 });
        reference.nodes.get_mut(&InodeId::ROOT).expect("there is a root").mode = DIRECTORY_MODE;
        Judge { reference }
    }

    /// Fails if no order of `calls` explains their results and `found`.
    pub fn judge(&mut self, calls: &[Done], found: &Picture) -> Result<(), String> {
        let made = calls.iter().filter_map(|done| match (&done.call, &done.result) {
            (Call::MakeDirectory { .. } | Call::Create { .. }, CallResult::Answered(Answer::Inode(inode))) => {
                Some(*inode)
            }
            _ => None,
        });
        let known = self.reference.nodes.keys().copied().chain(made).collect();
        let mut case = Case { calls, found, tried: HashSet::new(), known };
        if let Some(reference) = case.explain(0, &self.reference) {
            self.reference = reference;
            return Ok(());
        }
        let changed = differences(found, &picture_of(&self.reference));
        let mut lines = format!("no order of the calls explains the tree\nchanges of the tree\n{changed}calls\n");
        for Done { call, begun, ended, result } in calls {
            let ended = if *ended == u64::MAX { "-".to_owned() } else { ended.to_string() };
            lines += &format!("  {begun} to {ended}: {call:?}: {result:?}\n");
        }
        Err(lines)
    }
}

impl Case<'_> {
    /// The state after all calls in some order, of which those in `ordered` have led to `state`.
    fn explain(&mut self, ordered: u32, state: &Reference) -> Option<Reference> {
        if ordered.count_ones() as usize == self.calls.len() {
            return self.with_found_inodes(state);
        }
        if !self.tried.insert((ordered, picture_of(state))) {
            return None;
        }
        let calls = self.calls;
        let waits = |number: usize| ordered & (1 << number) == 0;
        for (number, done) in calls.iter().enumerate().filter(|(number, _)| waits(*number)) {
            let is_before = |(other, earlier): (usize, &Done)| waits(other) && earlier.ended < done.begun;
            if calls.iter().enumerate().any(is_before) {
                continue;
            }
            let after = ordered | 1 << number;
            if let Some(next) = self.applied(number, state)
                && let Some(explained) = self.explain(after, &next)
            {
                return Some(explained);
            }
            if matches!(done.result, CallResult::Unknown | CallResult::Elsewhere)
                && let Some(explained) = self.explain(after, state)
            {
                return Some(explained);
            }
        }
        None
    }

    /// The state after a call, if its result agrees.
    fn applied(&self, number: usize, state: &Reference) -> Option<Reference> {
        let Done { call, result, .. } = &self.calls[number];
        let mut next = state.clone();
        let fresh = match result {
            CallResult::Answered(Answer::Inode(inode)) => *inode,
            _ => unknown_inode(number),
        };
        let expected = carry_out(&mut next, call, fresh);
        let agrees = match (result, expected) {
            (CallResult::Answered(Answer::Inode(found)), Ok(Answer::Inode(expected))) => {
                *found == expected || (is_unknown(expected) && !state.nodes.contains_key(found))
            }
            (CallResult::Answered(found), Ok(expected)) => *found == expected,
            (CallResult::Refused(errno), Err(Some(expected))) => *errno == expected,
            (CallResult::Refused(_), Err(None)) => true,
            (CallResult::Unknown, expected) => expected.is_ok(),
            _ => false,
        };
        agrees.then_some(next)
    }

    /// The state with the ids that the tree has for unknown inodes, if it is the tree that was found.
    fn with_found_inodes(&self, state: &Reference) -> Option<Reference> {
        let picture = picture_of(state);
        if picture.len() != self.found.len() {
            return None;
        }
        let mut ids = BTreeMap::new();
        for ((path, (inode, what)), (found_path, (found, found_what))) in picture.iter().zip(self.found) {
            let new = is_unknown(*inode) && !self.known.contains(found);
            if path != found_path || what != found_what || (inode != found && !new) {
                return None;
            }
            if *ids.entry(*inode).or_insert(*found) != *found {
                return None;
            }
        }
        let mut renamed = state.clone();
        renamed.nodes = std::mem::take(&mut renamed.nodes)
            .into_iter()
            .filter_map(|(inode, mut node)| {
                // Nodes without a path are gone.
                let found = *ids.get(&inode)?;
                if let Body::Directory(children) = &mut node.body {
                    children.values_mut().for_each(|child| *child = ids[child]);
                }
                Some((found, node))
            })
            .collect();
        Some(renamed)
    }
}

/// Carries a call out on the reference. `Err(None)`: its file is gone, and any refusal will do.
fn carry_out(reference: &mut Reference, call: &Call, fresh: InodeId) -> Result<Answer, Option<Errno>> {
    let who = &Credentials::root();
    let bytes = |name: &varve_types::Name| name.as_bytes().to_vec();
    let exists = |reference: &Reference, inode| reference.nodes.contains_key(&inode).then_some(inode).ok_or(None);
    let done = match call {
        Call::MakeDirectory { parent, name, .. } => {
            let made = reference.mkdir(who, *parent, &bytes(name), fresh, DIRECTORY_MODE);
            return made.map(|()| Answer::Inode(fresh)).map_err(errno);
        }
        Call::Create { parent, name } => {
            let made = reference.create(who, *parent, &bytes(name), fresh, &NewNode::Regular, FILE_MODE);
            return made.map(|()| Answer::Inode(fresh)).map_err(errno);
        }
        Call::Lookup { parent, name } => {
            return reference.lookup(who, *parent, &bytes(name)).map(Answer::Inode).map_err(errno);
        }
        Call::GetMode { at } => {
            let inode = exists(reference, at.inode())?;
            return Ok(Answer::Mode(reference.nodes[&inode].mode));
        }
        Call::Link { source, parent, name } => {
            let source = exists(reference, source.inode())?;
            reference.link(who, source, *parent, &bytes(name))
        }
        Call::Unlink { parent, name } => reference.unlink(who, *parent, &bytes(name)).map(drop),
        Call::RemoveDirectory { parent, name } => reference.rmdir(who, *parent, &bytes(name)).map(drop),
        Call::Rename { parent, name, new_parent, new_name, flags } => {
            reference.rename(who, (*parent, &bytes(name)), (*new_parent, &bytes(new_name)), *flags, fresh).map(drop)
        }
        Call::SetMode { at, mode } => {
            let inode = exists(reference, at.inode())?;
            let mode = Some(varve_types::Mode::new((*mode).into()));
            reference.set_attributes(who, inode, &SetAttributes { mode, ..SetAttributes::default() })
        }
        Call::SetXattr { at, value } => {
            let inode = exists(reference, at.inode())?;
            let mode = XattrMode::CreateOrReplace;
            reference.set_xattr(who, inode, &XATTR.as_bytes().to_vec(), &[*value], mode)
        }
        Call::RemoveXattr { at } => {
            let inode = exists(reference, at.inode())?;
            reference.remove_xattr(who, inode, &XATTR.as_bytes().to_vec())
        }
        Call::Write { file, byte } => {
            let inode = exists(reference, file.at.inode())?;
            reference.write(who, inode, Body::Inline(vec![*byte]));
            Ok(())
        }
    };
    done.map(|()| Answer::Done).map_err(errno)
}

fn errno(refusal: Refusal) -> Option<Errno> {
    match refusal {
        Refusal::Errno(errno) => Some(errno),
        _ => None,
    }
}
