//! Connections that are told at once why they are not wanted, and closed.

use super::handshake::{encoded, greeting};
use super::worker::Worker;
use std::io;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use varve_proto::handshake::Answer;

/// Such connections of one worker at a time; beyond it they are closed without a word.
const TURNED_AWAY_MAX: usize = 64;

/// A peer that wants to know has read it by then.
const DEADLINE: Duration = Duration::from_secs(1);

/// Bytes of a Hello that is on its way, and of anything else: unread, they would make TCP take the answer back.
const DRAINED_MAX: usize = 4096;

/// Tells the peer of `stream` the `answer`, in the clear and in the background.
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
        // A peer that does not listen has no need to know.
        let _ = tokio::time::timeout(DEADLINE, tell).await;
        counted.turned_away.set(counted.turned_away.get() - 1);
    });
}
