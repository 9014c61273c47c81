//! Servers that stop, restart, and lose replies.

use crate::site::*;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use varve_client::{ClientConfig, FileSystem, Library, OpenFlags, RenameFlags, block_on};
use varve_env::volume_dir::VolumeDir;
use varve_meta::server::{Server, ServerConfig};
use varve_types::{Errno, Mode, SetAttributes, ShardId, VolumeSettings};

/// Promise: a client that only writes a large file, without calls to the server, still finds a restarted server, long
/// before that treats the files of absent clients as closed.
#[test]
fn passthrough_writer_finds_the_next_server() {
    let site = Site::new(4);
    let server = site.serve();
    let fs = site.connect();
    let (inode, handle) = create(&fs, "f");
    write(&fs, handle, 0, &[1; 200_000]);
    server.stop(STOP).unwrap();
    let _server = site.serve();
    let begun = Instant::now();
    while fs.counters().reconnects() == 0 {
        write(&fs, handle, 200_000, &[2; 1000]);
        assert!(begun.elapsed() < Duration::from_secs(15), "it has not looked for it");
        std::thread::sleep(Duration::from_millis(50));
    }
    close(&fs, handle);
    assert_eq!(size(&fs, inode), 201_000);
}

/// Promise: a truncation by path at a server that was just started does not record the size, because another client,
/// not yet known to that server, may be writing the file.
#[test]
fn truncate_after_restart_keeps_writes_of_others() {
    let site = Site::new(4);
    let server = site.serve();
    let fs = site.connect();
    let (inode, handle) = create(&fs, "f");
    write(&fs, handle, 0, &[1; 200_000]);
    server.stop(STOP).unwrap();
    let server = site.serve();
    let other = site.connect();
    block_on(other.lookup(&root(), ROOT, &name("f"))).unwrap();
    let set = SetAttributes { size: Some(1000), ..Default::default() };
    block_on(other.set_attributes(&root(), inode, set, None)).unwrap();
    write(&fs, handle, 200_000, &[2; 1000]);
    assert_eq!((fs.counters().reconnects(), size(&other, inode)), (0, 201_000), "while it is written");
    close(&fs, handle);
    drop(fs);
    server.stop(STOP).unwrap();
    let _server = site.serve();
    let third = site.connect();
    let node = block_on(third.lookup(&root(), ROOT, &name("f"))).unwrap();
    assert_eq!(node.attributes.size, 201_000, "when nobody writes it any more");
}

/// Promise: removing or renaming a file at a server that was just started keeps it for another client that has it open
/// and is not yet known to that server; the removed file is deleted when it is closed and all clients are known.
#[test]
fn open_files_survive_unlink_and_rename_after_restart() {
    let site = Site::new(4);
    let server = site.serve();
    let (fs, other) = (site.connect(), site.connect());
    let names = ["removed", "replaced", "renamed", "large and removed"];
    let open = names.map(|text| create(&fs, text));
    open[..3].iter().for_each(|(_, handle)| write(&fs, *handle, 0, b"before"));
    write(&fs, open[3].1, 0, &[1; 200_000]);
    open.iter().for_each(|(_, handle)| block_on(fs.flush(*handle)).unwrap());
    open[..3].iter().for_each(|(_, handle)| write(&fs, *handle, 6, b" and after"));
    block_on(other.lookup(&root(), ROOT, &name("removed"))).unwrap();
    let also = crate::site::open(&other, open[0].0);
    server.stop(STOP).unwrap();

    let server = site.serve();
    let begun = Instant::now();
    let rename = |from, to| {
        block_on(other.rename(&root(), ROOT, &name(from), ROOT, &name(to), RenameFlags::Replace)).unwrap();
    };
    for text in ["removed", "large and removed"] {
        block_on(other.unlink(&root(), ROOT, &name(text))).unwrap();
    }
    close(&other, also);
    // Sends the release.
    make_file(&other, ROOT, "new");
    rename("new", "replaced");
    rename("renamed", "other name");
    assert_eq!(fs.counters().reconnects(), 0, "it has not been missed yet");
    for ((inode, handle), text) in open.iter().zip(names).take(3) {
        block_on(fs.flush(*handle)).unwrap();
        assert_eq!(read(&fs, *handle, 0, 100), b"before and after", "{text}");
        let links = block_on(fs.attributes(&root(), *inode)).unwrap().attributes.nlink;
        assert_eq!(links, u32::from(text == "renamed"), "{text}");
    }
    write(&fs, open[3].1, 200_000, &[2; 100]);
    block_on(fs.fsync(open[3].1, false)).unwrap();
    assert_eq!(content(&other, "other name"), b"before and after");
    open.iter().for_each(|(_, handle)| close(&fs, *handle));
    block_on(fs.shutdown()).unwrap();
    block_on(other.shutdown()).unwrap();
    std::thread::sleep(Duration::from_secs(32).saturating_sub(begun.elapsed()));
    server.stop(STOP).unwrap();
    let report = varve_admin::fsck::check(&site.volume, &mut |_| {}).unwrap();
    assert!(report.totals.is_empty(), "{:?}", report.totals);
    assert_eq!(report.counts.orphans, 0);
}

/// Promise: on the server's host a client connects by the Unix socket, and by TCP only if configured. If it does not
/// see the socket, as in a container, the error says what to do; so does the error for TCP where the server does not
/// listen on it.
#[test]
fn tcp_is_used_only_if_asked_for() {
    let site = Site::new(4);
    let serve = |listen| {
        let config = ServerConfig {
            listen,
            unix_directory: Some(site.path("sockets")),
            memory_bytes: 128 * 1024 * 1024,
            ..ServerConfig::new(site.volume.clone())
        };
        Server::start(config).unwrap()
    };
    let refusal = |tcp| {
        let config = ClientConfig { deadline: Duration::from_millis(100), tcp, ..site.config() };
        FileSystem::connect(config).map(drop).unwrap_err().to_string()
    };
    let out_of_sight = || std::fs::rename(site.path("sockets"), site.path("elsewhere")).unwrap();
    let server = serve(Some("127.0.0.1:0".parse().unwrap()));
    out_of_sight();
    let missed = refusal(false);
    assert!(missed.contains(&site.path("sockets").display().to_string()), "{missed}");
    assert!(missed.contains("--listen") && missed.contains("--tcp") && missed.contains("container"), "{missed}");
    let fs = FileSystem::connect(ClientConfig { tcp: true, ..site.config() }).unwrap();
    let (inode, handle) = create(&fs, "f");
    write(&fs, handle, 0, b"by TCP");
    close(&fs, handle);
    assert_eq!(size(&fs, inode), 6);
    block_on(fs.ping(ShardId(1), &[7; 300_000])).unwrap();
    block_on(fs.shutdown()).unwrap();
    server.stop(STOP).unwrap();
    std::fs::rename(site.path("elsewhere"), site.path("sockets")).unwrap();

    let _server = serve(None);
    let missing = refusal(true);
    assert!(missing.contains("--listen HOST:PORT"), "{missing}");
    site.connect();
}

/// Promise: calls in progress wait for the next server, where the open files are registered again, also one without a
/// name.
#[test]
fn open_files_survive_a_restart() {
    let site = Site::new(4);
    let server = site.serve();
    let fs = site.connect();
    let (named, named_handle) = create(&fs, "named");
    let (unnamed, unnamed_handle) = create(&fs, "unnamed");
    write(&fs, named_handle, 0, b"one");
    write(&fs, unnamed_handle, 0, b"two");
    block_on(fs.unlink(&root(), ROOT, &name("unnamed"))).unwrap();
    server.stop(STOP).unwrap();
    let waiting = std::thread::spawn({
        let fs = Arc::clone(&fs);
        move || block_on(fs.flush(named_handle))
    });
    std::thread::sleep(Duration::from_millis(200));
    let _server = site.serve();
    waiting.join().unwrap().unwrap();
    assert!(fs.counters().reconnects() >= 1);
    write(&fs, unnamed_handle, 3, b" more");
    block_on(fs.flush(unnamed_handle)).unwrap();
    assert_eq!(read(&fs, unnamed_handle, 0, 100), b"two more");
    assert_eq!(block_on(fs.attributes(&root(), unnamed)).unwrap().attributes.nlink, 0);
    assert_eq!(size(&fs, named), 3);
    assert_eq!(content(&site.connect(), "named"), b"one");
}

/// Promise: an open file is registered at a restarted server although the store fails the shard in its number: it
/// outlives its name.
#[test]
fn open_file_is_registered_while_its_shard_fails() {
    let site = Site::new(4);
    let server = site.serve();
    let fs = site.connect();
    let (inode, handle) = create(&fs, "f");
    write(&fs, handle, 0, &[1; 200_000]);
    let closed = create(&fs, "closed").1;
    let open_files = || block_on(fs.shard_status(ROOT.shard())).map(|status| status.open_files);
    assert_eq!(open_files().unwrap(), 2);
    server.stop(STOP).unwrap();
    let (log, aside) = (site.volume.shard_log(ROOT.shard()), site.path("aside"));
    std::fs::rename(&log, &aside).unwrap();
    std::fs::write(&log, b"no directory").unwrap();
    let _server = site.serve();
    // A shard that can be opened even then.
    assert!(block_on(fs.shard_status(ShardId(1))).is_ok());
    assert_eq!(fs.counters().reconnects(), 1);
    assert!(open_files().is_err(), "the files are registered before this call");
    block_on(fs.release(closed));
    std::fs::remove_file(&log).unwrap();
    std::fs::rename(&aside, &log).unwrap();
    let begun = Instant::now();
    while open_files().ok() != Some(1) {
        assert!(begun.elapsed() < STOP, "{:?} files are open", open_files());
        std::thread::sleep(Duration::from_millis(20));
    }
    let other = site.connect();
    block_on(other.lookup(&root(), ROOT, &name("f"))).unwrap();
    block_on(other.unlink(&root(), ROOT, &name("f"))).unwrap();
    assert_eq!(block_on(fs.attributes(&root(), inode)).unwrap().attributes.nlink, 0);
    write(&fs, handle, 200_000, &[2; 1000]);
    assert_eq!((size(&fs, inode), open_files().unwrap()), (201_000, 1));
    close(&fs, handle);
}

/// Promise: another server at the same address is recognized as such, even by the first connection to one of its
/// workers: the open files are registered there.
#[test]
fn another_server_at_the_same_address_is_noticed() {
    let site = Site::new(2);
    let server = site.serve();
    let fs = site.connect();
    let (inode, handle) = create(&fs, "f");
    write(&fs, handle, 0, &[1; 200_000]);
    server.stop(STOP).unwrap();
    let _server = site.serve();
    // The worker of this shard had no request before.
    block_on(fs.shard_status(ShardId(1))).unwrap();
    let status = block_on(fs.shard_status(inode.shard())).unwrap();
    assert_eq!((fs.counters().reconnects(), status.open_files), (1, 1));
    close(&fs, handle);
    assert_eq!(size(&fs, inode), 200_000);
}

/// Promise: if the volume has no server, a call fails with a clear error after the deadline, and not before.
#[test]
fn the_deadline_ends_the_wait() {
    let site = Site::new(1);
    let server = site.serve();
    let fs = FileSystem::connect(ClientConfig { deadline: Duration::from_millis(600), ..site.config() }).unwrap();
    server.stop(STOP).unwrap();
    let begin = Instant::now();
    let failure = block_on(fs.lookup(&root(), ROOT, &name("a"))).unwrap_err();
    assert_eq!(failure.errno, Errno::ETIMEDOUT);
    assert!(failure.to_string().contains("nobody serves the volume"), "{failure}");
    assert!(begin.elapsed() >= Duration::from_millis(600) && begin.elapsed() < Duration::from_secs(5));
}

/// Promise: a failed connect returns at once, and says why and what to do.
#[test]
fn failed_join_names_the_reason() {
    let site = Site::new(1);
    let failure = FileSystem::connect(site.config()).err().unwrap();
    assert_eq!(failure.errno, Errno::EHOSTDOWN);
    assert!(failure.to_string().contains("varve serve"), "{failure}");
    let nowhere = varve_env::volume_dir::VolumeDir::new(site.path("nowhere"));
    assert_eq!(FileSystem::connect(ClientConfig::new(nowhere)).err().unwrap().errno, Errno::ENOENT);
    let _server = site.serve();
    std::fs::write(site.volume.key_file(), [0; 32]).unwrap();
    let failure = FileSystem::connect(site.config()).err().unwrap();
    assert_eq!(failure.errno, Errno::EACCES);
    assert!(failure.to_string().contains("key"), "{failure}");
}

/// A proxy between a client and the server's one worker, which can lose replies: the request is forwarded, the reply is
/// dropped, and the connection ends.
struct LossyProxy {
    lose: Arc<AtomicUsize>,
}

impl LossyProxy {
    /// Makes the server record point to the proxy.
    fn before(site: &Site) -> LossyProxy {
        let record = site.volume.read_server_record().unwrap().unwrap();
        let worker = PathBuf::from(record.workers[0].unix.clone().unwrap());
        let path = site.path("proxy.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let text = std::fs::read_to_string(site.volume.server_file()).unwrap();
        let text = text.replace(worker.to_str().unwrap(), path.to_str().unwrap());
        std::fs::write(site.volume.server_file(), text).unwrap();
        let lose = Arc::new(AtomicUsize::new(0));
        let proxy = LossyProxy { lose: Arc::clone(&lose) };
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let server = UnixStream::connect(&worker).unwrap();
                pass(client.unwrap(), server, Arc::clone(&lose));
            }
        });
        proxy
    }
}

fn pass(client: UnixStream, server: UnixStream, lose: Arc<AtomicUsize>) {
    let (mut from_client, mut to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    std::thread::spawn(move || {
        // The end of either side ends both; a proxy can do no more.
        let _ = std::io::copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(std::net::Shutdown::Both);
    });
    let (mut from_server, mut to_client) = (server, client);
    std::thread::spawn(move || {
        let mut buffer = [0; 64 * 1024];
        while let Ok(count @ 1..) = from_server.read(&mut buffer) {
            let loses = lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
            if loses || to_client.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _ = to_client.shutdown(std::net::Shutdown::Both);
    });
}

/// Promise: if a reply is lost, the retry gets the first reply: nothing is done twice, and nothing that was done is
/// reported as failed.
#[test]
fn lost_reply_is_repeated() {
    let mut site = Site::new(4);
    site.workers = 1;
    let _server = site.serve();
    let proxy = LossyProxy::before(&site);
    let library = Library::new(site.connect(), root());
    block_on(library.create(b"/before", Mode::new(0o644))).unwrap();
    let lose_one = || proxy.lose.store(1, Ordering::SeqCst);

    lose_one();
    block_on(library.create(b"/a", Mode::new(0o644))).expect("not EEXIST");
    lose_one();
    block_on(library.rename(b"/a", b"/b", varve_client::RenameFlags::Replace)).expect("not ENOENT");
    lose_one();
    block_on(library.make_directory(b"/d", Mode::new(0o755))).expect("not EEXIST");
    lose_one();
    block_on(library.link(b"/b", b"/c")).expect("not EEXIST");
    lose_one();
    block_on(library.unlink(b"/b")).expect("not ENOENT");
    lose_one();
    block_on(library.remove_directory(b"/d")).expect("not ENOENT");
    lose_one();
    block_on(library.write_file(b"/f", Mode::new(0o644), b"content")).unwrap();
    assert_eq!(block_on(library.read_file(b"/f")).unwrap(), b"content");
    let fs = library.file_system();
    let file = block_on(fs.lookup(&root(), ROOT, &name("f"))).unwrap().inode;
    let flags = OpenFlags { append: true, ..OpenFlags::READ_WRITE };
    let appending = block_on(fs.open(&root(), file, flags)).unwrap().handle;
    write(fs, appending, 0, b" and more");
    lose_one();
    close(fs, appending);
    assert_eq!(block_on(library.read_file(b"/f")).unwrap(), b"content and more", "not twice");
    assert_eq!(block_on(library.stat(b"/c")).unwrap().attributes.nlink, 1);
    assert!(library.file_system().counters().reconnects() >= 8);
}

/// Promise: many threads use one client at once while the server restarts, and every change is made once.
#[test]
fn calling_threads_survive_server_restart() {
    let site = Site::new(8);
    let server = site.serve();
    let library = Arc::new(Library::new(site.connect(), root()));
    block_on(library.make_directory(b"/d", Mode::new(0o755))).unwrap();
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let library = Arc::clone(&library);
            std::thread::spawn(move || {
                for i in 0..150 {
                    let path = format!("/d/{thread}-{i}");
                    block_on(library.write_file(path.as_bytes(), Mode::new(0o644), path.as_bytes())).unwrap();
                    if i % 3 == 0 {
                        block_on(library.unlink(path.as_bytes())).unwrap();
                    }
                }
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(50));
    server.stop(STOP).unwrap();
    let _server = site.serve();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let mut count = 0;
    block_on(library.list(b"/d", &mut |_| {
        count += 1;
        true
    }))
    .unwrap();
    assert_eq!(count, 400);
    assert_eq!(block_on(library.read_file(b"/d/2-149")).unwrap(), b"/d/2-149");
}

/// The bytes of each log file of the first `shards` shards.
fn log_lengths(volume: &VolumeDir, shards: u16) -> BTreeMap<PathBuf, u64> {
    let logs = (0..shards).flat_map(|shard| std::fs::read_dir(volume.shard_log(ShardId(shard))).unwrap());
    logs.map(|file| file.unwrap()).map(|file| (file.path(), file.metadata().unwrap().len())).collect()
}

/// Promise: if power is lost before a new directory reached the disk, its name may remain without its rows; it is then
/// an empty directory, which can be filled, listed and removed.
#[test]
fn directories_without_rows_are_empty() {
    // Only the test itself syncs, even on a slow machine.
    let site = Site::synced_every(8, VolumeSettings::SYNC_INTERVAL_MAX);
    let server = site.serve();
    let fs = site.connect();
    for shard in 0..16 {
        make_directory(&fs, ROOT, &format!("early{shard}"));
    }
    block_on(fs.sync()).unwrap();
    let synced = log_lengths(&site.volume, 8);
    let lost: Vec<_> =
        (0..16).map(|at| (format!("late{at}"), make_directory(&fs, ROOT, &format!("late{at}")))).collect();
    for (_, directory) in &lost {
        make_file(&fs, directory.inode, "gone with it");
    }
    let homes: BTreeSet<u16> = lost.iter().map(|(_, node)| node.inode.shard().0).collect();
    assert!(homes.len() > 2, "{homes:?}");

    // A possible state of the disk after a power loss: the whole log of the root's shard, and the fsynced part of the
    // others.
    let after = Site::new(8);
    std::fs::remove_dir_all(after.volume.root()).unwrap();
    let copied = std::process::Command::new("cp").arg("-a").args([site.volume.root(), after.volume.root()]).status();
    assert!(copied.unwrap().success());
    for (path, length) in synced {
        let copy = after.volume.root().join(path.strip_prefix(site.volume.root()).unwrap());
        if !path.starts_with(site.volume.shard(ROOT.shard())) {
            std::fs::File::options().write(true).open(&copy).unwrap().set_len(length).unwrap();
        }
    }
    drop(fs);
    server.stop(STOP).unwrap();

    let _server = after.serve();
    let fs = after.connect();
    let mut revived = 0;
    for (text, made) in &lost {
        let found = block_on(fs.lookup(&root(), ROOT, &name(text))).unwrap();
        assert_eq!((found.inode, found.attributes.mode), (made.inode, made.attributes.mode));
        if found.inode.shard() != ROOT.shard() {
            revived += 1;
            assert_eq!(
                block_on(fs.lookup(&root(), found.inode, &name("gone with it"))).unwrap_err().errno,
                Errno::ENOENT
            );
            make_file(&fs, found.inode, "new");
            assert_eq!(block_on(fs.remove_directory(&root(), ROOT, &name(text))).unwrap_err().errno, Errno::ENOTEMPTY);
            block_on(fs.unlink(&root(), found.inode, &name("new"))).unwrap();
            block_on(fs.remove_directory(&root(), ROOT, &name(text))).unwrap();
        }
    }
    assert!(revived > 2);
}
