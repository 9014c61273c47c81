//! Sizes that only the backing files know.

use super::case::Case;
use super::translate;
use std::io;
use std::os::unix::fs::MetadataExt;
use varve_types::InodeId;
use varve_wire::{Failure, NodeReply, WireTime};
use varve_world::volume_dir::VolumeDir;

impl Case<'_> {
    /// Gives each of `nodes` whose size is not settled the size and mtime of its backing file, asked of the store on a
    /// thread apart: on some stores that takes milliseconds.
    pub async fn fill_unsettled<'n>(&self, nodes: impl IntoIterator<Item = &'n mut NodeReply>) -> Result<(), Failure> {
        let unsettled: Vec<_> = nodes.into_iter().filter(|node| translate::is_unsettled_reply(node)).collect();
        if unsettled.is_empty() {
            return Ok(());
        }
        let volume = self.worker.shared.volume.clone();
        let inodes: Vec<_> = unsettled.iter().map(|node| InodeId(node.inode)).collect();
        let ask = move || inodes.iter().map(|inode| size_and_mtime(&volume, *inode)).collect::<Vec<_>>();
        let told = tokio::task::spawn_blocking(ask).await.map_err(|error| Failure::Server {
            errno: libc::EIO,
            message: format!("sizes of backing files could not be asked for: {error}"),
        })?;
        for (node, told) in unsettled.into_iter().zip(told) {
            match told {
                Ok((size, mtime)) => {
                    node.attributes.size = size;
                    node.attributes.mtime = mtime;
                    if (node.attributes.ctime.seconds, node.attributes.ctime.nanoseconds)
                        < (mtime.seconds, mtime.nanoseconds)
                    {
                        node.attributes.ctime = mtime;
                    }
                }
                // Nothing is known of the file, whose own size would be shown again when the store is back.
                Err(Untold::Away(error)) => {
                    let root = self.worker.shared.volume.root().display();
                    let message = format!("the store {root} is not there: {error}; bring it back");
                    return Err(Failure::Server { errno: libc::EIO, message });
                }
                // The name must stay usable (to remove it, for one), so the row's own size is shown.
                Err(Untold::OfFile(error)) => tracing::error!("backing file of inode {:x}: {error}", node.inode),
            }
        }
        Ok(())
    }
}

/// Why a size is not told.
enum Untold {
    Away(io::Error),
    OfFile(io::Error),
}

fn size_and_mtime(volume: &VolumeDir, inode: InodeId) -> Result<(u64, WireTime), Untold> {
    volume.data_in_place().map_err(Untold::Away)?;
    let path = volume.backing_file(inode);
    let found = path.metadata().map_err(|error| match (error.kind(), volume.lacks(&path)) {
        (io::ErrorKind::NotFound, Err(away)) => Untold::Away(away),
        _ => Untold::OfFile(error),
    })?;
    Ok((found.len(), WireTime { seconds: found.mtime(), nanoseconds: found.mtime_nsec() as u32 }))
}
