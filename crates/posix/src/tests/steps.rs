//! The steps of a random sequence.

use super::table::{at_second, user};
use crate::{NewNode, OpenMode, RenameFlags, XattrMode};
use bytes::Bytes;
use proptest::option;
use proptest::prelude::*;
use varve_types::{Credentials, Mode, SetAttributes, SetTime};

pub const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
pub const XATTRS: [&str; 5] = ["user.x", "user.y", "trusted.t", "security.s", "system.posix_acl_access"];

/// The index of a directory in order of creation, starting with the root; it may have been removed.
pub type Dir = usize;
/// Index into [`NAMES`].
pub type Word = usize;

/// The file or directory that a step acts on.
#[derive(Clone, Debug)]
pub enum Pick {
    Named(Dir, Word),
    Directory(Dir),
    /// One of the open files.
    Opened(usize),
}

#[derive(Clone, Debug)]
pub enum Step {
    Lookup(Dir, Word),
    Create(Dir, Word, NewNode, u16),
    /// `true`: link may name it.
    CreateUnnamed(Dir, u16, bool),
    MakeDirectory(Dir, Word, u16),
    Unlink(Dir, Word),
    RemoveDirectory(Dir, Word),
    Rename(Dir, Word, Dir, Word, RenameFlags),
    Link(Pick, Dir, Word),
    GetAttributes(Pick),
    ChangeAttributes(Pick, SetAttributes),
    /// `true` in the last field: keep the file open.
    Open(Pick, OpenMode, bool, bool),
    Release(usize),
    Write(Pick, usize),
    RecordSize(Pick),
    Promote(Pick, u64),
    ReadLink(Pick),
    GetXattr(Pick, usize),
    SetXattr(Pick, usize, u8, XattrMode),
    RemoveXattr(Pick, usize),
    ListXattrs(Pick),
    Split(Dir, u64),
}

pub fn any_dir() -> impl Strategy<Value = Dir> {
    prop_oneof![2 => Just(0), 5 => 0..6usize]
}

pub fn any_pick() -> impl Strategy<Value = Pick> {
    prop_oneof![
        6 => (any_dir(), 0..NAMES.len()).prop_map(|(dir, word)| Pick::Named(dir, word)),
        1 => any_dir().prop_map(Pick::Directory),
        1 => any::<usize>().prop_map(Pick::Opened),
    ]
}

pub fn any_mode() -> impl Strategy<Value = u16> {
    prop_oneof![3 => Just(0o777), 1 => Just(0o1777), 1 => Just(0o2775), 1 => Just(0o6755), 3 => 0..=0o7777u16]
}

pub fn any_new_node() -> impl Strategy<Value = NewNode> {
    prop_oneof![
        6 => Just(NewNode::Regular),
        1 => Just(NewNode::Symlink { target: Bytes::from_static(b"target") }),
        1 => Just(NewNode::Fifo),
        1 => Just(NewNode::Socket),
        1 => Just(NewNode::CharDevice { rdev: 5 }),
        1 => Just(NewNode::CharDevice { rdev: 0 }),
        1 => Just(NewNode::BlockDevice { rdev: 6 }),
    ]
}

pub fn any_flags() -> impl Strategy<Value = RenameFlags> {
    prop_oneof![
        3 => Just(RenameFlags::Replace),
        1 => Just(RenameFlags::NoReplace),
        2 => Just(RenameFlags::Exchange),
        1 => Just(RenameFlags::Whiteout),
        1 => Just(RenameFlags::WhiteoutNoReplace),
    ]
}

pub fn any_id() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), Just(1000), Just(1001), Just(3000)]
}

pub fn any_set_time() -> impl Strategy<Value = SetTime> {
    prop_oneof![Just(SetTime::Now), (0..900i64).prop_map(|seconds| SetTime::To(at_second(seconds)))]
}

prop_compose! {
    pub fn any_set()(
        what in 0..8u8,
        mode in any_mode(),
        (uid, gid) in (option::of(any_id()), option::of(any_id())),
        size in 0..200u64,
        (atime, mtime) in (option::of(any_set_time()), option::of(any_set_time())),
        everything in option::weighted(0.1, any::<()>()),
    ) -> SetAttributes {
        let all = SetAttributes { mode: Some(Mode(mode)), uid, gid, size: Some(size), atime, mtime, ctime: None };
        let none = SetAttributes::default();
        match what {
            _ if everything.is_some() => all,
            0..=2 => SetAttributes { mode: all.mode, ..none },
            3 | 4 => SetAttributes { uid, gid, ..none },
            5 => SetAttributes { atime, mtime, ..none },
            6 => SetAttributes { size: all.size, ..none },
            _ => SetAttributes { size: all.size, mtime: Some(SetTime::Now), ..none },
        }
    }
}

pub fn any_open_mode() -> impl Strategy<Value = OpenMode> {
    prop_oneof![Just(OpenMode::Read), Just(OpenMode::Write), Just(OpenMode::ReadWrite)]
}

pub fn any_xattr_mode() -> impl Strategy<Value = XattrMode> {
    prop_oneof![Just(XattrMode::CreateOrReplace), Just(XattrMode::Create), Just(XattrMode::Replace)]
}

pub fn any_step() -> impl Strategy<Value = Step> {
    let word = || 0..NAMES.len();
    let xattr = || 0..XATTRS.len();
    prop_oneof![
        2 => (any_dir(), word()).prop_map(|(dir, word)| Step::Lookup(dir, word)),
        8 => (any_dir(), word(), any_new_node(), any_mode()).prop_map(|(d, w, n, m)| Step::Create(d, w, n, m)),
        2 => (any_dir(), any_mode(), any::<bool>())
            .prop_map(|(dir, mode, linkable)| Step::CreateUnnamed(dir, mode, linkable)),
        8 => (any_dir(), word(), any_mode()).prop_map(|(dir, word, mode)| Step::MakeDirectory(dir, word, mode)),
        4 => (any_dir(), word()).prop_map(|(dir, word)| Step::Unlink(dir, word)),
        4 => (any_dir(), word()).prop_map(|(dir, word)| Step::RemoveDirectory(dir, word)),
        14 => (any_dir(), word(), any_dir(), word(), any_flags())
            .prop_map(|(dir, word, to, new, flags)| Step::Rename(dir, word, to, new, flags)),
        5 => (any_pick(), any_dir(), word()).prop_map(|(pick, dir, word)| Step::Link(pick, dir, word)),
        1 => any_pick().prop_map(Step::GetAttributes),
        8 => (any_pick(), any_set()).prop_map(|(pick, set)| Step::ChangeAttributes(pick, set)),
        5 => (any_pick(), any_open_mode(), any::<bool>(), any::<bool>())
            .prop_map(|(pick, mode, truncate, hold)| Step::Open(pick, mode, truncate, hold)),
        2 => any::<usize>().prop_map(Step::Release),
        4 => (any_pick(), 0..100usize).prop_map(|(pick, size)| Step::Write(pick, size)),
        1 => any_pick().prop_map(Step::RecordSize),
        3 => (any_pick(), 0..200u64).prop_map(|(pick, size)| Step::Promote(pick, size)),
        1 => any_pick().prop_map(Step::ReadLink),
        1 => (any_pick(), xattr()).prop_map(|(pick, xattr)| Step::GetXattr(pick, xattr)),
        4 => (any_pick(), xattr(), any::<u8>(), any_xattr_mode()).prop_map(|(p, x, v, m)| Step::SetXattr(p, x, v, m)),
        2 => (any_pick(), xattr()).prop_map(|(pick, xattr)| Step::RemoveXattr(pick, xattr)),
        1 => any_pick().prop_map(Step::ListXattrs),
        3 => (any_dir(), any::<u64>()).prop_map(|(dir, hash)| Step::Split(dir, hash >> 1)),
    ]
}

/// The caller: mostly root, so that trees grow; otherwise one of two users who share a group.
pub fn any_caller() -> impl Strategy<Value = Credentials> {
    prop_oneof![3 => Just(Credentials::root()), 2 => Just(user(1000)), 2 => Just(user(1001))]
}
