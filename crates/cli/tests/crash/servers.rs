//! Several servers share the volume while writers work. One after another is killed, stopped for longer than its lease,
//! removed by an administrator or stopped in good order, and each time another one joins.

use super::common::{SHORT, Server, Volume, must, on_plain_directory, run, soak, until, varve};
use super::{a_while, expect_work, in_library, on_mount, seed, volume, work};
use std::collections::BTreeMap;
use std::time::Duration;
use varve_env::random::Seeded;

const SHARDS: u64 = 8;
const SERVERS: usize = 4;

/// A takeover takes twice the lease, which is 2 s, and the time to open the shards. The suites share the machine.
const SPREAD_MAX: Duration = Duration::from_secs(60);

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

/// A member of the cluster: its number and how many shards it has.
type Members = BTreeMap<u32, (String, u64)>;

struct Cluster {
    volume: Volume,
    servers: Vec<Server>,
    started: u32,
}

impl Cluster {
    fn start(volume: Volume) -> Cluster {
        let mut cluster = Cluster { volume, servers: Vec::new(), started: 0 };
        (0..SERVERS).for_each(|_| cluster.add());
        cluster.await_spread();
        cluster
    }

    fn add(&mut self) {
        self.started += 1;
        self.servers.push(self.volume.join(&format!("server{}.log", self.started), &[]));
    }

    /// The members by their processes. None if no server answers.
    fn members(&self) -> Option<Members> {
        let shown = run(varve().args(["--json", "cluster", "status"]).arg(self.volume.store()), SHORT);
        let shown: serde_json::Value = serde_json::from_str(&shown.stdout).ok()?;
        let member = |member: &serde_json::Value| {
            let number = member["server"].as_str()?.to_owned();
            Some((u32::try_from(member["pid"].as_u64()?).ok()?, (number, member["shards"].as_u64()?)))
        };
        shown["servers"].as_array()?.iter().map(member).collect()
    }

    /// Returns when the servers that run, and no others, own all shards, each at least one.
    fn await_spread(&self) {
        let wanted: Vec<u32> = self.servers.iter().map(Server::pid).collect();
        let is_spread = |members: Members| {
            members.len() == wanted.len()
                && wanted.iter().all(|pid| members.get(pid).is_some_and(|(_, shards)| *shards > 0))
                && members.values().map(|(_, shards)| shards).sum::<u64>() == SHARDS
        };
        until(&format!("processes {wanted:?} have the shards"), SPREAD_MAX, || self.members().is_some_and(is_spread));
    }

    fn lose(&mut self, fate: Fate, random: &mut Seeded) {
        let mut server = self.servers.swap_remove(random.below(self.servers.len()));
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
                must(varve().args(["cluster", "evict"]).arg(self.volume.store()).arg(number));
                assert_eq!(server.expect_failure(), 1, "{}", server.log());
            }
        }
        self.await_spread();
    }
}

/// Promise: a client's calls do not fail while servers are killed, stopped, removed and added, and nothing that any
/// server acknowledged is lost.
#[test]
fn servers_that_come_and_go_lose_nothing() {
    if on_plain_directory() {
        return;
    }
    println!("VARVE_SEED={}", seed());
    let mut random = Seeded::new(seed() + 4);
    let mut cluster = Cluster::start(volume());
    let mount = cluster.volume.mount(&["-o", "noembedded"]);
    let mut writers = on_mount(&mount.directory);
    writers.extend(in_library(&cluster.volume));
    for round in 0..rounds() {
        let fate = Fate::ALL[(round + random.below(2)) % Fate::ALL.len()];
        work(&mut writers, || {
            a_while(&mut random);
            cluster.lose(fate, &mut random);
            a_while(&mut random);
            cluster.add();
            cluster.await_spread();
        });
        for writer in &mut writers {
            assert!(writer.unanswered.is_none(), "round {round}, {fate:?}: {writer:?} though others took over");
            writer.check(&format!("round {round}, {fate:?}"));
        }
    }
    expect_work(&writers, 50 * rounds() as u64);
    drop(writers);
    mount.unmount();
    let Cluster { volume, servers, .. } = cluster;
    servers.into_iter().for_each(Server::stop);
    volume.expect_sound();
}
