//! Finds the paths of an inode: every name that leads to it from the root directory.
//!
//! A row does not name its parent, so this reads all names of a snapshot. In memory it keeps one name for each directory,
//! and those of the inode.

use crate::dump::{DumpError, read_offline};
use crate::snapshot::{RowSource, Snapshot, SnapshotRow};
use std::collections::HashMap;
use varve_env::volume_dir::VolumeDir;
use varve_schema::{EntryBody, Key, Kind, Row};
use varve_types::{InodeId, Name};

/// A tree is not deeper: `PATH_MAX` bounds what programs can name. It ends the search in a damaged volume.
const DEPTH_MAX: usize = 4096;

/// The paths of `inode` in a volume that no server uses, as [`paths`]. Must not be called on a thread of an asynchronous
/// runtime.
pub fn paths_offline(volume: &VolumeDir, inode: InodeId) -> Result<Vec<Vec<u8>>, DumpError> {
    read_offline(volume, "varve path", async |tables, _, _| paths(tables, inode).await)
}

/// The paths of `inode`, below the root directory and without a leading slash; empty for the root itself. None: no name
/// leads to it.
pub async fn paths(source: &mut dyn RowSource, inode: InodeId) -> Result<Vec<Vec<u8>>, DumpError> {
    if inode == InodeId::ROOT {
        return Ok(vec![Vec::new()]);
    }
    let mut snapshot = Snapshot::begin(source).await?;
    let mut directories: HashMap<InodeId, (InodeId, Name)> = HashMap::new();
    let mut names = Vec::new();
    for shard in snapshot.shards().all() {
        let mut rows = snapshot.rows(shard, Kind::Entry).await?;
        while let Some(found) = rows.next().await? {
            let (parent, name, entry) = match found {
                SnapshotRow::Row(Key::Entry(parent, name), Row::Entry(entry)) => (parent, name, entry),
                SnapshotRow::Row(..) => continue,
                SnapshotRow::Damaged { error, .. } => {
                    return Err(DumpError::Damaged { shard, reason: error.to_string() });
                }
            };
            if entry.inode == inode {
                names.push((parent, name.clone()));
            }
            if matches!(entry.body, EntryBody::Directory(_)) {
                directories.insert(entry.inode, (parent, name));
            }
        }
    }
    let mut paths: Vec<Vec<u8>> =
        names.into_iter().filter_map(|(parent, name)| path(&directories, parent, name)).collect();
    paths.sort();
    Ok(paths)
}

/// The path of `name` in `parent`; `None` if it does not lead to the root.
fn path(directories: &HashMap<InodeId, (InodeId, Name)>, parent: InodeId, name: Name) -> Option<Vec<u8>> {
    let mut names = vec![name];
    let mut at = parent;
    while at != InodeId::ROOT {
        if names.len() > DEPTH_MAX {
            return None;
        }
        let (above, name) = directories.get(&at)?;
        names.push(name.clone());
        at = *above;
    }
    let parts: Vec<&[u8]> = names.iter().rev().map(Name::as_bytes).collect();
    Some(parts.join(&b'/'))
}
