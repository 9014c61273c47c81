//! Gets.
//!
//! A table block that was evicted from the block cache is nearly always still in the kernel's page cache. Reading it
//! from there takes less time than handing the work to another thread and waking up again (2–4 µs against about 30 µs
//! here). The same holds for the check whether a manifest has a successor, which every open table makes once a second:
//! the kernel has the missing name cached. So files are opened on the calling thread, and small reads are first tried
//! there without waiting for a device (`RWF_NOWAIT`). Only reads of data that is not in memory go to a thread that may
//! block. On file systems without such reads, as most network file systems are, every get goes to another thread,
//! including its `open`.

use super::error::failed;
use super::version;
use super::{Inner, PosixStore, off_thread};
use crate::clock;
use crate::store_path::StorePath;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::StreamExt;
use object_store::path::Path as ObjectPath;
use object_store::{Attributes, Extensions, GetOptions, GetResult, GetResultPayload, ObjectMeta, Result};
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::{File, Metadata};
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Reads up to this size are tried on the calling thread: they copy for at most some tens of microseconds.
const INLINE_BYTES_MAX: u64 = 128 * 1024;
/// A larger get is streamed in pieces of this size, so that its memory is bounded.
const PIECE_BYTES: u64 = 8 * 1024 * 1024;

impl PosixStore {
    pub(super) async fn read(&self, location: &ObjectPath, options: GetOptions) -> Result<GetResult> {
        if options.version.is_some() {
            return Err(super::error::not_implemented("get of an old version"));
        }
        if !self.inner.reads_without_waiting.load(Ordering::Relaxed) {
            let location = location.clone();
            return self
                .off_thread(move |inner| OpenedObject::open(inner, &location)?.prepare(&options)?.read_blocking())
                .await;
        }
        let opened = OpenedObject::open(&self.inner, location)?;
        let opened = opened.prepare(&options)?;
        if options.head {
            return opened.read_blocking();
        }
        if opened.range.end - opened.range.start > INLINE_BYTES_MAX {
            return off_thread(move || opened.read_blocking()).await;
        }
        self.read_inline(opened).await
    }

    async fn read_inline(&self, mut opened: OpenedObject) -> Result<GetResult> {
        let mut buffer = vec![0; (opened.range.end - opened.range.start) as usize];
        match read_without_waiting(&opened.file, &mut buffer, opened.range.start) {
            Ok(done) if done == buffer.len() => return Ok(opened.result(buffer.into())),
            Ok(done) => opened.read_from = done,
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
                self.inner.reads_without_waiting.store(false, Ordering::Relaxed);
            }
            Err(error) => return Err(failed("read", &opened.location)(error.into())),
        }
        off_thread(move || opened.read_rest(buffer)).await
    }
}

/// Reads the bytes at `offset` that are in memory and returns their count, which is smaller than the buffer if the
/// device would be needed.
fn read_without_waiting(file: &File, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < buffer.len() {
        let mut slices = [IoSliceMut::new(&mut buffer[done..])];
        match rustix::io::preadv2(file, &mut slices, offset + done as u64, ReadWriteFlags::NOWAIT) {
            Ok(0) | Err(Errno::AGAIN) => return Ok(done),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// An object that is open for reading, with the requested range.
struct OpenedObject {
    location: ObjectPath,
    file: Arc<File>,
    meta: ObjectMeta,
    range: Range<u64>,
    head: bool,
    /// Bytes of the range that are already in the buffer.
    read_from: usize,
}

impl OpenedObject {
    fn open(inner: &Inner, location: &ObjectPath) -> Result<OpenedObject> {
        let path = inner.file(location)?;
        let (file, metadata) = open_regular(&path).map_err(inner.failed("read", location))?;
        Ok(OpenedObject {
            location: location.clone(),
            file: Arc::new(file),
            meta: object_meta(location.clone(), &metadata),
            range: 0..metadata.len(),
            head: false,
            read_from: 0,
        })
    }

    /// Checks the caller's conditions and determines the range.
    fn prepare(mut self, options: &GetOptions) -> Result<OpenedObject> {
        self.head = options.head;
        options.check_preconditions(&self.meta)?;
        if let (Some(range), false) = (&options.range, options.head) {
            // A range beyond the end means that a file of ours was truncated.
            let short = |source| io::Error::new(io::ErrorKind::UnexpectedEof, source);
            let range = range.as_range(self.meta.size).map_err(short);
            self.range = range.map_err(failed("read", &self.location))?;
        }
        Ok(self)
    }

    fn read_blocking(self) -> Result<GetResult> {
        let length = self.range.end - self.range.start;
        if self.head {
            return Ok(self.result(Bytes::new()));
        }
        if length > PIECE_BYTES {
            return Ok(self.stream());
        }
        self.read_rest(vec![0; length as usize])
    }

    /// Fills `buffer`, whose first bytes are already read, and creates the result.
    fn read_rest(self, mut buffer: Vec<u8>) -> Result<GetResult> {
        let offset = self.range.start + self.read_from as u64;
        self.file.read_exact_at(&mut buffer[self.read_from..], offset).map_err(failed("read", &self.location))?;
        Ok(self.result(buffer.into()))
    }

    fn result(self, content: Bytes) -> GetResult {
        let payload = futures::stream::once(futures::future::ready(Ok(content))).boxed();
        self.result_of(GetResultPayload::Stream(payload))
    }

    fn stream(self) -> GetResult {
        let (file, location, range) = (self.file.clone(), self.location.clone(), self.range.clone());
        let pieces = futures::stream::try_unfold(range.start, move |start| {
            let (file, location) = (file.clone(), location.clone());
            let end = range.end;
            async move {
                if start >= end {
                    return Ok(None);
                }
                let length = PIECE_BYTES.min(end - start);
                let piece = off_thread(move || {
                    let mut buffer = vec![0; length as usize];
                    file.read_exact_at(&mut buffer, start).map_err(failed("read", &location))?;
                    Ok(Bytes::from(buffer))
                })
                .await?;
                Ok(Some((piece, start + length)))
            }
        });
        self.result_of(GetResultPayload::Stream(pieces.boxed()))
    }

    fn result_of(self, payload: GetResultPayload) -> GetResult {
        GetResult {
            payload,
            meta: self.meta,
            range: self.range,
            attributes: Attributes::new(),
            extensions: Extensions::new(),
        }
    }
}

/// Fails for a directory, which is not an object.
fn open_regular(path: &StorePath) -> io::Result<(File, Metadata)> {
    let file = path.open().map_err(|error| match error.kind() {
        io::ErrorKind::IsADirectory => io::Error::new(io::ErrorKind::NotFound, "it is a directory"),
        _ => error,
    })?;
    let metadata = file.metadata()?;
    Ok((file, metadata))
}

pub(super) fn object_meta(location: ObjectPath, metadata: &Metadata) -> ObjectMeta {
    let modified = metadata.modified().map(clock::timestamp).unwrap_or_default();
    ObjectMeta {
        location,
        last_modified: DateTime::<Utc>::from_timestamp(modified.seconds, modified.nanoseconds).unwrap_or_default(),
        size: metadata.len(),
        e_tag: Some(version::e_tag(metadata)),
        version: None,
    }
}
