//! Large files that something else has truncated: a repair accepts the remaining bytes as the file's content and lists
//! the file for a later restore.

use super::super::FsckError;
use super::session::{RepairSession, make_private};
use crate::snapshot::Unreadable;
use std::io;
use std::os::unix::fs::MetadataExt;
use varve_env::disk;
use varve_schema::{EntryBody, Key, Row, codec};
use varve_types::{InodeId, Name, PartitionIndex};

/// In the volume's `damaged` directory, one line per file: its path, its expected minimum size and the size that was
/// found, separated by tabs.
const CUT_FILES: &str = "cut.txt";

/// Maximum depth of directories; a deeper volume is damaged.
const DEPTH_MAX: usize = 4096;

impl RepairSession<'_> {
    /// Records a file of which only `found` bytes of `expected` are left. The record is on disk before the row gets the
    /// new size.
    pub async fn note_cut(&mut self, inode: InodeId, expected: u64, found: u64) -> Result<(), FsckError> {
        let path = match self.names_of(inode).first() {
            Some(named) => self.path_of(named.directory, &named.name).await?,
            None => format!("inode {inode}"),
        };
        self.note(format!("{path} is noted in damaged/{CUT_FILES}: {found} of {expected} bytes are left"));
        self.cut_files.push(format!("{path}\t{expected}\t{found}\n"));
        Ok(())
    }

    /// The path of a name; bytes that are not printable ASCII are escaped.
    async fn path_of(&mut self, directory: InodeId, name: &Name) -> Result<String, FsckError> {
        let mut path = format!("/{}", name.as_bytes().escape_ascii());
        let mut at = directory;
        for _ in 0..DEPTH_MAX {
            if at == InodeId::ROOT {
                return Ok(path);
            }
            let Some((parent, name)) = self.name_of_directory(at).await? else { break };
            path = format!("/{}{path}", name.as_bytes().escape_ascii());
            at = parent;
        }
        Ok(format!("directory {directory}: {}", name.as_bytes().escape_ascii()))
    }

    async fn name_of_directory(&mut self, directory: InodeId) -> Result<Option<(InodeId, Name)>, FsckError> {
        if let Some(known) = self.directory_names.get(&directory) {
            return Ok(Some(known.clone()));
        }
        let Some(parent) = self.census.directories.get(&directory).and_then(|found| found.named_in) else {
            return Ok(None);
        };
        for (index, depth) in self.partitions_of(parent) {
            let shard = self.census.shard_of(parent, index);
            let range = codec::entries_of(parent, index.range(depth));
            let scan = self.table(shard).await?.scan(range.start.into(), range.end.into()).await;
            let mut cursor = scan.map_err(|error| Unreadable::new(shard, error))?;
            while let Some((key, row)) = cursor.next().await.map_err(|error| Unreadable::new(shard, error))? {
                let Ok((Key::Entry(_, name), Row::Entry(row))) = codec::decode(&key, &row) else { continue };
                if row.inode == directory && matches!(row.body, EntryBody::Directory(_)) {
                    let known = (parent, name);
                    self.directory_names.insert(directory, known.clone());
                    return Ok(Some(known));
                }
            }
        }
        Ok(None)
    }

    fn partitions_of(&self, directory: InodeId) -> Vec<(PartitionIndex, u8)> {
        let all = (directory, PartitionIndex(0))..=(directory, PartitionIndex(u16::MAX));
        let live = self.census.partitions.range(all).filter(|(_, found)| found.live);
        live.map(|((_, index), found)| (*index, found.row.depth)).collect()
    }

    /// Writes the recorded lines, durably. A repair that is run again may record a file twice.
    pub fn write_cut_files(&mut self) -> Result<(), FsckError> {
        if self.cut_files.is_empty() {
            return Ok(());
        }
        let directory = self.volume.damaged();
        make_private(&directory)?;
        let path = directory.join(CUT_FILES);
        let lines = std::mem::take(&mut self.cut_files).concat();
        let appended = || -> io::Result<()> {
            let file = disk::File::options().write(true).create().mode(0o600).open(&path)?;
            file.write_all_at(lines.as_bytes(), file.metadata()?.size())?;
            file.sync_all()?;
            disk::sync_directory(&directory)
        };
        appended().map_err(|source| self.io("write", &path, source))
    }
}
