//! One connection: it reads frames, runs requests concurrently and writes frames.
//!
//! Requests of a connection run concurrently, and their replies are sent in the order in which they complete. A request
//! that has begun runs to its end whatever becomes of the connection: a change over several shards must not be dropped
//! half way, and its reply is recorded for a retry. All replies that are ready and have not gone directly to the peer's
//! shared-memory slot are sent in one write.

use super::dispatch::DispatchReply;
use super::handshake::{self, HandshakeError};
use super::local_stream::{AtHand, ShareMemory};
use super::memory_budget::MemoryCharge;
use super::request_queue::{RequestQueue, encode};
use super::sessions::{Admitted, Peer};
use super::unauthenticated::PendingGuard;
use super::worker::Worker;
use bytes::{Buf, BytesMut};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use varve_cluster::lease::Lease;
use varve_env::stages::{self, Stage};
use varve_env::stop_point::{self, StopPoint};
use varve_proto::Request;
use varve_proto::frame::{self, FrameError};

/// Maximum requests in progress of one connection. A blocking client has one; a pipelining client rarely needs more
/// than one group commit covers. Beyond the limit the peer's data waits in its socket buffer or its shared-memory slot.
pub(super) const REQUESTS_IN_FLIGHT_MAX: usize = 64;

/// Maximum bytes of unsent replies, above which no further request of the connection is read. The largest listing fits
/// several times.
const OUTPUT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Capacity for a typical request with a small file's content. Larger requests make the buffer grow.
const INPUT_BYTES: usize = 16 * 1024;

/// An empty buffer whose capacity exceeds this is freed.
pub(super) const BUFFER_BYTES_KEPT: usize = 256 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("the connection ended in the middle of a frame, after {0} bytes")]
    Truncated(usize),
    #[error("request of session {used:016x} on a connection of session {own:016x}")]
    ForeignSession { own: u64, used: u64 },
    #[error("the peer has neither completed a message nor read its replies for {:?}", .0)]
    Stalled(Duration),
    #[error("the lease of this server ended before its replies were sent: another server may own the shard")]
    LeaseEnded,
    #[error("the key of the client was revoked")]
    Revoked,
    #[error("the connection failed: {0}")]
    Io(#[from] std::io::Error),
}

/// Serves a connection from its first byte to its last. The error states the peer's violation or the failure.
pub async fn serve<R, W>(
    mut reader: R,
    mut writer: W,
    peer: Peer,
    worker: Rc<Worker>,
    pending: PendingGuard,
) -> Result<(), ConnectionError>
where
    R: AsyncRead + AtHand + Unpin,
    W: AsyncWrite + ShareMemory + Unpin,
{
    let (caller, guard) = tokio::select! {
        admitted = handshake::admit(&mut reader, &mut writer, &worker, peer) => admitted?,
        () = pending.evicted() => return Err(HandshakeError::Evicted(worker.shared.limits.unauthenticated).into()),
        () = worker.stopping() => return Ok(()),
    };
    drop(pending);
    let revoked = guard.key.revoked();
    converse(&mut reader, &mut writer, Arc::new(caller), worker, revoked).await
}

async fn converse<R, W>(
    reader: &mut R,
    writer: &mut W,
    caller: Arc<Admitted>,
    worker: Rc<Worker>,
    revoked: impl Future<Output = ()>,
) -> Result<(), ConnectionError>
where
    R: AsyncRead + AtHand + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut input = BytesMut::with_capacity(INPUT_BYTES);
    let mut output = SendBuffer::default();
    let request_queue = RequestQueue::new(&worker, &caller, reader.shm_slot());
    let mut progress = TransferProgress::default();
    let stall = worker.shared.limits.stall;
    let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + stall, stall);
    let mut stopping = pin!(worker.stopping());
    let mut revoked = pin!(revoked);
    // Set when nothing more is read: requests in progress end and replies are written, unless the peer is gone.
    let mut end: Option<Result<(), ConnectionError>> = None;
    let mut read_at = None;
    let mut memory_held = MemoryCharge::of(&worker, 0);
    loop {
        request_queue.attend();
        request_queue.take_laid(|answer| output.add(&answer));
        memory_held.set(output.len());
        let has_room = |output: &SendBuffer| {
            let begun = request_queue.expected();
            let may_begin = begun < REQUESTS_IN_FLIGHT_MAX && output.len() < OUTPUT_BYTES_MAX;
            may_begin && (!worker.memory_held.is_much() || (begun == 0 && output.is_empty()))
        };
        match request_queue.take_left() {
            // Equivalent to a read of zero bytes.
            Some(bytes) if bytes.is_empty() => end = end.or(Some(Ok(()))),
            Some(bytes) => {
                progress.bytes += bytes.len() as u64;
                input.extend_from_slice(&bytes);
                read_at = stages::begin();
            }
            None => {}
        }
        while end.is_none() && has_room(&output) {
            match take_request(&mut input, &caller) {
                Ok(Some((request, length))) => {
                    stages::end(Stage::Queue, read_at);
                    request_queue.begin(&worker, request, length, output.is_empty());
                    request_queue.take_laid(|answer| output.add(&answer));
                    memory_held.set(output.len());
                }
                Ok(None) => break,
                Err(error) => end = Some(Err(error)),
            }
        }
        let idle = request_queue.expected() == 0 && output.is_empty();
        if idle && let Some(end) = end {
            return end;
        }
        if idle
            && end.is_none()
            && let Some(count) = worker.busy_poll.find(request_queue.number(), || reader.at_hand(&mut input))
        {
            progress.bytes += count as u64;
            read_at = stages::begin();
            continue;
        }
        let reads = end.is_none() && has_room(&output);
        let straight = reads && output.is_empty();
        request_queue.wait(straight, straight && input.is_empty());
        // The order matters: a ready reply joins the replies to be written, and they are written before more is read.
        tokio::select! {
            biased;
            () = poll_fn(|context| request_queue.poll_called(context)) => {}
            written = write_under(&worker.shared.lease, writer, output.bytes()), if !output.is_empty() => match written {
                Ok(0) => end = output.abandon(Err(std::io::Error::from(std::io::ErrorKind::WriteZero).into())),
                Ok(count) => {
                    output.advance(count);
                    worker.busy_poll.moved();
                    progress.bytes += count as u64;
                }
                Err(error) => end = output.abandon(Err(error)),
            },
            read = reader.read_buf(&mut input), if reads => match read {
                Ok(0) if input.is_empty() => end = Some(Ok(())),
                Ok(0) => end = Some(Err(ConnectionError::Truncated(input.len()))),
                Ok(count) => {
                    progress.bytes += count as u64;
                    read_at = stages::begin();
                }
                Err(error) => end = output.abandon(Err(error.into())),
            },
            _ = tick.tick() => {
                let waits = !output.is_empty() || (reads && (!input.is_empty() || reader.midway()));
                if progress.stalled(waits) {
                    end = output.abandon(Err(ConnectionError::Stalled(stall)));
                }
            }
            () = &mut revoked, if end.is_none() => end = output.abandon(Err(ConnectionError::Revoked)),
            () = &mut stopping, if end.is_none() => end = Some(Ok(())),
        }
        if end.as_ref().is_some_and(Result::is_err) {
            input = BytesMut::new();
        } else if input.is_empty() && input.capacity() > BUFFER_BYTES_KEPT {
            input = BytesMut::with_capacity(INPUT_BYTES);
        }
    }
}

/// Writes replies if the lease of the server runs at that moment: nothing may leave after its end.
async fn write_under<W: AsyncWrite + Unpin>(
    lease: &Lease,
    writer: &mut W,
    bytes: &[u8],
) -> Result<usize, ConnectionError> {
    poll_fn(|context| match lease.is_valid() {
        true => {
            stop_point::reach(StopPoint::ReplyAllowed);
            Pin::new(&mut *writer).poll_write(context, bytes).map_err(ConnectionError::Io)
        }
        false => Poll::Ready(Err(ConnectionError::LeaseEnded)),
    })
    .await
}

/// The next complete request in `input`, if there is one, and its length in bytes.
fn take_request(input: &mut BytesMut, caller: &Admitted) -> Result<Option<(Request, usize)>, ConnectionError> {
    // Called several times per request, mostly with empty input.
    if input.is_empty() {
        return Ok(None);
    }
    let Some((request, len)) = frame::take::<Request>(input)? else {
        return Ok(None);
    };
    input.advance(len);
    if !caller.is_named_by(&request) {
        return Err(ConnectionError::ForeignSession { own: caller.session.0, used: request.id.session });
    }
    Ok(Some((request, len)))
}

/// Frames that wait to be written to the peer.
#[derive(Default)]
struct SendBuffer {
    frames: Vec<u8>,
    written: usize,
    abandoned: bool,
    /// Since when the buffer has been non-empty.
    since: Option<Instant>,
}

impl SendBuffer {
    fn len(&self) -> usize {
        self.frames.len() - self.written
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn bytes(&self) -> &[u8] {
        &self.frames[self.written..]
    }

    fn add(&mut self, answer: &DispatchReply) {
        if self.abandoned {
            return;
        }
        if self.is_empty() {
            self.since = stages::begin();
        }
        encode(answer, &mut self.frames);
    }

    fn advance(&mut self, count: usize) {
        self.written += count;
        if self.is_empty() {
            self.frames.clear();
            self.frames.shrink_to(BUFFER_BYTES_KEPT);
            self.written = 0;
            stages::end(Stage::Reply, self.since.take());
        }
    }

    /// The peer is gone: discards the frames and writes nothing more.
    fn abandon(&mut self, end: Result<(), ConnectionError>) -> Option<Result<(), ConnectionError>> {
        *self = SendBuffer { abandoned: true, ..SendBuffer::default() };
        Some(end)
    }
}

/// Detects whether bytes have moved since the last tick.
#[derive(Default)]
struct TransferProgress {
    bytes: u64,
    at_last_tick: u64,
}

impl TransferProgress {
    fn stalled(&mut self, waits: bool) -> bool {
        let moved = self.bytes != self.at_last_tick;
        self.at_last_tick = self.bytes;
        waits && !moved
    }
}
