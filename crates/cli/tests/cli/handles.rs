//! File handles (name_to_handle_at(2), open_by_handle_at(2)), by which an NFS server finds files.

use crate::common::{SHORT, Volume, run};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

/// `take PATH…` prints a handle of each path. `open ROOT HANDLE…` drops the kernel's inodes and prints what each handle
/// leads to, or the name of the error.
const SCRIPT: &str = r#"
import ctypes, errno, os, stat, sys
libc = ctypes.CDLL(None, use_errno=True)
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]
def take(path):
    handle, mount = Handle(128, 0), ctypes.c_int()
    if libc.name_to_handle_at(-100, os.fsencode(path), ctypes.byref(handle), ctypes.byref(mount), 0):
        raise OSError(ctypes.get_errno(), path)
    return f"{handle.type}:{bytes(handle.data[:handle.bytes]).hex()}"
def opened(root, text, flags):
    kind, data = text.split(":")
    data = bytes.fromhex(data)
    handle = Handle(len(data), int(kind))
    ctypes.memmove(handle.data, data, len(data))
    fd = libc.open_by_handle_at(root, ctypes.byref(handle), flags)
    if fd < 0:
        raise OSError(ctypes.get_errno(), text)
    return fd
def shown(root, text):
    try:
        fd = opened(root, text, os.O_PATH | os.O_NOFOLLOW)
        mode = os.fstat(fd).st_mode
        if stat.S_ISLNK(mode):
            return "link " + os.readlink("", dir_fd=fd)
        fd = opened(root, text, os.O_RDONLY)
        if stat.S_ISDIR(mode):
            return f"{os.readlink(f'/proc/self/fd/{fd}')[len(sys.argv[2]):]}: {' '.join(sorted(os.listdir(fd)))}"
        with os.fdopen(fd, "rb") as file:
            content = file.read()
        return f"{len(content)} {content[:8].decode()}"
    except OSError as error:
        return errno.errorcode[error.errno]
if sys.argv[1] == "take":
    print("\n".join(take(path) for path in sys.argv[2:]))
else:
    root = os.open(sys.argv[2], os.O_RDONLY)
    with open("/proc/sys/vm/drop_caches", "w") as caches:
        caches.write("2")
    print("\n".join(shown(root, text) for text in sys.argv[3:]))
"#;

fn script(arguments: &[String]) -> Vec<String> {
    let done = run(Command::new("/usr/bin/python3").args(["-c", SCRIPT]).args(arguments), SHORT).succeeded("python3");
    done.stdout.lines().map(str::to_owned).collect()
}

fn handles(root: &Path, names: &[&str]) -> Vec<String> {
    let paths = names.iter().map(|name| root.join(name).to_str().expect("plain").to_owned());
    script(&[String::from("take")].into_iter().chain(paths).collect::<Vec<_>>())
}

fn opened(root: &Path, handles: &[String]) -> Vec<String> {
    let root = root.to_str().expect("plain").to_owned();
    script(&[&["open".to_owned(), root][..], handles].concat())
}

const NAMES: [&str; 7] = ["a/small", "a/large", "a/first", "a/moved", "a/link", "a/b/c", "a/marked"];

/// One file of each kind of row, and a directory in a directory.
fn make_files(root: &Path) {
    fs::create_dir_all(root.join("a/b/c/d")).expect("directories");
    fs::create_dir_all(root.join("other")).expect("a directory");
    fs::write(root.join("a/small"), "small").expect("a file");
    fs::write(root.join("a/large"), vec![b'l'; 10_000]).expect("a large file");
    fs::write(root.join("a/first"), "linked").expect("a file");
    fs::hard_link(root.join("a/first"), root.join("other/second")).expect("a second name");
    fs::write(root.join("a/moved"), "moved").expect("a file");
    fs::write(root.join("a/marked"), "marked").expect("a file");
    symlink("target", root.join("a/link")).expect("a symlink");
    fs::write(root.join("a/b/c/inside"), "").expect("a file");
    let attribute = ["setfattr", "-n", "user.mark", "-v", "1", "a/marked"];
    run(Command::new(attribute[0]).args(&attribute[1..]).current_dir(root), SHORT).succeeded("setfattr");
}

fn expect_all(root: &Path, handles: &[String], when: &str) {
    let expected = ["5 small", "10000 llllllll", "6 linked", "5 moved", "link target", "/a/b/c: d inside", "6 marked"];
    assert_eq!(opened(root, handles), expected, "{when}");
}

/// A handle is valid as long as its file exists: after the kernel dropped the inode, after a rename, in the next mount,
/// and with the next server.
#[test]
fn file_handles_outlive_caches_mounts_and_servers() {
    let volume = Volume::format(&["--shards", "4", "--inline-limit", "4KiB"]);
    let server = volume.serve(&[]);
    let root = volume.mount_point();
    let mount = volume.mount(&[]);
    make_files(&root);
    let taken = handles(&root, &NAMES);
    expect_all(&root, &taken, "in the mount that made them");
    fs::rename(root.join("a/moved"), root.join("other/elsewhere")).expect("renamed");
    fs::remove_file(root.join("a/first")).expect("the other name stays");
    expect_all(&root, &taken, "after a rename");
    mount.unmount();
    let mount = volume.mount(&[]);
    expect_all(&root, &taken, "in the next mount");
    fs::rename(root.join("other/elsewhere"), root.join("a/b/again")).expect("renamed");
    expect_all(&root, &taken, "after another rename");
    mount.unmount();
    server.stop();
    let mount = volume.mount(&["-o", "embedded"]);
    expect_all(&root, &taken, "in an embedded mount");
    mount.unmount();
    volume.expect_sound();
}

/// A handle of a removed file is stale for ever, also after its name was given to another file.
#[test]
fn file_handle_of_a_removed_file_is_stale() {
    let volume = Volume::format(&["--shards", "4", "--inline-limit", "4KiB"]);
    let root = volume.mount_point();
    let mount = volume.mount(&[]);
    make_files(&root);
    let taken = handles(&root, &NAMES);
    fs::remove_dir_all(root.join("a")).expect("removed");
    fs::remove_file(root.join("other/second")).expect("removed");
    assert_eq!(opened(&root, &taken), ["ESTALE"; 7]);
    make_files(&root);
    assert_eq!(opened(&root, &taken), ["ESTALE"; 7]);
    mount.unmount();
    let mount = volume.mount(&[]);
    assert_eq!(opened(&root, &taken), ["ESTALE"; 7]);
    expect_all(&root, &handles(&root, &NAMES), "the new files");
    // A number that no inode ever had.
    let (kind, data) = taken[0].split_once(':').expect("type and data");
    assert_eq!(opened(&root, &[format!("{kind}:{}ff00ff00{}", &data[..8], &data[16..])]), ["ESTALE"]);
    mount.unmount();
    volume.expect_sound();
}

/// One search answers for all files with neighbouring numbers, and a file that another mount moves is still found.
#[test]
fn file_handles_of_many_files_are_found_after_a_remount() {
    let volume = Volume::format(&["--shards", "4"]);
    let server = volume.serve(&[]);
    let root = volume.mount_point();
    let mount = volume.mount(&[]);
    fs::create_dir(root.join("many")).expect("a directory");
    let names: Vec<String> = (0..300).map(|number| format!("many/{number}")).collect();
    names.iter().for_each(|name| fs::write(root.join(name), name).expect("a file"));
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let taken = handles(&root, &names);
    mount.unmount();
    let mount = volume.mount(&[]);
    let expected: Vec<String> =
        names.iter().map(|name| format!("{} {}", name.len(), &name[..name.len().min(8)])).collect();
    assert_eq!(opened(&root, &taken), expected);
    for (number, name) in names.iter().enumerate().step_by(10) {
        fs::rename(root.join(name), root.join(format!("moved-{number}"))).expect("renamed");
    }
    assert_eq!(opened(&root, &taken), expected);
    mount.unmount();
    server.stop();
}
