//! All shards at one moment, for a dump of a volume that is served.

use super::case::{Answered, Case};
use super::errno;
use varve_types::Errno;
use varve_wire::{Failure, Reply};

/// Bytes of rows in an answer, at most; with one more row of at most 1 MiB of content, far below a frame.
const PAGE_BYTES_MAX: usize = 1024 * 1024;

impl Case<'_> {
    pub(super) async fn take_moment(&self, number: u64) -> Result<Answered, Failure> {
        let shards = self.worker.shared.settings.shards.get();
        self.worker.moments().take(number, shards).await.ok_or(Failure::Busy)?;
        Ok(Reply::Done.into())
    }

    pub(super) async fn read_moment(
        &self,
        number: u64,
        from: Vec<u8>,
        end: Vec<u8>,
        bytes_max: u32,
    ) -> Result<Answered, Failure> {
        let failed = |error: crate::shards::TableError| Failure::Server {
            errno: error.errno().number(),
            message: error.to_string(),
        };
        let scan = self.worker.moments().scan(number, self.shard.id(), from.into(), end.into()).await;
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

    pub(super) fn forget_moment(&self, number: u64) -> Result<Answered, Failure> {
        self.worker.moments().forget(number);
        Ok(Reply::Done.into())
    }
}
