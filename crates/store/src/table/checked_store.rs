//! A store wrapper that adds a checksum to objects that SlateDB keeps without one: manifests, which lead to all rows,
//! and the records of compactions. Without it, a manifest with one wrong byte might be read and lead to fewer rows.
//! `formats/manifest.md` describes the bytes.

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};
use std::fmt;
use tokio::time::Instant;
use varve_env::posix_store::PosixStore;

/// SlateDB's own files begin with a small number, as two bytes in big-endian order, and never with this.
const MAGIC: [u8; 8] = *b"VARVECK1";
/// The magic, and the CRC-32 of the rest, little-endian.
const HEAD_BYTES: usize = MAGIC.len() + 4;
const CHECKED: [&str; 2] = ["manifest", "compactions"];

#[derive(Debug)]
pub(super) struct CheckedStore(pub PosixStore);

/// An object whose content is not as written.
#[derive(Debug, thiserror::Error)]
#[error(
    "shards/{path} is damaged: {reason}; restore it from a copy of the store, or save what is left with `varve fsck --repair`"
)]
pub(super) struct DamagedObject {
    path: Path,
    reason: String,
}

fn is_checked(location: &Path) -> bool {
    location.extension().is_some_and(|extension| CHECKED.contains(&extension))
}

/// The stored bytes for `content`.
fn sealed(content: &PutPayload) -> PutPayload {
    let mut hasher = crc32fast::Hasher::new();
    content.iter().for_each(|part| hasher.update(part));
    let head = [&MAGIC[..], &hasher.finalize().to_le_bytes()].concat();
    std::iter::once(Bytes::from(head)).chain(content.iter().cloned()).collect()
}

/// The content of stored bytes. Files of earlier builds have no checksum and are returned unchanged; they, too, are
/// longer than the magic.
fn opened(location: &Path, stored: &Bytes) -> Result<Bytes> {
    // SlateDB retries after most errors, but not after this one.
    let damaged = |reason| Error::NotSupported { source: Box::new(DamagedObject { path: location.clone(), reason }) };
    if stored.len() < HEAD_BYTES {
        return Err(damaged(format!("it was cut short to {} bytes", stored.len())));
    }
    if !stored.starts_with(&MAGIC) {
        return Ok(stored.clone());
    }
    let intact = stored.split_at_checked(HEAD_BYTES).and_then(|(head, content)| {
        let checksum = crc32fast::hash(content).to_le_bytes();
        (head[MAGIC.len()..] == checksum).then(|| stored.slice(HEAD_BYTES..))
    });
    intact.ok_or_else(|| damaged("its checksum is not that of its content".to_owned()))
}

fn as_a_whole(location: &Path) -> Error {
    Error::NotSupported { source: format!("{location}: it has a checksum, and is read and written as a whole").into() }
}

impl fmt::Display for CheckedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Times a request of the tables to the store.
async fn timed<T>(operation: &'static str, request: impl Future<Output = T>) -> T {
    let begun = Instant::now();
    let done = request.await;
    metrics::histogram!("varve_store_request_seconds", "operation" => operation).record(begun.elapsed().as_secs_f64());
    done
}

#[async_trait]
impl ObjectStore for CheckedStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let payload = if is_checked(location) { sealed(&payload) } else { payload };
        timed("put", self.0.put_opts(location, payload, options)).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        if is_checked(location) {
            return Err(as_a_whole(location));
        }
        self.0.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if !is_checked(location) || options.head {
            return timed("get", self.0.get_opts(location, options)).await;
        }
        if options.range.is_some() {
            return Err(as_a_whole(location));
        }
        let got = timed("get", self.0.get_opts(location, options)).await?;
        let (meta, attributes, extensions) = (got.meta.clone(), got.attributes.clone(), got.extensions.clone());
        let content = opened(location, &got.bytes().await?)?;
        let meta = ObjectMeta { size: content.len() as u64, ..meta };
        let (range, payload) = (0..meta.size, stream::once(async move { Ok(content) }).boxed());
        Ok(GetResult { payload: GetResultPayload::Stream(payload), meta, range, attributes, extensions })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.0.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(prefix)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.0.rename_opts(from, to, options).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// formats/manifest.md: these bytes never change, and earlier files without them are read.
    #[test]
    fn checksums_match_golden_bytes() {
        let path = Path::from("0000/manifest/00000000000000000001.manifest");
        let content = Bytes::from_static(b"\0\x02a manifest");
        let stored: Bytes = sealed(&content.clone().into()).into();
        assert_eq!(stored[..], *b"VARVECK1j%\xb5\\\0\x02a manifest", "{stored:02x?}");
        assert_eq!(opened(&path, &stored).expect("intact"), content);
        assert_eq!(opened(&path, &content).expect("of an earlier build"), content);
        for end in 0..stored.len() {
            let error = opened(&path, &stored.slice(..end)).expect_err("cut short").to_string();
            let words = if end < HEAD_BYTES { "cut short" } else { "checksum" };
            assert!(error.contains(words) && error.contains("00001.manifest"), "{error}");
        }
    }
}
