//! Several servers serve one volume: they divide the shards, take over those of a dead server, and give theirs away when
//! they stop.

mod common;
#[path = "servers/full_store.rs"]
mod full_store;
#[path = "servers/lost_and_copied.rs"]
mod lost_and_copied;
#[path = "servers/stop_points.rs"]
mod stop_points;

use common::{Outcome, SHORT, Volume, run, until, varve};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use varve_cluster::address::RegistryAddress;
use varve_cluster::claim::{ClaimConfig, VolumeClaim};
use varve_cluster::map::{ClusterMap, ServerId};
use varve_env::clock::RealClock;
use varve_env::volume_dir::VolumeDir;

/// A takeover takes twice the lease, which is 2 s, and the time to open the shards. The machine may be busy.
const TAKEOVER: Duration = Duration::from_secs(30);

const SHARDS: usize = 8;

fn volume() -> Volume {
    Volume::format(&["--shards", "8"])
}

/// The newest map in the volume's registry.
fn map(volume: &Volume) -> ClusterMap {
    let store = VolumeDir::new(volume.store());
    let settings = store.read_settings().expect("it is a volume");
    let registry = RegistryAddress::Store.open(&store, settings.id).expect("a registry in the store");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(registry.newest_map()).expect("a map that can be read").expect("a map")
}

/// The number of shards of each process.
fn shares(volume: &Volume) -> BTreeMap<u32, usize> {
    let map = map(volume);
    map.members.iter().map(|(server, member)| (member.pid, map.shards_of(*server).count())).collect()
}

fn await_shares(volume: &Volume, wanted: &[(u32, usize)]) {
    let wanted: BTreeMap<_, _> = wanted.iter().copied().collect();
    until(&format!("the shares are {wanted:?}"), TAKEOVER, || shares(volume) == wanted);
}

/// Waits until every shard is open at its owner.
fn await_open(volume: &Volume) {
    until("all shards are open", TAKEOVER, || {
        let shown = run(varve().args(["--json", "cluster", "status"]).arg(volume.store()), SHORT);
        // A shard may be between two servers.
        shown.code() == Some(0) && {
            let shown = shown.json();
            let shards = shown["shards"].as_array().expect("a list");
            shards.len() == SHARDS && shards.iter().all(|shard| shard["state"] == "open")
        }
    });
}

fn refused(outcome: &Outcome, words: &[&str]) {
    assert_ne!(outcome.code(), Some(0), "{}{}", outcome.stdout, outcome.stderr);
    for word in words {
        assert!(outcome.stderr.contains(word), "{word:?} is not in {}", outcome.stderr);
    }
}

#[test]
fn shards_are_divided_and_taken_over() {
    let volume = volume();
    let one = volume.join("one.log", &[]);
    await_shares(&volume, &[(one.pid(), SHARDS)]);
    let other = volume.join("other.log", &[]);
    await_shares(&volume, &[(one.pid(), SHARDS / 2), (other.pid(), SHARDS / 2)]);
    await_open(&volume);

    other.kill();
    await_shares(&volume, &[(one.pid(), SHARDS)]);
    await_open(&volume);

    let third = volume.join("third.log", &[]);
    await_shares(&volume, &[(one.pid(), SHARDS / 2), (third.pid(), SHARDS / 2)]);
    one.stop();
    await_shares(&volume, &[(third.pid(), SHARDS)]);
    await_open(&volume);
    third.stop();
    assert!(map(&volume).members.is_empty());
    volume.expect_sound();
}

/// A server that was stopped for longer than its lease finds that others have its shards, and ends with an error.
#[test]
fn server_that_was_taken_for_dead_ends() {
    let volume = volume();
    let one = volume.join("one.log", &[]);
    let mut other = volume.join("other.log", &[]);
    await_shares(&volume, &[(one.pid(), SHARDS / 2), (other.pid(), SHARDS / 2)]);
    other.hang();
    await_shares(&volume, &[(one.pid(), SHARDS)]);
    other.go_on();
    assert_eq!(other.expect_failure(), 1, "{}", other.log());
    assert!(other.log().contains("was taken for dead by another server"), "{}", other.log());
    one.stop();
    volume.expect_sound();
}

/// Promise: a server joins while the process of one that was taken for dead is stopped and still has the lock.
#[test]
fn server_joins_beside_a_stopped_one() {
    let volume = volume();
    let one = volume.join("one.log", &[]);
    let mut stopped = volume.join("stopped.log", &[]);
    await_shares(&volume, &[(one.pid(), SHARDS / 2), (stopped.pid(), SHARDS / 2)]);
    stopped.hang();
    await_shares(&volume, &[(one.pid(), SHARDS)]);
    one.stop();
    let alone = run(varve().arg("serve").arg(volume.store()), SHORT);
    refused(&alone, &["is in use by", &format!("a server, process {}", stopped.pid())]);
    let third = volume.join("third.log", &[]);
    await_shares(&volume, &[(third.pid(), SHARDS)]);
    stopped.go_on();
    assert_eq!(stopped.expect_failure(), 1, "{}", stopped.log());
    await_open(&volume);
    third.stop();
    volume.expect_sound();
}

#[test]
fn joined_servers_exclude_others() {
    let volume = volume();
    let one = volume.join("one.log", &[]);
    let holder = format!("a server, process {}", one.pid());
    let store = volume.store();
    refused(&run(varve().arg("serve").arg(&store), SHORT), &["is in use by", &holder]);
    refused(&run(varve().arg("fsck").arg(&store).arg("--repair"), SHORT), &["is in use by", &holder]);
    refused(&run(varve().arg("format").arg(&store).args(["--force", "--force"]), SHORT), &["is in use by", &holder]);
    one.stop();
    let alone = volume.serve(&[]);
    let holder = format!("a server, process {}", alone.pid());
    refused(&run(varve().arg("serve").arg(&store).arg("--join"), SHORT), &["is in use by", &holder]);
    alone.stop();
    volume.expect_sound();
}

/// Promise: a workload on a mount sees no error while one of two servers is killed, another one joins, and one stops; and
/// everything that was acknowledged is there.
#[test]
fn workload_goes_on_when_servers_die_and_stop() {
    let volume = volume();
    let one = volume.join("one.log", &[]);
    let other = volume.join("other.log", &[]);
    await_shares(&volume, &[(one.pid(), SHARDS / 2), (other.pid(), SHARDS / 2)]);
    let mount = volume.mount(&["-o", "noembedded"]);
    let (stop, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    let goes_on = |what: &str| {
        let before = count.load(SeqCst);
        until(&format!("the workload goes on {what}"), TAKEOVER, || count.load(SeqCst) > before + 20);
    };
    let third = std::thread::scope(|scope| {
        let work = scope.spawn(|| make_directories(&mount.directory, &stop, &count));
        goes_on("at first");
        other.kill();
        await_shares(&volume, &[(one.pid(), SHARDS)]);
        goes_on("after a kill");
        let third = volume.join("third.log", &[]);
        await_shares(&volume, &[(one.pid(), SHARDS / 2), (third.pid(), SHARDS / 2)]);
        goes_on("after a join");
        one.stop();
        await_shares(&volume, &[(third.pid(), SHARDS)]);
        goes_on("after a stop");
        stop.store(true, SeqCst);
        work.join().expect("the workload saw no error");
        third
    });
    for number in 0..count.load(SeqCst) {
        let content = std::fs::read(mount.directory.join(format!("d{number}/renamed"))).expect("it was acknowledged");
        assert_eq!(content, format!("content {number}").into_bytes());
    }
    mount.unmount();
    third.stop();
    volume.expect_sound();
}

/// Makes directories, whose homes are spread over all shards, each with a file. Counts those that are complete.
fn make_directories(root: &Path, stop: &AtomicBool, count: &AtomicUsize) {
    while !stop.load(SeqCst) {
        let number = count.load(SeqCst);
        let directory = root.join(format!("d{number}"));
        std::fs::create_dir(&directory).expect("a directory");
        std::fs::write(directory.join("file"), format!("content {number}")).expect("a file");
        std::fs::rename(directory.join("file"), directory.join("renamed")).expect("another name");
        count.store(number + 1, SeqCst);
    }
}

#[test]
fn drained_server_has_no_shards_and_evicted_one_ends() {
    let volume = volume();
    let store = volume.store();
    let one = volume.join("one.log", &[]);
    let mut other = volume.join("other.log", &[]);
    await_shares(&volume, &[(one.pid(), SHARDS / 2), (other.pid(), SHARDS / 2)]);
    let status = run(varve().args(["--json", "cluster", "status"]).arg(&store), SHORT);
    let status = status.succeeded("varve cluster status").json();
    let servers = status["servers"].as_array().expect("a list");
    let of_other = servers.iter().find(|server| server["pid"] == other.pid()).expect("it is shown");
    assert_eq!((&of_other["shards"], &of_other["state"]), (&(SHARDS / 2).into(), &"active".into()));
    let shards = status["shards"].as_array().expect("a list");
    assert_eq!(shards.iter().filter(|shard| shard["server"] == of_other["server"]).count(), SHARDS / 2);
    let text = run(varve().args(["cluster", "status"]).arg(&store), SHORT).succeeded("varve cluster status").stdout;
    assert!(text.lines().any(|line| line.trim_start().starts_with("shard           server worker")), "{text}");
    let number = of_other["server"].as_str().expect("a number");
    run(varve().args(["cluster", "drain"]).arg(&store).arg(number), SHORT).succeeded("varve cluster drain");
    await_shares(&volume, &[(one.pid(), SHARDS), (other.pid(), 0)]);
    run(varve().args(["cluster", "evict"]).arg(&store).arg(number), SHORT).succeeded("varve cluster evict");
    await_shares(&volume, &[(one.pid(), SHARDS)]);
    assert_eq!(other.expect_failure(), 1, "{}", other.log());
    assert!(other.log().contains("it was evicted"), "{}", other.log());
    let again = run(varve().args(["cluster", "evict"]).arg(&store).arg(number), SHORT);
    refused(&again, &["cannot evict server", "is not a member of the cluster"]);
    one.stop();
    volume.expect_sound();
}

/// Claims the volume as `varve fsck` does, and leaves the claim as a command that was killed.
fn claim_and_die(volume: &Volume) -> ServerId {
    let store = VolumeDir::new(volume.store());
    let settings = store.read_settings().expect("it is a volume");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let claimed = VolumeClaim::take(ClaimConfig {
        registry: RegistryAddress::Store.open(&store, settings.id).expect("a registry in the store"),
        clock: Arc::new(RealClock::new()),
        shards: settings.shards,
        lease_time: Duration::from_secs(2),
        purpose: "varve fsck".into(),
        host: "far".into(),
        pid: 4321,
    });
    drop(runtime.block_on(claimed).expect("a claim"));
    map(volume).claim.expect("the claim").holder
}

/// Promise: `fsck`, `dump` and `format` keep servers away, and say which servers are in their way.
#[test]
fn maintenance_is_refused_while_servers_live() {
    let volume = volume();
    let store = volume.store();
    let one = volume.join("one.log", &[]);
    let other = volume.join("other.log", &[]);
    await_shares(&volume, &[(one.pid(), SHARDS / 2), (other.pid(), SHARDS / 2)]);
    let living = [format!("process {}", one.pid()), format!("process {}", other.pid())];
    let words = ["is in use by", &living[0], &living[1], "varve cluster evict STORE"];
    refused(&run(varve().arg("fsck").arg(&store), SHORT), &words);
    refused(&run(varve().arg("fsck").arg("--repair").arg(&store), SHORT), &words);
    refused(&run(varve().arg("format").arg(&store).args(["--force", "--force"]), SHORT), &words);
    let file = volume.beside("volume.dump");
    let dump = || run(varve().arg("dump").arg(&store).arg("-o").arg(&file), SHORT);
    refused(&dump(), &[&living[0], &living[1], "Stop all of them, or all but one"]);
    other.stop();
    await_shares(&volume, &[(one.pid(), SHARDS)]);
    await_open(&volume);
    dump().succeeded("varve dump of one server that has joined");
    one.stop();
    dump().succeeded("varve dump without a server");
    volume.expect_sound();
}

/// Promise: the claim of a command that was killed keeps servers away for no longer than its lease; so does the record
/// of killed servers to commands.
#[test]
fn dead_claims_and_servers_are_found_by_their_silence() {
    let volume = volume();
    let store = volume.store();
    let one = volume.join("one.log", &[]);
    let other = volume.join("other.log", &[]);
    await_shares(&volume, &[(one.pid(), SHARDS / 2), (other.pid(), SHARDS / 2)]);
    one.kill();
    other.kill();
    volume.expect_sound();
    assert!(map(&volume).members.is_empty() && map(&volume).claim.is_none());

    let claim = claim_and_die(&volume);
    let shown = run(varve().args(["cluster", "status"]).arg(&store), SHORT);
    let shown = &shown.succeeded("varve cluster status").stdout;
    for word in ["claimed by `varve fsck`, process 4321 on host far", &claim.to_string(), "varve cluster evict"] {
        assert!(shown.contains(word), "{word:?} is not in {shown}");
    }
    run(varve().args(["cluster", "evict"]).arg(&store).arg(claim.to_string()), SHORT).succeeded("varve cluster evict");
    assert!(map(&volume).claim.is_none());
    claim_and_die(&volume);
    let third = volume.join("third.log", &[]);
    await_shares(&volume, &[(third.pid(), SHARDS)]);
    third.stop();
    claim_and_die(&volume);
    run(varve().arg("format").arg(&store).args(["--force", "--force"]), SHORT).succeeded("varve format");
    assert!(!store.join("cluster").exists(), "the registry is the old volume's");
    volume.expect_sound();
}

#[test]
fn servers_and_commands_use_the_recorded_registry() {
    let volume = volume();
    let store = volume.store();
    let etcd = "etcd://127.0.0.1:1";
    refused(&run(varve().args(["serve", "--join", "--registry", etcd]).arg(&store), SHORT), &["does not answer"]);
    let one = volume.join("one.log", &[]);
    let words = ["the servers of the volume find each other in store", "registry.toml", etcd];
    refused(&run(varve().args(["serve", "--join", "--registry", etcd]).arg(&store), SHORT), &words);
    refused(&run(varve().args(["cluster", "status", "--registry", etcd]).arg(&store), SHORT), &words);
    let status = run(varve().args(["--json", "cluster", "status"]).arg(&store), SHORT);
    assert_eq!(status.succeeded("varve cluster status").json()["registry"], "store");
    one.stop();
    volume.expect_sound();
}

/// The server of a process, by the newest map.
fn number_of(volume: &Volume, pid: u32) -> ServerId {
    let map = map(volume);
    map.members.iter().find(|(_, member)| member.pid == pid).map(|(server, _)| *server).expect("a member")
}

/// Promise: a shard moves to the named server under load, no call fails, and it stays there until the servers change.
#[test]
fn shard_moves_to_a_named_server_and_stays() {
    let volume = volume();
    let store = volume.store();
    let one = volume.join("one.log", &[]);
    let other = volume.join("other.log", &[]);
    await_shares(&volume, &[(one.pid(), SHARDS / 2), (other.pid(), SHARDS / 2)]);
    let [from, to] = [number_of(&volume, one.pid()), number_of(&volume, other.pid())];
    let moved: Vec<_> = map(&volume).shards_of(from).take(2).collect();
    let mover = |shard: &str, to: &str| run(varve().args(["cluster", "move"]).arg(&store).args([shard, to]), SHORT);
    let mount = volume.mount(&["-o", "noembedded"]);
    let (stop, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let work = scope.spawn(|| make_directories(&mount.directory, &stop, &count));
        for shard in &moved {
            let done = mover(&shard.to_string(), &to.to_string()).succeeded("varve cluster move");
            let words = format!("moved shard {shard} from server {from} to server {to} in ");
            assert!(done.stdout.contains(&words), "{}", done.stdout);
        }
        stop.store(true, SeqCst);
        work.join().expect("the workload saw no error");
    });
    // Several rounds of the balance.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(shares(&volume), BTreeMap::from([(one.pid(), SHARDS / 2 - 2), (other.pid(), SHARDS / 2 + 2)]));
    await_open(&volume);

    let first = moved[0].to_string();
    refused(&mover(&first, &to.to_string()), &["owns shard", "already"]);
    refused(&mover("8", &to.to_string()), &["shards 0 to 7, and no shard 8"]);
    refused(&mover(&first, "0123456789abcdef"), &["is not a member", "varve cluster status"]);
    refused(&mover(&first, "1"), &["name the server in place of the worker"]);
    refused(&mover(&first, "one"), &["16 hexadecimal digits of a server"]);
    let third = volume.join("third.log", &[]);
    until("the shards are divided anew", TAKEOVER, || {
        let shares = shares(&volume);
        shares.len() == 3 && shares.values().all(|shards| *shards <= 3)
    });
    let dead = number_of(&volume, third.pid());
    third.hang();
    let owned_by_one = map(&volume).shards_of(from).next().expect("a shard").to_string();
    refused(&mover(&owned_by_one, &dead.to_string()), &[&dead.to_string()]);
    third.kill();
    mount.unmount();
    one.stop();
    other.stop();
    volume.expect_sound();
}

/// Promise: the acknowledgement level is chosen at format and changed later, and commands and metrics show it.
#[test]
fn acknowledgement_level_is_set_and_shown() {
    let volume = Volume::format(&["--shards", "8", "--ack", "synced"]);
    let store = volume.store();
    let shown = |command: &[&str]| run(varve().arg("--json").args(command).arg(&store), SHORT).json();
    assert_eq!(shown(&["status"])["volume"]["ack"], "synced");
    let one = volume.join("one.log", &[]);
    await_open(&volume);
    assert_eq!(shown(&["cluster", "status"])["ack"], "synced");
    let mount = volume.mount(&["-o", "noembedded"]);
    std::fs::write(mount.directory.join("file"), "content").expect("a file");
    let unsynced = |status: serde_json::Value| {
        let shards = status["server"]["shards"].as_array().expect("a list").clone();
        shards.iter().map(|shard| shard["log_bytes_unsynced"].as_u64().expect("a number")).sum::<u64>()
    };
    assert_eq!(unsynced(shown(&["status"])), 0, "every reply waited for the fsync");
    let info = run(varve().args(["--json", "info"]).arg(mount.directory.join("file")), SHORT);
    assert_eq!(info.succeeded("varve info").json()["ack"], "synced");
    mount.unmount();

    let set = run(varve().args(["volume", "set", "--ack", "appended"]).arg(&store), SHORT);
    let set = set.succeeded("varve volume set").stdout;
    assert!(set.contains(&format!("process {}", one.pid())) && set.contains("until it is restarted"), "{set}");
    let kept = shown(&["cluster", "status"]);
    assert_eq!((&kept["ack"], &kept["servers"][0]["ack"]), (&"synced".into(), &"synced".into()));
    assert_eq!(kept["servers"][0]["restart"], true);
    let text = run(varve().args(["cluster", "status"]).arg(&store), SHORT).stdout;
    assert!(text.contains(&format!("restart server {}: ", number_of(&volume, one.pid()))), "{text}");
    let again = run(varve().args(["volume", "set", "--ack", "appended"]).arg(&store), SHORT).stdout;
    assert!(again.contains(&format!("process {}", one.pid())), "it is told as long as it is so: {again}");
    one.stop();
    let again = volume.join("again.log", &[]);
    await_open(&volume);
    let shown_now = shown(&["cluster", "status"]);
    assert_eq!((&shown_now["ack"], &shown_now["servers"][0]["restart"]), (&"appended".into(), &false.into()));
    refused(&run(varve().args(["volume", "set", "--ack", "never"]).arg(&store), SHORT), &["appended or synced"]);
    again.stop();
    volume.expect_sound();
}
