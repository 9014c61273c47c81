//! The cost of a call beside that of a bare socket (as the ceiling `request-reply` of `varve bench`).

use crate::fixture::{Ask, SOON, Server, Transport, deadline, spinning_loop};
use futures::future::join_all;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use varve_env::spin::SPIN_TIME;
use varve_rpc::Limits;

const TIME: Duration = Duration::from_millis(500);

/// Time of a call of `calls`, which makes some and returns how many.
fn each(mut calls: impl FnMut() -> u32) -> Duration {
    let (begun, mut made) = (Instant::now(), 0);
    while begun.elapsed() < TIME {
        made += calls();
    }
    begun.elapsed() / made
}

/// Two threads that send each other messages as long as those of the tests, and sleep in between.
fn bare_socket() -> Duration {
    let (mut near, mut far) = UnixStream::pair().unwrap();
    let thread = std::thread::spawn(move || {
        let mut bytes = [0; 34];
        while far.read_exact(&mut bytes).is_ok() {
            far.write_all(&bytes[..25]).unwrap();
        }
    });
    let time = each(|| {
        near.write_all(&[1; 34]).unwrap();
        near.read_exact(&mut [0; 25]).unwrap();
        1
    });
    drop(near);
    thread.join().unwrap();
    time
}

/// Prints the time of a call, one at a time and 16 at a time, in turns:
/// `cargo test --release -p varve-rpc --test transports cost -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn print_the_cost_of_a_call() {
    let transports = [Transport::Unix, Transport::SharedMemory, Transport::Tcp, Transport::InProcess];
    let spins = [Duration::ZERO, SPIN_TIME];
    for turn in 1..=3 {
        println!("turn {turn}: a bare Unix socket, sleeping: {:?}", bare_socket());
        for (transport, spin) in transports.into_iter().flat_map(|transport| spins.map(|spin| (transport, spin))) {
            let server = Server::start_spinning(transport, Limits::default(), spin);
            let event_loop = spinning_loop(spin);
            let connection = server.connect(&event_loop, Limits::default());
            let [alone, together] = [1, 16].map(|at_a_time| {
                each(|| {
                    let until = deadline(event_loop.handle(), SOON);
                    let round = (0..at_a_time).map(|_| connection.call(Ask::Echo(1).bytes(), until));
                    assert!(event_loop.block_on(join_all(round)).iter().all(Result::is_ok));
                    at_a_time
                })
            });
            println!("turn {turn}: {transport:?}, spinning for {spin:?}: {alone:?}; 16 at a time: {together:?}");
        }
    }
}
