//! Several servers on several hosts, which talk over TCP: clients find all of them, and links between hosts are cut.

mod common;

use common::disk::Disk;
use common::etcd::Etcd;
use common::hosts::Network;
use common::{Mount, SHORT, Server, Volume, run, scratch, soak, until, varve};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

const SHARDS: usize = 8;
const LEASE: Duration = Duration::from_secs(2);

const FORMAT: &[&str] = &["--shards", "8"];

/// The first hosts have one each.
const SERVERS: usize = 3;

/// Flags of a mount whose calls end soon.
const IMPATIENT: &[&str] = &["-o", "deadline=3s"];

/// A takeover takes twice the lease, which is 2 s, and the time to open the shards. The machine may be busy.
const TAKEOVER: Duration = Duration::from_secs(30);

/// A client notices after 20 s that a host has vanished, and tries again by then at the latest.
const NOTICED: Duration = Duration::from_secs(60);

/// Some hosts with a server each, then hosts with a mount each, and the last one with the registry if that is not the
/// store.
struct Site {
    mounts: Vec<Mount>,
    servers: Vec<Server>,
    volume: Volume,
    etcd: Option<Etcd>,
    network: Network,
}

#[derive(Clone, Copy)]
enum Registered {
    InStore,
    InEtcd,
}

impl Site {
    /// `mounts`: the flags of each.
    fn start(mounts: &[&[&str]], registered: Registered) -> Option<Site> {
        let network = Network::make(SERVERS + mounts.len() + 1)?;
        let mut site = Site::prepare(network, Volume::format(FORMAT), registered);
        for host in 0..SERVERS {
            site.servers.push(site.join(host));
        }
        site.mount(mounts);
        Some(site)
    }

    fn prepare(network: Network, volume: Volume, registered: Registered) -> Site {
        let etcd = match registered {
            Registered::InStore => None,
            Registered::InEtcd => Some(Etcd::start_on(&network.last())),
        };
        Site { mounts: Vec::new(), servers: Vec::new(), volume, etcd, network }
    }

    fn mount(&mut self, mounts: &[&[&str]]) {
        for (index, flags) in mounts.iter().enumerate() {
            let host = self.network.host(SERVERS + index);
            self.mounts.push(self.volume.mount_on(&host, &format!("mnt{index}"), flags));
        }
        until("the shards are spread and open", TAKEOVER, || self.is_spread(SERVERS));
        // Promise: servers of several hosts sync before they reply.
        assert_eq!(self.status().expect("it was shown")["ack"], "synced");
    }

    fn registry(&self) -> String {
        self.etcd.as_ref().map_or("store".to_owned(), Etcd::url)
    }

    fn join(&self, host: usize) -> Server {
        self.volume.join_on(&self.network.host(host), &format!("server{host}.log"), &["--registry", &self.registry()])
    }

    /// `varve cluster status`, asked from the host of the first mount.
    fn status(&self) -> Option<serde_json::Value> {
        let mut command = varve();
        command.args(["--json", "cluster", "status", "--registry", &self.registry()]).arg(self.volume.store());
        let shown = run(&mut self.network.host(SERVERS).connected(&command), SHORT);
        serde_json::from_str(&shown.stdout).ok()
    }

    /// Whether `members` servers have all shards, each at least one, and all are open.
    fn is_spread(&self, members: usize) -> bool {
        let Some(status) = self.status() else { return false };
        let servers = status["servers"].as_array().expect("a list");
        let shards = status["shards"].as_array().expect("a list");
        let of = |server: &serde_json::Value| server["shards"].as_u64().unwrap_or_default() as usize;
        servers.len() == members
            && servers.iter().all(|server| of(server) > 0)
            && servers.iter().map(of).sum::<usize>() == SHARDS
            && shards.iter().all(|shard| shard["state"] == "open")
    }

    fn end(self) {
        let Site { mounts, servers, volume, etcd, network } = self;
        mounts.into_iter().for_each(Mount::unmount);
        servers.into_iter().for_each(Server::stop);
        // The check claims the volume in the registry, which only these hosts reach.
        let mut check = varve();
        check.arg("fsck").arg(volume.store());
        run(&mut network.host(SERVERS).connected(&check), SHORT).succeeded("varve fsck");
        drop((etcd, network));
    }
}

/// Makes directories in directories, whose homes are spread over all shards, and files that change from one directory
/// to the other. A change that was done twice fails.
struct Workload<'a> {
    root: &'a Path,
    stop: AtomicBool,
    count: AtomicUsize,
}

impl<'a> Workload<'a> {
    fn new(mount: &'a Mount) -> Workload<'a> {
        Workload { root: &mount.directory, stop: AtomicBool::new(false), count: AtomicUsize::new(0) }
    }

    fn work(&self, name: &str) {
        while !self.stop.load(SeqCst) {
            let number = self.count.load(SeqCst);
            let directory = self.root.join(format!("{name}{number}"));
            std::fs::create_dir(&directory).expect("a directory");
            std::fs::write(directory.join("file"), format!("content {number}")).expect("a file");
            std::fs::create_dir(directory.join("below")).expect("a directory");
            std::fs::rename(directory.join("file"), directory.join("below/renamed")).expect("another directory");
            self.count.store(number + 1, SeqCst);
        }
    }

    fn goes_on(&self, when: &str) {
        let before = self.count.load(SeqCst);
        until(&format!("the workload goes on {when}"), NOTICED, || self.count.load(SeqCst) > before + 20);
    }

    fn stands(&self, when: &str) {
        let mut last = (self.count.load(SeqCst), Instant::now());
        until(&format!("the workload stands {when}"), NOTICED, || {
            let count = self.count.load(SeqCst);
            if count != last.0 {
                last = (count, Instant::now());
            }
            last.1.elapsed() > LEASE
        });
    }

    /// Everything that was acknowledged, seen through `mount`.
    fn check(&self, name: &str, mount: &Mount) {
        for number in 0..self.count.load(SeqCst) {
            let path = mount.directory.join(format!("{name}{number}/below/renamed"));
            let content = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert_eq!(content, format!("content {number}").into_bytes(), "{}", path.display());
        }
    }
}

/// Stops the workloads also if a test panics. Otherwise it would wait for them for ever.
struct Stopping<'a>(&'a [Workload<'a>]);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|workload| workload.stop.store(true, SeqCst));
    }
}

/// Runs one workload for each mount while `trouble` runs, and checks all through all mounts.
fn under_work(site: &Site, trouble: impl FnOnce(&[Workload])) {
    let workloads: Vec<_> = site.mounts.iter().map(Workload::new).collect();
    std::thread::scope(|scope| {
        let _stopping = Stopping(&workloads);
        for (index, workload) in workloads.iter().enumerate() {
            scope.spawn(move || workload.work(&format!("d{index}-")));
        }
        workloads.iter().for_each(|workload| workload.goes_on("at first"));
        trouble(&workloads);
    });
    for (index, workload) in workloads.iter().enumerate() {
        site.mounts.iter().for_each(|mount| workload.check(&format!("d{index}-"), mount));
    }
}

/// The remote addresses of the TCP connections of a process.
fn connections(pid: u32) -> Vec<String> {
    const ESTABLISHED: &str = "01";
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).expect("the process lives");
    let fields = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields.filter(|fields| fields[3] == ESTABLISHED).map(|fields| remote_host(fields[2])).collect()
}

/// The address in `0100A8C0:1F90`, whose bytes are reversed.
fn remote_host(field: &str) -> String {
    let address = u32::from_str_radix(field.split(':').next().expect("an address"), 16).expect("a number");
    std::net::Ipv4Addr::from(address.swap_bytes()).to_string()
}

/// Promise: a client that knows the store alone uses all servers of other hosts by TCP, and servers of different
/// hosts call each other by TCP.
#[test]
fn clients_and_servers_of_other_hosts_are_reached_by_tcp() {
    let Some(site) = Site::start(&[&[]], Registered::InStore) else { return };
    under_work(&site, |_| {
        let hosts: Vec<_> = (0..SERVERS).map(|host| site.network.host(host).address().to_string()).collect();
        until("the client is connected to all servers, and they to each other", NOTICED, || {
            let client = connections(site.mounts[0].pid());
            hosts.iter().all(|host| client.contains(host))
                && (0..SERVERS).all(|host| {
                    let server = connections(site.servers[host].pid());
                    (0..SERVERS).filter(|other| *other != host).all(|other| server.contains(&hosts[other]))
                })
        });
    });
    site.end();
}

/// Cuts for less and for more than the lease, which is 2 s. `meanwhile`: while the cut lasts.
fn cut_and_heal(site: &Site, cut: impl Fn(), heal: impl Fn(), meanwhile: impl Fn(&[Workload])) {
    under_work(site, |workloads| {
        for length in [Duration::from_secs(1), Duration::from_secs(7)] {
            cut();
            let begun = Instant::now();
            if length > LEASE {
                meanwhile(workloads);
            }
            std::thread::sleep(length.saturating_sub(begun.elapsed()));
            heal();
            workloads.iter().for_each(|workload| workload.goes_on(&format!("after a cut of {length:?}")));
        }
    });
}

/// Promise: a server that is cut from all others and from the clients, but not from the store, keeps its shards.
/// Calls of them wait, or end at the mount's deadline, and go on when the network is whole.
#[test]
fn calls_wait_for_a_server_that_is_cut_off() {
    let Some(site) = Site::start(&[&[]], Registered::InStore) else { return };
    let impatient = site.volume.mount_on(&site.network.host(SERVERS), "impatient", IMPATIENT);
    let cut = || site.network.cut_off(0);
    cut_and_heal(
        &site,
        cut,
        || site.network.heal_all(0),
        |_| {
            let make = |number| std::fs::create_dir(impatient.directory.join(format!("while-cut{number}"))).err();
            let errors: Vec<_> = (0..12).filter_map(make).collect();
            assert!(!errors.is_empty(), "a third of the shards cannot be reached");
            for error in &errors {
                assert!(
                    matches!(error.raw_os_error(), Some(libc::ETIMEDOUT | libc::EIO | libc::EHOSTDOWN)),
                    "{error:?}"
                );
            }
        },
    );
    until("nothing has moved", TAKEOVER, || site.is_spread(SERVERS));
    site.mounts.iter().for_each(|mount| drop(std::fs::read_dir(&mount.directory).expect("it answers")));
    impatient.unmount();
    site.end();
}

/// Promise: clients that are cut from one server wait for its shards only, and other clients do not notice.
#[test]
fn clients_that_are_cut_from_one_server_wait_for_it() {
    let Some(site) = Site::start(&[&[], &[]], Registered::InStore) else { return };
    let cut = || site.network.cut(SERVERS, 0);
    cut_and_heal(
        &site,
        cut,
        || site.network.heal(SERVERS, 0),
        |workloads| {
            workloads[1].goes_on("beside the cut");
        },
    );
    assert!(site.is_spread(SERVERS), "nothing has moved");
    site.end();
}

/// Promise: changes over the shards of two servers that are cut from each other wait until they are not; nothing is
/// lost or done twice.
#[test]
fn changes_over_servers_wait_for_a_cut_between_them() {
    let Some(site) = Site::start(&[&[], &[]], Registered::InStore) else { return };
    cut_and_heal(
        &site,
        || site.network.cut(0, 1),
        || site.network.heal(0, 1),
        |workloads| {
            workloads.iter().for_each(|workload| workload.stands("during the cut"));
        },
    );
    assert!(site.is_spread(SERVERS), "nothing has moved");
    site.end();
}

/// Promise: with the registry in etcd, the shards of a server that is cut off from everything but the store are taken
/// over after its lease, and the server ends once it reaches the registry again.
#[test]
fn server_that_is_cut_from_the_registry_is_taken_over() {
    let Some(mut site) = Site::start(&[&[], &[]], Registered::InEtcd) else { return };
    under_work(&site, |workloads| {
        site.network.cut_off(0);
        std::thread::sleep(Duration::from_millis(500));
        site.network.heal_all(0);
        workloads.iter().for_each(|workload| workload.goes_on("after a short cut"));
        assert!(site.is_spread(SERVERS), "nothing has moved");
        site.network.cut_off(0);
        until("the others have its shards", TAKEOVER, || site.is_spread(SERVERS - 1));
        workloads.iter().for_each(|workload| workload.goes_on("after the takeover"));
        site.network.heal_all(0);
    });
    let mut cut_off = site.servers.remove(0);
    assert_eq!(cut_off.expect_failure(), 1, "{}", cut_off.log());
    assert!(cut_off.log().contains("was taken for dead by another server"), "{}", cut_off.log());
    site.end();
}

/// A time far longer than the lease.
fn hang() -> Duration {
    Duration::from_secs(if soak() { 60 } else { 20 })
}

/// Flags of a mount whose calls wait for the end of a hang.
const PATIENT: &[&str] = &["-o", "deadline=5m"];

/// Promise: while the registry hangs, no server takes another one for dead. Calls wait, and go on with it.
#[test]
fn hanging_registry_moves_nothing() {
    let Some(site) = Site::start(&[PATIENT, PATIENT], Registered::InEtcd) else { return };
    let etcd = site.etcd.as_ref().expect("the registry is there");
    under_work(&site, |workloads| {
        etcd.signal(libc::SIGSTOP);
        std::thread::sleep(hang() / 2);
        etcd.signal(libc::SIGCONT);
        workloads.iter().for_each(|workload| workload.goes_on("after the hang"));
    });
    until("nothing has moved", TAKEOVER, || site.is_spread(SERVERS));
    site.end();
}

/// Promise: while the store hangs, which is the registry too, no server takes another one for dead. Calls wait, and
/// go on with it.
#[test]
fn hanging_store_moves_nothing() {
    let Some(network) = Network::make(SERVERS + 3) else { return };
    let Some(disk) = Disk::make("512M") else { return };
    let mut site = Site::prepare(network, Volume::format_in(&disk.path(), FORMAT), Registered::InStore);
    for host in 0..SERVERS {
        site.servers.push(site.join(host));
    }
    site.mount(&[PATIENT, PATIENT]);
    under_work(&site, |workloads| {
        site.network.perform(&disk.freezing());
        workloads.iter().for_each(|workload| workload.stands("while the store hangs"));
        std::thread::sleep(hang());
        site.network.perform(&disk.thawing());
        workloads.iter().for_each(|workload| workload.goes_on("after the hang"));
    });
    until("nothing has moved", TAKEOVER, || site.is_spread(SERVERS));
    site.end();
}

/// Another way to the store, through a file system in user space. It hangs while its process is stopped.
struct OtherWay {
    directory: tempfile::TempDir,
    process: std::process::Child,
}

impl OtherWay {
    fn to(volume: &Volume) -> OtherWay {
        let directory = scratch();
        let mut command = std::process::Command::new("bindfs");
        // Without caches, as network file systems that show the changes of other hosts at once.
        command.args(["-f", "-o", "attr_timeout=0,entry_timeout=0,negative_timeout=0"]);
        let process = command.arg(volume.store()).arg(directory.path()).spawn();
        let process = process.expect("bindfs starts; `make setup` installs it");
        until("the other way is there", SHORT, || common::mounted::is_mounted(directory.path()));
        OtherWay { directory, process }
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a system call that touches no memory. The process is a child that was not waited for.
        assert_eq!(unsafe { libc::kill(self.process.id() as i32, signal) }, 0);
    }
}

impl Drop for OtherWay {
    fn drop(&mut self) {
        common::mounted::detach(self.directory.path());
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Promise: if the store hangs for one server only, the others take its shards over, and it ends when the store
/// answers.
#[test]
fn server_whose_store_hangs_is_taken_over() {
    let Some(network) = Network::make(SERVERS + 3) else { return };
    let mut site = Site::prepare(network, Volume::format(FORMAT), Registered::InStore);
    let way = OtherWay::to(&site.volume);
    let mut hung = site.volume.join_by(way.directory.path(), &site.network.host(0), "server0.log", &[]);
    for host in 1..SERVERS {
        site.servers.push(site.join(host));
    }
    site.mount(&[&[], &[]]);
    under_work(&site, |workloads| {
        way.signal(libc::SIGSTOP);
        until("the others have its shards", TAKEOVER, || site.is_spread(SERVERS - 1));
        workloads.iter().for_each(|workload| workload.goes_on("after the takeover"));
        way.signal(libc::SIGCONT);
        assert_eq!(hung.expect_failure(), 1, "{}", hung.log());
        assert!(hung.log().contains("was taken for dead by another server"), "{}", hung.log());
    });
    drop(way);
    site.end();
}
