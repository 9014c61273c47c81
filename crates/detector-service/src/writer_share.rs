//! A share of a run that another service keeps. This process requests extents from that service and reports what it has
//! written to them. It has one request in flight at a time; acknowledgements arrive in between. A broken connection is
//! re-established, and an unanswered report is repeated.

use super::board::ProgressBoard;
use super::threads::named;
use parking_lot::{Condvar, Mutex};
use std::io;
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use varve_detector_dataset::frame::AckLevel;
use varve_detector_dataset::journal_entry::JournalEntry;
use varve_detector_dataset::ranges::Ranges;
use varve_detector_file::journal;
use varve_detector_stream::link::{Incoming, LinkError, notice_loss, send_to_service};
use varve_detector_stream::tls::ClientTls;
use varve_detector_stream::{
    Ack, BodyChecksum, ErrorCode, FinishedHead, FromService, ShareHead, Socket, StreamHello, StreamRefusal, StreamRole,
    ToService, VERSION, token,
};
use varve_detector_writer::join::Coordinator;

const CONNECT_WAIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(100);
/// How often an idle share checks its connection.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Number of such checks between PINGs.
const LOOKS_A_PING: u32 = 4;
/// Timeout of a reply, for which the coordinator's store may need time. After it the connection is closed and
/// re-established.
const ANSWER_WAIT: Duration = Duration::from_secs(60);
/// Upper limit for the records in one report; far below the limit of a message's body.
const REPORT_BYTES: usize = 4 << 20;
/// Requests acknowledgements of all levels but memory, which is local to this process.
const LEVELS: u8 = 6;

/// Location of the run, and the share of it.
#[derive(Clone, Debug)]
pub struct WriterShareOptions {
    /// Address of the service that keeps the run.
    pub address: String,
    pub run: String,
    /// If empty, the token is used that a service of this user has published on this host, if any.
    pub token: String,
    /// `None`: that service listens without TLS.
    pub tls: Option<ClientTls>,
    /// Number of the source among the run's sources.
    pub source: u16,
    /// How long a broken connection is retried.
    pub retry: Duration,
}

pub struct WriterShare {
    options: WriterShareOptions,
    client: [u8; 16],
    board: Arc<ProgressBoard>,
    /// Locked while a request is in flight. The value is the sequence number of the last report.
    asking: Mutex<u64>,
    link: Mutex<CoordinatorLink>,
    heard: Condvar,
}

#[derive(Default)]
struct CoordinatorLink {
    socket: Option<Socket>,
    /// Number of the connection; messages from earlier connections' threads are ignored.
    generation: u64,
    answer: Option<FromService>,
    leave: bool,
    /// Set when [`WriterShare::leave`] must not wait for the end of the run.
    departed: bool,
    over: Option<Result<FinishedHead, StreamRefusal>>,
    closed: bool,
}

impl CoordinatorLink {
    /// Closes the connection and thereby ends the receiving thread.
    fn cut(&mut self) {
        if let Some(socket) = self.socket.take() {
            // The socket may be closed already, which is the goal.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

impl WriterShare {
    /// Joins the run. Acknowledged frames of the run are posted to `board`.
    ///
    /// # Errors
    /// If the service cannot be reached in time, or refuses.
    pub fn join(
        options: WriterShareOptions,
        board: Arc<ProgressBoard>,
    ) -> Result<(Arc<WriterShare>, ShareHead), StreamRefusal> {
        let share = Arc::new(WriterShare {
            options,
            client: varve_env::random::bytes(),
            board,
            asking: Mutex::new(0),
            link: Mutex::default(),
            heard: Condvar::new(),
        });
        let head = share.reconnect(Instant::now() + share.options.retry)?;
        let mine = Arc::downgrade(&share);
        let attend = move || {
            let mut looks = 0_u32;
            while let Some(share) = mine.upgrade() {
                if share.link.lock().closed {
                    return;
                }
                looks = looks.wrapping_add(1);
                share.attend(looks.is_multiple_of(LOOKS_A_PING));
                drop(share);
                std::thread::sleep(LOOK_INTERVAL);
            }
        };
        named("attend", attend).map_err(|error| StreamRefusal::new(ErrorCode::Failed, error.to_string()))?;
        Ok((share, head))
    }

    /// Maintains the connection while no request is in flight. It re-establishes a broken connection, because
    /// acknowledgements and the end of the run arrive on it. It also sends PINGs, because the service closes a silent
    /// connection.
    fn attend(self: &Arc<Self>, ping: bool) {
        // Messages must not interleave. A thread with a request in flight maintains the connection itself.
        let Some(_asking) = self.asking.try_lock() else { return };
        let mut link = self.link.lock();
        if link.over.is_some() || link.closed {
            return;
        }
        match &mut link.socket {
            Some(socket) => {
                if ping && send_to_service(socket, &ToService::Ping { flush: false }, &[], 0).is_err() {
                    link.cut();
                }
            }
            None => {
                drop(link);
                match self.connect() {
                    Ok(_) => {}
                    Err(refusal) if refusal.code.passes() => {
                        tracing::debug!("cannot reach the run's service: {refusal}");
                    }
                    Err(refusal) => {
                        self.link.lock().over.get_or_insert(Err(refusal));
                    }
                }
            }
        }
    }

    /// Why the run accepts nothing more, if it failed.
    pub fn failure(&self) -> Option<String> {
        match &self.link.lock().over {
            Some(Err(refusal)) => Some(refusal.to_string()),
            _ => None,
        }
    }

    /// Whether the coordinator is ending the run.
    pub fn is_asked_to_leave(&self) -> bool {
        let link = self.link.lock();
        link.leave || matches!(link.over, Some(Ok(_)))
    }

    /// Declares this share complete and waits for the end of the run.
    ///
    /// # Errors
    /// If the run does not end well.
    pub fn leave(self: &Arc<Self>) -> Result<FinishedHead, StreamRefusal> {
        let left = self.exchange(&ToService::End { complete: true, lost: 0 }, &[], None);
        let mut link = self.link.lock();
        link.closed = true;
        link.cut();
        left?;
        match &link.over {
            Some(over) => over.clone(),
            None if link.departed => Err(StreamRefusal::new(
                ErrorCode::Stopping,
                "this share was stopped before the end of the run, which goes on",
            )),
            None => Err(StreamRefusal::new(ErrorCode::Ended, "the run's service disconnected")),
        }
    }

    /// Stops [`WriterShare::leave`] from waiting for the end of the run, which other processes may write for hours.
    pub fn depart(&self) {
        self.link.lock().departed = true;
        self.heard.notify_all();
    }

    /// Sends a request, repeatedly if necessary, until there is a reply. `wait`: timeout of each attempt; `None`: until
    /// the end of the run.
    fn exchange(
        self: &Arc<Self>,
        question: &ToService,
        body: &[u8],
        wait: Option<Duration>,
    ) -> Result<Option<FromService>, StreamRefusal> {
        let mut deadline = Instant::now() + self.options.retry;
        let mut question = question.clone();
        loop {
            if let Some(over) = &self.link.lock().over {
                return over.clone().map(|_| None);
            }
            if self.link.lock().socket.is_none() {
                self.reconnect(deadline)?;
            }
            let generation = {
                let mut link = self.link.lock();
                link.answer = None;
                let generation = link.generation;
                let Some(socket) = &mut link.socket else { continue };
                if send_to_service(socket, &question, &[body], BodyChecksum::Xxh3.of(body)).is_err() {
                    link.cut();
                    continue;
                }
                generation
            };
            let asked = Instant::now();
            let mut link = self.link.lock();
            while link.generation == generation && link.socket.is_some() && link.over.is_none() {
                if let Some(answer) = link.answer.take() {
                    return Ok(Some(answer));
                }
                if wait.is_none() && link.departed {
                    return Ok(None);
                }
                if wait.is_some_and(|wait| asked.elapsed() > wait) {
                    link.cut();
                    break;
                }
                // Other processes may continue the run for hours.
                deadline = if wait.is_none() { Instant::now() + self.options.retry } else { deadline };
                self.heard.wait_for(&mut link, Duration::from_secs(1));
            }
            drop(link);
            if let ToService::Report { again, .. } = &mut question {
                *again = true;
            }
        }
    }

    /// Tries to connect until `deadline`, and starts the receiving thread.
    fn reconnect(self: &Arc<Self>, deadline: Instant) -> Result<ShareHead, StreamRefusal> {
        loop {
            match self.connect() {
                Ok(head) => return Ok(head),
                Err(refusal) if !refusal.code.passes() || Instant::now() > deadline => {
                    self.link.lock().over.get_or_insert(Err(refusal.clone()));
                    return Err(refusal);
                }
                Err(refusal) if self.link.lock().departed => return Err(refusal),
                Err(refusal) => tracing::debug!("cannot reach the run's service: {refusal}"),
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn connect(self: &Arc<Self>) -> Result<ShareHead, StreamRefusal> {
        let cannot = |error: io::Error| {
            let code = match error.kind() {
                // The address is not HOST:PORT, or TLS fails with an untrusted certificate; retries do not help.
                io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => ErrorCode::Description,
                _ => ErrorCode::Vanished,
            };
            StreamRefusal::new(code, format!("cannot reach {}: {error}", self.options.address))
        };
        let broken = |error: LinkError| StreamRefusal::new(ErrorCode::Stopping, error.to_string());
        let mut addresses = self.options.address.to_socket_addrs().map_err(cannot)?;
        let address =
            addresses.next().ok_or_else(|| cannot(io::Error::other("the name does not resolve to an address")))?;
        let socket = TcpStream::connect_timeout(&address, CONNECT_WAIT).map_err(cannot)?;
        socket.set_nodelay(true).and_then(|()| notice_loss(&socket, ANSWER_WAIT)).map_err(cannot)?;
        let token = token::for_peer(&self.options.token, address)
            .map_err(|error| StreamRefusal::new(ErrorCode::Token, error.to_string()))?;
        let mut socket = match &self.options.tls {
            None => Socket::from(socket),
            Some(tls) => tls.connect(socket, &self.options.address, ANSWER_WAIT).map_err(cannot)?,
        };
        socket.set_read_timeout(Some(ANSWER_WAIT)).map_err(cannot)?;
        socket.set_write_timeout(Some(ANSWER_WAIT)).map_err(cannot)?;
        let hello = StreamHello {
            version: VERSION,
            newest: 0,
            role: StreamRole::Writer,
            checksum: BodyChecksum::Xxh3,
            levels: LEVELS,
            source: self.options.source,
            connection: 0,
            connections: 1,
            patience: None,
            client: self.client,
            run: self.options.run.clone(),
            token,
            start: String::new(),
        };
        send_to_service(&mut socket, &ToService::Hello(hello), &[], 0).map_err(cannot)?;
        send_to_service(&mut socket, &ToService::Ping { flush: false }, &[], 0).map_err(cannot)?;
        let mut incoming = Incoming::new(socket.try_clone().map_err(cannot)?);
        let mut reported = None;
        loop {
            match incoming.from_service().map_err(broken)? {
                Some(FromService::Share(head)) => reported = Some(head),
                Some(FromService::Ack(ack)) => self.post(&ack),
                Some(FromService::Pong) => {
                    let head =
                        reported.ok_or_else(|| StreamRefusal::new(ErrorCode::Protocol, "the service sent no share"))?;
                    // From here on only the kernel detects a lost peer; the peer may be silent.
                    socket.set_read_timeout(None).map_err(cannot)?;
                    let generation = {
                        let mut link = self.link.lock();
                        if link.closed {
                            return Err(StreamRefusal::new(ErrorCode::Stopping, "this process has left the run"));
                        }
                        link.generation += 1;
                        link.socket = Some(socket);
                        link.generation
                    };
                    let mine = Arc::clone(self);
                    named("hear", move || mine.hear(incoming, generation)).map_err(cannot)?;
                    return Ok(head);
                }
                Some(FromService::Error(refusal)) => return Err(refusal),
                Some(_) => {}
                None => return Err(StreamRefusal::new(ErrorCode::Stopping, "the service closed the connection")),
            }
        }
    }

    /// Posts acknowledged frames. Frames in the file need not be sent again. Frames in another process's memory do not
    /// count.
    fn post(&self, ack: &Ack) {
        if ack.level > AckLevel::Memory {
            let mut ranges = Ranges::default();
            ack.frames.iter().for_each(|range| ranges.add(range.clone()));
            self.board.post_ranges(0, AckLevel::Memory, &ranges);
            self.board.post_ranges(0, ack.level, &ranges);
        }
    }

    fn hear(&self, mut incoming: Incoming, generation: u64) {
        loop {
            let heard = incoming.from_service();
            if let Ok(Some(FromService::Ack(ack))) = &heard {
                self.post(ack);
                continue;
            }
            let mut link = self.link.lock();
            if link.generation != generation {
                return;
            }
            match heard {
                Ok(Some(FromService::Finished(finished))) => link.over = Some(Ok(finished)),
                Ok(Some(FromService::Error(refusal))) if !refusal.code.passes() => link.over = Some(Err(refusal)),
                Ok(Some(FromService::Leave)) => link.leave = true,
                Ok(Some(answer @ (FromService::Extent(_) | FromService::Reported(_)))) => link.answer = Some(answer),
                Ok(Some(FromService::Error(_)) | None) | Err(_) => link.cut(),
                Ok(Some(_)) => continue,
            }
            let over = link.socket.is_none() || link.over.is_some();
            drop(link);
            self.heard.notify_all();
            if over {
                return;
            }
        }
    }
}

/// The coordinator's interface for the writer's threads.
pub struct CoordinatorHandle(pub Arc<WriterShare>);

impl Coordinator for CoordinatorHandle {
    fn extent(&self, bytes: u64) -> io::Result<Range<u64>> {
        let _asking = self.0.asking.lock();
        match self.0.exchange(&ToService::Extent { bytes }, &[], Some(ANSWER_WAIT)).map_err(io::Error::other)? {
            Some(FromService::Extent(extent)) if extent.end - extent.start >= bytes => Ok(extent),
            _ => Err(io::Error::other("the run has ended")),
        }
    }

    fn report(&self, entries: Vec<JournalEntry>) -> io::Result<()> {
        let mut entries = entries.iter().peekable();
        while entries.peek().is_some() {
            let mut body = Vec::new();
            while let Some(entry) = entries.next_if(|_| body.len() < REPORT_BYTES) {
                journal::encode(entry, &mut body);
            }
            let mut asking = self.0.asking.lock();
            *asking += 1;
            let question = ToService::Report { sequence: *asking, again: false };
            match self.0.exchange(&question, &body, Some(ANSWER_WAIT)).map_err(io::Error::other)? {
                Some(FromService::Reported(sequence)) if sequence == *asking => {}
                _ => return Err(io::Error::other("the run has ended before this share was reported")),
            }
        }
        Ok(())
    }
}
