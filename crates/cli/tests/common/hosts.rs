//! Hosts of a network that exists only within this machine: each is a network namespace with an address of its own,
//! and all are ports of one bridge. Links between two of them can be cut.
//!
//! A server on such a host has a boot id and a host name of its own as well, so that no process of another host
//! reaches it through a Unix socket. Clients keep those of this machine, where no server is: their mounts must be
//! seen here.
//!
//! The names of the namespaces have the process of their test. If that process was killed, the next network removes
//! them.

use super::process::{Launcher, Process};
use super::{SHORT, must, run};
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

const PREFIX: &str = "varve-test-";
const BRIDGE: &str = "bridge";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Runs a program as on another host, in one line of a shell: $1 the file with its boot id, $2 its name, $3 the
/// directory of all temporary files, $4 the store. Copies of the mounts of other tests must not stay: a mount ends
/// with its last copy.
const AS_HOST: &str = "set -e; hostname \"$2\"; mount --bind \"$1\" /proc/sys/kernel/random/boot_id; \
     for point in $(cut -d' ' -f5 /proc/self/mountinfo | tac); do \
       case $4/ in \"$point\"/*) continue ;; esac; \
       case $point in \"$3\"/*) umount -l \"$point\" || true ;; esac; \
     done; shift 4; exec \"$@\"";

/// Networks of this process so far.
static MADE: AtomicU32 = AtomicU32::new(0);

pub struct Network {
    mark: String,
    hosts: usize,
    files: tempfile::TempDir,
    launcher: Arc<Launcher>,
}

impl Network {
    /// `None`, with a message, if this machine has no network namespaces or the suite does not run as root.
    pub fn make(hosts: usize) -> Option<Network> {
        if let Some(excuse) = excuse() {
            eprintln!("SKIPPED: {excuse}");
            return None;
        }
        remove_leftovers();
        let mark = format!("{PREFIX}{}-{}", std::process::id(), MADE.fetch_add(1, Relaxed));
        let network = Network { mark, hosts, files: super::scratch(), launcher: Arc::new(Launcher::start()) };
        let bridge = network.namespace(BRIDGE);
        must(ip().args(["netns", "add", &bridge]));
        must(ip().args(["-n", &bridge, "link", "add", "br0", "type", "bridge"]));
        must(ip().args(["-n", &bridge, "link", "set", "br0", "up"]));
        (0..hosts).for_each(|host| network.add(host));
        for one in 0..hosts {
            (0..hosts).filter(|other| *other != one).for_each(|other| network.set_way(one, other, true));
        }
        Some(network)
    }

    fn add(&self, host: usize) {
        let (bridge, namespace) = (self.namespace(BRIDGE), self.host(host).namespace);
        let port = format!("port{host}");
        std::fs::write(self.files.path().join(format!("boot{host}")), format!("{}\n", boot_id(host))).expect("a file");
        must(ip().args(["netns", "add", &namespace]));
        let pair = ["link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &namespace];
        must(ip().args(["-n", &bridge]).args(pair));
        must(ip().args(["-n", &bridge, "link", "set", &port, "master", "br0", "up"]));
        must(ip().args(["-n", &namespace, "link", "set", "lo", "up"]));
        must(ip().args(["-n", &namespace, "link", "set", "eth0", "address", &hardware_address(host), "up"]));
        must(ip().args(["-n", &namespace, "addr", "add", &format!("{}/24", address(host)), "dev", "eth0"]));
    }

    fn namespace(&self, name: &str) -> String {
        format!("{}-{name}", self.mark)
    }

    pub fn host(&self, number: usize) -> Host {
        assert!(number < self.hosts, "the network has {} hosts", self.hosts);
        Host {
            number,
            namespace: self.namespace(&format!("host{number}")),
            boot_id: self.files.path().join(format!("boot{number}")),
        }
    }

    pub fn last(&self) -> Host {
        self.host(self.hosts - 1)
    }

    /// From now on nothing that one of the hosts sends reaches the other one. Neither is told.
    pub fn cut(&self, one: usize, other: usize) {
        self.set_way(one, other, false);
        self.set_way(other, one, false);
    }

    pub fn heal(&self, one: usize, other: usize) {
        self.set_way(one, other, true);
        self.set_way(other, one, true);
    }

    /// Cuts a host from all others.
    pub fn cut_off(&self, host: usize) {
        (0..self.hosts).filter(|other| *other != host).for_each(|other| self.cut(host, other));
    }

    pub fn heal_all(&self, host: usize) {
        (0..self.hosts).filter(|other| *other != host).for_each(|other| self.heal(host, other));
    }

    /// Runs a command that must succeed, by a process that has no files of the suite open. This one would have to
    /// close them first, and that may need a server that is cut off or a store that hangs.
    pub fn perform(&self, command: &Command) {
        let mut process = Process::start(&self.launcher, command, &self.files.path().join("commands.log"));
        process.expect_end(&format!("{command:?}"), SHORT);
    }

    /// Packets to a hardware address that nobody has vanish without an error at the sender.
    fn set_way(&self, from: usize, to: usize, open: bool) {
        let hardware = if open { hardware_address(to) } else { "02:00:00:00:ff:ff".to_owned() };
        let entry =
            ["neigh", "replace", &address(to).to_string(), "lladdr", &hardware, "dev", "eth0", "nud", "permanent"];
        self.perform(ip().args(["-n", &self.host(from).namespace]).args(entry));
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        remove_namespaces(&self.mark);
    }
}

/// One host of a [`Network`].
#[derive(Clone)]
pub struct Host {
    number: usize,
    namespace: String,
    boot_id: PathBuf,
}

impl Host {
    pub fn address(&self) -> Ipv4Addr {
        address(self.number)
    }

    /// `command` in this host's network.
    pub fn connected(&self, command: &Command) -> Command {
        self.wrapped(command, &[])
    }

    /// `command` as a process of this host, for a server of `store`.
    pub fn native(&self, command: &Command, store: &Path) -> Command {
        let temporary = std::env::temp_dir();
        let name = format!("varve-host{}", self.number);
        let text = |path: &Path| path.to_str().expect("temporary directories have plain names").to_owned();
        let before = ["unshare", "--mount", "--uts", "sh", "-c", AS_HOST, "sh"].map(str::to_owned);
        let places = [text(&self.boot_id), name, text(&temporary), text(store)];
        self.wrapped(command, &[&before[..], &places[..]].concat())
    }

    fn wrapped(&self, command: &Command, before: &[String]) -> Command {
        let mut wrapped = Command::new("nsenter");
        wrapped.arg(format!("--net=/run/netns/{}", self.namespace)).args(before);
        wrapped.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => wrapped.env(name, value),
                None => wrapped.env_remove(name),
            };
        }
        wrapped
    }

    /// Runs `work` on a thread that uses this host's network, as do the threads and processes that it starts.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let worked = scope.spawn(|| {
                self.enter();
                work()
            });
            worked.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn enter(&self) {
        let namespace =
            std::fs::File::open(Path::new("/run/netns").join(&self.namespace)).expect("the namespace is there");
        // SAFETY: the call touches no memory, and the descriptor is open.
        let failed = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } != 0;
        assert!(!failed, "cannot enter {}: {}", self.namespace, std::io::Error::last_os_error());
    }
}

fn address(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, host as u8 + 1)
}

fn hardware_address(host: usize) -> String {
    format!("02:00:00:00:00:{:02x}", host + 1)
}

fn boot_id(host: usize) -> String {
    format!("00000000-0000-4000-8000-{host:012x}")
}

fn ip() -> Command {
    Command::new("ip")
}

/// The reason why there can be no such network here.
fn excuse() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root can make hosts".to_owned());
    }
    // All that a host needs, tried once.
    let mut trial = Command::new("unshare");
    let script = format!(
        "mount --bind {BOOT_ID} {BOOT_ID} && hostname trial && ip link add type veth && ip link add type bridge"
    );
    trial.args(["--net", "--mount", "--uts", "sh", "-c", &script]);
    let outcome = run(&mut trial, SHORT);
    (!outcome.status.success()).then(|| format!("this machine has no network namespaces: {}", outcome.stderr.trim()))
}

/// Removes the namespaces of tests that were killed.
fn remove_leftovers() {
    for name in names() {
        let process = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            // Another test may do the same.
            let _ = run(ip().args(["netns", "del", &name]), SHORT);
        }
    }
}

fn remove_namespaces(mark: &str) {
    for name in names().filter(|name| name.strip_prefix(mark).is_some_and(|rest| rest.starts_with('-'))) {
        let removed = ip().args(["netns", "del", &name]).status();
        if !removed.is_ok_and(|status| status.success()) {
            eprintln!("cannot remove the network namespace {name}");
        }
    }
}

fn names() -> impl Iterator<Item = String> {
    let entries = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| name.starts_with(PREFIX))
}
