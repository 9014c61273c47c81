//! An etcd server, until it is dropped.

use super::hosts::Host;
use super::{SHORT, scratch, until};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};

pub struct Etcd {
    process: Child,
    address: SocketAddr,
    _data: tempfile::TempDir,
}

impl Etcd {
    pub fn start() -> Etcd {
        // Another process may take the ports in between. Then etcd ends, and the next one has others.
        std::iter::repeat_with(|| Etcd::begin(Ipv4Addr::LOCALHOST.into(), [free_port(), free_port()], None))
            .take(10)
            .find_map(Etcd::listening)
            .expect("etcd starts; `make setup` installs it")
    }

    /// At the address of `host`, where nobody else listens.
    pub fn start_on(host: &Host) -> Etcd {
        let etcd = Etcd::begin(host.address().into(), [2379, 2380], Some(host));
        etcd.listening().expect("etcd starts on a host of its own")
    }

    fn begin(ip: IpAddr, ports: [u16; 2], host: Option<&Host>) -> Etcd {
        let data = scratch();
        let [clients, peers] = ports.map(|port| SocketAddr::new(ip, port));
        let mut command = Command::new("etcd");
        command
            .args(["--name", "test", "--unsafe-no-fsync", "--logger", "zap", "--log-level", "error"])
            .arg("--data-dir")
            .arg(data.path())
            .args(["--listen-client-urls", &format!("http://{clients}")])
            .args(["--advertise-client-urls", &format!("http://{clients}")])
            .args(["--listen-peer-urls", &format!("http://{peers}")])
            .args(["--initial-advertise-peer-urls", &format!("http://{peers}")])
            .args(["--initial-cluster", &format!("test=http://{peers}")]);
        let mut command = match host {
            Some(host) => host.connected(&command),
            None => command,
        };
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Etcd { process: process.expect("etcd starts; `make setup` installs it"), address: clients, _data: data }
    }

    /// Waits until it listens. `None`: it has ended.
    fn listening(mut self) -> Option<Etcd> {
        let wanted = format!("{}:{:04X} ", reversed(self.address.ip()), self.address.port());
        let table = format!("/proc/{}/net/tcp", self.process.id());
        let mut ended = false;
        until("etcd listens or has ended", SHORT, || {
            ended = self.process.try_wait().expect("a child").is_some();
            ended || std::fs::read_to_string(&table).is_ok_and(|table| table.contains(&wanted))
        });
        (!ended).then_some(self)
    }

    /// The value of `--registry`.
    pub fn url(&self) -> String {
        format!("etcd://{}", self.address)
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: a system call that touches no memory. The process is a child that was not waited for.
        assert_eq!(unsafe { libc::kill(self.process.id() as i32, signal) }, 0);
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An address as tcp(7) in proc(5) shows it.
fn reversed(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => format!("{:08X}", u32::from(ip).swap_bytes()),
        IpAddr::V6(_) => unreachable!("the tests use IPv4"),
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}
