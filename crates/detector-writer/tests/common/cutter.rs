//! A proxy between a client and the service that breaks connections.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Forwards bytes to `service`. It cuts each connection after `budget` bytes until it has made the given number of
/// cuts. Later connections stay open.
pub struct Cutter {
    pub address: SocketAddr,
    cuts: Arc<AtomicUsize>,
}

impl Cutter {
    pub fn new(service: SocketAddr, budget: usize, cuts: usize) -> Cutter {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let left = Arc::new(AtomicUsize::new(cuts));
        let mine = Arc::clone(&left);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(upstream)) = (client, TcpStream::connect(service)) else { return };
                let (from, to) = (client.try_clone().expect("a handle"), upstream.try_clone().expect("a handle"));
                std::thread::spawn(move || pass(upstream, client, usize::MAX));
                let cut = mine.load(SeqCst) > 0;
                let mine = Arc::clone(&mine);
                std::thread::spawn(move || {
                    if !pass(from, to, if cut { budget } else { usize::MAX }) {
                        // With two connections at a time, one may be cut more often than counted.
                        let _ = mine.fetch_update(SeqCst, SeqCst, |cuts| cuts.checked_sub(1));
                    }
                });
            }
        });
        Cutter { address, cuts: left }
    }

    /// The number of cuts still to be made.
    pub fn cuts(&self) -> usize {
        self.cuts.load(SeqCst)
    }
}

/// Returns whether all bytes were forwarded. Both connections are closed at the end, possibly in the middle of a
/// message.
fn pass(mut from: TcpStream, mut to: TcpStream, mut budget: usize) -> bool {
    let mut bytes = [0; 4096];
    let whole = loop {
        let read = match from.read(&mut bytes) {
            Ok(0) | Err(_) => break true,
            Ok(read) => read.min(budget),
        };
        if to.write_all(&bytes[..read]).is_err() {
            break true;
        }
        budget -= read;
        if budget == 0 {
            break false;
        }
    };
    for socket in [from, to] {
        // The other direction may have closed it already.
        let _ = socket.shutdown(Shutdown::Both);
    }
    whole
}
