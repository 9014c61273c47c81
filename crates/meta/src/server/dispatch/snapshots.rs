//! Consistent snapshots of all shards, for dumps of a volume that is being served.

use super::errno;
use super::request_handler::{CompletedCall, RequestHandler};
use varve_proto::{CallFailure, Reply};
use varve_types::Errno;

/// Maximum bytes of rows in one reply. With one more row of at most 1 MiB of content it is far below the maximum of a
/// frame.
const PAGE_BYTES_MAX: usize = 1024 * 1024;

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
        let failed = |error: crate::shards::TableError| CallFailure::Server {
            errno: error.errno().number(),
            message: error.to_string(),
        };
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

    pub(super) fn release_snapshot(&self, number: u64) -> Result<CompletedCall, CallFailure> {
        self.worker.snapshots().forget(number);
        Ok(Reply::Done.into())
    }
}
