//! Sizes of files that only the backing file records.

use super::request_handler::RequestHandler;
use super::translate;
use std::io;
use varve_env::disk::SizeQuery;
use varve_env::volume_dir::VolumeDir;
use varve_proto::{CallFailure, NodeReply, WireTime};
use varve_types::InodeId;

impl RequestHandler<'_> {
    /// Fills in size and mtime from the backing file for each of `nodes` whose size is stale. The store is queried on a
    /// separate thread, because a query takes milliseconds on some stores.
    pub async fn fill_stale_size<'n>(
        &self,
        nodes: impl IntoIterator<Item = &'n mut NodeReply>,
    ) -> Result<(), CallFailure> {
        let size_stale: Vec<_> = nodes.into_iter().filter(|node| translate::is_size_stale_reply(node)).collect();
        if size_stale.is_empty() {
            return Ok(());
        }
        let volume = self.worker.shared.volume.clone();
        let inodes: Vec<_> = size_stale.iter().map(|node| InodeId(node.inode)).collect();
        let query = self.worker.shared.size_query;
        let ask = move || inodes.iter().map(|inode| size_and_mtime(&volume, *inode, query)).collect::<Vec<_>>();
        let reported = tokio::task::spawn_blocking(ask).await.map_err(|error| CallFailure::Server {
            errno: libc::EIO,
            message: format!("cannot read the sizes of backing files: {error}"),
        })?;
        for (node, reported) in size_stale.into_iter().zip(reported) {
            match reported {
                Ok((size, mtime)) => {
                    node.attributes.size = size;
                    node.attributes.mtime = mtime;
                    if (node.attributes.ctime.seconds, node.attributes.ctime.nanoseconds)
                        < (mtime.seconds, mtime.nanoseconds)
                    {
                        node.attributes.ctime = mtime;
                    }
                }
                // Nothing is known about the file, and its correct size would appear again when the store is back.
                Err(BackingStatError::Unreachable(error)) => {
                    let root = self.worker.shared.volume.root().display();
                    let message = format!("the store {root} is not there: {error}; bring it back");
                    return Err(CallFailure::Server { errno: libc::EIO, message });
                }
                // The name must stay usable (for example to remove it), so the row's own size is shown.
                Err(BackingStatError::OfFile(error)) => {
                    tracing::error!("backing file of inode {:x}: {error}", node.inode)
                }
            }
        }
        Ok(())
    }
}

/// Why the size of a backing file could not be read.
enum BackingStatError {
    Unreachable(io::Error),
    OfFile(io::Error),
}

fn size_and_mtime(volume: &VolumeDir, inode: InodeId, query: SizeQuery) -> Result<(u64, WireTime), BackingStatError> {
    volume.data_in_place().map_err(BackingStatError::Unreachable)?;
    let path = volume.backing_file(inode);
    let found = query.ask(&path).map_err(|error| match (error.kind(), volume.lacks(&path)) {
        (io::ErrorKind::NotFound, Err(unreachable)) => BackingStatError::Unreachable(unreachable),
        _ => BackingStatError::OfFile(error),
    })?;
    Ok((found.length, WireTime { seconds: found.mtime_seconds, nanoseconds: found.mtime_nanoseconds }))
}
