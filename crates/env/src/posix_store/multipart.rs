//! Multipart uploads: the parts are written into one temporary file at their offsets, in any order, and the file is
//! published when complete.

use super::error::failed;
use super::version;
use super::write::CompleteFile;
use super::{PosixStore, off_thread};
use crate::disk::{self, File};
use crate::store_path::StorePath;
use async_trait::async_trait;
use futures::FutureExt;
use object_store::path::Path as ObjectPath;
use object_store::{Error, MultipartUpload, PutPayload, PutResult, Result, UploadPart};
use std::io;
use std::sync::Arc;

/// An upload in progress. Dropping it before completion removes its temporary file.
#[derive(Debug)]
pub(super) struct Upload {
    store: PosixStore,
    location: ObjectPath,
    /// `None` once published or removed.
    temporary: Option<(Arc<File>, StorePath)>,
    /// Offset of the next part, in bytes.
    offset: u64,
}

impl Upload {
    pub(super) fn start(store: PosixStore, location: ObjectPath) -> Result<Box<dyn MultipartUpload>> {
        let file = store.inner.file(&location)?;
        let (output, path) = store.inner.create_temporary(&file).map_err(store.inner.refused("write", &location))?;
        Ok(Box::new(Upload { store, location, temporary: Some((Arc::new(output), path)), offset: 0 }))
    }

    fn ended(&self) -> Error {
        failed("continue the ended upload of", &self.location)(io::ErrorKind::InvalidInput.into())
    }
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, payload: PutPayload) -> UploadPart {
        let Some((output, _)) = &self.temporary else {
            return futures::future::ready(Err(self.ended())).boxed();
        };
        let (output, location, mut offset) = (output.clone(), self.location.clone(), self.offset);
        let store = self.store.clone();
        self.offset += payload.content_length() as u64;
        off_thread(move || {
            for part in payload.iter() {
                store.inner.with_room(|| output.write_all_at(part, offset)).map_err(failed("write", &location))?;
                offset += part.len() as u64;
            }
            Ok(())
        })
        .boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let Some((output, path)) = self.temporary.take() else { return Err(self.ended()) };
        let (store, location) = (self.store.clone(), self.location.clone());
        off_thread(move || {
            let published = version::complete(&output)
                .map_err(failed("write", &location))
                .and_then(|()| store.inner.publish_over(&location, &CompleteFile { file: output, path: path.clone() }));
            if published.is_err() {
                // The caller needs the error; a later start removes a leftover.
                let _ = disk::remove_file(&path);
            }
            published
        })
        .await
    }

    async fn abort(&mut self) -> Result<()> {
        let Some((_, path)) = self.temporary.take() else { return Ok(()) };
        let location = self.location.clone();
        off_thread(move || disk::remove_file(&path).map_err(failed("abort the upload of", &location))).await
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some((_, path)) = self.temporary.take() {
            // There is no caller to report an error to; the next start removes a leftover.
            let _ = disk::remove_file(&path);
        }
    }
}
