//! The visible state of a volume, found by a walk of its tree, without the ids and times that differ between runs.

use crate::shards::tests::cluster::{Cluster, PATIENCE};
use crate::shards::{Execution, Makes, RequestAddress, ShardRefusal};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};
use varve_posix::{
    At, GetAttributes, GetXattr, Granted, ListXattrs, Node, NodeContent, Open, OpenMode, ReadLink, ReviveDirectory,
    SizeState, Verb,
};
use varve_schema::EntryBody;
use varve_types::{Credentials, FileKind, InodeId, Name};

/// The content of each path. Names of one file have the same number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture(BTreeMap<String, String>);

impl Picture {
    pub fn differences(&self, other: &Picture) -> String {
        let missing = other.0.iter().filter(|(path, what)| self.0.get(*path) != Some(what));
        let extra = self.0.iter().filter(|(path, what)| other.0.get(*path) != Some(what));
        let lines = missing.map(|(path, what)| format!("  missing {path}: {what}\n"));
        lines.chain(extra.map(|(path, what)| format!("  found {path}: {what}\n"))).collect()
    }
}

pub async fn take(cluster: &Cluster) -> Picture {
    let mut picture = BTreeMap::new();
    let mut numbers = HashMap::new();
    let mut directories = vec![(InodeId::ROOT, String::new())];
    while let Some((directory, path)) = directories.pop() {
        let (names, count) = names_and_count(cluster, directory).await;
        let mode = attributes(cluster, At::Inode(directory), None).await.mode.bits();
        picture.insert(format!("{path}/"), format!("directory {mode:o}, {count} entries"));
        for (name, (inode, body)) in names {
            let path = format!("{path}/{name}");
            let at = match body {
                EntryBody::Directory(_) => {
                    // Like a client that finds the directory's rows lost by the power failure.
                    let revive = ReviveDirectory { parent: directory, name: name.clone() };
                    let revived = cluster.at_name(directory, &name, Makes::Nothing, &revive).await.unwrap();
                    assert_eq!(revived.inode, inode, "{path}");
                    // The client continues immediately.
                    entries(cluster, inode).await;
                    directories.push((inode, path));
                    continue;
                }
                EntryBody::Node(_) => At::Entry { parent: directory, name: name.clone(), inode },
                EntryBody::Reference(_) => At::Inode(inode),
            };
            let next = numbers.len();
            let number = *numbers.entry(inode).or_insert(next);
            picture.insert(path, file(cluster, at, &name, number).await);
        }
    }
    Picture(picture)
}

/// The entries of a directory and the count of its partitions, which agree when no split is in progress: a split
/// interrupted by the crash is completed now.
async fn names_and_count(cluster: &Cluster, directory: InodeId) -> (BTreeMap<Name, (InodeId, EntryBody)>, u64) {
    let (mut names, mut count) = (BTreeMap::new(), 0);
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        names = entries(cluster, directory).await;
        count = cluster.counted_once(directory).await;
        if count == names.len() as u64 && !cluster.is_splitting(directory) {
            return (names, count);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("directory {directory} counts {count} names and has {names:?}");
}

/// The entries of a directory, by name.
async fn entries(cluster: &Cluster, directory: InodeId) -> BTreeMap<Name, (InodeId, EntryBody)> {
    let entries = cluster.entries(directory).await;
    let count = entries.len();
    let by_name: BTreeMap<_, _> = entries.into_iter().map(|(name, entry)| (name, (entry.inode, entry.body))).collect();
    assert_eq!(by_name.len(), count, "a name is listed twice");
    by_name
}

async fn attributes(cluster: &Cluster, at: At, name: Option<&Name>) -> varve_types::Attributes {
    run(cluster, &at, name, &GetAttributes { at: at.clone() }).await.unwrap().attributes
}

async fn file(cluster: &Cluster, at: At, name: &Name, number: usize) -> String {
    let name = Some(name);
    let seen = attributes(cluster, at.clone(), name).await;
    let content = match seen.kind {
        FileKind::Symlink => {
            format!("{:?}", run(cluster, &at, name, &ReadLink { at: at.clone() }).await.unwrap())
        }
        FileKind::Regular => {
            let open = Open { at: at.clone(), mode: OpenMode::Read, truncate: false, granted: Granted::Nothing };
            let bytes = bytes_of(cluster, run(cluster, &at, name, &open).await.unwrap());
            let digest = xxhash_rust::xxh3::xxh3_64(&bytes);
            format!("content of {} bytes {digest:x}", bytes.len())
        }
        kind => format!("{kind:?}"),
    };
    let mut xattrs = String::new();
    for xattr in run(cluster, &at, name, &ListXattrs { at: at.clone() }).await.unwrap() {
        let get = GetXattr { at: at.clone(), name: xattr.clone() };
        xattrs += &format!(", {xattr:?} = {:?}", run(cluster, &at, name, &get).await.unwrap());
    }
    let (kind, mode, nlink, size) = (seen.kind, seen.mode.bits(), seen.nlink, seen.size);
    let size = if kind == FileKind::Regular { String::new() } else { format!("{size} bytes, ") };
    format!("{kind:?} {number}, mode {mode:o}, {nlink} links, {size}{content}{xattrs}")
}

/// The bytes that a reader finds in a file, wherever they are. A backing file whose size is authoritative, or that is
/// being truncated, has as many bytes as the row says; any other has at least as many.
fn bytes_of(cluster: &Cluster, node: Node) -> Vec<u8> {
    let size = match node.content {
        NodeContent::Inline(bytes) => {
            let bytes = bytes.unwrap_or_default();
            assert_eq!(bytes.len() as u64, node.attributes.size);
            return bytes.to_vec();
        }
        NodeContent::Backing(size) => size,
        NodeContent::None => panic!("a regular file without content"),
    };
    let mut bytes = std::fs::read(cluster.volume.backing_file(node.inode)).unwrap();
    match size {
        SizeState::Authoritative => bytes.resize(node.attributes.size as usize, 0),
        SizeState::Stale { at_least } => {
            assert!(bytes.len() as u64 >= at_least, "{} of at least {at_least} bytes", bytes.len());
        }
    }
    bytes
}

async fn run<V: Verb>(cluster: &Cluster, at: &At, name: Option<&Name>, verb: &V) -> Result<V::Outcome, ShardRefusal> {
    if let (At::Entry { parent, .. }, Some(name)) = (at, name) {
        return cluster.at_name(*parent, name, Makes::Nothing, verb).await;
    }
    let inode = at.inode();
    loop {
        let address = RequestAddress::Inode(inode);
        let run =
            Execution { caller: &Credentials::root(), address, makes: Makes::Nothing, record: None, registrar: None };
        match cluster.shard(inode.shard()).run(verb, run).await {
            Err(ShardRefusal::Busy) => tokio::time::sleep(Duration::from_millis(1)).await,
            result => return result,
        }
    }
}
