//! Sockets that never block.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use varve_env::net::{self, SocketPlace};

fn connected(place: &SocketPlace, listener: &OwnedFd) -> (OwnedFd, OwnedFd) {
    let client = net::connect(place).unwrap();
    let server = loop {
        if let Some(server) = net::accept(listener).unwrap() {
            break server;
        }
        std::thread::yield_now();
    };
    net::connected(&client).unwrap();
    (client, server)
}

fn received(socket: &OwnedFd, wanted: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while net::receive(socket, &mut bytes, wanted).unwrap().is_none() {
        std::thread::yield_now();
    }
    bytes
}

/// Promise: bytes pass both ways over both kinds of socket, and neither side ever waits for the other.
#[test]
fn streams_never_block() {
    let directory = tempfile::tempdir().unwrap();
    let unix = SocketPlace::Unix(directory.path().join("socket"));
    let tcp = SocketPlace::Tcp("127.0.0.1:0".parse().unwrap());
    for place in [unix, tcp] {
        let listener = net::listen(&place, 0o600).unwrap();
        assert!(net::accept(&listener).unwrap().is_none());
        let place = match place {
            SocketPlace::Tcp(_) => SocketPlace::Tcp(net::tcp_address(&listener).unwrap()),
            unix => unix,
        };
        let (client, server) = connected(&place, &listener);
        assert_eq!(net::receive(&client, &mut Vec::new(), 10).unwrap(), None);
        assert_eq!(net::send(&client, b"hello").unwrap(), Some(5));
        assert_eq!(received(&server, 3), b"hel");
        assert_eq!(received(&server, 10), b"lo");
        let mut sent = 0;
        while let Some(count) = net::send(&server, &[7; 65536]).unwrap() {
            sent += count;
        }
        assert!(sent > 0, "the buffer is full at last");
        drop(client);
        while net::send(&server, b"x").is_ok() {
            std::thread::yield_now();
        }
    }
}

/// Promise: a descriptor arrives with the bytes that it was sent with, and the kernel names the other process.
#[test]
fn descriptors_and_processes_are_known() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let place = SocketPlace::Unix(path.clone());
    let listener = net::listen(&place, 0o600).unwrap();
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let (client, server) = connected(&place, &listener);
    let peer = net::peer_process(&server).unwrap();
    assert_eq!((peer.uid, peer.pid as u32), (rustix::process::geteuid().as_raw(), std::process::id()));
    let file = tempfile::tempfile().unwrap();
    assert_eq!(net::send_with(&server, b"here", file.as_fd()).unwrap(), Some(4));
    let mut bytes = Vec::new();
    let (count, passed) = net::receive_with(&client, &mut bytes, 100).unwrap();
    assert_eq!((count, bytes.as_slice()), (Some(4), &b"here"[..]));
    let (passed, sent) = (rustix::fs::fstat(passed.unwrap()).unwrap(), rustix::fs::fstat(&file).unwrap());
    assert_eq!((passed.st_dev, passed.st_ino), (sent.st_dev, sent.st_ino));
}

/// Promise: a place where nobody listens is an error at once, and a dead server's socket is replaced.
#[test]
fn absent_listeners_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    let place = SocketPlace::Unix(directory.path().join("socket"));
    assert_eq!(net::connect(&place).unwrap_err().kind(), io::ErrorKind::NotFound);
    drop(net::listen(&place, 0o600).unwrap());
    assert_eq!(net::connect(&place).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    let listener = net::listen(&place, 0o600).unwrap();
    connected(&place, &listener);
}
