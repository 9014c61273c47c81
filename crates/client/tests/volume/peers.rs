//! Processes that listen at the server's address: the client sends them nothing, unless they may be the server.

use crate::site::*;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use varve_client::{ClientConfig, FileSystem};
use varve_proto::frame;
use varve_proto::handshake::{Answer, Greeting};
use varve_types::Errno;

const USER: u32 = 47_111;
const NOBODY: u32 = 65_534;

/// A listener of user `uid`: the kernel reports to peers the user who called listen(2).
fn listen_as(uid: u32, path: &Path) -> UnixListener {
    let path = path.to_owned();
    let listening = std::thread::spawn(move || {
        // SAFETY: the system call changes only this thread; libc's function would change the whole process.
        let set = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
        assert_eq!(set, 0);
        UnixListener::bind(path).unwrap()
    });
    listening.join().unwrap()
}

/// Makes the server record point to `path`.
fn lead_to(site: &Site, path: &Path) {
    let record = site.volume.read_server_record().unwrap().unwrap();
    let text = std::fs::read_to_string(site.volume.server_file()).unwrap();
    let real = record.workers[0].unix.clone().unwrap();
    std::fs::write(site.volume.server_file(), text.replace(&real, path.to_str().unwrap())).unwrap();
}

/// Gives the store and everything in it to `owner`.
fn give_to(site: &Site, owner: u32) {
    for file in [site.volume.volume_file(), site.volume.volume_file_copy()] {
        let text = std::fs::read_to_string(&file).unwrap();
        let line = text.lines().find(|line| line.starts_with("owner_uid")).unwrap();
        std::fs::write(&file, text.replace(line, &format!("owner_uid = {owner}"))).unwrap();
    }
    let mut waiting = vec![site.volume.root().to_owned()];
    while let Some(path) = waiting.pop() {
        std::os::unix::fs::lchown(&path, Some(owner), None).unwrap();
        if path.is_dir() {
            waiting.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
}

/// Accepts the connection of a client; `None` if no client has connected by the time that `done` is set.
fn accept_until(listener: &UnixListener, done: &AtomicBool) -> Option<UnixStream> {
    listener.set_nonblocking(true).unwrap();
    loop {
        let gave_up = done.load(Ordering::SeqCst);
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                return Some(stream);
            }
            Err(_) if gave_up => return None,
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Greets like a server, sends a descriptor with the greeting, and returns the bytes that the client sends.
fn entice(mut stream: UnixStream, site: &Site) -> Vec<u8> {
    let volume = site.volume.read_settings().unwrap().id.0;
    let mut bytes = Vec::new();
    frame::encode(&Greeting { version: varve_proto::VERSION, volume, nonce: [1; 16] }, &mut bytes).unwrap();
    frame::encode(&Answer::Refused { reason: "give me more".into() }, &mut bytes).unwrap();
    let descriptor = std::fs::File::open("/dev/null").unwrap();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = rustix::net::SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor.as_fd()];
    assert!(ancillary.push(rustix::net::SendAncillaryMessage::ScmRights(&descriptors)));
    // The client may have disconnected already.
    let flags = rustix::net::SendFlags::NOSIGNAL;
    let _ = rustix::net::sendmsg(&stream, &[std::io::IoSlice::new(&bytes)], &mut ancillary, flags);
    let mut reported = Vec::new();
    let _ = stream.read_to_end(&mut reported);
    reported
}

fn failure(site: &Site) -> varve_client::Failure {
    let config = ClientConfig { deadline: Duration::from_millis(100), ..site.config() };
    FileSystem::connect(config).err().expect("it is no server")
}

/// Promise: root's client sends nothing to a process of another user that listens at the server's address, accepts no
/// descriptor from it, and names the user. The same holds for the overflow user.
#[test]
fn a_server_of_another_user_is_told_nothing() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    for (listener, owner) in [(USER, 0), (NOBODY, 0), (USER, USER + 1), (NOBODY, USER)] {
        let site = Site::new(1);
        let _server = site.serve();
        let directory = site.path("open");
        std::fs::create_dir(&directory).unwrap();
        for open in [directory.as_path(), directory.parent().unwrap()] {
            std::fs::set_permissions(open, std::fs::Permissions::from_mode(0o777)).unwrap();
        }
        let socket = directory.join("socket");
        let false_server = listen_as(listener, &socket);
        lead_to(&site, &socket);
        give_to(&site, owner);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reported = scope.spawn(|| accept_until(&false_server, &done).map(|stream| entice(stream, &site)));
            let failure = failure(&site);
            done.store(true, Ordering::SeqCst);
            assert_eq!(failure.errno, Errno::EACCES);
            let text = failure.to_string();
            assert!(
                text.contains(&format!("runs as user {listener},")) && text.contains("cannot be trusted"),
                "{text}"
            );
            let reported = reported.join().unwrap().expect("it connects, and asks the kernel whose process listens");
            assert!(reported.is_empty(), "the client of {owner}'s store spoke to user {listener}");
        });
    }
}

/// Promise: the client talks to a process of the store's owner, which has to prove that it has the key.
#[test]
fn the_owners_process_has_to_prove_the_key() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let site = Site::new(1);
    let _server = site.serve();
    let directory = site.path("open");
    std::fs::create_dir(&directory).unwrap();
    for open in [directory.as_path(), directory.parent().unwrap()] {
        std::fs::set_permissions(open, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let socket = directory.join("socket");
    let listener = listen_as(USER, &socket);
    lead_to(&site, &socket);
    give_to(&site, USER);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reported = scope.spawn(|| accept_until(&listener, &done).map(|stream| entice(stream, &site)));
        let text = failure(&site).to_string();
        done.store(true, Ordering::SeqCst);
        assert!(text.contains("give me more"), "{text}");
        assert!(!reported.join().unwrap().expect("it connects").is_empty());
    });
}
