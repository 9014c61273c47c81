//! `varve dump STORE`: writes the metadata of a volume as one stream.

use super::served::Served;
use crate::client::ClientFlags;
use crate::identity::{self, Work};
use crate::output::{Output, columns};
use crate::problem::{Exit, Problem, Result};
use crate::quantity::Rounded;
use crate::server;
use crate::stdout::Stdout;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use rustix::fs::FileType;
use rustix::io::Errno;
use serde::Serialize;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::{Component, Path, PathBuf};
use std::time::Instant;
use varve_admin::dump::{self, DumpError, DumpProgress, Dumped};
use varve_client::ClientConfig;
use varve_env::disk;
use varve_env::identity::as_process_user;
use varve_env::store_url::StoreUrl;
use varve_env::trusted_path::TrustedPlace;
use varve_env::volume_dir::{LockError, VolumeDir};

/// A dump contains the small files of all users.
const DUMP_MODE: u32 = 0o600;
/// Write a volume's metadata and small files to a file or stdout; also while it is served
///
/// The dump is a consistent snapshot of the volume. It does not contain the content of files that have a backing file
/// (`varve info` shows which; a small file has one if it was large once, or was made among large ones). Copy the
/// store's `data` directory for that.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Store of the volume: a directory, or a file:// URL of one
    store: StoreUrl,
    /// File to write; a regular file appears, or is replaced (through symlinks), when the dump is complete. A device or
    /// FIFO is written directly; - is stdout [default: stdout]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    client: ClientFlags,
}

#[derive(Serialize)]
struct DumpReport {
    store: PathBuf,
    output: Option<PathBuf>,
    rows: u64,
    names: u64,
    bytes: u64,
    seconds: f64,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let store = std::path::absolute(arguments.store.directory())
        .map_err(|error| Problem::new("cannot find the current directory").caused_by(&error))?;
    let approach = arguments.client.read()?;
    let rights = identity::take(&store, Work::Dump, || Problem::new(format!("cannot dump {}", store.display())))?;
    let mut config = ClientConfig::new(VolumeDir::new(&store));
    approach.apply(&mut config);
    let file = arguments.output.as_ref().filter(|path| path.as_os_str() != "-");
    if file.is_none() && io::stdout().is_terminal() {
        return Err(Problem::usage("a dump is no text for a terminal").next("Name a file with -o, or use a pipe."));
    }
    let bar = if output.shows_progress() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("{elapsed} {msg}").unwrap_or_else(|_| ProgressStyle::default_spinner());
    bar.set_style(style);
    let mut progress =
        |progress: DumpProgress| bar.set_message(format!("shard {}, {} rows", progress.shard, progress.rows));
    let begun = Instant::now();
    let written = match file {
        Some(path) => to_file(&config, path, &mut progress),
        None => dump_volume(&config, &mut Stdout, &mut progress),
    };
    bar.finish_and_clear();
    let dumped = written.map_err(|error| {
        let problem = Problem::new(format!("cannot dump {}", store.display())).caused_by(&error);
        match &error {
            DumpError::Locked(lock) => problem.next(server::to_lock(lock)),
            DumpError::Maintenance(error) if error.servers().len() > 1 => problem.next(
                "Each of them can give a consistent snapshot of its own shards only. Stop all of them, or all but one, which \
                 then takes the shards of the others (`varve cluster status STORE`), and dump again.",
            ),
            DumpError::Maintenance(error) if error.is_of_unreachable_etcd() => match server::to_maintenance(error) {
                Some(next) => problem.next(next),
                None => problem,
            },
            DumpError::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => rights.explain(problem),
            _ => problem,
        }
    })?;
    if let Some(path) = file {
        let Dumped { rows, entries, bytes } = dumped;
        let seconds = begun.elapsed().as_secs_f64();
        output.result(
            "dump",
            &DumpReport { store, output: Some(path.clone()), rows, names: entries, bytes, seconds },
            text,
        )?;
    }
    Ok(Exit::Done)
}

fn failed(doing: &str, path: &Path) -> impl Fn(io::Error) -> DumpError {
    let doing = format!("cannot {doing} {}", path.display());
    move |source| DumpError::Io { doing: doing.clone(), source }
}

/// Runs `work` with the rights of the starting user, who is to own the dump. If these are not sufficient, runs it with
/// the rights of the store's owner.
fn as_starter<T>(work: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match as_process_user(&work) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => work(),
        done => done,
    }
}

fn to_file(
    config: &ClientConfig,
    path: &Path,
    progress: &mut dyn FnMut(DumpProgress),
) -> std::result::Result<Dumped, DumpError> {
    // Links such as /dev/stdout lead to an object that has no path. They are the system's.
    let of_system = ["/dev", "/proc"].iter().any(|system| path.starts_with(system));
    let is_plain = path.components().all(|part| part != Component::ParentDir);
    if of_system && is_plain && as_starter(|| path.metadata()).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        let open = || File::options().write(true).open(path);
        return to_device(config, as_starter(open).map_err(failed("write", path))?, path, progress);
    }
    let place = as_starter(|| Ok(TrustedPlace::find(path)?)).map_err(failed("find", path))?;
    match as_starter(|| place.file_type()).map_err(failed("write", path))? {
        Some(FileType::Directory) => Err(failed("write", path)(io::ErrorKind::IsADirectory.into())),
        Some(FileType::RegularFile) | None => to_regular_file(config, &place, path, progress),
        // A link that appeared since is refused.
        Some(_) => {
            let opened = as_starter(|| place.open()).map_err(failed("write", path))?;
            to_device(config, opened, path, progress)
        }
    }
}

/// Writes to a file that is not regular. It belongs to the system or another program, so it is never replaced.
fn to_device(
    config: &ClientConfig,
    mut file: File,
    path: &Path,
    progress: &mut dyn FnMut(DumpProgress),
) -> std::result::Result<Dumped, DumpError> {
    let write = failed("write", path);
    if file.metadata().map_err(&write)?.is_file() {
        return Err(write(io::Error::other("a regular file replaced it meanwhile; try again")));
    }
    let dumped = dump_volume(config, &mut file, progress)?;
    match rustix::fs::fsync(&file) {
        // A FIFO or a character device has nothing to sync: fsync(2).
        Ok(()) | Err(Errno::INVAL | Errno::ROFS | Errno::NOTSUP) => Ok(dumped),
        Err(error) => Err(failed("fsync", path)(error.into())),
    }
}

/// The file appears when the dump is complete. The directory is held: its owner cannot lead the process elsewhere while
/// the dump is written.
fn to_regular_file(
    config: &ClientConfig,
    place: &TrustedPlace,
    path: &Path,
    progress: &mut dyn FnMut(DumpProgress),
) -> std::result::Result<Dumped, DumpError> {
    let temporary = disk::temporary(Path::new(""));
    let name = temporary.as_os_str();
    let mut file = as_starter(|| place.create_beside(name, DUMP_MODE)).map_err(failed("make a file beside", path))?;
    let written = dump_volume(config, &mut file, progress).and_then(|dumped| {
        file.sync_all().map_err(failed("fsync", path))?;
        as_starter(|| place.publish(name)).map_err(failed("make", path))?;
        Ok(dumped)
    });
    if written.is_err()
        && let Err(error) = as_starter(|| place.remove_beside(name))
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(file = %path.with_file_name(name).display(), %error, "an unfinished dump stays behind");
    }
    written
}

/// Dumps from the server if there is one, else from the tables.
fn dump_volume(
    config: &ClientConfig,
    output: &mut dyn Write,
    progress: &mut dyn FnMut(DumpProgress),
) -> std::result::Result<Dumped, DumpError> {
    let volume = &config.store;
    match dump::dump_offline(volume, output, progress) {
        Err(DumpError::Locked(LockError::Held { .. })) => {}
        // One server that has joined has all shards, so its snapshot is one of the whole volume.
        Err(DumpError::Maintenance(error)) if error.servers().len() == 1 => {}
        done => return done,
    }
    let settings = volume.read_settings()?;
    let mut served = Served::connect(config.clone(), &settings)?;
    let settings = (&settings, volume.ack_level());
    let dumped = varve_client::block_on(dump::dump(&mut served, settings, output, progress));
    served.end();
    dumped
}

fn text(report: &DumpReport) -> String {
    columns(&[
        ("store", report.store.display().to_string()),
        ("dump", report.output.as_ref().map(|path| path.display().to_string()).unwrap_or_default()),
        ("names", report.names.to_string()),
        ("rows", report.rows.to_string()),
        (
            "took",
            format!("{:.1} s, {}/s", report.seconds, Rounded((report.bytes as f64 / report.seconds.max(1e-3)) as u64)),
        ),
        ("size", Rounded(report.bytes).to_string()),
    ])
}
