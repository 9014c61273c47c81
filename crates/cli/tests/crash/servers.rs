//! Several servers share the volume while writers work. One after another is killed, stopped for longer than its
//! lease, removed by an administrator or stopped in good order, and each time another one joins. On hosts of their
//! own, links between them are cut too, and the store or the registry hangs.

use super::common::disk::Disk;
use super::common::etcd::Etcd;
use super::common::hosts::Network;
use super::common::{SHORT, Server, Volume, must, on_plain_directory, run, soak, until, varve};
use super::histories::Histories;
use super::surroundings::{CLIENTS, GlusterFs, HOSTS, REGISTRY, SERVERS, SharedRegistry, Surroundings};
use super::{FORMAT, StopOnDrop, a_while, expect_work, in_library, on_mount, seed, volume, work};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use varve_env::random::Seeded;

const SHARDS: u64 = 8;

/// A takeover takes twice the lease, which is 2 s, and the time to open the shards. The suites share the machine.
const SPREAD_MAX: Duration = Duration::from_secs(60);

/// Far shorter than the lease.
const SHORT_CUT: Duration = Duration::from_millis(700);

/// The longest run on hosts: a soak with all its rounds takes an hour.
const TIME_MAX: Duration = Duration::from_secs(2 * 3600);
const GLUSTER_TIME: Duration = Duration::from_secs(600);

fn rounds() -> usize {
    if soak() { 400 } else { 8 }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Killed,
    /// It does not run for longer than its lease, and then goes on.
    Frozen,
    Evicted,
    Stopped,
}

impl Fate {
    const ALL: [Fate; 4] = [Fate::Killed, Fate::Frozen, Fate::Evicted, Fate::Stopped];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    Lose(Fate),
    /// A server is cut from everything but the store.
    CutOff,
    CutFromClients,
    /// Two servers are cut from each other.
    CutBetween,
    /// The same, and a server is killed meanwhile.
    CutBetweenAndKilled,
    /// The registry hangs, and the store with it if it is the registry.
    Hang,
}

impl Trouble {
    const ON_HOSTS: [Trouble; 8] = [
        Trouble::Lose(Fate::Killed),
        Trouble::CutOff,
        Trouble::CutBetween,
        Trouble::Hang,
        Trouble::CutFromClients,
        Trouble::CutBetweenAndKilled,
        Trouble::Lose(Fate::Frozen),
        Trouble::Lose(Fate::Evicted),
    ];
}

/// A member of the cluster: its number and how many shards it has.
type Members = BTreeMap<u32, (String, u64)>;

/// The fields end in this order: the servers before their logs and the store.
struct Cluster {
    servers: Vec<(usize, Server)>,
    volume: Volume,
    started: u32,
    surroundings: Option<Surroundings>,
}

impl Cluster {
    fn start(volume: Volume, surroundings: Option<Surroundings>) -> Cluster {
        let mut cluster = Cluster { volume, servers: Vec::new(), started: 0, surroundings };
        (0..SERVERS).for_each(|_| cluster.add());
        cluster.await_spread();
        cluster
    }

    /// Adds a server, on a host that has none.
    fn add(&mut self) {
        self.started += 1;
        let log = format!("server{}.log", self.started);
        let is_free = |host: &usize| self.servers.iter().all(|(used, _)| used != host);
        let host = (0..SERVERS).find(is_free).expect("there are enough hosts");
        let (registry, lease) = (self.registry(), format!("{}s", self.lease().as_secs()));
        let flags = ["--registry", &registry, "--lease", &lease];
        let server = match &self.surroundings {
            None => self.volume.join(&log, &flags),
            Some(around) => {
                self.volume.join_by(&around.store(&self.volume, host), &around.network.host(host), &log, &flags)
            }
        };
        self.servers.push((host, server));
    }

    fn registry(&self) -> String {
        match self.surroundings.as_ref().map(|around| &around.registry) {
            Some(SharedRegistry::Etcd(etcd)) => etcd.url(),
            _ => "store".to_owned(),
        }
    }

    fn lease(&self) -> Duration {
        match self.surroundings.as_ref().map(|around| &around.registry) {
            // A renewal takes some tenths of a second there if the machine is busy, and a sixth of the lease is allowed.
            Some(SharedRegistry::Gluster(_)) => Duration::from_secs(6),
            _ => Duration::from_secs(2),
        }
    }

    /// `varve cluster VERB`. On hosts, the caller is on the clients' one.
    fn command(&self, verb: &str) -> Command {
        let mut command = varve();
        command.args(["--json", "cluster", verb, "--registry", &self.registry()]).arg(self.volume.store());
        command
    }

    /// The members by their processes. None if no server answers.
    fn members(&self) -> Option<Members> {
        let shown = run(&mut self.command("status"), SHORT);
        let shown: serde_json::Value = serde_json::from_str(&shown.stdout).ok()?;
        let member = |member: &serde_json::Value| {
            let number = member["server"].as_str()?.to_owned();
            Some((u32::try_from(member["pid"].as_u64()?).ok()?, (number, member["shards"].as_u64()?)))
        };
        shown["servers"].as_array()?.iter().map(member).collect()
    }

    /// Returns when the servers that run, and no others, own all shards, each at least one.
    fn await_spread(&self) {
        let wanted: Vec<u32> = self.servers.iter().map(|(_, server)| server.pid()).collect();
        let is_spread = |members: Members| {
            members.len() == wanted.len()
                && wanted.iter().all(|pid| members.get(pid).is_some_and(|(_, shards)| *shards > 0))
                && members.values().map(|(_, shards)| shards).sum::<u64>() == SHARDS
        };
        until(&format!("processes {wanted:?} have the shards"), SPREAD_MAX, || self.members().is_some_and(is_spread));
    }

    fn lose(&mut self, fate: Fate, random: &mut Seeded) {
        let (_, mut server) = self.servers.swap_remove(random.below(self.servers.len()));
        let pid = server.pid();
        match fate {
            Fate::Killed => server.kill(),
            Fate::Stopped => server.stop(),
            Fate::Frozen => {
                server.hang();
                self.await_spread();
                a_while(random);
                server.go_on();
                assert_eq!(server.expect_failure(), 1, "{}", server.log());
            }
            Fate::Evicted => {
                let members = self.members().expect("the servers answer");
                let (number, _) = &members[&pid];
                must(self.command("evict").arg(number));
                assert_eq!(server.expect_failure(), 1, "{}", server.log());
            }
        }
        self.await_spread();
    }

    fn suffer(&mut self, trouble: Trouble, random: &mut Seeded) {
        let Trouble::Lose(fate) = trouble else { return self.suffer_around(trouble, random) };
        self.lose(fate, random);
    }

    /// Troubles of the network, the store and the registry.
    fn suffer_around(&mut self, trouble: Trouble, random: &mut Seeded) {
        let around = self.surroundings.take().expect("the servers are on hosts");
        let network = &around.network;
        let first = random.below(SERVERS);
        let second = (first + 1 + random.below(SERVERS - 1)) % SERVERS;
        match trouble {
            Trouble::CutOff if matches!(around.registry, SharedRegistry::Etcd(_)) && random.below(2) == 0 => {
                network.cut_off(first);
                let at = self.servers.iter().position(|(host, _)| *host == first).expect("each host has a server");
                let (_, mut server) = self.servers.swap_remove(at);
                self.surroundings = Some(around);
                self.await_spread();
                a_while(random);
                self.surroundings.as_ref().expect("set above").network.heal_all(first);
                assert_eq!(server.expect_failure(), 1, "{}", server.log());
                return;
            }
            Trouble::CutOff => {
                network.cut_off(first);
                let may_be_long = !matches!(around.registry, SharedRegistry::Etcd(_));
                std::thread::sleep(if may_be_long { long(random) } else { SHORT_CUT });
                network.heal_all(first);
            }
            Trouble::CutFromClients => {
                network.cut(CLIENTS, first);
                std::thread::sleep(long(random));
                network.heal(CLIENTS, first);
            }
            Trouble::CutBetween => {
                network.cut(first, second);
                std::thread::sleep(long(random));
                network.heal(first, second);
            }
            Trouble::CutBetweenAndKilled => {
                network.cut(first, second);
                a_while(random);
                self.surroundings = Some(around);
                self.lose(Fate::Killed, random);
                self.surroundings.as_ref().expect("set above").network.heal(first, second);
                return;
            }
            Trouble::Hang => {
                around.hang(true);
                std::thread::sleep(long(random));
                around.hang(false);
            }
            Trouble::Lose(_) => unreachable!("no trouble of the surroundings"),
        }
        self.surroundings = Some(around);
    }

    fn end(self) {
        self.servers.into_iter().for_each(|(_, server)| server.stop());
        self.volume.expect_sound();
    }
}

/// From less than the lease to far more.
fn long(random: &mut Seeded) -> Duration {
    Duration::from_millis(500 + random.below(if soak() { 30_000 } else { 5_000 }) as u64)
}

/// Promise: a client's calls do not fail while servers are killed, stopped, removed and added, and nothing that any
/// server acknowledged is lost.
#[test]
fn servers_that_come_and_go_lose_nothing() {
    if on_plain_directory() {
        return;
    }
    let mut cluster = Cluster::start(volume(), None);
    let mount = cluster.volume.mount(&["-o", "noembedded"]);
    let troubles = |round: usize, random: &mut Seeded| {
        let fate = Fate::ALL[(round + random.below(2)) % Fate::ALL.len()];
        (round < rounds()).then_some(Trouble::Lose(fate))
    };
    live_through(&mut cluster, &mount.directory, seed() + 4, troubles);
    mount.unmount();
    cluster.end();
}

/// Works through mounts and libraries while the cluster suffers, and checks all after each trouble.
fn live_through(
    cluster: &mut Cluster,
    mount: &Path,
    seed: u64,
    troubles: impl Fn(usize, &mut Seeded) -> Option<Trouble>,
) {
    println!("VARVE_SEED={}", super::seed());
    let mut random = Seeded::new(seed);
    let mut writers = on_mount(mount);
    writers.extend(in_library(&cluster.volume));
    let mut histories = Histories::in_library(&cluster.volume, seed);
    let mut survived = 0;
    while let Some(trouble) = troubles(survived, &mut random) {
        let round = survived;
        work(&mut writers, || {
            beside(&mut histories, || {
                a_while(&mut random);
                cluster.suffer(trouble, &mut random);
                a_while(&mut random);
                while cluster.servers.len() < SERVERS {
                    cluster.add();
                }
                cluster.await_spread();
            });
        });
        for writer in &mut writers {
            assert!(writer.unanswered.is_none(), "round {round}, {trouble:?}: {writer:?} though others took over");
            writer.check(&format!("round {round}, {trouble:?}"));
        }
        survived += 1;
    }
    println!("{survived} troubles survived");
    expect_work(&writers, 50 * survived as u64);
    for history in &histories {
        let (checked, unknown) = (history.checked.load(Relaxed), history.unknown.load(Relaxed));
        println!("{checked} linearizable histories, {unknown} operations with an unknown outcome");
        assert!(checked > survived as u64, "the histories prove nothing");
    }
}

/// Runs the clients of the histories while `work` runs.
fn beside(histories: &mut [Histories], work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _at_the_end = StopOnDrop(&stop);
        for history in histories {
            let stop = &stop;
            scope.spawn(move || history.work(stop));
        }
        work();
    });
}

/// Promise: no call fails and nothing acknowledged is lost or done twice while servers on several hosts are killed,
/// cut off from each other or from the clients, and while the store that is also their registry hangs.
#[test]
fn cuts_and_hangs_lose_nothing() {
    let Some(network) = hosts() else { return };
    let Some(disk) = Disk::make("3G") else { return };
    let volume = Volume::format_in(&disk.path(), FORMAT);
    on_hosts(
        volume,
        Surroundings { network, registry: SharedRegistry::Store(disk) },
        seed() + 5,
        &Trouble::ON_HOSTS,
        TIME_MAX,
    );
}

/// Promise: the same with the registry in etcd, from which servers are cut off too.
#[test]
fn cuts_and_hangs_lose_nothing_with_etcd() {
    let Some(network) = hosts() else { return };
    let etcd = Etcd::start_on(&network.host(REGISTRY));
    on_hosts(
        volume(),
        Surroundings { network, registry: SharedRegistry::Etcd(etcd) },
        seed() + 6,
        &Trouble::ON_HOSTS,
        TIME_MAX,
    );
}

/// Promise: the same with servers on two mounts of a GlusterFS, whose store does not hang. Ten minutes, only by
/// `VARVE_SOAK=1`.
#[test]
fn cuts_lose_nothing_on_glusterfs() {
    if !soak() {
        eprintln!("SKIPPED: only with VARVE_SOAK=1");
        return;
    }
    let Some(network) = hosts() else { return };
    let gluster = GlusterFs::start();
    let volume = Volume::format_in(&gluster.mount(0), FORMAT);
    let troubles: Vec<_> = Trouble::ON_HOSTS.into_iter().filter(|trouble| *trouble != Trouble::Hang).collect();
    let surroundings = Surroundings { network, registry: SharedRegistry::Gluster(gluster) };
    on_hosts(volume, surroundings, seed() + 7, &troubles, GLUSTER_TIME);
}

fn hosts() -> Option<Network> {
    if on_plain_directory() { None } else { Network::make(HOSTS) }
}

fn on_hosts(volume: Volume, surroundings: Surroundings, seed: u64, troubles: &[Trouble], at_most: Duration) {
    let clients = surroundings.network.host(CLIENTS);
    // The libraries of this process and the commands are on the clients' host.
    clients.clone().inside(|| {
        let mut cluster = Cluster::start(volume, Some(surroundings));
        let mount = cluster.volume.mount_on(&clients, "clients", &[]);
        let begun = Instant::now();
        let troubles = |round: usize, random: &mut Seeded| {
            let trouble = troubles[(round + random.below(2)) % troubles.len()];
            (round < rounds() && begun.elapsed() < at_most).then_some(trouble)
        };
        live_through(&mut cluster, &mount.directory, seed, troubles);
        mount.unmount();
        cluster.end();
    });
}
