//! Finds servers, by the server records in the store or by the addresses in a shard map, and shakes hands with them.

use super::{FindError, GREETED_MAX, RemoteTransport, ServerWelcome, connections};
use crate::thread_loop::{self, unless_given_up};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use varve_env::printable::{printable, printable_path};
use varve_env::volume_dir::ServerRecord;
use varve_proto::handshake::Welcome;
use varve_rpc::{Connection, DialError, Dialer, Identity, Limits, ServerAddress};
use varve_types::{MapServer, WorkerAddress};

/// Number of server records that are tried in one search: a search ends in time also if several hosts have vanished.
const RECORDS_MAX: usize = 16;

impl RemoteTransport {
    /// Returns the welcome of the first server of the records that answers.
    pub(super) async fn find_by_records(&self) -> Result<ServerWelcome, FindError> {
        let root = printable_path(self.store.root());
        let records = self.store.read_server_records().map_err(|error| {
            FindError::Absent(format!("cannot read the server record of the volume at {root}: {error}"))
        })?;
        let mut failure = None;
        for record in records.iter().take(RECORDS_MAX) {
            match self.greet_by_record(record).await {
                Ok(welcome) => return Ok(welcome),
                // A server that is not ready may become so. A refusal says more than the absence of another server.
                Err(error @ FindError::Unready(_)) => failure = Some(error),
                Err(error @ FindError::Refused(_)) if !matches!(failure, Some(FindError::Unready(_))) => {
                    failure = Some(error);
                }
                Err(error) => drop(failure.get_or_insert(error)),
            }
        }
        Err(failure.unwrap_or_else(|| {
            FindError::Absent(format!(
                "nobody serves the volume at {root}: start `varve serve {root}`, or mount it with `varve mount`"
            ))
        }))
    }

    async fn greet_by_record(&self, record: &ServerRecord) -> Result<ServerWelcome, FindError> {
        record.check_store(&self.store).map_err(|error| FindError::Refused(error.to_string()))?;
        self.read_owner()?;
        let first = record.workers.first().ok_or_else(|| {
            FindError::Absent(format!("the server's record {} names no worker", self.store.server_file()))
        })?;
        let address = WorkerAddress { unix: first.unix.clone(), tcp: first.tcp.clone() };
        let dialled = self.dial(&address, record.is_of_this_boot(), 0).await;
        let (connection, welcome) = dialled.map_err(|error| self.unreached(record, error))?;
        self.welcome_on(connection, welcome).await
    }

    pub(super) async fn greet_by_map(&self, server: &MapServer) -> Result<ServerWelcome, FindError> {
        // A map has no server without workers.
        let dialled = self.dial(&server.workers[0], self.is_local(server), 0).await;
        let (connection, welcome) = dialled.map_err(|error| match error {
            DialError::Refused(reason) => FindError::Refused(reason),
            DialError::Unready(reason) => FindError::Unready(reason),
            error => FindError::Absent(format!("server {:016x} of the volume does not answer: {error}", server.number)),
        })?;
        self.welcome_on(connection, welcome).await
    }

    /// Takes the welcome of the first worker of a server. The thread's first call to it goes by the same connection.
    async fn welcome_on(&self, connection: Connection, welcome: Welcome) -> Result<ServerWelcome, FindError> {
        let Welcome::Accepted { server, map, embedded, .. } = welcome else {
            return Err(FindError::Refused("the server takes this client for a server".into()));
        };
        let map = map
            .to_map(self.shards)
            .map_err(|error| FindError::Refused(format!("the server's welcome does not fit the volume: {error}")))?;
        if let Some(named) = map.server(server) {
            let known = self.servers.welcomed(named, self.is_local(named));
            let line = connections::line(&known, 0);
            let mut held = line.connected.lock().await;
            if held.is_none() {
                *held = known.keep(connection).ok();
            }
        }
        Ok(ServerWelcome { server, map, embedded })
    }

    /// Connects to a worker and shakes hands. Reads nothing from the store, which may hang.
    pub(super) async fn dial(
        &self,
        address: &WorkerAddress,
        local: bool,
        worker: usize,
    ) -> Result<(Connection, Welcome), DialError> {
        let by_tcp = self.tcp;
        let address = address_of(address, local, by_tcp).map_err(|why| DialError::Unreachable(why.into()))?;
        let trusted = vec![0, self.owner.load(Relaxed), rustix::process::geteuid().as_raw()];
        let dialer = Dialer {
            event_loop: thread_loop::current(),
            pool: self.pool.clone(),
            address,
            // A server has a few hundred workers at most.
            worker: worker as u16,
            identity: Identity { trusted, ..self.identity.clone() },
            limits: Limits::default(),
        };
        let longest = if self.servers.are_several() { GREETED_MAX } else { Duration::MAX };
        let begun = self.clock.monotonic();
        let late = || {
            let late = self.clock.monotonic().since(begun) >= longest;
            late.then(|| DialError::Unreachable(format!("no handshake within {} s: it hangs", GREETED_MAX.as_secs())))
        };
        unless_given_up(dialer.dial(), longest, late).await?
    }

    /// Whether a server that a shard map names is on this host.
    pub(super) fn is_local(&self, server: &MapServer) -> bool {
        self.boot_id.as_ref() == Some(&server.boot_id)
    }

    fn read_owner(&self) -> Result<(), FindError> {
        let root = printable_path(self.store.root());
        let owner = self.store.owner();
        let owner =
            owner.map_err(|error| FindError::Absent(format!("cannot read the owner of the store {root}: {error}")))?;
        self.owner.store(owner, Relaxed);
        Ok(())
    }

    /// The error for a failed connection to the server of `record`.
    fn unreached(&self, record: &ServerRecord, error: DialError) -> FindError {
        let root = printable_path(self.store.root());
        let process = format!("{} on {}", record.process(), printable(&record.host));
        match error {
            DialError::Refused(reason) => FindError::Refused(reason),
            DialError::Unready(reason) => FindError::Unready(reason),
            DialError::Untrusted(why) => {
                FindError::Refused(format!("the server of the volume at {root} cannot be trusted: {why}"))
            }
            DialError::NotConnected(io::ErrorKind::PermissionDenied, why) => FindError::Refused(format!(
                "the server of the volume at {root} ({process}) runs as another user, and only that user can reach it: \
                 {why}; stop it and serve or mount the volume yourself"
            )),
            DialError::NotConnected(..) if record.is_of_the_dead() => FindError::Absent(format!(
                "nobody serves the volume at {root}: its last server, {process}, was killed or has crashed; start \
                 `varve serve {root}`, or mount it with `varve mount`"
            )),
            DialError::NotConnected(io::ErrorKind::NotFound, why) => FindError::Absent(format!(
                "the server of the volume at {root} ({process}) does not answer: {why}: in a container, mount the \
                 directory of the server's sockets at the same place, or serve the volume with --listen HOST:PORT and \
                 connect with --tcp"
            )),
            DialError::NotConnected(_, why) | DialError::Unreachable(why) => {
                FindError::Absent(format!("the server of the volume at {root} ({process}) does not answer: {why}"))
            }
        }
    }
}

/// The address by which a worker is reached: on the same host only its Unix socket, unless TCP is requested; from
/// another host TCP.
fn address_of(address: &WorkerAddress, local: bool, by_tcp: bool) -> Result<ServerAddress, &'static str> {
    match (&address.unix, &address.tcp) {
        (Some(path), _) if local && !by_tcp => Ok(ServerAddress::Unix(PathBuf::from(path))),
        (None, Some(_)) if local && !by_tcp => Err(
            "the server is on this host and listens only on TCP, which clients of this host use only on request: add \
             --tcp",
        ),
        (_, Some(tcp)) => Ok(ServerAddress::Tcp(tcp.clone())),
        (_, None) => Err(
            "the server listens only on the Unix sockets of its own host: serve the volume with --listen HOST:PORT to \
             reach it from other hosts and with --tcp",
        ),
    }
}

#[cfg(test)]
mod tests;
