//! Who brings the frames of a run: each source belongs to one client, which has so many connections. Pure but for the
//! sockets that it closes.

use super::board::Outbox;
use crate::stream::{ErrorCode, Socket, StreamHello, StreamRefusal, StreamRole};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Clients that a run remembers: as many as sources have, with their scalars. What comes beyond hears of a run's end only
/// on the connection that it has.
const KNOWN_MAX: usize = 2048;

/// For who was connected to a service that has died, beyond the run's own patience.
const RETURN_WAIT: Duration = Duration::from_secs(30);

/// A connection that stands.
pub struct ClientConnection {
    pub outbox: Arc<Outbox>,
    pub socket: Socket,
    /// A process that writes its share itself.
    pub writes: bool,
}

impl ClientConnection {
    /// Ends both its threads.
    fn cut(&self) {
        self.outbox.close();
        // It may be gone already, which is what is wanted.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

struct SourceOwner {
    client: [u8; 16],
    connections: u16,
    client_connections: HashMap<u16, ClientConnection>,
    /// Connections that have said END, by whether it was of all that the client brings.
    ended: BTreeMap<u16, bool>,
    /// When a connection last left, or said END.
    left: Instant,
}

#[derive(Default)]
pub struct Clients {
    sources: HashMap<u16, SourceOwner>,
    /// Connections for scalars, which are not exclusive.
    others: usize,
    /// All that ever came.
    known: BTreeSet<[u8; 16]>,
    /// When the last connection left, which may be yet to come; `None` before the first came and while one stands.
    left: Option<Instant>,
}

/// Whether there is a place of that kind, whoever has it.
pub fn check_source(hello: &StreamHello, sources: u16) -> Result<(), StreamRefusal> {
    if hello.role == StreamRole::Scalars || hello.source < sources {
        return Ok(());
    }
    let text = format!("there is no source {}: this service takes {sources} of the run, counted from 0", hello.source);
    Err(StreamRefusal::new(ErrorCode::Unknown, text))
}

impl Clients {
    /// Gives a new connection its place.
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
                let text = format!("source {source} is complete: its client has said so");
                return Err(StreamRefusal::new(ErrorCode::Ended, text));
            }
            // What a writer had is reported or lost: another may take its place at once.
            let awaited = hello.role != StreamRole::Writer && owner.left.elapsed() < absence;
            if !owner.client_connections.is_empty() || awaited {
                let text = format!(
                    "source {source} of this run belongs to another client, {}; stop that one, or start a run of your own",
                    if owner.client_connections.is_empty() { "which is waited for" } else { "which is connected" }
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
            // It ended alone, and brings more now.
            owner.ended.remove(&hello.connection);
        }
        if let Some(before) = owner.client_connections.insert(hello.connection, client_connection) {
            before.cut();
        }
        self.left = None;
        Ok(())
    }

    /// Those who came to the service before this one are waited for: for [`RETURN_WAIT`] as if they were there, for they may
    /// try again seldom, and then as who has left.
    pub fn await_return(&mut self) {
        self.left = Some(Instant::now() + RETURN_WAIT);
    }

    /// Clients that took part.
    pub fn known(&self) -> Vec<[u8; 16]> {
        self.known.iter().copied().collect()
    }

    /// A connection has ended.
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

    /// A connection has said END; `all`: that its client brings nothing more, on whatever connection. Whether all sources are
    /// complete now.
    pub fn end(&mut self, hello: &StreamHello, all: bool, sources: u16) -> bool {
        if hello.role != StreamRole::Scalars
            && let Some(owner) = self.sources.get_mut(&hello.source)
        {
            *owner.ended.entry(hello.connection).or_default() |= all;
            owner.left = Instant::now();
        }
        (0..sources).all(|source| self.sources.get(&source).is_some_and(SourceOwner::is_complete))
    }

    /// Whether all who came are complete, or have brought nothing more for longer than `absence`, and at least one has.
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

    /// How long nobody has been there who was there before.
    pub fn absent(&self) -> Option<Duration> {
        self.left.map(|left| left.elapsed())
    }

    /// Ends all connections at once.
    pub fn cut(&self) {
        self.sources.values().flat_map(|owner| owner.client_connections.values()).for_each(ClientConnection::cut);
    }
}

impl SourceOwner {
    fn is_complete(&self) -> bool {
        let said = self.ended.values().any(|all| *all);
        said && (0..self.connections).all(|connection| self.ended.contains_key(&connection))
    }

    /// Whether a connection stands on which more may come.
    fn may_bring(&self) -> bool {
        self.client_connections.keys().any(|connection| !self.ended.contains_key(connection))
    }
}
