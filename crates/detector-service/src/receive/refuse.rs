//! Refusal of connections, and the first and last steps of a connection.

use crate::count_guard::CountGuard;
use crate::shared::ServiceShared;
use crate::threads::named;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use varve_detector_stream::link::send_to_client;
use varve_detector_stream::{ErrorCode, FromService, Socket, StreamRefusal};

/// Notifies a client that the service has no free connection. Runs in a separate thread, so that accepted clients do
/// not wait for it.
pub fn turn_away(shared: &Arc<ServiceShared>, socket: TcpStream) {
    /// Limit for concurrent refusals. Further connections are closed without a message, and their clients retry.
    const TURNED_AWAY_MAX: usize = 32;
    /// Timeout for the preceding TLS handshake.
    const TURN_AWAY_WAIT: Duration = Duration::from_secs(2);
    let Some(counted) = CountGuard::enter(shared, |shared| &shared.turned_away, TURNED_AWAY_MAX) else { return };
    let reported = named("turn-away", move || {
        let text = format!(
            "the service has {} connections, its limit: retry when one has ended, or start it with a larger \
            --connections-max",
            counted.of.config.connections_max
        );
        match protect(&counted.of, socket, TURN_AWAY_WAIT) {
            Ok(socket) => last_words(socket, StreamRefusal::new(ErrorCode::Full, text)),
            Err(error) => tracing::debug!("cannot refuse a client over the connection limit: {error}"),
        }
    });
    if let Err(error) = reported {
        tracing::warn!("cannot refuse a client over the connection limit: {error}");
    }
}

/// Wraps the connection in a TLS session if the service has a certificate.
pub fn protect(shared: &ServiceShared, socket: TcpStream, wait: Duration) -> io::Result<Socket> {
    match &shared.config.protection.tls {
        None => Ok(socket.into()),
        Some(tls) => tls.accept(socket, wait),
    }
}

pub fn last_words(mut socket: Socket, refusal: StreamRefusal) {
    let reported = socket
        .set_write_timeout(Some(Duration::from_secs(1)))
        .and_then(|()| send_to_client(&mut socket, &FromService::Error(refusal)));
    if let Err(error) = reported {
        tracing::debug!("cannot send a refusal to a client: {error}");
    }
    linger(&socket);
}

/// Lets the peer read the final message before data that it still sends makes the kernel reset the connection.
pub fn linger(socket: &Socket) {
    const LINGER: Duration = Duration::from_secs(1);
    if socket.shutdown(Shutdown::Write).and_then(|()| socket.set_read_timeout(Some(Duration::from_millis(200)))).is_ok()
    {
        let until = Instant::now() + LINGER;
        let mut sink = vec![0; 64 << 10];
        while Instant::now() < until && io::Read::read(&mut &*socket, &mut sink).is_ok_and(|read| read > 0) {}
    }
}
