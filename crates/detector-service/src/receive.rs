//! A client connection: HELLO, then the client's messages, until either side ends it. The receiving thread waits for
//! space in the run's queue and does not read meanwhile; this is the only back-pressure.

mod filtering;
mod incoming_frames;
mod refuse;

use super::board::Outbox;
use super::clients::{ClientConnection, check_source};
use super::count_guard::CountGuard;
use super::records::EndKind;
use super::request::StartRequest;
use super::run::Run;
use super::shared::{Asker, ServiceShared};
use super::sink::RunSink;
use super::threads::named;
use super::tries;
use filtering::Filtering;
use refuse::{last_words, linger, protect, turn_away};
use std::cell::Cell;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};
use varve_detector_dataset::dataset_spec::Allocate;
use varve_detector_dataset::frame::AckLevel;
use varve_detector_file::journal;
use varve_detector_stream::answers::NO_FRAME;
use varve_detector_stream::link::{Incoming, LinkError, hold_little, send_to_client};
use varve_detector_stream::{
    ErrorCode, FinishedHead, FromService, Header, ShareHead, Socket, StreamHello, StreamRefusal, StreamRole,
    StreamWelcome, ToService,
};
use varve_detector_writer::{ONE_WRITER, WriteError};

/// Timeout for a client's complete HELLO, if the idle timeout is not shorter. It prevents unauthenticated clients from
/// holding connections.
const HELLO_WAIT: Duration = Duration::from_secs(10);
/// A client that reads nothing for this long is disconnected.
const TELL_WAIT: Duration = Duration::from_secs(30);
/// Minimum of the body size limit, which otherwise is two plain frames; it allows many small frames in one message.
const BODY_BYTES_MIN: u64 = 16 << 20;

pub fn accept(shared: &Arc<ServiceShared>, listener: &TcpListener) {
    while !shared.is_stopping() {
        let socket = match listener.accept() {
            Ok((socket, _)) => socket,
            Err(error) => {
                // Most likely out of file descriptors; accepting continues when connections end.
                tracing::warn!("cannot accept a connection: {error}");
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        let most = shared.config.connections_max;
        let Some(counted) = CountGuard::enter(shared, |shared| &shared.connections, most) else {
            turn_away(shared, socket);
            continue;
        };
        let started = named("receive", move || {
            if let Err(error) = serve(&counted.of, socket) {
                tracing::debug!("connection ended: {error}");
            }
        });
        if let Err(error) = started {
            tracing::warn!("cannot serve a connection: {error}");
        }
    }
}

fn serve(shared: &Arc<ServiceShared>, socket: TcpStream) -> Result<(), LinkError> {
    socket.set_nodelay(true)?;
    hold_little(&socket)?;
    let peer = socket.peer_addr()?;
    let (begun, wait) = (Instant::now(), HELLO_WAIT.min(shared.config.idle));
    let socket = protect(shared, socket, wait)?;
    socket.set_write_timeout(Some(TELL_WAIT))?;
    let mut incoming = Incoming::new(socket.try_clone()?);
    incoming.expect_until(Some(begun + wait));
    let hello = incoming.from_client();
    incoming.expect_until(None);
    let hello = match hello {
        Ok(Some((_, ToService::Hello(hello)))) => hello,
        Ok(None) => return Ok(()),
        Ok(Some(_)) => {
            last_words(socket, StreamRefusal::new(ErrorCode::Protocol, "the first message is not HELLO"));
            return Ok(());
        }
        Err(error) => {
            let code = match &error {
                LinkError::Message(bad) if bad.0.contains("speaks version") => ErrorCode::Version,
                // The next attempt would have the same name.
                LinkError::Message(bad) if bad.0.contains("is no name of a run") => ErrorCode::Description,
                LinkError::Message(_) => ErrorCode::Protocol,
                LinkError::Io(_) => ErrorCode::Vanished,
            };
            let late =
                error.is_silence().then(|| "HELLO did not arrive in time, from its first byte to its last".into());
            last_words(socket, StreamRefusal::new(code, late.unwrap_or_else(|| error.to_string())));
            return Err(error);
        }
    };
    let (run, outbox) = match enter(shared, &hello, &socket) {
        Ok(entered) => entered,
        Err(refusal) => {
            if refusal.code == ErrorCode::Token {
                shared.tries.add(&peer, &hello.run);
                std::thread::sleep(tries::DELAY);
            }
            tracing::info!(run = hello.run, "client refused: {refusal}");
            last_words(socket, refusal);
            return Ok(());
        }
    };
    let place = ClientSlot { run: &run, hello: &hello, outbox: &outbox, left: Cell::new(false) };
    let connection =
        FrameConnection { shared, run: &run, hello: &hello, outbox: &outbox, place: &place, incoming, filtering: None };
    connection.run(socket)
}

/// A connection's slot among the run's clients, released on drop, also if the connection's thread panics.
struct ClientSlot<'c> {
    run: &'c Run,
    hello: &'c StreamHello,
    outbox: &'c Arc<Outbox>,
    left: Cell<bool>,
}

impl ClientSlot<'_> {
    /// Releases the slot because the peer is gone.
    fn leave(&self) {
        if !self.left.replace(true) {
            self.run.clients.lock().leave(self.hello, self.outbox);
        }
    }
}

impl Drop for ClientSlot<'_> {
    fn drop(&mut self) {
        // Ends the sending thread if it is still running.
        self.outbox.close();
        self.leave();
    }
}

/// Finds or starts the run, and registers the connection as its client.
fn enter(
    shared: &Arc<ServiceShared>,
    hello: &StreamHello,
    socket: &Socket,
) -> Result<(Arc<Run>, Arc<Outbox>), StreamRefusal> {
    // The token is withdrawn during a stop, so a client without a token must retry later.
    if shared.is_stopping() {
        return Err(StreamRefusal::new(ErrorCode::Stopping, "the service is stopping"));
    }
    shared.check_token(&hello.token)?;
    let run = if hello.start.is_empty() {
        shared.run(&hello.run).ok_or_else(|| {
            let text =
                format!("there is no run `{}`; start it with this connection or with `varve record start`", hello.run);
            StreamRefusal::new(ErrorCode::Unknown, text)
        })?
    } else {
        let bad = |text: String| StreamRefusal::new(ErrorCode::Description, text);
        let mut request = StartRequest::from_json(hello.start.as_bytes()).map_err(bad)?;
        if request.name.is_empty() {
            request.name.clone_from(&hello.run);
        }
        if request.name != hello.run {
            return Err(bad(format!("the start request names run `{}`, HELLO names `{}`", request.name, hello.run)));
        }
        // No run is begun for a client that cannot take part in it, because nobody would end it.
        check_part(&request, hello)?;
        shared.begin_for(request, &Asker::Client(&hello.client))?
    };
    let cannot = |error: io::Error| StreamRefusal::new(ErrorCode::Limit, error.to_string());
    if run.awaits().is_some() {
        return Err(run.over());
    }
    check_part(&run.request, hello)?;
    // Registration with the run refuses a source that does not exist.
    let set = run.request.set_of(hello.source.min(run.request.source_count() - 1));
    let outbox = Arc::new(Outbox::new(hello.levels, set, hello.client));
    let client_connection = ClientConnection {
        outbox: Arc::clone(&outbox),
        socket: socket.try_clone().map_err(cannot)?,
        writes: hello.role == StreamRole::Writer,
    };
    let absence = Duration::from_secs_f64(run.request.absence_s);
    run.clients.lock().sit(hello, run.request.source_count(), absence, client_connection)?;
    Ok((run, outbox))
}

/// Checks that the run allows a client with this role and source.
fn check_part(request: &StartRequest, hello: &StreamHello) -> Result<(), StreamRefusal> {
    if hello.role == StreamRole::Writer && request.has_regions() {
        return Err(StreamRefusal::new(
            ErrorCode::Description,
            "regions of one frame share chunks, and one process must receive all: send them to this service",
        ));
    }
    if hello.role == StreamRole::Writer && request.description.allocate == Allocate::Implicit {
        return Err(StreamRefusal::new(ErrorCode::Description, ONE_WRITER));
    }
    check_source(hello, request.source_count())
}

struct FrameConnection<'c> {
    shared: &'c Arc<ServiceShared>,
    run: &'c Arc<Run>,
    hello: &'c StreamHello,
    outbox: &'c Arc<Outbox>,
    place: &'c ClientSlot<'c>,
    incoming: Incoming,
    /// Set when the first frame arrives that can be filtered during reception.
    filtering: Option<Filtering>,
}

impl FrameConnection<'_> {
    fn run(mut self, mut socket: Socket) -> Result<(), LinkError> {
        socket.set_read_timeout(Some(self.shared.config.idle))?;
        let body_bytes_max = self.body_bytes_max();
        let welcome = StreamWelcome {
            version: self.hello.agreed(),
            idle: self.shared.config.idle,
            body_bytes_max,
            frames: match self.run.board.end(AckLevel::Memory) {
                0 => 0,
                end => end + self.first_frame(),
            },
        };
        send_to_client(&mut socket, &FromService::Welcome(welcome))?;
        if self.hello.role == StreamRole::Writer {
            match self.share() {
                Ok(share) => send_to_client(&mut socket, &FromService::Share(share))?,
                Err(refusal) => self.outbox.refuse(refusal),
            }
        }
        self.run.board.attach(self.outbox);
        let (outbox, out) = (Arc::clone(self.outbox), socket);
        let first = self.first_frame();
        let telling = named("tell", move || send_all_messages(&outbox, out, first))?;
        let feeding = match self.hello.role {
            StreamRole::Frames => CountGuard::enter(self.run, |run| &run.feeders, usize::MAX),
            _ => None,
        };
        let received = self.receive(body_bytes_max);
        drop(feeding);
        match &received {
            Ok(()) => {}
            Err(LinkError::Message(bad)) => self.outbox.refuse(StreamRefusal::new(ErrorCode::Protocol, bad.0.clone())),
            Err(error) if error.is_silence() => {
                let text = format!("no data for {} s", self.shared.config.idle.as_secs_f64());
                self.outbox.refuse(StreamRefusal::new(ErrorCode::Vanished, text));
            }
            Err(_) => self.outbox.close(),
        }
        if telling.join().is_err() {
            tracing::error!("a thread that sends to a client panicked");
        }
        received
    }

    /// The number that the client has for the run's first frame. Joined processes report places in the file.
    fn first_frame(&self) -> u64 {
        match self.hello.role {
            StreamRole::Writer => 0,
            StreamRole::Frames | StreamRole::Scalars => self.run.request.description.first_frame,
        }
    }

    fn body_bytes_max(&self) -> u64 {
        let description = &self.run.request.description;
        // Incompressible data are a little longer filtered than plain.
        (2 * description.frame_bytes() as u64).max(BODY_BYTES_MIN)
    }

    /// Receives until the final message. `Ok`: the outbox has the final message, or the client is gone.
    fn receive(&mut self, body_bytes_max: u64) -> Result<(), LinkError> {
        while !self.outbox.is_over() {
            let Some((header, message)) = self.incoming.from_client()? else {
                self.outbox.close();
                return Ok(());
            };
            if header.body_bytes > body_bytes_max {
                let text = format!("a body has {} bytes; at most {body_bytes_max} are allowed", header.body_bytes);
                self.outbox.refuse(StreamRefusal::new(ErrorCode::Limit, text));
                return Ok(());
            }
            let taken = match message {
                ToService::Frame { head, again } => self.frames(&header, head, again)?,
                ToService::Scalars(head) => self.scalars(&header, &head)?,
                ToService::End { complete, lost } => return self.end(complete, lost),
                ToService::Ping { flush } => self.ping(flush),
                ToService::Extent { bytes } => self.writer().and_then(|()| self.run.grant(bytes)).map(|extent| {
                    self.outbox.answer(FromService::Extent(extent));
                }),
                ToService::Report { sequence, again } => self.report(&header, sequence, again)?,
                ToService::Hello(_) => Err(StreamRefusal::new(ErrorCode::Protocol, "a second HELLO")),
            };
            if let Err(refusal) = taken {
                self.outbox.refuse(refusal);
            }
        }
        Ok(())
    }

    /// Replies when the scalars received before are written, so that they survive this process.
    fn ping(&self, flush: bool) -> Result<(), StreamRefusal> {
        let failed = |error: WriteError| StreamRefusal::new(ErrorCode::Failed, error.to_string());
        let heed = |sink: &RunSink| {
            if flush {
                sink.flush();
            }
            sink.keep_scalars().map_err(failed)
        };
        match self.run.with(heed) {
            Err(refusal) if refusal.code != ErrorCode::Ended => return Err(refusal),
            _ => self.outbox.pong(),
        }
        Ok(())
    }

    fn writer(&self) -> Result<(), StreamRefusal> {
        match self.hello.role {
            StreamRole::Writer => Ok(()),
            _ => Err(StreamRefusal::new(
                ErrorCode::Protocol,
                "the connection requests space in the file, but its role is not writer",
            )),
        }
    }

    /// Takes a writer's report. A body damaged in transmission ends the connection, and the writer repeats the report.
    fn report(&mut self, header: &Header, sequence: u64, again: bool) -> Result<Result<(), StreamRefusal>, LinkError> {
        let mut body = Vec::new();
        let whole = self.incoming.body(header, self.hello.checksum, &mut body)?;
        let entries = whole.then(|| journal::decode_records(&body)).flatten();
        let Some(entries) = entries else {
            return Ok(Err(StreamRefusal::new(ErrorCode::Protocol, "a writer's report arrived damaged")));
        };
        Ok(self.writer().and_then(|()| self.run.report(entries, again)).map(|()| {
            self.outbox.answer(FromService::Reported(sequence));
        }))
    }

    /// The data that a writer needs to begin.
    fn share(&self) -> Result<ShareHead, StreamRefusal> {
        let run = self.run;
        let description = serde_json::to_string(&run.request.description)
            .map_err(|error| StreamRefusal::new(ErrorCode::Failed, error.to_string()))?;
        let file = run.path.strip_prefix(&self.shared.config.root).unwrap_or(&run.path);
        let file =
            file.to_str().ok_or_else(|| StreamRefusal::new(ErrorCode::Failed, "the file's name is not UTF-8"))?;
        Ok(ShareHead { epoch: run.epoch.fetch_add(1, SeqCst) + 1, file: file.into(), description })
    }

    /// Handles END, after which no messages are read. The outbox gets its final message when the run has ended.
    fn end(&mut self, complete: bool, lost: u64) -> Result<(), LinkError> {
        self.run.tallies.lost.fetch_add(lost, Relaxed);
        let all = self.run.clients.lock().end(self.hello, complete, self.run.request.source_count());
        if all && self.run.request.finish && self.run.is_running() {
            self.run.end_beside(EndKind::Finished, String::new());
        }
        if !complete && self.ended_alone() {
            return Ok(());
        }
        loop {
            if let Some(ended) = self.run.wait_ended(Duration::from_millis(500)) {
                match ended.how {
                    EndKind::Finished => self.outbox.finish(ended.finished),
                    EndKind::Aborted => self.outbox.refuse(StreamRefusal::new(ErrorCode::Ended, "the run was aborted")),
                    EndKind::Failed => self.outbox.refuse(StreamRefusal::new(ErrorCode::Failed, ended.why)),
                }
                return Ok(());
            }
            if self.outbox.is_over() || self.shared.is_stopping() {
                return Ok(());
            }
            if self.incoming.has_ended() {
                // A dead client is removed before the end of the run. A client that only stopped sending is still
                // notified.
                self.place.leave();
            }
        }
    }

    /// Waits until everything received on this connection, that is, everything taken so far, is durable, and confirms
    /// it. `false`: the run has ended before.
    fn ended_alone(&self) -> bool {
        let set = self.outbox.source;
        let taken = self.run.board.frames(set, AckLevel::Memory);
        while self.run.is_running() {
            if self.outbox.is_over() {
                return true;
            }
            let durable = self.run.board.frames(set, AckLevel::Durable);
            if taken.iter().all(|range| durable.covers(&range)) {
                let counts = FinishedHead { frames: taken.end(), received: taken.len(), ..FinishedHead::default() };
                self.outbox.finish(counts);
                return true;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        false
    }
}

/// The sending thread of a connection.
fn send_all_messages(outbox: &Outbox, mut socket: Socket, first_frame: u64) {
    while let Some(mut messages) = outbox.take() {
        messages.iter_mut().for_each(|message| number_from(message, first_frame));
        let reported = messages.iter().try_for_each(|message| send_to_client(&mut socket, message));
        if let Err(error) = reported {
            tracing::debug!("cannot send to a client: {error}");
            outbox.close();
        }
    }
    linger(&socket);
    // The receiving thread may be waiting for data. If the connection is already closed, so is its wait.
    let _ = socket.shutdown(Shutdown::Both);
}

/// Turns the numbers of frames in the run into those of the client.
fn number_from(message: &mut FromService, first_frame: u64) {
    match message {
        FromService::Ack(ack) => ack.frames.iter_mut().for_each(|range| {
            *range = range.start.wrapping_add(first_frame)..range.end.wrapping_add(first_frame);
        }),
        FromService::Notice(notice) if notice.frame != NO_FRAME => {
            notice.frame = notice.frame.wrapping_add(first_frame);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
