//! An attacker that listens where a client of root might connect: the client must send nothing to it.

use crate::common::mounted::{detach, is_mounted};
use crate::common::{SHORT, run, until};
use crate::fixture::{ATTACKER, END, Running, Scene, is_root};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

/// Accepts at a TCP port or a Unix socket, and records every connection and every byte received. If `relay` names an
/// address, it forwards each client there, byte for byte in both directions.
const LISTENER: &str = r#"
import os, socket, sys, threading
kind, place, record, relay = sys.argv[1:5]
out = open(record, "ab", buffering=0)
raw = open(record[:-3] + "raw", "ab", buffering=0)
def pump(source, sink, note):
    try:
        while True:
            data = source.recv(65536)
            if not data:
                break
            raw.write(data)
            if note:
                out.write(b"bytes " + str(len(data)).encode() + b"\n")
            if sink:
                sink.sendall(data)
    except OSError:
        pass
    if sink:
        try:
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass
if kind == "tcp":
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", int(place)))
else:
    server = socket.socket(socket.AF_UNIX)
    server.bind(place)
    os.chmod(place, 0o777)
server.listen(64)
out.write(b"ready\n")
while True:
    client, _ = server.accept()
    out.write(b"connection\n")
    behind = None
    if relay.startswith("tcp:"):
        behind = socket.create_connection(("127.0.0.1", int(relay[4:])))
    elif relay.startswith("unix:"):
        behind = socket.socket(socket.AF_UNIX)
        behind.connect(relay[5:])
    threading.Thread(target=pump, args=(client, behind, True), daemon=True).start()
    if behind:
        threading.Thread(target=pump, args=(behind, client, False), daemon=True).start()
"#;

/// The attacker's process and its notes.
struct Listener {
    _process: Running,
    notes: PathBuf,
}

impl Listener {
    fn start(scene: &Scene, kind: &str, place: &str, relay: &str) -> Listener {
        let notes = scene.path(&format!("attacker/notes-{kind}.txt"));
        let mut command = scene.as_user(ATTACKER, "/usr/bin/python3");
        command.args(["-c", LISTENER, kind, place]).arg(&notes).arg(relay);
        let mut process = Running::start(&mut command, scene.path(&format!("listener-{kind}.log")));
        let heard = notes.clone();
        let listens = process.ready_or_ended(|| fs::read_to_string(&heard).is_ok_and(|text| text.contains("ready")));
        assert!(listens, "the attacker cannot listen: {}", process.log());
        Listener { _process: process, notes }
    }

    fn heard(&self) -> String {
        fs::read_to_string(&self.notes).expect("notes").replace("ready\n", "")
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port()
}

fn record(store: &Path) -> Option<toml::Table> {
    fs::read_to_string(store.join("servers/current.toml")).ok()?.parse().ok()
}

fn serve(scene: &Scene, store: &Path, flags: &[&str]) -> Running {
    let mut command = scene.by_root();
    command.arg("serve").arg(store).arg("--unix-dir").arg(scene.path("victim/sockets")).args(flags);
    let mut server = Running::start(&mut command, scene.path("server.log"));
    let pid = i64::from(server.pid());
    let serves = || record(store).is_some_and(|record| record["pid"].as_integer() == Some(pid));
    assert!(server.ready_or_ended(serves), "no server: {}", server.log());
    server
}

fn worker_socket(store: &Path) -> String {
    record(store).expect("a record")["worker"][0]["unix"].as_str().expect("a Unix socket").to_owned()
}

/// The commands with which root's processes connect to a server. They may fail, but they must end and must not talk to
/// the attacker.
fn talk(scene: &Scene, store: &Path) {
    let dump = scene.path("victim/dump");
    let mnt = scene.path("victim/mnt");
    let _ = fs::create_dir(&mnt);
    for words in [&["status"][..], &["--json", "status"]] {
        let outcome = run(scene.by_root().args(words).arg(store), END);
        println!("{words:?}: {}{}", outcome.stdout, outcome.stderr);
    }
    run(scene.by_root().arg("dump").arg(store).arg("-o").arg(&dump), END);
    let mut command = scene.by_root();
    command.arg("mount").arg(store).arg(&mnt).arg("-f");
    let mut mount = Running::start(&mut command, scene.path("mount.log"));
    mount.ready_or_ended(|| is_mounted(&mnt));
    // A file whose name and content an impostor would receive.
    let _ = fs::write(mnt.join("file"), "content");
    mount.stop();
    println!("mount: {}", mount.log());
    detach(&mnt);
}

/// Point 1 of the trial: the port of a killed server, the Unix socket gone.
#[test]
fn killed_servers_port_gets_no_root_client() {
    if !is_root() {
        return;
    }
    let scene = Scene::new();
    let store = scene.format_as_root("victim/store", &["--shards", "2"]);
    let mut server = serve(&scene, &store, &["--workers", "1"]);
    let address = record(&store).expect("a record")["worker"][0].get("tcp").map(|tcp| tcp.as_str().map(str::to_owned));
    let socket = worker_socket(&store);
    server.kill();
    fs::remove_file(&socket).expect("the killed server's socket");
    // A server that listens on TCP by default leaves its port to everybody.
    let port = match address.flatten() {
        Some(address) => address.rsplit_once(':').expect("a port").1.to_owned(),
        None => free_port().to_string(),
    };
    let listener = Listener::start(&scene, "tcp", &port, "none");
    // The record is that of the killed server; with a port, as if one were written by hand.
    let stale = store.join("servers/current.toml");
    let text = fs::read_to_string(&stale).expect("a record");
    if !text.contains("tcp") {
        let with_port = text.replace("[[worker]]", &format!("[[worker]]\ntcp = \"127.0.0.1:{port}\""));
        fs::write(&stale, with_port).expect("root's own record");
    }
    talk(&scene, &store);
    assert_eq!(listener.heard(), "", "root's processes talked to another user's process");
    // With `--tcp`, a client may connect, but it sends nothing before a server has greeted it.
    run(scene.by_root().arg("status").arg("--tcp").arg(&store), END);
    assert!(!listener.heard().contains("bytes"), "a client sent something before the server's greeting");
}

/// Point 1, the relay itself: with TCP requested, an attacker between client and server learns and changes nothing.
#[test]
fn relay_between_mount_and_server_sees_no_content() {
    if !is_root() {
        return;
    }
    let scene = Scene::new();
    let store = scene.format_as_root("victim/store", &["--shards", "2"]);
    let server_port = free_port();
    let _server = serve(&scene, &store, &["--workers", "1", "--listen", &format!("127.0.0.1:{server_port}")]);
    let address = record(&store).expect("a record")["worker"][0]["tcp"].as_str().expect("it listens").to_owned();
    assert!(address.ends_with(&server_port.to_string()), "{address}");
    let relay_port = free_port();
    let listener = Listener::start(&scene, "tcp", &relay_port.to_string(), &format!("tcp:{server_port}"));
    let file = store.join("servers/current.toml");
    let text = fs::read_to_string(&file).expect("a record").replace(&server_port.to_string(), &relay_port.to_string());
    fs::write(&file, text).expect("root's own record");
    run(scene.by_root().arg("status").arg("--tcp").arg(&store), END).succeeded("varve status --tcp");
    let mnt = scene.path("victim/mnt");
    fs::create_dir(&mnt).expect("a directory");
    let mut command = scene.by_root();
    command.arg("mount").arg(&store).arg(&mnt).args(["-f", "--tcp"]);
    let mut mount = Running::start(&mut command, scene.path("mount.log"));
    assert!(mount.ready_or_ended(|| is_mounted(&mnt)), "{}", mount.log());
    fs::write(mnt.join("name-that-is-secret"), "content that is secret").expect("a file");
    let read = fs::read(mnt.join("name-that-is-secret")).expect("it is there");
    assert_eq!(read, b"content that is secret");
    mount.stop();
    detach(&mnt);
    assert!(listener.heard().contains("bytes"), "the relay was in the path");
    let raw = fs::read(listener.notes.with_extension("raw")).expect("what the relay saw");
    for secret in ["name-that-is-secret", "content that is secret"] {
        assert!(!raw.windows(secret.len()).any(|part| part == secret.as_bytes()), "the relay reads {secret:?}");
    }
}

/// Point 2: the key of root's volume in a store of the attacker's, whose record names the attacker's sockets.
#[test]
fn borrowed_key_proves_nothing_to_its_borrower() {
    if !is_root() {
        return;
    }
    for kind in ["unix", "tcp"] {
        let scene = Scene::new();
        let victim = scene.format_as_root("victim/store", &["--shards", "2", "--name", "victim"]);
        let server_port = free_port();
        let _server = serve(&scene, &victim, &["--workers", "1", "--listen", &format!("127.0.0.1:{server_port}")]);
        let store = scene.format_as(ATTACKER, "attacker/store", &["--shards", "2"]);
        fs::remove_file(store.join("key")).expect("the attacker's own");
        std::os::unix::fs::symlink(victim.join("key"), store.join("key")).expect("a link");
        // The volume file of root's volume is readable by all, and so is its server record.
        for name in ["varve.toml", "shards/varve.toml"] {
            fs::copy(victim.join("varve.toml"), store.join(name)).expect("a copy");
        }
        let (place, address) = match kind {
            "unix" => {
                let socket = scene.path("attacker/socket").to_str().expect("plain").to_owned();
                (socket.clone(), format!("unix = \"{socket}\""))
            }
            _ => {
                let port = free_port().to_string();
                (port.clone(), format!("tcp = \"127.0.0.1:{port}\""))
            }
        };
        let listener = Listener::start(&scene, kind, &place, &format!("tcp:{server_port}"));
        let record = fs::read_to_string(victim.join("servers/current.toml")).expect("a record");
        let head = record.split("[[worker]]").next().expect("a head");
        let head: String = head.lines().filter(|l| !l.starts_with("store")).map(|l| format!("{l}\n")).collect();
        fs::create_dir_all(store.join("servers")).expect("a directory");
        fs::write(store.join("servers/current.toml"), format!("{head}[[worker]]\n{address}\n")).expect("a record");
        for name in ["varve.toml", "shards/varve.toml", "servers", "servers/current.toml"] {
            std::os::unix::fs::chown(store.join(name), Some(ATTACKER), Some(ATTACKER)).expect("root may");
        }
        talk(&scene, &store);
        run(scene.by_root().arg("status").arg("--tcp").arg(&store), END);
        let heard = listener.heard();
        assert!(!heard.contains("bytes"), "{kind}: root's processes said something to the attacker: {heard}");
    }
}

/// Sockets of root's server are closed to everybody else.
#[test]
fn root_servers_sockets_are_closed_to_others() {
    if !is_root() {
        return;
    }
    use std::os::unix::fs::MetadataExt;
    let scene = Scene::new();
    let store = scene.format_as_root("victim/store", &["--shards", "2"]);
    let _server = serve(&scene, &store, &[]);
    let socket = worker_socket(&store);
    until("the socket is there", SHORT, || Path::new(&socket).exists());
    let mode = fs::metadata(&socket).expect("a socket").mode() & 0o7777;
    assert!(mode == 0o600 || mode == 0o660, "{mode:o}");
}
