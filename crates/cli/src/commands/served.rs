//! A consistent snapshot of a volume that a server has, for commands that read all rows.

use async_trait::async_trait;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use varve_admin::snapshot::{RowSource, Unreadable};
use varve_client::{ClientConfig, FileSystem, Purpose};
use varve_types::{ShardCount, ShardId, VolumeSettings};

/// A server that takes longer to reply is considered failed.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);
const PAGE_BYTES: u32 = 1024 * 1024;

/// A consistent snapshot of a served volume.
pub struct Served {
    file_system: Arc<FileSystem>,
    shards: ShardCount,
    number: u64,
    reading: Option<(ShardId, Range<Vec<u8>>)>,
}

impl Served {
    pub fn connect(mut config: ClientConfig, settings: &VolumeSettings) -> Result<Served, Unreadable> {
        config.purpose = Purpose::Observe;
        config.deadline = ANSWER_DEADLINE;
        config.read_only = true;
        let number = u64::from_le_bytes(varve_env::random::bytes());
        let taken = FileSystem::connect(config).and_then(|file_system| {
            varve_client::block_on(file_system.take_snapshot(number))?;
            Ok(file_system)
        });
        let file_system = taken.map_err(|failure| Unreadable { shard: ShardId(0), reason: failure.to_string() })?;
        Ok(Served { file_system, shards: settings.shards, number, reading: None })
    }

    pub fn end(self) {
        // Without this, the server drops the snapshot in a minute or two.
        if let Err(failure) = varve_client::block_on(self.file_system.release_snapshot(self.number)) {
            tracing::debug!(%failure, "cannot notify the server of the end of the dump");
        }
    }
}

#[async_trait(?Send)]
impl RowSource for Served {
    fn shards(&self) -> ShardCount {
        self.shards
    }

    async fn begin(&mut self, shard: ShardId, range: Range<Vec<u8>>) -> Result<(), Unreadable> {
        self.reading = Some((shard, range));
        Ok(())
    }

    async fn page(&mut self) -> Result<Vec<(Bytes, Bytes)>, Unreadable> {
        let Some((shard, range)) = &mut self.reading else { return Ok(Vec::new()) };
        let (from, end) = (range.start.clone(), range.end.clone());
        let rows = self.file_system.read_snapshot(self.number, *shard, from, end, PAGE_BYTES).await;
        let rows = rows.map_err(|failure| Unreadable { shard: *shard, reason: failure.to_string() })?;
        match rows.last() {
            // The smallest key after the last one.
            Some((last, _)) => range.start = [last.as_slice(), &[0]].concat(),
            None => self.reading = None,
        }
        Ok(rows.into_iter().map(|(key, row)| (key.into(), row.into())).collect())
    }
}
