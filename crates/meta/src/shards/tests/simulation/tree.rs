//! The tree of a volume, read from its shards while nothing changes it, and the tree of the reference file system.

use super::Simulation;
use super::calls::LISTING_BEGINS;
use crate::shards::{PageLimit, PeerCall, PeerReply, Shard, ShardRefusal};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::oneshot;
use varve_posix::At;
use varve_posix::reference::{Body, Reference};
use varve_schema::{Content, EntryBody, EntryRow, Key, NodeRow, Row};
use varve_types::{InodeId, LayoutGeneration, Name, PartitionMap, ShardId};

/// The inode and the description of every path.
pub type Picture = BTreeMap<String, (InodeId, String)>;

/// Where a file's row is.
#[derive(Clone, Debug)]
pub struct Location {
    pub at: At,
    pub generation: LayoutGeneration,
}

#[derive(Clone, Debug, Default)]
pub struct Tree {
    pub picture: Picture,
    directories: Vec<InodeId>,
    files: BTreeMap<InodeId, Location>,
}

impl Tree {
    pub fn directories(&self) -> impl Iterator<Item = InodeId> + '_ {
        self.directories.iter().copied()
    }

    pub fn files(&self) -> impl Iterator<Item = &Location> {
        self.files.values()
    }
}

/// Why a tree could not be read: the volume is damaged, or a shard does not answer.
pub type Unreadable = String;

/// Attempts at reading something while it is locked or a split is in progress.
const TRIES: usize = 300;
const TRY_AGAIN: Duration = Duration::from_millis(100);

impl Simulation {
    /// Reads the whole tree.
    pub async fn read_tree(self: &Rc<Self>) -> Result<Tree, Unreadable> {
        let mut tree = Tree::default();
        let mut open = vec![(InodeId::ROOT, InodeId::ROOT, String::new())];
        while let Some((directory, parent, path)) = open.pop() {
            if tree.directories.contains(&directory) {
                return Err(format!("{path}: directory {directory} has two names"));
            }
            let Some(Row::Directory(row)) = self.row(directory.shard(), Key::Directory(directory)).await? else {
                return Err(format!("{path}: directory {directory} has a name and no row"));
            };
            if row.parent != parent {
                return Err(format!("{path}: directory {directory} says that its parent is {}", row.parent));
            }
            let mut what = format!("directory {:o}", row.mode.bits());
            self.describe_xattrs(&mut what, directory, &row.xattrs).await?;
            tree.picture.insert(format!("{path}/"), (directory, what));
            tree.directories.push(directory);
            for (name, EntryRow { inode, body }) in self.counted_entries(directory).await? {
                let path = format!("{path}/{name}");
                let (at, row) = match body {
                    EntryBody::Directory(_) => {
                        open.push((inode, directory, path));
                        continue;
                    }
                    EntryBody::Node(row) => (At::Entry { parent: directory, name, inode }, row),
                    EntryBody::Reference(_) => match self.row(inode.shard(), Key::Inode(inode)).await? {
                        Some(Row::Inode(row)) => (At::Inode(inode), row),
                        _ => return Err(format!("{path}: inode {inode} has a name and no row")),
                    },
                };
                let mut what = described(&row);
                self.describe_xattrs(&mut what, inode, &row.xattrs).await?;
                tree.picture.insert(path, (inode, what));
                tree.files.insert(inode, Location { at, generation: row.generation });
            }
        }
        Ok(tree)
    }

    async fn describe_xattrs(
        self: &Rc<Self>,
        what: &mut String,
        inode: InodeId,
        names: &[bytes::Bytes],
    ) -> Result<(), Unreadable> {
        for name in names {
            let value = self.row(inode.shard(), Key::Xattr(inode, name.clone())).await?;
            let Some(Row::Xattr(value)) = value else {
                return Err(format!("inode {inode} has no value of {name:?}"));
            };
            describe_xattr(what, name, &value);
        }
        Ok(())
    }

    /// The entries of a directory whose partitions count as many.
    async fn counted_entries(self: &Rc<Self>, directory: InodeId) -> Result<Vec<(Name, EntryRow)>, Unreadable> {
        let mut found = (Vec::new(), 0);
        for _ in 0..TRIES {
            found = (self.entries(directory).await?, self.count(directory).await?);
            if found.0.len() as u64 == found.1 {
                return Ok(found.0);
            }
            tokio::time::sleep(TRY_AGAIN).await;
        }
        let (entries, count) = found;
        Err(format!("directory {directory} counts {count} names and has {entries:?}"))
    }

    async fn entries(self: &Rc<Self>, directory: InodeId) -> Result<Vec<(Name, EntryRow)>, Unreadable> {
        let mut map = PartitionMap::whole(self.settings.shards);
        let (mut entries, mut from) = (Vec::new(), LISTING_BEGINS);
        for _ in 0..TRIES {
            let limit = PageLimit { bytes_max: 2000, entry_bytes: 80 };
            let shard = map.shard_of(directory.shard(), from);
            match self.at_shard(shard, async move |shard| shard.list(directory, from, limit).await).await {
                Some(Ok(page)) => {
                    entries.extend(page.entries);
                    match page.next {
                        Some(next) => from = next,
                        None => return Ok(entries),
                    }
                }
                Some(Err(ShardRefusal::Moved { map: newer, .. })) => map.merge(&newer),
                Some(Err(ShardRefusal::Busy)) | None => tokio::time::sleep(TRY_AGAIN).await,
                Some(Err(refusal)) => return Err(format!("cannot list directory {directory}: {refusal}")),
            }
        }
        Err(format!("directory {directory} cannot be listed in time"))
    }

    async fn count(self: &Rc<Self>, directory: InodeId) -> Result<u64, Unreadable> {
        let call = PeerCall::Map(directory);
        let PeerReply::Map(map) = self.peer(directory.shard(), call).await? else {
            return Err(format!("directory {directory} has no map"));
        };
        let mut sum = 0;
        for index in map.iter() {
            let shard = index.shard(directory.shard(), self.settings.shards);
            // A map may list partitions that are not there yet.
            if let Some(Row::Partition(row)) = self.row(shard, Key::Partition(directory, index)).await? {
                sum += row.entries;
            }
        }
        Ok(sum)
    }

    async fn row(self: &Rc<Self>, shard: ShardId, key: Key) -> Result<Option<Row>, Unreadable> {
        match self.peer(shard, PeerCall::Fetch(vec![key.clone()])).await? {
            PeerReply::Rows(rows) => Ok(rows.into_iter().next().flatten()),
            PeerReply::Moved(..) => Ok(None),
            other => Err(format!("cannot read {key:?}: {other:?}")),
        }
    }

    /// Calls the shard as another shard does, past the network.
    pub async fn peer(self: &Rc<Self>, shard: ShardId, call: PeerCall) -> Result<PeerReply, Unreadable> {
        for _ in 0..TRIES {
            let asked = call.clone();
            match self.at_shard(shard, async move |shard| shard.peer_call(asked).await).await {
                Some(PeerReply::Busy | PeerReply::Failed(_)) | None => tokio::time::sleep(TRY_AGAIN).await,
                Some(reply) => return Ok(reply),
            }
        }
        Err(format!("shard {shard} does not answer {call:?}"))
    }

    /// Runs `task` in the process that owns the shard. `None`: it is not open there.
    async fn at_shard<T: 'static>(
        self: &Rc<Self>,
        id: ShardId,
        task: impl AsyncFnOnce(Rc<Shard>) -> T + 'static,
    ) -> Option<T> {
        let owner = self.owner(self.term(id).owner);
        let (_, shard) = owner.shard(id)?;
        let (reply, replied) = oneshot::channel();
        owner.spawn(async move { drop(reply.send(task(shard).await)) });
        tokio::time::timeout(super::CALL_MAX, replied).await.ok()?.ok()
    }
}

fn described(row: &NodeRow) -> String {
    let content = match &row.content {
        Content::Inline(bytes) => format!("{:?}", &bytes[..]),
        other => format!("{other:?}"),
    };
    file(row.attributes.mode.bits(), row.attributes.nlink, &content)
}

fn file(mode: u16, links: u32, content: &str) -> String {
    format!("file {mode:o}, {links} links, {content}")
}

fn describe_xattr(what: &mut String, name: &[u8], value: &[u8]) {
    *what += &format!(", {} = {value:?}", String::from_utf8_lossy(name));
}

/// The tree of the reference file system.
pub fn picture_of(reference: &Reference) -> Picture {
    let mut picture = Picture::new();
    let mut open = vec![(InodeId::ROOT, String::new())];
    while let Some((inode, path)) = open.pop() {
        let node = &reference.nodes[&inode];
        let (path, mut what) = match &node.body {
            Body::Directory(children) => {
                for (name, child) in children {
                    open.push((*child, format!("{path}/{}", String::from_utf8_lossy(name))));
                }
                (format!("{path}/"), format!("directory {:o}", node.mode))
            }
            Body::Inline(bytes) => (path, file(node.mode, reference.nlink(inode), &format!("{:?}", &bytes[..]))),
            other => unreachable!("no call makes {other:?}"),
        };
        for (name, value) in &node.xattrs {
            describe_xattr(&mut what, name, value);
        }
        picture.insert(path, (inode, what));
    }
    picture
}

pub fn differences(found: &Picture, expected: &Picture) -> String {
    let missing = expected.iter().filter(|(path, what)| found.get(*path) != Some(what));
    let extra = found.iter().filter(|(path, what)| expected.get(*path) != Some(what));
    let lines = missing.map(|(path, what)| format!("  missing {path}: {what:?}\n"));
    lines.chain(extra.map(|(path, what)| format!("  found   {path}: {what:?}\n"))).collect()
}
