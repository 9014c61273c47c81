//! Connections that the server refuses with a reason and closes.

use super::handshake::{encoded, greeting};
use super::worker::Worker;
use std::io;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use varve_proto::handshake::Answer;

/// Maximum of such connections of one worker at a time; further ones are closed without a reply.
const TURNED_AWAY_MAX: usize = 64;

/// Time for a peer to read the reply.
const DEADLINE: Duration = Duration::from_secs(1);

/// Bytes read from the peer, such as a Hello in flight: if they stayed unread, TCP could discard the reply.
const DRAINED_MAX: usize = 4096;

/// Sends `answer` to the peer of `stream`, unencrypted and in the background.
pub fn turn_away<S>(worker: &Rc<Worker>, mut stream: S, answer: Answer)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    if worker.turned_away.get() >= TURNED_AWAY_MAX {
        return;
    }
    let nonce = varve_env::random::bytes();
    let (Ok(greeting), Ok(answer)) = (encoded(&greeting(worker, nonce)), encoded(&answer)) else { return };
    worker.turned_away.set(worker.turned_away.get() + 1);
    let counted = Rc::clone(worker);
    worker.spawn(async move {
        let tell = async {
            stream.write_all(&[greeting, answer].concat()).await?;
            stream.shutdown().await?;
            let mut drained = 0;
            let mut bytes = [0; 512];
            while drained < DRAINED_MAX {
                match stream.read(&mut bytes).await? {
                    0 => break,
                    count => drained += count,
                }
            }
            io::Result::Ok(())
        };
        // The peer need not read the reply.
        let _ = tokio::time::timeout(DEADLINE, tell).await;
        counted.turned_away.set(counted.turned_away.get() - 1);
    });
}
