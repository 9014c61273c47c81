//! One connection of a client: a sending thread that also connects, and a receiving thread. A broken connection is
//! re-established, and everything that was sent on it without arriving is sent again.

use super::options::ClientError;
use super::outgoing::Outgoing;
use super::state::{ClientShared, Ending, QueuedItem};
use crate::link::{Incoming, LinkError, hold_little, notice_loss, send_to_service};
use crate::{
    Ack, ErrorCode, FrameHead, FromService, NEWEST_VERSION, Socket, StreamHello, StreamRefusal, StreamWelcome,
    ToService, VERSION, level_bit, token,
};
use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use varve_detector_dataset::ranges::Ranges;

const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// Pause between connection attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// Pause before retrying a full service; many clients may wait for the same slot.
const FULL_PAUSE: Duration = Duration::from_millis(500);
/// Timeout for the reply to HELLO, which comes when the store has created the file, and for a sign that the service's
/// host is alive or takes data. A shorter retry time shortens it, down to the minimum.
const ANSWER_WAIT: Duration = Duration::from_secs(30);
const ANSWER_WAIT_MIN: Duration = Duration::from_secs(5);
/// How long scalars wait for others before one PING asks for confirmation of all of them.
const SCALARS_WAIT: Duration = Duration::from_millis(50);

/// Runs until the client is closed or has failed.
pub fn run(shared: &Arc<ClientShared>, number: u16) {
    // Frames sent on this connection that may have to be sent again.
    let mut sent = BTreeMap::new();
    let mut since = Instant::now();
    let mut crowded = false;
    loop {
        if is_over(shared) {
            return;
        }
        let mut full = false;
        let why = match connect(shared, number) {
            Ok((socket, incoming, welcome, there)) => {
                let broken = converse(shared, (number, socket, incoming), &welcome, (&there, &mut sent));
                // The connection worked until now, so the retry time starts again.
                (since, crowded) = (Instant::now(), false);
                match broken {
                    Some(why) => why,
                    None => return,
                }
            }
            Err(Attempt::Refused(refusal)) if !shared.state.lock().passes(&refusal) => {
                return fail(shared, refusal.into());
            }
            Err(Attempt::Refused(refusal)) if refusal.code == ErrorCode::Full => {
                full = true;
                refusal.text
            }
            Err(Attempt::Hopeless(why)) => {
                return fail(shared, ClientError::Unreachable { address: shared.options.address.clone(), why });
            }
            Err(attempt) => attempt.to_string(),
        };
        let (address, waited) = (&shared.options.address, shared.options.retry);
        if since.elapsed() > waited {
            let address = address.clone();
            return fail(
                shared,
                match full || crowded {
                    true => ClientError::Full { address, waited, why },
                    false => ClientError::Unreachable { address, why },
                },
            );
        }
        if full && !crowded {
            tracing::warn!(address, "waiting up to {waited:?} for a free connection: {why}");
        }
        // A service that is full beyond its reserve closes connections without a reply.
        crowded |= full;
        tracing::debug!(number, "reconnecting: {why}");
        std::thread::sleep(if full { FULL_PAUSE } else { PAUSE });
    }
}

fn is_over(shared: &ClientShared) -> bool {
    let state = shared.state.lock();
    state.closed || state.failed.is_some() || state.finished.is_some()
}

fn fail(shared: &ClientShared, error: ClientError) {
    shared.state.lock().failed.get_or_insert(error);
    shared.changed.notify_all();
}

#[derive(Debug, thiserror::Error)]
enum Attempt {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Refused(StreamRefusal),
    /// The next attempt would fail in the same way.
    #[error("{0}")]
    Hopeless(String),
}

/// Connects and returns the WELCOME and the frames that the service already has.
fn connect(shared: &ClientShared, number: u16) -> Result<(Socket, Incoming, StreamWelcome, Ranges), Attempt> {
    let options = &shared.options;
    let address = options.address.to_socket_addrs()?.next();
    let address = address.ok_or_else(|| io::Error::other("the name does not resolve to an address"))?;
    let socket = TcpStream::connect_timeout(&address, CONNECT_WAIT)?;
    socket.set_nodelay(true)?;
    hold_little(&socket)?;
    let wait = options.retry.clamp(ANSWER_WAIT_MIN, ANSWER_WAIT);
    notice_loss(&socket, wait)?;
    let token = token::for_peer(&options.token, address).map_err(|error| Attempt::Hopeless(error.to_string()))?;
    let mut socket = match &options.tls {
        None => Socket::from(socket),
        Some(tls) => tls.connect(socket, &options.address, wait).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => Attempt::Hopeless(error.to_string()),
            _ => Attempt::Io(error),
        })?,
    };
    socket.set_read_timeout(Some(wait))?;
    let hello = StreamHello {
        version: VERSION,
        newest: NEWEST_VERSION as u8,
        role: options.role,
        checksum: options.checksum,
        levels: level_bit(options.level),
        source: options.source,
        connection: number,
        connections: options.connections,
        patience: options.patience,
        client: shared.id,
        run: options.run.clone(),
        token,
        start: options.start.clone(),
    };
    send_to_service(&mut socket, &ToService::Hello(hello), &[], 0)?;
    send_to_service(&mut socket, &ToService::Ping { flush: false }, &[], 0)?;
    let mut incoming = Incoming::new(socket.try_clone()?);
    let (mut welcome, mut there) = (None, Ranges::default());
    loop {
        let silent = |error: LinkError| match error.is_silence() {
            true => io::Error::new(io::ErrorKind::TimedOut, format!("no reply for {wait:?}")).into(),
            false => Attempt::from(error),
        };
        let said = incoming.from_service().map_err(silent)?;
        match said.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))? {
            FromService::Welcome(said) => welcome = Some(said),
            FromService::Ack(ack) => {
                ack.frames.iter().for_each(|range| there.add(range.clone()));
                acknowledge(shared, &ack);
            }
            FromService::Error(refusal) => return Err(Attempt::Refused(refusal)),
            FromService::Pong => break,
            FromService::Notice(_) | FromService::Finished(_) => {}
            other => return Err(unexpected(&other)),
        }
    }
    let welcome = welcome
        .ok_or_else(|| StreamRefusal::new(ErrorCode::Protocol, "the service sent no WELCOME"))
        .map_err(Attempt::Refused)?;
    // From here on the kernel detects a lost peer; the service may stay silent.
    socket.set_read_timeout(None)?;
    Ok((socket, incoming, welcome, there))
}

fn unexpected(message: &FromService) -> Attempt {
    Attempt::Refused(StreamRefusal::new(ErrorCode::Protocol, format!("unexpected message to a client: {message:?}")))
}

fn acknowledge(shared: &ClientShared, ack: &Ack) {
    shared.state.lock().acknowledge(ack.level, shared.options.level, &ack.frames);
    shared.changed.notify_all();
}

/// Sends until the connection breaks, and returns the reason; `None`: everything is done.
fn converse(
    shared: &Arc<ClientShared>,
    (number, mut socket, incoming): (u16, Socket, Incoming),
    welcome: &StreamWelcome,
    (there, sent): (&Ranges, &mut BTreeMap<u64, Arc<Outgoing>>),
) -> Option<String> {
    {
        let mut state = shared.state.lock();
        state.welcomed = state.welcomed.max(number + 1);
        state.version = welcome.version;
        sent.retain(|number, _| state.kept.contains_key(number));
        for out in sent.values().rev().filter(|out| !there.covers(&out.numbers())) {
            state.waiting.push_front(QueuedItem::Frames { out: Arc::clone(out), again: true });
        }
        for scalars in state.sent_scalars.take(number).into_iter().rev() {
            state.waiting.push_front(QueuedItem::Scalars(scalars));
        }
    }
    shared.changed.notify_all();
    let broken = Arc::new(AtomicBool::new(false));
    let (mine, flag) = (Arc::clone(shared), Arc::clone(&broken));
    let hearing = std::thread::Builder::new().name(format!("hear-{number}")).spawn(move || {
        let why = hear(&mine, number, incoming);
        flag.store(true, SeqCst);
        mine.changed.notify_all();
        why
    });
    let hearing = match hearing {
        Ok(hearing) => hearing,
        Err(error) => return Some(error.to_string()),
    };
    let spoken = speak(shared, number, &mut socket, welcome, (&broken, sent));
    // The socket may be gone already; the shutdown makes the receiving thread notice.
    let _ = socket.shutdown(Shutdown::Both);
    let heard = hearing.join().unwrap_or_else(|_| Some("the receiving thread panicked".into()));
    if is_over(shared) {
        return None;
    }
    Some(
        spoken
            .err()
            .map(|error| error.to_string())
            .or(heard)
            .unwrap_or_else(|| "the service closed the connection".into()),
    )
}

/// Receives from the service until the connection ends.
fn hear(shared: &ClientShared, number: u16, mut incoming: Incoming) -> Option<String> {
    let mut pongs = 0;
    loop {
        match incoming.from_service() {
            Ok(Some(FromService::Ack(ack))) => acknowledge(shared, &ack),
            Ok(Some(FromService::Notice(notice))) => {
                shared.state.lock().take_notice(number, notice, shared.options.level);
                shared.changed.notify_all();
            }
            Ok(Some(FromService::Error(refusal))) => {
                let passes = shared.state.lock().passes(&refusal);
                if !passes {
                    fail(shared, refusal.clone().into());
                }
                return Some(refusal.to_string());
            }
            Ok(Some(FromService::Finished(finished))) => {
                shared.state.lock().finished = Some(finished);
                shared.changed.notify_all();
                return None;
            }
            Ok(Some(FromService::Pong)) => {
                pongs += 1;
                let state = &mut *shared.state.lock();
                state.sent_scalars.hear(number, pongs, &state.kept);
                shared.changed.notify_all();
            }
            Ok(Some(FromService::Welcome(_))) => {}
            Ok(Some(other)) => return Some(unexpected(&other).to_string()),
            Ok(None) => return None,
            Err(error) => return Some(error.to_string()),
        }
    }
}

enum NextMessage {
    Item(QueuedItem),
    End { complete: bool, lost: u64 },
    Ping { flush: bool },
    Over,
}

fn speak(
    shared: &ClientShared,
    number: u16,
    socket: &mut Socket,
    welcome: &StreamWelcome,
    (broken, sent): (&AtomicBool, &mut BTreeMap<u64, Arc<Outgoing>>),
) -> io::Result<()> {
    let mut reported =
        ConnectionState { number, idle: welcome.idle / 3, ended: false, pings: 0, flushed: 0, unsure: None };
    loop {
        match next(shared, broken, &mut reported) {
            NextMessage::Item(QueuedItem::Frames { out, again }) => {
                sent.insert(out.number, Arc::clone(&out));
                if sent.len() > 64 {
                    let state = shared.state.lock();
                    sent.retain(|number, _| state.kept.contains_key(number));
                }
                send_frames(shared, socket, &out, again)?;
            }
            NextMessage::Item(QueuedItem::Scalars(scalars)) => {
                // This service may be older than the one before.
                if let Err(error) = scalars.check(welcome.version) {
                    fail(shared, error.into());
                    return Ok(());
                }
                let body = scalars.head.body(&scalars.rows);
                let sum = shared.options.checksum.of(&body);
                send_to_service(socket, &ToService::Scalars(scalars.head.clone()), &[&body], sum)?;
            }
            NextMessage::End { complete, lost } => {
                reported.ended = true;
                send_to_service(socket, &ToService::End { complete, lost }, &[], 0)?;
            }
            NextMessage::Ping { flush } => {
                (reported.pings, reported.unsure) = (reported.pings + 1, None);
                send_to_service(socket, &ToService::Ping { flush }, &[], 0)?;
            }
            NextMessage::Over => return Ok(()),
        }
    }
}

/// State of one connection's sent messages.
struct ConnectionState {
    number: u16,
    /// Maximum interval between PINGs.
    idle: Duration,
    ended: bool,
    pings: u64,
    /// Value of `flushes` when the service last received a PING with `flush`.
    flushed: u64,
    /// When the first scalars were sent that no PING has followed yet.
    unsure: Option<Instant>,
}

fn next(shared: &ClientShared, broken: &AtomicBool, reported: &mut ConnectionState) -> NextMessage {
    let deadline = Instant::now() + reported.idle;
    let mut state = shared.state.lock();
    loop {
        if state.closed || state.failed.is_some() || state.finished.is_some() || broken.load(SeqCst) {
            return NextMessage::Over;
        }
        // This holds however many frames are queued.
        let deadline = reported.unsure.map_or(deadline, |since| deadline.min(since + SCALARS_WAIT));
        if reported.unsure.is_some() && Instant::now() >= deadline {
            return NextMessage::Ping { flush: false };
        }
        // The service reads nothing after END.
        if !reported.ended
            && let Some(item) = state.waiting.pop_front()
        {
            if let QueuedItem::Scalars(scalars) = &item {
                state.sent_scalars.add(reported.number, reported.pings + 1, Arc::clone(scalars));
                reported.unsure.get_or_insert_with(Instant::now);
            }
            return NextMessage::Item(item);
        }
        // Each connection sends the flush after its own frames.
        if reported.flushed < state.flushes && !reported.ended {
            reported.flushed = state.flushes;
            if !state.kept.is_empty() {
                return NextMessage::Ping { flush: true };
            }
        }
        if let Some(ending) = state.ending
            && !reported.ended
            && state.is_settled()
        {
            // Only the first connection reports the count; it reports it again after a reconnect.
            let lost = if reported.number == 0 { state.lost } else { 0 };
            return NextMessage::End { complete: ending == Ending::Source, lost };
        }
        if shared.changed.wait_until(&mut state, deadline).timed_out() {
            return NextMessage::Ping { flush: false };
        }
    }
}

fn send_frames(shared: &ClientShared, socket: &mut Socket, out: &Outgoing, again: bool) -> io::Result<()> {
    let chunks =
        if out.filter.is_empty() { Vec::new() } else { out.parts.iter().map(|part| part.len() as u32).collect() };
    let head = FrameHead {
        number: out.number,
        taken: out.taken,
        element: out.element,
        frames: out.frames,
        sides: out.sides.clone(),
        filter: out.filter.clone(),
        chunks,
    };
    let parts: Vec<&[u8]> = out.parts.iter().map(Vec::as_slice).collect();
    let sum = shared.options.checksum.of_parts(&parts);
    send_to_service(socket, &ToService::Frame { head, again }, &parts, sum)
}
