//! Times that a program sets of an open file.
//!
//! The kernel writes the pages that a program changed through a mapping some time later, and does not say when the
//! program changed them. A change before a utimensat(2) must not alter the mtime that this call set. Therefore such
//! pages leave a set mtime as it is until the next flush or fsync, before which the kernel writes all changed pages.

use super::{OpenInode, backing};
use crate::{Failure, FileSystem, NodeInfo, Result};
use std::sync::Arc;
use varve_env::clock::system_time;
use varve_env::disk::File;
use varve_types::{Credentials, SetAttributes, SetTime};

impl OpenInode {
    /// Called when the kernel has written all changed pages, and before any other change of the content.
    pub(super) fn set_mtime_ends(&self) {
        *self.set_mtime.lock() = None;
    }

    /// Writes pages that were changed through a mapping to the backing file.
    pub(super) fn write_mapped(&self, file: &File, offset: u64, data: &[u8]) -> Result<usize> {
        let set = self.set_mtime.lock();
        let Some(mtime) = *set else {
            drop(set);
            return backing::write(file, offset, data);
        };
        // Locked to the end: the mtime between a write and its reset is nobody's.
        let kept = backing::stat(file)?.mtime == mtime;
        let written = backing::write(file, offset, data)?;
        if kept {
            let failed = |error| Failure::store("cannot set the time of a backing file", &error);
            file.set_modified(system_time(mtime)).map_err(failed)?;
        }
        Ok(written)
    }
}

impl FileSystem {
    /// setattr of an open file, except for its size.
    pub(crate) async fn set_open_attributes(
        &self,
        caller: &Credentials,
        open: &Arc<OpenInode>,
        set: SetAttributes,
    ) -> Result<NodeInfo> {
        let mut content = self.content_in_time(open).await?;
        // Writes earlier data back first: it must neither overwrite the times that are set now nor clear set-id bits.
        self.write_back(open, &mut content).await?;
        let reply = self.send_attributes(caller, open.inode, set).await;
        open.set_id.lock().changed();
        let mut reply = reply?;
        if let Some(mtime) = set.mtime {
            *open.set_mtime.lock() = Some(match mtime {
                SetTime::To(time) => time,
                SetTime::Now => reply.attributes.mtime.into(),
            });
        }
        if content.generation == reply.generation {
            open.note_reply(&mut content, &reply);
        } else {
            reply = self.catch_up(open, &mut content).await?;
        }
        self.open_node(open, &reply)
    }
}
