//! The kernel's I/O modes: on backing files directly, through its page cache, or past it.

use crate::files::{pattern, read_write};
use crate::fixture::{Volume, can_mount, copy_program, shell, volume};
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Number of calls of an operation so far, as `varve stats` reads them: `{"calls":7,…,"operation":"read",…}`.
fn calls(volume: &Volume, operation: &str) -> u64 {
    let text = varve_fuse::stats(volume.path()).unwrap();
    let upto = text.find(&format!("\"operation\":\"{operation}\"")).unwrap();
    let from = text[..upto].rfind("\"calls\":").unwrap() + 8;
    text[from..].split(',').next().unwrap().parse().unwrap()
}

/// Whether the kernel has accepted `files` files for passthrough. If it accepts none here, prints that.
pub fn passes_through(volume: &Volume, files: usize) -> bool {
    let stats = varve_fuse::stats(volume.path()).unwrap();
    let passes = stats.contains(&format!("\"passthrough\":{{\"granted\":{files},\"refused\":0"));
    if !passes {
        assert!(!stats.contains("\"refused\":0"), "{stats}");
        eprintln!("skipped: the kernel passes nothing through here: {stats}");
    }
    passes
}

/// The kernel reads and writes the backing files of large files itself: the mount gets no request.
#[test]
fn large_files_are_passed_through() {
    let Some(volume) = volume() else { return };
    let path = volume.join("large");
    fs::write(&path, pattern(1_000_000)).unwrap();
    let calls = |operation| calls(&volume, operation);
    let (first, second) = (read_write(&path), read_write(&path));
    if !passes_through(&volume, 2) {
        return;
    }
    let before = (calls("read"), calls("write"));
    let mut wanted = pattern(1_000_000);
    for i in 0..50usize {
        first.write_all_at(&[i as u8; 300], i as u64 * 19_999).unwrap();
        wanted[i * 19_999..i * 19_999 + 300].fill(i as u8);
    }
    second.write_all_at(b"beyond the end", 1_000_000).unwrap();
    wanted.extend_from_slice(b"beyond the end");
    let mut seen = vec![0; wanted.len()];
    second.read_exact_at(&mut seen, 0).unwrap();
    assert!(seen == wanted);
    assert_eq!((calls("read"), calls("write")), before);
    assert_eq!(fs::metadata(&path).unwrap().len(), wanted.len() as u64);
    drop((first, second));
    assert_eq!(fs::metadata(&path).unwrap().len(), wanted.len() as u64);
    assert!(fs::read(&path).unwrap() == wanted);
    volume.close();
}

/// New files are passed through from their first byte, too, if the previous files of their directory were large; so are
/// those of a directory that is made then.
#[test]
fn new_files_among_large_ones_are_passed_through() {
    let Some(volume) = volume() else { return };
    let (large, tail) = (pattern(1_000_000), b"beyond the end");
    let make = |name: &str, bytes: &[u8]| {
        let mut file = File::create_new(volume.join(name)).unwrap();
        file.write_all(bytes).unwrap();
        file.sync_all().unwrap();
        file.write_all(tail).unwrap();
        let wanted = (bytes.len() + tail.len()) as u64;
        assert_eq!(file.metadata().unwrap().len(), wanted);
        drop(file);
        assert_eq!(fs::metadata(volume.join(name)).unwrap().len(), wanted);
    };
    make("a", &large);
    make("b", &large);
    let before = calls(&volume, "write");
    make("c", &large);
    if !passes_through(&volume, 1) {
        return;
    }
    assert_eq!(calls(&volume, "write"), before);
    fs::create_dir(volume.join("next")).unwrap();
    make("next/a", &large);
    assert_eq!(calls(&volume, "write"), before);
    // dd(1) writes whole blocks past all page caches, and the remainder through them; with passthrough the remainder
    // bypasses them, too.
    let aligned = "dd if=\"$1\" of=\"$2\" bs=65536 oflag=direct status=none";
    shell(aligned, &[&volume.join("c"), &volume.join("direct")]);
    assert!(fs::read(volume.join("direct")).unwrap() == [&large[..], tail].concat());
    let before = calls(&volume, "write");
    make("d", b"small");
    assert_eq!(calls(&volume, "write"), before);
    make("e", b"small");
    assert!(calls(&volume, "write") > before, "the one before it was small");
    for (name, bytes) in [("a", &large[..]), ("c", &large), ("next/a", &large), ("d", b"small"), ("e", b"small")] {
        assert!(fs::read(volume.join(name)).unwrap() == [bytes, tail].concat(), "{name}");
    }
    volume.close();
}

/// The kernel keeps the cached pages of an unchanged file although there is another mount; a file that the other mount
/// changed is read anew when it is opened after the close there.
#[test]
fn cached_pages_last_until_another_mount_writes() {
    if !can_mount() {
        return;
    }
    let (volume, other) = Volume::mounted_twice("nopassthrough,nodirect_io");
    for length in [5_000, 1_000_000] {
        let name = format!("f{length}");
        let mut wanted = pattern(length);
        fs::write(other.join(&name), &wanted).unwrap();
        let reads = || calls(&volume, "read");
        for round in 0..5u8 {
            assert!(fs::read(volume.join(&name)).unwrap() == wanted, "{length} bytes, round {round}");
            // Its size is recorded a sync interval after the other mount has closed it.
            let settled = Instant::now() + Duration::from_secs(20);
            loop {
                let before = reads();
                assert!(fs::read(volume.join(&name)).unwrap() == wanted);
                if reads() == before {
                    break;
                }
                assert!(Instant::now() < settled, "{length} bytes are read again and again");
                std::thread::sleep(Duration::from_millis(50));
            }
            // The same length as before, and without a pause.
            let at = length / 5 * usize::from(round);
            wanted[at..at + 7].copy_from_slice(b"changed");
            let writer = File::options().write(true).open(other.join(&name)).unwrap();
            writer.write_all_at(b"changed", at as u64).unwrap();
        }
    }
    other.close();
    volume.close();
}

/// Beside another mount, and without passthrough, large files are read past the page cache. That includes the first
/// one, for which the kernel has not yet refused passthrough. Pages of its mappings are kept like those of small files.
#[test]
fn shared_large_files_bypass_the_page_cache() {
    if !can_mount() {
        return;
    }
    let (volume, other) = Volume::mounted_twice("nopassthrough");
    let mut wanted = pattern(1_000_000);
    fs::write(other.join("large"), &wanted).unwrap();
    let path = volume.join("large");
    let file = File::open(&path).unwrap();
    for round in 0..3 {
        let before = calls(&volume, "read");
        let mut seen = vec![0; wanted.len()];
        file.read_exact_at(&mut seen, 0).unwrap();
        assert!(seen == wanted, "round {round}");
        assert!(calls(&volume, "read") > before, "round {round}");
        // A write there is visible here at once, although the file is open.
        wanted[500_000 + round] = round as u8;
        let theirs = File::options().write(true).open(other.join("large")).unwrap();
        theirs.write_all_at(&[round as u8], 500_000 + round as u64).unwrap();
    }
    // Programs and their libraries are mapped.
    copy_program(Path::new("/bin/true"), &other.join("true"));
    for _ in 0..2 {
        shell("\"$1\"", &[&volume.join("true")]);
    }
    drop(file);
    other.close();
    volume.close();
}

/// Environment variable with the path for the process that maps a file: this program, run once more. The process that
/// serves a mount must not map its files.
const MAPPED: &str = "VARVE_TEST_MAPPED";

/// A process that maps a file which outgrew its row while it was open, as beside another mount, does not prevent others
/// from opening it after its writer has closed it, and may also map it then.
#[test]
fn a_file_that_is_mapped_is_opened_by_others() {
    if let Some(path) = std::env::var_os(MAPPED) {
        return map_when_told(Path::new(&path));
    }
    if !can_mount() {
        return;
    }
    let (volume, other) = Volume::mounted_twice("");
    for early in [true, false] {
        let path = volume.join(format!("grown, mapped early: {early}"));
        fs::write(&path, b"small").unwrap();
        let writer = read_write(&path);
        writer.write_all_at(&pattern(1_000_000), 0).unwrap();
        let mut mapping = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "io_modes::a_file_that_is_mapped_is_opened_by_others", "--nocapture"])
            .env(MAPPED, &path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut tell, printed) = (mapping.stdin.take().unwrap(), BufReader::new(mapping.stdout.take().unwrap()));
        let mut printed = printed.lines().map(Result::unwrap);
        let mut heard = |what: &str| assert!(printed.any(|line| line.ends_with(what)), "{what}, {path:?}");
        heard("opened");
        let mut map = || {
            tell.write_all(b"map\n").unwrap();
            heard("mapped");
        };
        if early {
            map();
        }
        drop(writer);
        // The kernel sends RELEASE after close(2) has returned.
        std::thread::sleep(Duration::from_millis(300));
        let reader = File::open(&path).unwrap();
        let mut seen = vec![0; 1_000_000];
        reader.read_exact_at(&mut seen, 0).unwrap();
        assert!(seen == pattern(1_000_000));
        if !early {
            map();
        }
        drop(tell);
        assert!(mapping.wait().unwrap().success());
    }
    other.close();
    volume.close();
}

/// Maps the file once for each line on standard input.
fn map_when_told(path: &Path) {
    let file = File::open(path).unwrap();
    println!("opened");
    for line in std::io::stdin().lines() {
        line.unwrap();
        // SAFETY: a new mapping of bytes that the file has and keeps, read once and left to the end of the process.
        let first = unsafe {
            let at = rustix::mm::mmap(std::ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::SHARED, &file, 0);
            at.unwrap().cast::<u8>().add(1).read_volatile()
        };
        assert_eq!(first, pattern(2)[1]);
        println!("mapped");
    }
}
