//! Operations of a client, on a fixed set of names, so that two operations often meet.

use crate::shards::tests::cluster::{Cluster, PATIENCE, name};
use crate::shards::{Execution, Makes, RequestAddress, ShardRefusal};
use bytes::Bytes;
use std::time::{Duration, Instant};
use varve_env::disk;
use varve_posix::{
    At, BackingFile, ChangeAttributes, Create, Granted, Link, NewNode, NodeContent, Open, OpenMode, Promote,
    RecordSize, RemoveDirectory, RemoveXattr, Rename, RenameFlags, SetXattr, Unlink, Verb, WriteInline, XattrMode,
};
use varve_types::{Credentials, InodeId, LayoutGeneration, Mode, SessionId, SetAttributes, ShardId};

/// Directories of the root with their homes at the two shards.
pub const A: &str = "a";
pub const B: &str = "b";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Symlink,
    Mkdir,
    MkdirAcross,
    Link,
    LinkAcross,
    Unlink,
    UnlinkLinked,
    UnlinkOpen,
    Rmdir,
    RmdirAcross,
    Rename,
    RenameAcross,
    RenameReplacing,
    RenameExchanging,
    RenameDirectory,
    SetMode,
    SetModeOfDirectory,
    Truncate,
    TruncateLarge,
    ExtendLarge,
    Promote,
    Write,
    SetXattr,
    RemoveXattr,
    Split,
    Sync,
    Flush,
    Close,
}

impl Operation {
    pub const ALL: [Operation; 29] = [
        Operation::Create,
        Operation::Symlink,
        Operation::Mkdir,
        Operation::MkdirAcross,
        Operation::Link,
        Operation::LinkAcross,
        Operation::Unlink,
        Operation::UnlinkLinked,
        Operation::UnlinkOpen,
        Operation::Rmdir,
        Operation::RmdirAcross,
        Operation::Rename,
        Operation::RenameAcross,
        Operation::RenameReplacing,
        Operation::RenameExchanging,
        Operation::RenameDirectory,
        Operation::SetMode,
        Operation::SetModeOfDirectory,
        Operation::Truncate,
        Operation::TruncateLarge,
        Operation::ExtendLarge,
        Operation::Promote,
        Operation::Write,
        Operation::SetXattr,
        Operation::RemoveXattr,
        Operation::Split,
        Operation::Sync,
        Operation::Flush,
        Operation::Close,
    ];

    /// Whether everything done before is durable when the operation has returned.
    pub fn syncs(self) -> bool {
        matches!(self, Operation::Sync | Operation::Flush | Operation::Close)
    }

    /// The shards whose logs decide whether the operation happened. A removal for which other shards only delete rows
    /// is decided in the shard of the name.
    pub fn decided_in(self) -> &'static [ShardId] {
        match self {
            Operation::Symlink
            | Operation::Truncate
            | Operation::TruncateLarge
            | Operation::ExtendLarge
            | Operation::RemoveXattr => &[ShardId(1)],
            Operation::Create
            | Operation::Mkdir
            | Operation::MkdirAcross
            | Operation::Link
            | Operation::Unlink
            | Operation::UnlinkOpen
            | Operation::Rmdir
            | Operation::RmdirAcross
            | Operation::Rename
            | Operation::SetMode
            | Operation::SetModeOfDirectory
            | Operation::Promote
            | Operation::Write
            | Operation::SetXattr
            | Operation::Split => &[ShardId(0)],
            _ => &[ShardId(0), ShardId(1)],
        }
    }

    /// Runs the operation, if the names are as it needs them. Returns the allocated inode ids.
    pub async fn run(self, cluster: &Cluster) -> Vec<InodeId> {
        self.attempt(cluster).await.unwrap_or_else(|refusal| match refusal {
            ShardRefusal::Rule(_) => Vec::new(),
            refusal => panic!("{self:?}: {refusal}"),
        })
    }

    async fn attempt(self, cluster: &Cluster) -> Result<Vec<InodeId>, ShardRefusal> {
        let root = InodeId::ROOT;
        let (a, b) = (directory(cluster, A).await, directory(cluster, B).await);
        match self {
            Operation::Create => return Ok(vec![cluster.create(a, "new").await?.inode]),
            Operation::Symlink => {
                let node = NewNode::Symlink { target: Bytes::from_static(b"a/f") };
                let verb = Create { parent: b, name: name("s"), node, mode: Mode::new(0o777) };
                return Ok(vec![cluster.at_name(b, &name("s"), Makes::File, &verb).await?.inode]);
            }
            Operation::Mkdir => return make_directory(cluster, a, "made", ShardId(0)).await,
            Operation::MkdirAcross => return make_directory(cluster, a, "across", ShardId(1)).await,
            Operation::Link => link(cluster, (a, "f"), (a, "f2")).await?,
            Operation::LinkAcross => link(cluster, (a, "f"), (b, "f3")).await?,
            Operation::Unlink => unlink(cluster, a, "f").await?,
            Operation::UnlinkLinked => unlink(cluster, b, "l").await?,
            Operation::UnlinkOpen => {
                if let Some((inode, _)) = cluster.lookup(a, "f").await {
                    cluster.open_files(inode).open(SessionId(1), inode, true);
                    unlink(cluster, a, "f").await?;
                }
            }
            Operation::Rmdir => remove_directory(cluster, a, "d").await?,
            Operation::RmdirAcross => remove_directory(cluster, a, "across").await?,
            Operation::Rename => rename(cluster, (a, "f"), (a, "r"), RenameFlags::Replace).await?,
            Operation::RenameAcross => rename(cluster, (a, "f"), (b, "r"), RenameFlags::NoReplace).await?,
            Operation::RenameReplacing => rename(cluster, (a, "f"), (b, "g"), RenameFlags::Replace).await?,
            Operation::RenameExchanging => rename(cluster, (a, "d"), (b, "g"), RenameFlags::Exchange).await?,
            Operation::RenameDirectory => rename(cluster, (a, "d"), (b, "d"), RenameFlags::Replace).await?,
            Operation::SetMode => {
                let set = SetAttributes { mode: Some(Mode::new(0o600)), ..SetAttributes::default() };
                on_file(cluster, a, "f", |at| ChangeAttributes { at, set }).await?;
            }
            Operation::SetModeOfDirectory => {
                let set = SetAttributes { mode: Some(Mode::new(0o700)), ..SetAttributes::default() };
                let verb = ChangeAttributes { at: At::Inode(root), set };
                run(cluster, ShardId(0), RequestAddress::Inode(root), &verb).await?;
            }
            Operation::Truncate => {
                let set = SetAttributes { size: Some(3), ..SetAttributes::default() };
                on_file(cluster, b, "g", |at| ChangeAttributes { at, set }).await?;
            }
            Operation::TruncateLarge => resize(cluster, b, "large", 5000).await?,
            Operation::ExtendLarge => resize(cluster, b, "large", 20_000).await?,
            Operation::Promote => promote(cluster, a, "f", 0).await?,
            Operation::Write => {
                let write = |at| WriteInline {
                    at,
                    generation: LayoutGeneration::default(),
                    data: Bytes::from(vec![b'w'; 3000]),
                    mtime: None,
                };
                on_file(cluster, a, "f", write).await?;
            }
            Operation::SetXattr => {
                let set = |at| SetXattr {
                    at,
                    name: Bytes::from_static(b"user.new"),
                    value: Bytes::from_static(b"value"),
                    mode: XattrMode::CreateOrReplace,
                };
                on_file(cluster, a, "f", set).await?;
            }
            Operation::RemoveXattr => {
                on_file(cluster, b, "x", |at| RemoveXattr { at, name: Bytes::from_static(b"user.old") }).await?;
            }
            Operation::Split => return split(cluster).await,
            Operation::Sync => cluster.sync().await,
            Operation::Flush => cluster.flush().await,
            Operation::Close => {
                cluster.close().await;
                cluster.open().await;
            }
        }
        Ok(Vec::new())
    }
}

/// The tree with which every sequence begins.
pub async fn prepare(cluster: &Cluster) {
    let a = cluster.mkdir(InodeId::ROOT, A, ShardId(0)).await;
    let b = cluster.mkdir(InodeId::ROOT, B, ShardId(1)).await;
    for number in 0..14 {
        cluster.create(InodeId::ROOT, &format!("file {number}")).await.unwrap();
    }
    cluster.create(a, "f").await.unwrap();
    cluster.create(b, "g").await.unwrap();
    cluster.create(a, "l").await.unwrap();
    cluster.create(b, "x").await.unwrap();
    cluster.create(b, "large").await.unwrap();
    promote(cluster, b, "large", 10_000).await.unwrap();
    cluster.mkdir(a, "d", ShardId(1)).await;
    link(cluster, (a, "l"), (b, "l")).await.unwrap();
    let write = |at| WriteInline {
        at,
        generation: LayoutGeneration::default(),
        data: Bytes::from_static(b"content"),
        mtime: None,
    };
    on_file(cluster, a, "f", write).await.unwrap();
    on_file(cluster, b, "g", write).await.unwrap();
    let set = |at| SetXattr {
        at,
        name: Bytes::from_static(b"user.old"),
        value: Bytes::from_static(b"old value"),
        mode: XattrMode::Create,
    };
    on_file(cluster, b, "x", set).await.unwrap();
}

async fn directory(cluster: &Cluster, at: &str) -> InodeId {
    cluster.lookup(InodeId::ROOT, at).await.expect("the two directories stay").0
}

async fn make_directory(
    cluster: &Cluster,
    parent: InodeId,
    at: &str,
    home: ShardId,
) -> Result<Vec<InodeId>, ShardRefusal> {
    match cluster.lookup(parent, at).await {
        Some(_) => Ok(Vec::new()),
        None => Ok(vec![cluster.mkdir(parent, at, home).await]),
    }
}

/// Creates the file in the root that exceeds the threshold, and waits until the root is split.
async fn split(cluster: &Cluster) -> Result<Vec<InodeId>, ShardRefusal> {
    let made = cluster.create(InodeId::ROOT, "split").await?.inode;
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if cluster.map(InodeId::ROOT).await.len() > 1 && !cluster.is_splitting(InodeId::ROOT) {
            return Ok(vec![made]);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("the root is not split");
}

/// Sets the size of a file that has outgrown its row.
async fn resize(cluster: &Cluster, parent: InodeId, text: &str, size: u64) -> Result<(), ShardRefusal> {
    let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
    on_file(cluster, parent, text, |at| ChangeAttributes { at, set }).await
}

/// Moves a small file's content to its backing file, followed by `more` bytes, as a client does.
async fn promote(cluster: &Cluster, parent: InodeId, text: &str, more: usize) -> Result<(), ShardRefusal> {
    let Some((inode, elsewhere)) = cluster.lookup(parent, text).await else { return Ok(()) };
    let open = |at| Open { at, mode: OpenMode::Read, truncate: false, granted: Granted::Nothing };
    let node = match elsewhere {
        true => run(cluster, inode.shard(), RequestAddress::Inode(inode), &open(At::Inode(inode))).await?,
        false => {
            let at = At::Entry { parent, name: name(text), inode };
            cluster.at_name(parent, &name(text), Makes::Nothing, &open(at)).await?
        }
    };
    let NodeContent::Inline(content) = node.content else { return Ok(()) };
    let mut content = content.unwrap_or_default().to_vec();
    content.resize(content.len() + more, b'm');
    disk::create_directories(&cluster.volume.backing_directory(inode)).unwrap();
    disk::replace(&cluster.volume.backing_file(inode), &content).unwrap();
    let (generation, size) = (node.generation, content.len() as u64);
    on_file(cluster, parent, text, |at| Promote { at, generation, size }).await?;
    let (generation, mtime) = (LayoutGeneration(generation.0 + 1), node.attributes.mtime);
    let file = |at| BackingFile { at, generation };
    on_file(cluster, parent, text, |at| RecordSize { file: file(at), size, mtime }).await
}

async fn link(cluster: &Cluster, from: (InodeId, &str), to: (InodeId, &str)) -> Result<(), ShardRefusal> {
    let Some((inode, elsewhere)) = cluster.lookup(from.0, from.1).await else { return Ok(()) };
    let source = at(from.0, from.1, inode, elsewhere);
    let verb = Link { source, parent: to.0, name: name(to.1) };
    cluster.at_name(to.0, &name(to.1), Makes::Nothing, &verb).await.map(drop)
}

async fn unlink(cluster: &Cluster, parent: InodeId, at: &str) -> Result<(), ShardRefusal> {
    let verb = Unlink { parent, name: name(at) };
    cluster.at_name(parent, &name(at), Makes::Nothing, &verb).await.map(drop)
}

async fn remove_directory(cluster: &Cluster, parent: InodeId, at: &str) -> Result<(), ShardRefusal> {
    let verb = RemoveDirectory { parent, name: name(at) };
    cluster.at_name(parent, &name(at), Makes::Nothing, &verb).await.map(drop)
}

async fn rename(
    cluster: &Cluster,
    from: (InodeId, &str),
    to: (InodeId, &str),
    flags: RenameFlags,
) -> Result<(), ShardRefusal> {
    let verb = Rename { parent: from.0, name: name(from.1), new_parent: to.0, new_name: name(to.1), flags };
    cluster.at_name(from.0, &name(from.1), Makes::Nothing, &verb).await.map(drop)
}

fn at(parent: InodeId, text: &str, inode: InodeId, elsewhere: bool) -> At {
    if elsewhere { At::Inode(inode) } else { At::Entry { parent, name: name(text), inode } }
}

/// Runs a verb on a file, wherever its row is.
async fn on_file<V: Verb>(
    cluster: &Cluster,
    parent: InodeId,
    text: &str,
    verb: impl Fn(At) -> V,
) -> Result<(), ShardRefusal> {
    let Some((inode, elsewhere)) = cluster.lookup(parent, text).await else { return Ok(()) };
    let verb = verb(at(parent, text, inode, elsewhere));
    if elsewhere {
        run(cluster, inode.shard(), RequestAddress::Inode(inode), &verb).await.map(drop)
    } else {
        cluster.at_name(parent, &name(text), Makes::Nothing, &verb).await.map(drop)
    }
}

async fn run<V: Verb>(
    cluster: &Cluster,
    shard: ShardId,
    address: RequestAddress,
    verb: &V,
) -> Result<V::Outcome, ShardRefusal> {
    loop {
        let run =
            Execution { caller: &Credentials::root(), address, makes: Makes::Nothing, record: None, registrar: None };
        match cluster.shard(shard).run(verb, run).await {
            Err(ShardRefusal::Busy) => tokio::time::sleep(Duration::from_millis(1)).await,
            result => return result,
        }
    }
}
