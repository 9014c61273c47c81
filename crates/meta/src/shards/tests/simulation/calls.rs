//! The calls of clients: how they are drawn, where they go, and how a shard runs them.

use super::draw::Draw;
use super::owners::CallId;
use super::tree::{Location, Tree};
use crate::shards::tests::cluster::name;
use crate::shards::{Execution, Makes, ReplyRecorder, RequestAddress, Shard, ShardRefusal};
use bytes::Bytes;
use std::rc::Rc;
use varve_posix::{
    At, ChangeAttributes, Create, Entry, GetAttributes, Link, Lookup, MakeDirectory, NewNode, RemoveDirectory,
    RemoveXattr, Rename, RenameFlags, SetXattr, Unlink, Verb, WriteInline, XattrMode,
};
use varve_types::{
    Credentials, InodeId, Mode, Name, NameHash, PartitionMap, SessionId, SetAttributes, ShardCount, ShardId,
};

pub const FILE_MODE: u16 = 0o644;
pub const DIRECTORY_MODE: u16 = 0o755;
pub const XATTR: &str = "user.x";

/// Few names, so that calls meet.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// Directories have these modes or [`DIRECTORY_MODE`]. All of them allow their owner everything.
const MODES: [u16; 3] = [0o700, 0o711, 0o777];

#[derive(Clone, Debug)]
pub enum Call {
    MakeDirectory { parent: InodeId, name: Name, home: ShardId },
    Create { parent: InodeId, name: Name },
    Link { source: At, parent: InodeId, name: Name },
    Unlink { parent: InodeId, name: Name },
    RemoveDirectory { parent: InodeId, name: Name },
    Rename { parent: InodeId, name: Name, new_parent: InodeId, new_name: Name, flags: RenameFlags },
    SetMode { at: At, mode: u16 },
    SetXattr { at: At, value: u8 },
    RemoveXattr { at: At },
    Write { file: Location, byte: u8 },
    Lookup { parent: InodeId, name: Name },
    GetMode { at: At },
}

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    /// The inode that the call has made, or found.
    Inode(InodeId),
    Mode(u16),
}

impl Answer {
    fn encode(self) -> Bytes {
        let (tag, value) = match self {
            Answer::Done => (0, 0),
            Answer::Inode(inode) => (1, inode.0),
            Answer::Mode(mode) => (2, u64::from(mode)),
        };
        Bytes::from([&[tag], &u64::to_le_bytes(value)[..]].concat())
    }

    pub fn decode(bytes: &[u8]) -> Answer {
        let value = u64::from_le_bytes(bytes[1..].try_into().expect("a recorded answer has nine bytes"));
        match bytes[0] {
            0 => Answer::Done,
            1 => Answer::Inode(InodeId(value)),
            _ => Answer::Mode(value as u16),
        }
    }
}

impl Call {
    /// Draws a call on the names and files of `tree`.
    pub fn draw(draw: &mut Draw, tree: &Tree, shards: ShardCount) -> Call {
        let directories: Vec<InodeId> = tree.directories().collect();
        let files: Vec<Location> = tree.files().cloned().collect();
        let parent = draw.one_of(&directories);
        let name = name(draw.one_of(&NAMES));
        let home = ShardId(draw.below(usize::from(shards.get())) as u16);
        let any: Vec<At> = files
            .iter()
            .map(|file| file.at.clone())
            .chain(directories.iter().map(|directory| At::Inode(*directory)))
            .collect();
        let at = draw.one_of(&any);
        match draw.below(30) {
            0..=3 => Call::MakeDirectory { parent, name, home },
            4..=6 => Call::Create { parent, name },
            7 | 8 if !files.is_empty() => Call::Link { source: draw.one_of(&files).at, parent, name },
            9 | 10 => Call::Unlink { parent, name },
            11..=13 => Call::RemoveDirectory { parent, name },
            14..=21 => {
                let flags = match draw.below(6) {
                    0 => RenameFlags::NoReplace,
                    1 => RenameFlags::Exchange,
                    _ => RenameFlags::Replace,
                };
                let (new_parent, new_name) = (draw.one_of(&directories), self::name(draw.one_of(&NAMES)));
                Call::Rename { parent, name, new_parent, new_name, flags }
            }
            22 => Call::SetMode { at, mode: draw.one_of(&MODES) },
            23 => Call::SetXattr { at, value: draw.below(256) as u8 },
            24 => Call::RemoveXattr { at },
            25 if !files.is_empty() => Call::Write { file: draw.one_of(&files), byte: draw.below(256) as u8 },
            26 => Call::GetMode { at },
            _ => Call::Lookup { parent, name },
        }
    }

    pub fn only_reads(&self) -> bool {
        matches!(self, Call::Lookup { .. } | Call::GetMode { .. })
    }

    fn address(&self) -> RequestAddress {
        let of = |at: &At| match at {
            At::Entry { parent, name, .. } => RequestAddress::Name(*parent, name.hash()),
            At::Inode(inode) => RequestAddress::Inode(*inode),
        };
        match self {
            Call::MakeDirectory { parent, name, .. }
            | Call::Create { parent, name }
            | Call::Link { parent, name, .. }
            | Call::Unlink { parent, name }
            | Call::RemoveDirectory { parent, name }
            | Call::Rename { parent, name, .. }
            | Call::Lookup { parent, name } => RequestAddress::Name(*parent, name.hash()),
            Call::SetMode { at, .. } | Call::SetXattr { at, .. } | Call::RemoveXattr { at } | Call::GetMode { at } => {
                of(at)
            }
            Call::Write { file, .. } => of(&file.at),
        }
    }

    /// The shard that runs the call, if the directory of its name is divided like `map`.
    pub fn shard(&self, map: &PartitionMap) -> ShardId {
        match self.address() {
            RequestAddress::Name(directory, hash) => map.shard_of(directory.shard(), hash),
            RequestAddress::Inode(inode) => inode.shard(),
        }
    }

    pub async fn run(&self, shard: &Rc<Shard>, id: CallId) -> Result<Answer, ShardRefusal> {
        let run = RunOn { shard, id, address: self.address() };
        match self.clone() {
            Call::MakeDirectory { parent, name, home } => {
                let verb = MakeDirectory { parent, name, mode: Mode::new(DIRECTORY_MODE.into()) };
                run.change(verb, Makes::Directory { home }, |node| Answer::Inode(node.inode)).await
            }
            Call::Create { parent, name } => {
                let verb = Create { parent, name, node: NewNode::Regular, mode: Mode::new(FILE_MODE.into()) };
                run.change(verb, Makes::File, |node| Answer::Inode(node.inode)).await
            }
            Call::Link { source, parent, name } => run.done(Link { source, parent, name }).await,
            Call::Unlink { parent, name } => run.done(Unlink { parent, name }).await,
            Call::RemoveDirectory { parent, name } => run.done(RemoveDirectory { parent, name }).await,
            Call::Rename { parent, name, new_parent, new_name, flags } => {
                run.done(Rename { parent, name, new_parent, new_name, flags }).await
            }
            Call::SetMode { at, mode } => {
                let set = SetAttributes { mode: Some(Mode::new(mode.into())), ..SetAttributes::default() };
                run.done(ChangeAttributes { at, set }).await
            }
            Call::SetXattr { at, value } => {
                let (name, value) = (Bytes::from(XATTR), Bytes::from(vec![value]));
                run.done(SetXattr { at, name, value, mode: XattrMode::CreateOrReplace }).await
            }
            Call::RemoveXattr { at } => run.done(RemoveXattr { at, name: Bytes::from(XATTR) }).await,
            Call::Write { file, byte } => {
                let data = Bytes::from(vec![byte]);
                run.done(WriteInline { at: file.at, generation: file.generation, data, mtime: None }).await
            }
            Call::Lookup { parent, name } => {
                let found = run.ask(Lookup { parent, name }).await?;
                Ok(Answer::Inode(match found {
                    Entry::Node(node) => node.inode,
                    Entry::Elsewhere { inode, .. } => inode,
                }))
            }
            Call::GetMode { at } => Ok(Answer::Mode(run.ask(GetAttributes { at }).await?.attributes.mode.bits())),
        }
    }
}

/// Runs a verb on a shard for a call.
struct RunOn<'a> {
    shard: &'a Rc<Shard>,
    id: CallId,
    address: RequestAddress,
}

impl RunOn<'_> {
    async fn change<V: Verb>(
        &self,
        verb: V,
        makes: Makes,
        answer: impl Fn(&V::Outcome) -> Answer,
    ) -> Result<Answer, ShardRefusal> {
        let encode = |outcome: &V::Outcome| answer(outcome).encode();
        let record = ReplyRecorder { session: SessionId(self.id.0), slot: 0, number: self.id.1, encode: &encode };
        let caller = &Credentials::root();
        let run = Execution { caller, address: self.address, makes, record: Some(record), registrar: None };
        self.shard.run(&verb, run).await.map(|outcome| answer(&outcome))
    }

    async fn done<V: Verb>(&self, verb: V) -> Result<Answer, ShardRefusal> {
        self.change(verb, Makes::Nothing, |_| Answer::Done).await
    }

    async fn ask<V: Verb>(&self, verb: V) -> Result<V::Outcome, ShardRefusal> {
        let caller = &Credentials::root();
        let run = Execution { caller, address: self.address, makes: Makes::Nothing, record: None, registrar: None };
        self.shard.run(&verb, run).await
    }
}

/// The hash of a name at the beginning of a directory's listing.
pub const LISTING_BEGINS: NameHash = NameHash(0);
