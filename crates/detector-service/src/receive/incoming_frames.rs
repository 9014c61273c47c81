//! Reception of frames, in each of their forms, and of scalars.

use super::{Filtering, FrameConnection};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use varve_detector_dataset::dataset_spec::Scalar;
use varve_detector_dataset::frame::{Blob, Frame, Payload};
use varve_detector_filters::{BadFilterName, Filter, FilterError};
use varve_detector_stream::answers::NO_FRAME;
use varve_detector_stream::link::LinkError;
use varve_detector_stream::{
    BadMessage, BodyChecksum, ErrorCode, FrameHead, Header, Notice, NoticeCode, ScalarsHead, StreamRefusal, StreamRole,
};
use varve_detector_writer::{WaitPolicy, WriteError};

/// Content of a message of frames.
enum FramePayload {
    /// Separate frames.
    Frames(Vec<Payload>),
    /// Chunks shared by the message's frames.
    ChunkGroup(Vec<Blob>),
}

enum FrameBody {
    Body(Vec<u8>),
    /// One frame, filtered during reception.
    Chunk(Vec<u8>),
    Unfiltered(FilterError),
}

impl FrameConnection<'_> {
    /// Receives the body, and returns whether it is intact.
    fn frames_body(&mut self, header: &Header, head: &FrameHead) -> Result<(bool, FrameBody), LinkError> {
        if self.is_one_plain_frame(header, head) && self.writes_what_it_brings() {
            if self.filtering.is_none() {
                let set = self.run.request.set_of(self.hello.source) as u32;
                let encoder = self.run.with(|sink| Ok(sink.encoder(set))).ok().flatten();
                self.filtering = encoder.map(Filtering::new);
            }
            if let Some(filtering) = &mut self.filtering {
                let buffer = |bytes| self.run.buffer(bytes);
                let (whole, chunk) = filtering.body(&mut self.incoming, (header, self.hello.checksum), buffer)?;
                return Ok((whole, chunk.map_or_else(FrameBody::Unfiltered, FrameBody::Chunk)));
            }
        }
        let mut body = self.run.buffer(header.body_bytes);
        let whole = self.incoming.body(header, self.hello.checksum, &mut body)?;
        Ok((whole, FrameBody::Body(body)))
    }

    /// Whether the message is a single uncompressed frame of the run.
    fn is_one_plain_frame(&self, header: &Header, head: &FrameHead) -> bool {
        let description = &self.run.request.description;
        self.hello.role == StreamRole::Frames
            && (head.frames, head.chunks.len()) == (1, 0)
            && head.element == description.element
            && head.sides.iter().map(|side| u64::from(*side)).eq(description.frame.iter().copied())
            && header.body_bytes == description.frame_bytes() as u64
    }

    pub(super) fn frames(
        &mut self,
        header: &Header,
        mut head: FrameHead,
        again: bool,
    ) -> Result<Result<(), StreamRefusal>, LinkError> {
        let (sent, first) = (head.number, self.first_frame());
        // The outbox adds the first frame's number again.
        head.number = sent.wrapping_sub(first);
        let (whole, came) = self.frames_body(header, &head)?;
        self.run.tallies.received_bytes.fetch_add(header.body_bytes, Relaxed);
        if self.hello.role != StreamRole::Frames {
            return Ok(Err(StreamRefusal::new(
                ErrorCode::Protocol,
                "a frame on a connection whose role is not frames",
            )));
        }
        // The sender may have used a negative number. Only this message is refused.
        let end = head.number.checked_add(head.frames.into()).filter(|_| sent >= first);
        let Some(end) = end else {
            let text = match sent < first {
                true => format!("the first frame of the run has the number {first}"),
                false => format!("{sent} is not a frame number; is it a negative number, read as unsigned?"),
            };
            self.run.tallies.refused.fetch_add(u64::from(head.frames), Relaxed);
            self.outbox.notice(NoticeCode::Refused.of(head.number, &text));
            return Ok(Ok(()));
        };
        let numbers = head.number..end;
        if !whole {
            // The head's CRC is right, so the numbers are the sender's.
            const MARKED_MAX: usize = 4096;
            self.outbox.notice(NoticeCode::Damaged.of(head.number, "the body's checksum differs"));
            return Ok(self.run.damaged(self.hello.source, numbers.take(MARKED_MAX)));
        }
        let brought = match came {
            FrameBody::Chunk(chunk) => Ok(FramePayload::Frames(vec![Payload::Filtered(vec![chunk.into()])])),
            FrameBody::Unfiltered(error) => Err(error.to_string()),
            FrameBody::Body(body) => {
                let xxh3 = (self.hello.checksum == BodyChecksum::Xxh3).then_some(header.checksum);
                self.brought(&head, body, xxh3)
            }
        };
        let brought = match brought {
            Ok(brought) => brought,
            Err(why) => {
                self.run.tallies.refused.fetch_add(u64::from(head.frames), Relaxed);
                self.outbox.notice(NoticeCode::Refused.of(head.number, &why));
                return Ok(Ok(()));
            }
        };
        let (source, patience) = (self.hello.source, self.patience());
        // A connection that its client has replaced may still deliver frames that the new connection resends.
        let again = || again || self.outbox.is_over();
        let frames = match brought {
            FramePayload::Frames(frames) => frames,
            FramePayload::ChunkGroup(chunks) => {
                let taken = self.run.take_chunk_group(source, (numbers, head.taken), chunks, again, patience);
                return Ok(taken.map(|notices| notices.iter().for_each(|notice| self.notify_client(notice))));
            }
        };
        for (number, payload) in numbers.zip(frames) {
            let frame = Frame { number, taken: head.taken, payload };
            match self.run.take(source, frame, again, patience) {
                Ok(Ok(())) => {}
                Ok(Err(notice)) => self.notify_client(&notice),
                Err(refusal) => return Ok(Err(refusal)),
            }
        }
        Ok(Ok(()))
    }

    /// Wait policy for this client's frames. If the client may be blocked and there are at least as many sending
    /// connections as writing threads, the receiving thread writes the frames itself.
    fn patience(&self) -> WaitPolicy {
        match self.hello.patience {
            Some(patience) => WaitPolicy::Within(patience),
            None if self.writes_what_it_brings() => WaitPolicy::Writes { more: self.incoming.has_more() },
            None => WaitPolicy::Unlimited,
        }
    }

    fn writes_what_it_brings(&self) -> bool {
        self.hello.patience.is_none() && self.run.feeders.load(Relaxed) >= self.shared.config.settings.threads
    }

    /// Sends the notice on each of the client's connections.
    fn notify_client(&self, notice: &Notice) {
        self.run.board.each(|outbox| {
            if outbox.client == self.hello.client {
                outbox.notice(notice.clone());
            }
        });
    }

    /// Parses the frames of a message. `xxh3`: checksum of the body, if known.
    fn brought(&self, head: &FrameHead, body: Vec<u8>, xxh3: Option<u64>) -> Result<FramePayload, String> {
        let description = &self.run.request.description;
        let sides: Vec<u64> = head.sides.iter().map(|side| u64::from(*side)).collect();
        let set = self.run.request.set_of(self.hello.source);
        let shape = &description.regions()[set].shape;
        if head.element != description.element || sides != *shape {
            return Err(format!(
                "it is {sides:?} of {}, the run's frames are {shape:?} of {}",
                head.element.name(),
                description.element.name()
            ));
        }
        if head.chunks.is_empty() {
            let bytes = shape.iter().product::<u64>() as usize * description.element.size();
            if Some(body.len()) != bytes.checked_mul(head.frames as usize) {
                return Err(format!(
                    "{} frames of {bytes} bytes do not match a body of {} bytes",
                    head.frames,
                    body.len()
                ));
            }
            return Ok(FramePayload::Frames(if head.frames == 1 {
                vec![Payload::Plain(body)]
            } else {
                body.chunks_exact(bytes).map(|frame| Payload::Plain(frame.to_vec())).collect()
            }));
        }
        let filter: Filter = head.filter.parse().map_err(|error: BadFilterName| error.to_string())?;
        if !filter.reads_as(&description.filter) {
            return Err(format!("its chunks are filtered by `{filter}`, the run's by `{}`", description.filter));
        }
        let each = self.run.with(|sink| Ok(sink.chunks_of(set as u32))).map_err(|refusal| refusal.text)?;
        let Some(each) = each.map(|chunks| chunks as u64) else {
            return Err(
                "it is compressed, but its region does not consist of whole chunks; send it uncompressed".into()
            );
        };
        let chunk_group_frames = description.chunk_group_frames();
        let is_chunk_group = chunk_group_frames > 1;
        // Their numbers are checked frame by frame later.
        if is_chunk_group && u64::from(head.frames) > chunk_group_frames {
            return Err(format!("it has {} frames, more than the {chunk_group_frames} of a chunk", head.frames));
        }
        let wanted = if is_chunk_group { each } else { each * u64::from(head.frames) };
        if head.chunks.len() as u64 != wanted {
            return Err(format!("it has {} chunks for {} frames, which need {wanted}", head.chunks.len(), head.frames));
        }
        if head.chunks.iter().map(|bytes| u64::from(*bytes)).sum::<u64>() != body.len() as u64 {
            return Err("the sum of its chunk lengths differs from the length of its body".into());
        }
        if head.chunks.len() == 1 {
            let blobs = vec![Blob { bytes: body, xxh3 }];
            return Ok(if is_chunk_group {
                FramePayload::ChunkGroup(blobs)
            } else {
                FramePayload::Frames(vec![Payload::Filtered(blobs)])
            });
        }
        let mut rest = &body[..];
        let mut blobs = head.chunks.iter().map(|bytes| {
            let (blob, after) = rest.split_at(*bytes as usize);
            rest = after;
            blob.to_vec().into()
        });
        if is_chunk_group {
            return Ok(FramePayload::ChunkGroup(blobs.collect()));
        }
        let frame = |_| Payload::Filtered(blobs.by_ref().take(each as usize).collect());
        Ok(FramePayload::Frames((0..head.frames).map(frame).collect()))
    }

    pub(super) fn scalars(
        &mut self,
        header: &Header,
        head: &ScalarsHead,
    ) -> Result<Result<(), StreamRefusal>, LinkError> {
        let mut body = Vec::new();
        let whole = self.incoming.body(header, self.hello.checksum, &mut body)?;
        let fits = if whole { head.check(&body) } else { Err(BadMessage("its checksum differs".into())) };
        if let Err(why) = fits {
            self.outbox.notice(NoticeCode::Damaged.of(NO_FRAME, &format!("a body of scalars: {why}")));
            return Ok(Ok(()));
        }
        let known = &self.run.request.description.scalars;
        let mut columns = Vec::new();
        for name in &head.names {
            let column = known.iter().position(|known| known.name == *name);
            if column.is_none() {
                let names: Vec<&str> = known.iter().map(|known| known.name.as_str()).collect();
                let has = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                let text = format!("the run has no scalar `{name}`; it has {has}");
                self.outbox.notice(NoticeCode::Refused.of(NO_FRAME, &text));
            }
            columns.push(column.map(|column| column as u32));
        }
        for (number, values) in head.rows(&body) {
            let number = number.wrapping_sub(self.first_frame());
            let reported = columns.iter().zip(values).filter_map(|(column, value)| Some(((*column)?, value?)));
            let row: Vec<(u32, Scalar)> = reported.collect();
            if !row.is_empty()
                && let Err(refusal) = self.row(number, &row)
            {
                return Ok(Err(refusal));
            }
        }
        Ok(Ok(()))
    }

    /// Takes a row of scalars. Waits for the committer while a million rows are queued, as frames wait for queue space.
    fn row(&self, number: u64, row: &[(u32, Scalar)]) -> Result<(), StreamRefusal> {
        loop {
            match self.run.with(|sink| Ok(sink.scalars(number, row.to_vec())))? {
                Ok(()) => return Ok(()),
                Err(WriteError::Full) => std::thread::sleep(Duration::from_millis(20)),
                Err(WriteError::Frame { why, .. }) => {
                    self.outbox.notice(NoticeCode::Refused.of(number, &why));
                    return Ok(());
                }
                Err(error) => return Err(StreamRefusal::new(ErrorCode::Failed, error.to_string())),
            }
        }
    }
}
