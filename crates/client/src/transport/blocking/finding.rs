//! Finds servers, by the server records in the store or by the addresses in a shard map, and shakes hands with them.

use super::super::connection::{Reach, ServerConnection, Untrusted};
use super::{BlockingTransport, FindError, ServerWelcome};
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use varve_env::clock::Instant;
use varve_env::printable::{printable, printable_path};
use varve_env::volume_dir::ServerRecord;
use varve_proto::handshake::Welcome;
use varve_types::{MapServer, WorkerAddress, WorkerPlace};

/// Number of server records that are tried in one search: a search ends in time also if several hosts have vanished.
const RECORDS_MAX: usize = 16;

impl BlockingTransport {
    /// Returns the welcome of the first server of the records that answers.
    pub(super) fn find_by_records(&self) -> Result<ServerWelcome, FindError> {
        let root = printable_path(self.store.root());
        let records = self.store.read_server_records().map_err(|error| {
            FindError::Absent(format!("cannot read the server record of the volume at {root}: {error}"))
        })?;
        let mut failure = None;
        for record in records.iter().take(RECORDS_MAX) {
            match self.greet_by_record(record) {
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

    fn greet_by_record(&self, record: &ServerRecord) -> Result<ServerWelcome, FindError> {
        record.check_store(&self.store).map_err(|error| FindError::Refused(error.to_string()))?;
        self.read_owner()?;
        let reach = self.reach(record.is_of_this_boot());
        let first = record.workers.first().ok_or_else(|| {
            FindError::Absent(format!("the server's record {} names no worker", self.store.server_file()))
        })?;
        let address = WorkerAddress { unix: first.unix.clone(), tcp: first.tcp.clone() };
        let connection = ServerConnection::open(&address, reach).map_err(|error| self.unreached(record, &error))?;
        self.welcome_on(connection, Instant(Duration::MAX))
    }

    pub(super) fn greet_blocking(&self, server: &MapServer) -> Result<ServerWelcome, FindError> {
        // A map has no server without workers.
        let connection = ServerConnection::open(&server.workers[0], self.reach_of(server)).map_err(|error| {
            FindError::Absent(format!("server {:016x} of the volume does not answer: {error}", server.number))
        })?;
        self.welcome_on(connection, self.greeted_by())
    }

    /// Shakes hands on a connection to the first worker of a server.
    fn welcome_on(&self, mut connection: ServerConnection, deadline: Instant) -> Result<ServerWelcome, FindError> {
        let Welcome::Accepted { server, map, embedded, .. } =
            connection.shake_hands(&self.identity, 0, deadline, &*self.clock)?
        else {
            return Err(FindError::Refused("the server refused without a reason".into()));
        };
        let map = map
            .to_map(self.shards)
            .map_err(|error| FindError::Refused(format!("the server's welcome does not fit the volume: {error}")))?;
        let place = WorkerPlace { server, worker: 0 };
        *self.welcomed.lock() = self.servers.keep(place, connection).map(|connection| (server, connection));
        Ok(ServerWelcome { server, map, embedded })
    }

    /// How to reach a server that a shard map names. Reads nothing from the store, which may hang.
    pub(super) fn reach_of(&self, server: &MapServer) -> Reach {
        self.reach(self.boot_id.as_ref() == Some(&server.boot_id))
    }

    fn reach(&self, local: bool) -> Reach {
        Reach { local, tcp: self.tcp, owner: self.owner.load(Relaxed) }
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
    fn unreached(&self, record: &ServerRecord, error: &io::Error) -> FindError {
        let root = printable_path(self.store.root());
        let process = format!("{} on {}", record.process(), printable(&record.host));
        if let Some(untrusted) = error.get_ref().and_then(|inner| inner.downcast_ref::<Untrusted>()) {
            return FindError::Refused(format!("the server of the volume at {root} cannot be trusted: {untrusted}"));
        }
        if error.kind() == io::ErrorKind::PermissionDenied {
            return FindError::Refused(format!(
                "the server of the volume at {root} ({process}) runs as another user, and only that user can reach it: \
                 {error}; stop it and serve or mount the volume yourself"
            ));
        }
        FindError::Absent(match record.is_of_the_dead() {
            true => format!(
                "nobody serves the volume at {root}: its last server, {process}, was killed or has crashed; start \
                 `varve serve {root}`, or mount it with `varve mount`"
            ),
            false => format!("the server of the volume at {root} ({process}) does not answer: {error}"),
        })
    }
}
