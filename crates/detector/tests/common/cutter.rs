//! A way between a client and the service that breaks.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Passes bytes on to `service`, and cuts every connection after so many bytes; the last `whole` from then on.
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
                        // Of two connections at a time one may be a cut too many.
                        let _ = mine.fetch_update(SeqCst, SeqCst, |cuts| cuts.checked_sub(1));
                    }
                });
            }
        });
        Cutter { address, cuts: left }
    }

    /// Those still to be made.
    pub fn cuts(&self) -> usize {
        self.cuts.load(SeqCst)
    }
}

/// Answers whether all was passed on; otherwise both are cut, in the middle of whatever they were at.
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
        // The other direction may have done it already.
        let _ = socket.shutdown(Shutdown::Both);
    }
    whole
}
