//! Consistent snapshots of all shards: for dumps of a volume that is being served, and to find files by their numbers.

use super::errno;
use super::request_handler::{CompletedCall, RequestHandler};
use varve_proto::{CallFailure, FOUND_RANGE, FoundName, Reply};
use varve_schema::{Change, EntryBody, EntryRow, Key, Kind, Row, codec};
use varve_store::{Cursor, TableError};
use varve_types::Errno;

/// Maximum bytes of rows in one reply. With one more row of at most 1 MiB of content it is far below the maximum of a
/// frame.
const PAGE_BYTES_MAX: usize = 1024 * 1024;

/// Bytes of rows read for one reply of a search: a few milliseconds of the worker's time.
const SEARCH_BYTES_MAX: usize = 4 * 1024 * 1024;

impl RequestHandler<'_> {
    pub(super) async fn take_snapshot(&self, number: u64) -> Result<CompletedCall, CallFailure> {
        let shards = self.worker.shared.settings.shards.get();
        self.worker.snapshots().take(number, shards).await.ok_or(CallFailure::Busy)?;
        Ok(Reply::Done.into())
    }

    pub(super) async fn read_snapshot(
        &self,
        number: u64,
        from: Vec<u8>,
        end: Vec<u8>,
        bytes_max: u32,
    ) -> Result<CompletedCall, CallFailure> {
        let scan = self.worker.snapshots().scan(number, self.shard.id(), from.into(), end.into()).await;
        let mut cursor = scan.ok_or_else(|| errno(Errno::ESTALE))?.map_err(failed)?;
        let bytes_max = PAGE_BYTES_MAX.min(bytes_max as usize);
        let (mut rows, mut bytes) = (Vec::new(), 0);
        while bytes < bytes_max
            && let Some((key, row)) = cursor.next().await.map_err(failed)?
        {
            bytes += key.len() + row.len();
            rows.push((key.to_vec(), row.to_vec()));
        }
        Ok(Reply::Rows(rows).into())
    }

    /// The names of the files in the range of `inode` whose attributes are in entries of this shard.
    pub(super) async fn find_names(
        &self,
        number: u64,
        inode: u64,
        from: Vec<u8>,
    ) -> Result<CompletedCall, CallFailure> {
        let mut found = Vec::new();
        if from.is_empty() {
            self.find_in_intents(number, inode, &mut found).await?;
        }
        let mut cursor = self.rows_of(number, Kind::Entry, from).await?;
        let mut bytes = 0;
        while let Some((key, row)) = cursor.next().await.map_err(failed)? {
            if bytes >= SEARCH_BYTES_MAX {
                return Ok(Reply::FoundNames { found, next: key.to_vec() }.into());
            }
            bytes += key.len() + row.len();
            // A damaged row is an error of the calls that use it, and of fsck.
            if let Ok((key, row)) = codec::decode(&key, &row) {
                found.extend(name_in_range(inode, &key, &row));
            }
        }
        Ok(Reply::FoundNames { found, next: Vec::new() }.into())
    }

    /// Adds the names in intents: the snapshot can show a rename between shards whose new entry is only in an intent.
    async fn find_in_intents(&self, number: u64, inode: u64, found: &mut Vec<FoundName>) -> Result<(), CallFailure> {
        let mut cursor = self.rows_of(number, Kind::Intent, Vec::new()).await?;
        while let Some((key, row)) = cursor.next().await.map_err(failed)? {
            if let Ok((_, Row::Intent(intent))) = codec::decode(&key, &row) {
                found.extend(intent.changes.iter().filter_map(|change| match change {
                    Change::Put(key, row) => name_in_range(inode, key, row),
                    Change::Delete(_) | Change::Tally { .. } => None,
                }));
            }
        }
        Ok(())
    }

    /// The rows of `kind` with keys from `from` on, in snapshot `number`.
    async fn rows_of(&self, number: u64, kind: Kind, from: Vec<u8>) -> Result<Cursor, CallFailure> {
        let keys = codec::keys_of(kind);
        let from = from.max(keys.start);
        let scan = self.worker.snapshots().scan(number, self.shard.id(), from.into(), keys.end.into()).await;
        scan.ok_or_else(|| errno(Errno::ESTALE))?.map_err(failed)
    }

    pub(super) fn release_snapshot(&self, number: u64) -> Result<CompletedCall, CallFailure> {
        self.worker.snapshots().forget(number);
        Ok(Reply::Done.into())
    }
}

/// The name of a file whose number is in the range of `inode`, if this row is its entry and has its attributes.
fn name_in_range(inode: u64, key: &Key, row: &Row) -> Option<FoundName> {
    let (Key::Entry(parent, name), Row::Entry(EntryRow { inode: of, body: EntryBody::Node(_) })) = (key, row) else {
        return None;
    };
    let found = || FoundName { inode: of.0, parent: parent.0, name: name.as_bytes().to_vec() };
    (of.0 / FOUND_RANGE == inode / FOUND_RANGE).then(found)
}

fn failed(error: TableError) -> CallFailure {
    CallFailure::Server { errno: error.errno().number(), message: error.to_string() }
}
