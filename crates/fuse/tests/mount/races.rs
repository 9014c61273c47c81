//! Names that are replaced while other processes use them by path.

use crate::fixture::{Volume, can_mount};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Calls of each thread that uses the name: without lookup pins, dozens fail.
const CALLS: usize = 2_000;

fn make(path: &Path) -> rustix::io::Result<()> {
    rustix::fs::open(path, OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::from_raw_mode(0o644)).map(drop)
}

/// A new file under another name, renamed over `name`.
fn rename_over(name: &Path, own: &Path) -> rustix::io::Result<()> {
    make(own)?;
    rustix::fs::rename(own, name)
}

fn unlink_and_make(name: &Path, _own: &Path) -> rustix::io::Result<()> {
    match rustix::fs::unlink(name) {
        // The other thread was first.
        Ok(()) | Err(Errno::NOENT) => make(name),
        failed => failed,
    }
}

fn truncate(path: &Path) -> rustix::io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a string that ends with NUL.
    match unsafe { libc::truncate(path.as_ptr(), 7) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap()),
    }
}

/// The `call`th use of `name` by its path.
fn use_by_path(name: &Path, call: usize) -> rustix::io::Result<()> {
    match call % 4 {
        0 => rustix::fs::open(name, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map(drop),
        1 => truncate(name),
        2 => rustix::fs::chmodat(CWD, name, Mode::from_raw_mode(0o600), AtFlags::empty()),
        _ => rustix::fs::stat(name).map(drop),
    }
}

/// Threads use `name` by `uses` while each of `replacers` replaces it repeatedly. Returns the errors of the uses,
/// except `tolerated`.
fn race<R: FnMut() -> rustix::io::Result<()> + Send>(
    name: &Path,
    replacers: impl IntoIterator<Item = R>,
    uses: fn(&Path, usize) -> rustix::io::Result<()>,
    tolerated: Option<Errno>,
) -> Vec<(usize, Errno)> {
    make(name).unwrap();
    let using = AtomicUsize::new(3);
    std::thread::scope(|scope| {
        for mut replace in replacers {
            let using = &using;
            scope.spawn(move || {
                while using.load(Relaxed) > 0 {
                    replace().unwrap();
                }
            });
        }
        let users: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let failed = |call| uses(name, call).err().map(|errno| (call, errno));
                    let failures: Vec<_> =
                        (0..CALLS).filter_map(failed).filter(|(_, errno)| Some(*errno) != tolerated).collect();
                    using.fetch_sub(1, Relaxed);
                    failures
                })
            })
            .collect();
        users.into_iter().flat_map(|user| user.join().unwrap()).collect()
    })
}

/// Two replacers of `name` by `replace`, each with a temporary name of its own beside it.
fn two<'a>(
    name: &'a Path,
    replace: fn(&Path, &Path) -> rustix::io::Result<()>,
) -> [impl FnMut() -> rustix::io::Result<()> + Send + 'a; 2] {
    ["first", "second"].map(|own| {
        let own: PathBuf = name.with_file_name(own);
        move || replace(name, &own)
    })
}

/// A name over which other files are renamed always exists, and a use by path gets one of those files.
#[test]
fn renamed_over_name_always_exists() {
    if !can_mount() {
        return;
    }
    let volume = Volume::new();
    let name = volume.join("name");
    assert_eq!(race(&name, two(&name, rename_over), use_by_path, None), []);
    volume.close();
}

/// A name that is removed and recreated exists or not, and is never stale.
#[test]
fn recreated_name_is_never_stale() {
    if !can_mount() {
        return;
    }
    let volume = Volume::new();
    let name = volume.join("name");
    assert_eq!(race(&name, two(&name, unlink_and_make), use_by_path, Some(Errno::NOENT)), []);
    volume.close();
}

/// Opens `name`, and uses the open file.
fn open_and_use(name: &Path, call: usize) -> rustix::io::Result<()> {
    let file = rustix::fs::open(name, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::fs::fstat(&file)?;
    rustix::io::pread(&file, &mut [0; 16], 0)?;
    if call.is_multiple_of(8) {
        rustix::io::pwrite(&file, b"what is written to a file that has lost its name", 0)?;
        rustix::fs::fsync(&file)?;
    }
    Ok(())
}

/// An open file stays usable, whichever worker's rename takes its name.
#[test]
fn file_opened_during_replacement_stays_open() {
    if !can_mount() {
        return;
    }
    let volume = Volume::new();
    // Each directory has its own home shard; of twenty, some belong to the other worker.
    let directories: Vec<_> = (0..20).map(|number| volume.join(format!("d{number}"))).collect();
    directories.iter().for_each(|directory| std::fs::create_dir(directory).unwrap());
    let name = directories[0].join("name");
    let mut next = directories.iter().cycle();
    let replace = || rename_over(&name, &next.next().expect("a cycle").join("own"));
    assert_eq!(race(&name, [replace], open_and_use, None), []);
    volume.close();
}
