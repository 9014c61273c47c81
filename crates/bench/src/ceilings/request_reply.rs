//! The bare request-reply rate over Unix sockets: clients send frames as long as a create request and receive frames as
//! long as its reply, and neither side processes them.
//!
//! The module tries six servers, because the best one depends on the machine and the number of clients: one thread per
//! connection, worker threads that each wait for many connections, or one thread that waits for all, like the worker of
//! a directory in one shard. Each of the three sleeps at once or polls for 20 µs before it sleeps (an idle processor
//! takes longer than that to wake). Clients wait the way their server does.

use super::REQUEST_REPLY;
use crate::measure::Gate;
use crate::{Error, Result, interrupt};
use rustix::event::epoll;
use rustix::net::{RecvFlags, SendFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::Builder;
use std::time::{Duration, Instant};
use varve_proto::{
    Call, CallId, FileContent, NewNode, NodeReply, Reply, Request, Response, WireAttributes, WireCredentials, WireKind,
    WireTime, frame,
};

/// Duration of each variant, per turn.
const TIME: Duration = Duration::from_millis(300);
/// Polling time before a sleep.
const SPIN: Duration = Duration::from_micros(20);

#[derive(Clone, Copy, PartialEq)]
enum WaitMode {
    Blocking,
    Spinning,
}

#[derive(Clone, Copy, PartialEq)]
enum ServerModel {
    ThreadAConnection,
    Workers,
    OneThread,
}

const VARIANTS: [(&str, ServerModel, WaitMode); 6] = [
    ("request-reply/threads-blocking", ServerModel::ThreadAConnection, WaitMode::Blocking),
    ("request-reply/threads-spinning", ServerModel::ThreadAConnection, WaitMode::Spinning),
    ("request-reply/workers-blocking", ServerModel::Workers, WaitMode::Blocking),
    ("request-reply/workers-spinning", ServerModel::Workers, WaitMode::Spinning),
    ("request-reply/one-blocking", ServerModel::OneThread, WaitMode::Blocking),
    ("request-reply/one-spinning", ServerModel::OneThread, WaitMode::Spinning),
];

/// Round trips a second of all `clients` together, for each variant. The ceiling [`REQUEST_REPLY`] is the variant with
/// the best median. Taking the best variant of each turn would give a rate that no server reaches.
pub fn measure(clients: usize, workers: usize) -> Result<Vec<(&'static str, f64)>> {
    let sizes = MessageSizes::of_a_create()?;
    let mut rates = Vec::with_capacity(VARIANTS.len());
    for (name, server, waiting) in VARIANTS {
        interrupt::check()?;
        let rate = run(server, waiting, clients, workers.clamp(1, clients), sizes)
            .map_err(|error| Error::Ceiling { name: REQUEST_REPLY, reason: error.to_string() })?;
        rates.push((name, rate));
    }
    Ok(rates)
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MessageSizes {
    pub(super) request: usize,
    pub(super) reply: usize,
}

impl MessageSizes {
    /// The frames of a create in a shared directory, as Varve sends them.
    pub(super) fn of_a_create() -> Result<MessageSizes> {
        let id = CallId { session: u64::MAX / 3, slot: 5, number: 1_000_000 };
        let time = WireTime { seconds: 1_800_000_000, nanoseconds: 123_456_789 };
        let call = Call::Create {
            parent: (7 << 48) | 100,
            name: b"file.mdtest.5.12345".to_vec(),
            node: NewNode::Regular,
            mode: 0o644,
            open: false,
        };
        let credentials = WireCredentials::user(1000, 1000, vec![1000, 27]);
        let request = Request { id, shard: 9, credentials, released: Vec::new(), call };
        let attributes = WireAttributes {
            kind: WireKind::Regular,
            mode: 0o644,
            uid: 1000,
            gid: 1000,
            nlink: 1,
            size: 0,
            rdev: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
        };
        let content = FileContent::Inline { data: None };
        let node = NodeReply { inode: (9 << 48) | 1_000_000, attributes, content, generation: 0, by_inode: false };
        let response = Response { id, result: Ok(Reply::Node(node)) };
        let fail = |error: frame::FrameError| Error::Ceiling { name: REQUEST_REPLY, reason: error.to_string() };
        let (mut sent, mut answered) = (Vec::new(), Vec::new());
        frame::encode(&request, &mut sent).map_err(fail)?;
        frame::encode(&response, &mut answered).map_err(fail)?;
        Ok(MessageSizes { request: sent.len(), reply: answered.len() })
    }
}

fn run(server: ServerModel, waiting: WaitMode, clients: usize, workers: usize, sizes: MessageSizes) -> io::Result<f64> {
    let pairs = (0..clients).map(|_| UnixStream::pair()).collect::<io::Result<Vec<_>>>()?;
    let (near, far): (Vec<UnixStream>, Vec<UnixStream>) = pairs.into_iter().unzip();
    let groups: Vec<Vec<UnixStream>> = match server {
        ServerModel::ThreadAConnection => far.into_iter().map(|socket| vec![socket]).collect(),
        ServerModel::Workers => {
            let mut groups: Vec<Vec<UnixStream>> = (0..workers).map(|_| Vec::new()).collect();
            far.into_iter().enumerate().for_each(|(i, socket)| groups[i % workers].push(socket));
            groups
        }
        ServerModel::OneThread => vec![far],
    };
    let (stop, start) = (&AtomicBool::new(false), &Gate::new(clients + 1));
    std::thread::scope(|scope| {
        let servers: Vec<_> = groups
            .into_iter()
            .map(|sockets| {
                Builder::new().spawn_scoped(scope, move || match (server, sockets) {
                    (ServerModel::ThreadAConnection, sockets) => serve_one(&sockets[0], waiting, sizes),
                    (ServerModel::Workers | ServerModel::OneThread, sockets) => serve_many(&sockets, waiting, sizes),
                })
            })
            .collect();
        let begin = |socket| Builder::new().spawn_scoped(scope, move || call(socket, waiting, sizes, start, stop));
        let callers: Vec<_> = near.into_iter().map(begin).collect();
        if servers.iter().any(|server| server.is_err()) || callers.iter().any(|caller| caller.is_err()) {
            start.give_up();
        }
        if start.wait() {
            std::thread::sleep(TIME);
        }
        stop.store(true, Relaxed);
        let mut total = RoundTrips::default();
        let mut outcome = Ok(());
        for caller in callers {
            let Ok(caller) = caller.map_err(|error| outcome = Err(error)) else { continue };
            match caller.join() {
                Ok(Ok(calls)) => total.add(calls),
                Ok(Err(error)) => outcome = Err(error),
                Err(_) => outcome = Err(io::Error::other("a client panicked")),
            }
        }
        // The clients' sockets are closed by now, which ends the servers.
        for server in servers {
            let Ok(server) = server.map_err(|error| outcome = Err(error)) else { continue };
            match server.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => outcome = Err(error),
                Err(_) => outcome = Err(io::Error::other("a server thread panicked")),
            }
        }
        outcome.map(|()| total.per_second())
    })
}

/// Round trips and when they were made. The rate of several clients is the number of all their calls divided by the
/// time from the first client's start to the last client's end. The sum of the clients' own rates would count a client
/// twice that waited for a processor.
#[derive(Default)]
struct RoundTrips {
    number: u64,
    span: Option<(Instant, Instant)>,
}

impl RoundTrips {
    fn add(&mut self, other: RoundTrips) {
        self.number += other.number;
        self.span = match (self.span, other.span) {
            (Some((begun, ended)), Some((other_begun, other_ended))) => {
                Some((begun.min(other_begun), ended.max(other_ended)))
            }
            (one, other) => one.or(other),
        };
    }

    fn per_second(&self) -> f64 {
        self.span.map_or(0.0, |(begun, ended)| self.number as f64 / (ended - begun).as_secs_f64().max(1e-9))
    }
}

/// Runs one client. Its socket is closed at the end.
fn call(
    socket: UnixStream,
    waiting: WaitMode,
    sizes: MessageSizes,
    start: &Gate,
    stop: &AtomicBool,
) -> io::Result<RoundTrips> {
    let request = vec![0x5a; sizes.request];
    let mut reply = vec![0; sizes.reply];
    if !start.wait() {
        return Ok(RoundTrips::default());
    }
    let begun = Instant::now();
    let mut calls = 0_u64;
    while !stop.load(Relaxed) {
        send(socket.as_fd(), &request)?;
        if !receive(socket.as_fd(), &mut reply, waiting)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        calls += 1;
    }
    Ok(RoundTrips { number: calls, span: Some((begun, Instant::now())) })
}

fn serve_one(socket: &UnixStream, waiting: WaitMode, sizes: MessageSizes) -> io::Result<()> {
    let mut request = vec![0; sizes.request];
    let reply = vec![0xa5; sizes.reply];
    while receive(socket.as_fd(), &mut request, waiting)? {
        send(socket.as_fd(), &reply)?;
    }
    Ok(())
}

fn serve_many(sockets: &[UnixStream], waiting: WaitMode, sizes: MessageSizes) -> io::Result<()> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (i, socket) in sockets.iter().enumerate() {
        epoll::add(&epoll, socket, epoll::EventData::new_u64(i as u64), epoll::EventFlags::IN)?;
    }
    let mut request = vec![0; sizes.request];
    let reply = vec![0xa5; sizes.reply];
    let mut open = sockets.len();
    let mut events: Vec<epoll::Event> = Vec::with_capacity(sockets.len());
    while open > 0 {
        wait(&epoll, &mut events, waiting)?;
        for event in &events {
            let socket = &sockets[event.data.u64() as usize];
            // A client sends a request in one piece and waits for the reply, so the whole request is available.
            if receive(socket.as_fd(), &mut request, WaitMode::Blocking)? {
                send(socket.as_fd(), &reply)?;
            } else {
                epoll::delete(&epoll, socket)?;
                open -= 1;
            }
        }
    }
    Ok(())
}

fn wait(epoll: &OwnedFd, events: &mut Vec<epoll::Event>, waiting: WaitMode) -> io::Result<()> {
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    let begun = Instant::now();
    while waiting == WaitMode::Spinning && begun.elapsed() < SPIN {
        events.clear();
        epoll::wait(epoll, rustix::buffer::spare_capacity(events), Some(&now))?;
        if !events.is_empty() {
            return Ok(());
        }
    }
    events.clear();
    match epoll::wait(epoll, rustix::buffer::spare_capacity(events), None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn send(socket: BorrowedFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Fills `buffer`; `false` where the peer closed the connection before its first byte.
fn receive(socket: BorrowedFd, buffer: &mut [u8], waiting: WaitMode) -> io::Result<bool> {
    let mut filled = 0;
    let mut spun: Option<Instant> = None;
    let mut block = waiting == WaitMode::Blocking;
    while filled < buffer.len() {
        let flags = if block { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        match rustix::net::recv(socket, &mut buffer[filled..], flags) {
            Ok((_, 0)) if filled == 0 => return Ok(false),
            Ok((_, 0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((_, received)) => filled += received,
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => {
                std::hint::spin_loop();
                block = spun.get_or_insert_with(Instant::now).elapsed() >= SPIN;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}
