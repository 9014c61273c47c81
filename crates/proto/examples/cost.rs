//! Measures the cost of the handshake and the records: `cargo run --release -p varve-proto --example cost`.

#![allow(clippy::disallowed_methods, reason = "a measurement reads the clock")]

use std::hint::black_box;
use std::time::Instant;
use varve_proto::handshake::exchange::{Binding, Initiator, Responder};
use varve_proto::handshake::{Channel, KeyId, Offer, Purpose, VolumeKey, Welcome};
use varve_proto::record::Records;

const HANDSHAKES: u32 = 2_000;
/// Bytes sealed and opened for each size.
const BYTES: usize = 256 << 20;
const RECORDS_MAX: usize = 200_000;

fn exchange(binding: &Binding, key: &VolumeKey) -> (Records, Records) {
    let (client, hello) = Initiator::begin(key, binding, &Offer::default()).expect("it is sound");
    let (server, _) = Responder::accept(key, binding, &hello).expect("it is sound");
    let (answer, server) = server.finish(&Welcome::Refused { reason: String::new() }).expect("it is short");
    (client.finish(&answer).expect("it is sound").1, server)
}

fn main() {
    let binding = Binding {
        volume: [1; 16],
        key: KeyId::VOLUME,
        purpose: Purpose::Work,
        session: 3,
        worker: 0,
        channel: Channel::Network,
        nonce: [5; 16],
    };
    let key = VolumeKey([7; 32]);
    let begin = Instant::now();
    for _ in 0..HANDSHAKES {
        black_box(exchange(&binding, &key));
    }
    let each = begin.elapsed() / HANDSHAKES;
    println!("handshake, both sides on one processor: {each:.1?}, {:.0} a second", 1.0 / each.as_secs_f64());
    let (mut client, mut server) = exchange(&binding, &key);
    for size in [64, 256, 1024, 4096, 16 * 1024, 64 * 1024, 1 << 20] {
        let plain = vec![7; size];
        let rounds = (BYTES / size).min(RECORDS_MAX);
        let (mut sealed, mut opened) = (Vec::new(), Vec::new());
        let (mut sealing, mut opening) = (0.0, 0.0);
        for _ in 0..rounds {
            sealed.clear();
            opened.clear();
            let begin = Instant::now();
            client.seal(&plain, &mut sealed).expect("any bytes can be sealed");
            let between = Instant::now();
            server.open_all(&mut sealed, &mut opened).expect("nothing was changed");
            opening += between.elapsed().as_secs_f64();
            sealing += (between - begin).as_secs_f64();
        }
        let (each, megabytes) = (1e6 / rounds as f64, (rounds * size) as f64 / 1e6);
        println!(
            "{size:>8} bytes: sealed in {:>8.2} µs ({:>5.0} MB/s), opened in {:>8.2} µs ({:>5.0} MB/s)",
            sealing * each,
            megabytes / sealing,
            opening * each,
            megabytes / opening
        );
    }
}
