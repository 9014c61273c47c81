//! `varve dump STORE`: the metadata of a volume in one stream.

use crate::output::{Output, columns};
use crate::problem::{Exit, Problem, Result};
use crate::quantity::Bytes as Quantity;
use async_trait::async_trait;
use bytes::Bytes;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use varve_client::{ClientConfig, FileSystem, Purpose};
use varve_meta::dump::{self, DumpError, Dumped, Progress};
use varve_meta::snapshot::{Source, Unreadable};
use varve_types::{ShardCount, ShardId, VolumeSettings};
use varve_world::disk;
use varve_world::store_url::StoreUrl;
use varve_world::volume_dir::VolumeDir;

/// A server that does not answer within this is not well.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);
const PAGE_BYTES: u32 = 1024 * 1024;
/// A dump holds everybody's small files.
const DUMP_MODE: u32 = 0o600;

/// Write the metadata of a volume, small files included, to a file or to stdout; also while it is served
///
/// The dump is the volume at one moment. Large files are not in it: copy the store's `data` directory for them.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Where the volume is: a directory, or a file:// URL of one
    store: StoreUrl,
    /// File to write; it appears when the dump is whole [default: stdout]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Serialize)]
struct Report {
    store: PathBuf,
    output: Option<PathBuf>,
    rows: u64,
    names: u64,
    bytes: u64,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let store = std::path::absolute(arguments.store.directory())
        .map_err(|error| Problem::new("cannot find the current directory").caused_by(&error))?;
    let volume = VolumeDir::new(&store);
    if arguments.output.is_none() && io::stdout().is_terminal() {
        return Err(Problem::usage("a dump is no text for a terminal").next("Name a file with -o, or use a pipe."));
    }
    let bar = if output.shows_progress() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("{elapsed} {msg}").unwrap_or_else(|_| ProgressStyle::default_spinner());
    bar.set_style(style);
    let mut progress =
        |progress: Progress| bar.set_message(format!("shard {}, {} rows", progress.shard, progress.rows));
    let written = match &arguments.output {
        Some(path) => to_file(&volume, path, &mut progress),
        None => dump_volume(&volume, &mut io::stdout().lock(), &mut progress),
    };
    bar.finish_and_clear();
    let dumped = written.map_err(|error| Problem::new(format!("cannot dump {}", store.display())).caused_by(&error))?;
    if let Some(path) = &arguments.output {
        let Dumped { rows, entries, bytes } = dumped;
        output.result("dump", &Report { store, output: Some(path.clone()), rows, names: entries, bytes }, text)?;
    }
    Ok(Exit::Done)
}

fn to_file(
    volume: &VolumeDir,
    path: &Path,
    progress: &mut dyn FnMut(Progress),
) -> std::result::Result<Dumped, DumpError> {
    let failed = |doing: &str| {
        let doing = format!("cannot {doing} {}", path.display());
        move |source| DumpError::Io { doing, source }
    };
    let temporary = disk::temporary(disk::parent(path));
    disk::write_synced(&temporary, &[], DUMP_MODE).map_err(failed("make a file beside"))?;
    let written = File::options().write(true).open(&temporary).map_err(failed("write")).and_then(|mut file| {
        let dumped = dump_volume(volume, &mut file, progress)?;
        file.sync_all().map_err(failed("fsync"))?;
        disk::publish_replacing(&temporary, path).map_err(failed("make"))?;
        Ok(dumped)
    });
    if written.is_err()
        && let Err(error) = std::fs::remove_file(&temporary)
    {
        tracing::warn!(file = %temporary.display(), %error, "an unfinished dump stays behind");
    }
    written
}

/// From the server, if there is one, else from the tables.
fn dump_volume(
    volume: &VolumeDir,
    output: &mut dyn Write,
    progress: &mut dyn FnMut(Progress),
) -> std::result::Result<Dumped, DumpError> {
    match dump::dump_at_rest(volume, output, progress) {
        Err(DumpError::Locked(_)) => {}
        done => return done,
    }
    let settings = volume.read_settings()?;
    let mut served = Served::connect(volume, &settings)?;
    let dumped = varve_client::now(dump::dump(&mut served, &settings, output, progress));
    served.end();
    dumped
}

/// What a server held at one moment.
struct Served {
    file_system: Arc<FileSystem>,
    shards: ShardCount,
    number: u64,
    reading: Option<(ShardId, Range<Vec<u8>>)>,
}

impl Served {
    fn connect(volume: &VolumeDir, settings: &VolumeSettings) -> std::result::Result<Served, DumpError> {
        let mut config = ClientConfig::new(volume.clone());
        config.purpose = Purpose::Observe;
        config.deadline = ANSWER_DEADLINE;
        config.read_only = true;
        let number = u64::from_le_bytes(varve_world::random::bytes());
        let taken = FileSystem::connect(config).and_then(|file_system| {
            varve_client::now(file_system.take_moment(number))?;
            Ok(file_system)
        });
        let file_system = taken.map_err(|failure| Unreadable { shard: ShardId(0), reason: failure.to_string() })?;
        Ok(Served { file_system, shards: settings.shards, number, reading: None })
    }

    fn end(self) {
        // Else the server forgets it in a minute or two.
        if let Err(failure) = varve_client::now(self.file_system.forget_moment(self.number)) {
            tracing::debug!(%failure, "the server was not told that the dump has ended");
        }
    }
}

#[async_trait(?Send)]
impl Source for Served {
    fn shards(&self) -> ShardCount {
        self.shards
    }

    async fn begin(&mut self, shard: ShardId, range: Range<Vec<u8>>) -> std::result::Result<(), Unreadable> {
        self.reading = Some((shard, range));
        Ok(())
    }

    async fn page(&mut self) -> std::result::Result<Vec<(Bytes, Bytes)>, Unreadable> {
        let Some((shard, range)) = &mut self.reading else { return Ok(Vec::new()) };
        let (from, end) = (range.start.clone(), range.end.clone());
        let rows = self.file_system.read_moment(self.number, *shard, from, end, PAGE_BYTES).await;
        let rows = rows.map_err(|failure| Unreadable { shard: *shard, reason: failure.to_string() })?;
        match rows.last() {
            // The next key there can be.
            Some((last, _)) => range.start = [last.as_slice(), &[0]].concat(),
            None => self.reading = None,
        }
        Ok(rows.into_iter().map(|(key, row)| (key.into(), row.into())).collect())
    }
}

fn text(report: &Report) -> String {
    columns(&[
        ("store", report.store.display().to_string()),
        ("dump", report.output.as_ref().map(|path| path.display().to_string()).unwrap_or_default()),
        ("names", report.names.to_string()),
        ("rows", report.rows.to_string()),
        ("size", Quantity(report.bytes).to_string()),
    ])
}
