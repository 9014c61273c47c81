//! Clients of a run. Each source belongs to one client, which has a number of connections. Pure except that it closes
//! sockets.

use super::board::Outbox;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};
use varve_detector_stream::{ErrorCode, Socket, StreamHello, StreamRefusal, StreamRole};

/// Limit for the clients that a run remembers: one for each source, and as many for scalars. Clients beyond it learn of
/// the run's end only on their existing connection.
const KNOWN_MAX: usize = 2048;

/// Time for clients of a service that died to reconnect, in addition to the run's absence time.
const RETURN_WAIT: Duration = Duration::from_secs(30);

/// An open connection.
pub struct ClientConnection {
    pub outbox: Arc<Outbox>,
    pub socket: Socket,
    /// Whether the client is a joined process that writes its share itself.
    pub writes: bool,
}

impl ClientConnection {
    /// Ends both threads of the connection.
    fn cut(&self) {
        self.outbox.close();
        // The socket may be closed already, which is the goal.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

struct SourceOwner {
    client: [u8; 16],
    connections: u16,
    client_connections: HashMap<u16, ClientConnection>,
    /// Connections that have sent END. The value is whether the client declared everything complete.
    ended: BTreeMap<u16, bool>,
    /// When a connection last closed or sent END.
    left: Instant,
}

#[derive(Default)]
pub struct Clients {
    sources: HashMap<u16, SourceOwner>,
    /// Connections for scalars, which are not exclusive.
    others: usize,
    /// All clients that ever connected.
    known: BTreeSet<[u8; 16]>,
    /// When the last connection closed; may lie in the future. `None` before the first connection and while one is
    /// open.
    left: Option<Instant>,
}

/// Checks that the source exists; its owner does not matter.
pub fn check_source(hello: &StreamHello, sources: u16) -> Result<(), StreamRefusal> {
    if hello.role == StreamRole::Scalars || hello.source < sources {
        return Ok(());
    }
    let text =
        format!("there is no source {}: this service has {sources} sources of the run, counted from 0", hello.source);
    Err(StreamRefusal::new(ErrorCode::Unknown, text))
}

impl Clients {
    /// Registers a new connection.
    pub fn sit(
        &mut self,
        hello: &StreamHello,
        sources: u16,
        absence: Duration,
        client_connection: ClientConnection,
    ) -> Result<(), StreamRefusal> {
        self.client_connection(hello, sources, absence, client_connection)?;
        if self.known.len() < KNOWN_MAX {
            self.known.insert(hello.client);
        }
        Ok(())
    }

    fn client_connection(
        &mut self,
        hello: &StreamHello,
        sources: u16,
        absence: Duration,
        client_connection: ClientConnection,
    ) -> Result<(), StreamRefusal> {
        if hello.role == StreamRole::Scalars {
            self.others += 1;
            self.left = None;
            return Ok(());
        }
        check_source(hello, sources)?;
        if let Some(owner) = self.sources.get(&hello.source)
            && owner.client != hello.client
        {
            let source = hello.source;
            if owner.is_complete() {
                let text = format!("source {source} is complete: its client has ended it");
                return Err(StreamRefusal::new(ErrorCode::Ended, text));
            }
            // Frames of a writer are reported or lost, so another writer may replace it at once.
            let awaited = hello.role != StreamRole::Writer && owner.left.elapsed() < absence;
            if !owner.client_connections.is_empty() || awaited {
                let text = format!(
                    "source {source} of this run belongs to another client, {}; stop that one, or start a run of your own",
                    if owner.client_connections.is_empty() {
                        "which may still reconnect"
                    } else {
                        "which is connected"
                    }
                );
                return Err(StreamRefusal::new(ErrorCode::Busy, text));
            }
            self.sources.remove(&source);
        }
        let owner = self.sources.entry(hello.source).or_insert_with(|| SourceOwner {
            client: hello.client,
            connections: hello.connections,
            client_connections: HashMap::new(),
            ended: BTreeMap::new(),
            left: Instant::now(),
        });
        owner.connections = hello.connections;
        if owner.ended.get(&hello.connection) == Some(&false) {
            // Only this connection had ended, and its client now sends more.
            owner.ended.remove(&hello.connection);
        }
        if let Some(before) = owner.client_connections.insert(hello.connection, client_connection) {
            before.cut();
        }
        self.left = None;
        Ok(())
    }

    /// Waits for clients of the previous service. They count as present for [`RETURN_WAIT`], because they may retry
    /// seldom, and then as absent.
    pub fn await_return(&mut self) {
        self.left = Some(Instant::now() + RETURN_WAIT);
    }

    /// Clients that took part.
    pub fn known(&self) -> Vec<[u8; 16]> {
        self.known.iter().copied().collect()
    }

    /// Removes a closed connection.
    pub fn leave(&mut self, hello: &StreamHello, outbox: &Arc<Outbox>) {
        if hello.role == StreamRole::Scalars {
            self.others -= 1;
        } else if let Some(owner) = self.sources.get_mut(&hello.source)
            && owner
                .client_connections
                .get(&hello.connection)
                .is_some_and(|client_connection| Arc::ptr_eq(&client_connection.outbox, outbox))
        {
            owner.client_connections.remove(&hello.connection);
            owner.left = Instant::now();
        }
        if self.connections() == 0 {
            self.left = Some(Instant::now());
        }
    }

    /// Notes that a connection has sent END. `all`: its client sends nothing more on any connection. Returns whether
    /// all sources are complete now.
    pub fn end(&mut self, hello: &StreamHello, all: bool, sources: u16) -> bool {
        if hello.role != StreamRole::Scalars
            && let Some(owner) = self.sources.get_mut(&hello.source)
        {
            *owner.ended.entry(hello.connection).or_default() |= all;
            owner.left = Instant::now();
        }
        (0..sources).all(|source| self.sources.get(&source).is_some_and(SourceOwner::is_complete))
    }

    /// Whether every client is complete or has sent nothing for longer than `absence`, and at least one is not
    /// complete.
    pub fn are_given_up(&self, absence: Duration) -> bool {
        let gone = |owner: &SourceOwner| !owner.may_bring() && owner.left.elapsed() > absence;
        let mut owners = self.sources.values();
        owners.clone().any(|owner| !owner.is_complete()) && owners.all(|owner| owner.is_complete() || gone(owner))
    }

    /// Outboxes of writers.
    pub fn writers(&self) -> Vec<Arc<Outbox>> {
        let client_connections = self.sources.values().flat_map(|owner| owner.client_connections.values());
        client_connections
            .filter(|client_connection| client_connection.writes)
            .map(|client_connection| Arc::clone(&client_connection.outbox))
            .collect()
    }

    pub fn writers_are_complete(&self) -> bool {
        let writes =
            |owner: &&SourceOwner| owner.client_connections.values().any(|client_connection| client_connection.writes);
        self.sources.values().filter(writes).all(SourceOwner::is_complete)
    }

    pub fn connections(&self) -> usize {
        self.others + self.sources.values().map(|owner| owner.client_connections.len()).sum::<usize>()
    }

    /// How long all clients have been absent, if any was present before.
    pub fn absent(&self) -> Option<Duration> {
        self.left.map(|left| left.elapsed())
    }

    /// Closes all connections at once.
    pub fn cut(&self) {
        self.sources.values().flat_map(|owner| owner.client_connections.values()).for_each(ClientConnection::cut);
    }
}

impl SourceOwner {
    fn is_complete(&self) -> bool {
        let said = self.ended.values().any(|all| *all);
        said && (0..self.connections).all(|connection| self.ended.contains_key(&connection))
    }

    /// Whether a connection is open that may still send frames.
    fn may_bring(&self) -> bool {
        self.client_connections.keys().any(|connection| !self.ended.contains_key(connection))
    }
}
