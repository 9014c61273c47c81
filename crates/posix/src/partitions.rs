//! Finds all partitions of a directory from the partition rows themselves, because maps are only hints.

use super::reader::RowReader;
use varve_schema::{Change, DirectoryRow, Key, PartitionRow};
use varve_types::{InodeId, PartitionIndex};

/// The partition rows of a directory, each with its index. Empty if partition 0 is absent: then the directory does not
/// exist.
pub(super) type PartitionRows<'a> = Vec<(PartitionIndex, &'a PartitionRow)>;

/// The partitions that were split off partition `index`, whose depth is `depth`. A partition that was itself split off
/// at depth `b - 1` was split at the depths `b` to `depth - 1`; each split created the partition `index | 1 << depth`.
pub fn cut_off(index: PartitionIndex, depth: u8) -> impl Iterator<Item = PartitionIndex> {
    let born_at = if index == PartitionIndex::FIRST { 0 } else { index.depth_of_cut() + 1 };
    (born_at..depth).map(move |depth| index.upper_half(depth))
}

/// All partitions of `directory`. They are found from partition 0 by following the splits. The map in `row` only allows
/// requesting many at once.
pub(super) fn look<'a>(
    directory: InodeId,
    row: Option<&'a DirectoryRow>,
    reader: &RowReader<'a>,
) -> Option<PartitionRows<'a>> {
    for index in row.iter().flat_map(|row| row.map.iter()) {
        reader.partition(directory, index);
    }
    let mut found = PartitionRows::new();
    let mut known = true;
    let mut open = vec![PartitionIndex::FIRST];
    while let Some(index) = open.pop() {
        match reader.partition(directory, index) {
            None => known = false,
            Some(None) => {}
            Some(Some(partition)) => {
                open.extend(cut_off(index, partition.depth));
                found.push((index, partition));
            }
        }
    }
    known.then_some(found)
}

pub(super) fn is_empty(partitions: &PartitionRows<'_>) -> bool {
    partitions.iter().all(|(_, partition)| partition.entries == 0)
}

/// Deletes all rows of a directory except its entry.
pub(super) fn delete(directory: InodeId, row: &DirectoryRow, partitions: &PartitionRows<'_>) -> Vec<Change> {
    // Capacity includes the two changes of the directory's name.
    let mut changes = Vec::with_capacity(3 + partitions.len() + row.xattrs.len());
    changes.push(Change::Delete(Key::Directory(directory)));
    changes.extend(partitions.iter().map(|(index, _)| Change::Delete(Key::Partition(directory, *index))));
    changes.extend(row.xattrs.iter().map(|name| Change::Delete(Key::Xattr(directory, name.clone()))));
    changes
}
