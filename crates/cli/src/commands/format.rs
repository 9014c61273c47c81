//! `varve format STORE`: makes a volume.

use crate::identity::{self, Work};
use crate::output::{Output, columns};
use crate::problem::{Exit, Problem, Result};
use crate::quantity::{Bytes, Span};
use crate::server;
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use varve_admin::format::FormatError;
use varve_env::random;
use varve_env::store_url::StoreUrl;
use varve_env::volume_dir::{FormatOver, LockError, VolumeDir, VolumeFormatError};
use varve_types::{AckLevel, ShardCount, VolumeId, VolumeSettings};

/// Make a volume in a directory
///
/// The volume belongs to the owner of that directory or, if it does not exist yet, of its nearest existing parent. Root
/// makes it with that user's rights.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Store to make: a directory, or a file:// URL of one
    store: StoreUrl,
    /// Name of the volume: letters, digits, '-', '_', '.' [default: the directory's]
    #[arg(long)]
    name: Option<String>,
    /// Number of tables that share the metadata, a power of two; it limits how many servers the volume can ever use
    #[arg(long, value_name = "COUNT", default_value_t = VolumeSettings::SHARDS_DEFAULT.into())]
    shards: u64,
    /// Entries above which a directory partition is split in half; 8,000 spreads shared directories over many workers
    #[arg(long, value_name = "ENTRIES", default_value_t = VolumeSettings::SPLIT_THRESHOLD_DEFAULT)]
    split_threshold: u64,
    /// Files up to this size are stored in the metadata
    #[arg(long, value_name = "SIZE", default_value_t = Bytes(VolumeSettings::INLINE_LIMIT_DEFAULT.into()))]
    inline_limit: Bytes,
    /// How long an acknowledged change may wait for its fsync; 0: fsync before every reply
    #[arg(long, value_name = "DURATION", default_value_t = Span(VolumeSettings::SYNC_INTERVAL_DEFAULT))]
    sync_interval: Span,
    /// Meaning of a reply to a change: appended (in the log; survives the server's death) or synced (fsynced; survives a
    /// power loss). `varve volume set` changes it
    #[arg(long, value_name = "LEVEL", default_value_t = AckLevel::default())]
    ack: AckLevel,
    /// Accept a directory that is not empty (other files stay; none may have a name that the volume needs); twice:
    /// destroy the existing volume
    #[arg(long, short, action = clap::ArgAction::Count)]
    force: u8,
}

#[derive(Serialize)]
struct Formatted {
    store: PathBuf,
    id: String,
    name: String,
    shards: u16,
    split_threshold: u64,
    inline_limit_bytes: u32,
    sync_interval_ms: u64,
    ack: &'static str,
    owner_uid: u32,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let directory = std::path::absolute(arguments.store.directory())
        .map_err(|error| Problem::new("cannot find the current directory").caused_by(&error))?;
    let failed = || Problem::new(format!("cannot format {}", directory.display()));
    identity::take(&directory, Work::MakeStore, failed)?;
    let settings = settings(arguments, &directory)?;
    let over = match arguments.force {
        0 => FormatOver::Nothing,
        1 => FormatOver::OtherFiles,
        _ => FormatOver::Volume,
    };
    varve_admin::format::format_with_level(&VolumeDir::new(&directory), &settings, arguments.ack, over)
        .map_err(|error| explain(&directory, &error))?;
    let formatted = Formatted {
        store: directory,
        id: settings.id.to_string(),
        name: settings.name,
        shards: settings.shards.get(),
        split_threshold: settings.split_threshold,
        inline_limit_bytes: settings.inline_limit,
        sync_interval_ms: settings.sync_interval.as_millis() as u64,
        ack: arguments.ack.name(),
        owner_uid: settings.owner_uid,
    };
    let made = format!("The volume in {} was made, and stays.", formatted.store.display());
    output.result("format", &formatted, text).map_err(|problem| problem.next(made))?;
    Ok(Exit::Done)
}

fn settings(arguments: &Arguments, directory: &Path) -> Result<VolumeSettings> {
    let shards = u16::try_from(arguments.shards).ok().and_then(ShardCount::new).ok_or_else(|| {
        Problem::usage(format!("--shards {}", arguments.shards))
            .because(format!("a volume has a power of two of shards, from 1 to {}", ShardCount::MAX))
    })?;
    let inline_limit = u32::try_from(arguments.inline_limit.0)
        .ok()
        .filter(|bytes| *bytes <= VolumeSettings::INLINE_LIMIT_MAX)
        .ok_or_else(|| {
            Problem::usage(format!("--inline-limit {}", arguments.inline_limit))
                .because(format!("the most is {}", Bytes(VolumeSettings::INLINE_LIMIT_MAX.into())))
        })?;
    let settings = VolumeSettings {
        id: VolumeId(random::bytes()),
        name: arguments.name.clone().unwrap_or_else(|| name_of(directory)),
        shards,
        split_threshold: arguments.split_threshold,
        inline_limit,
        sync_interval: arguments.sync_interval.0,
        owner_uid: rustix::process::geteuid().as_raw(),
    };
    settings.check().map_err(|error| Problem::usage("cannot make such a volume").caused_by(&error))?;
    Ok(settings)
}

/// The directory's name, reduced to the characters that a volume name may have.
fn name_of(directory: &Path) -> String {
    let name = directory.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let allowed = |c: &char| c.is_ascii_alphanumeric() || "-_.".contains(*c);
    let name: String = name.chars().filter(allowed).take(VolumeSettings::NAME_BYTES_MAX).collect();
    if name.is_empty() { "volume".to_owned() } else { name }
}

fn explain(directory: &Path, error: &FormatError) -> Problem {
    let problem = Problem::new(format!("cannot format {}", directory.display())).caused_by(error);
    let error = match error {
        FormatError::Format(error) => error,
        FormatError::Maintenance(error) => {
            return match server::to_maintenance(error) {
                Some(next) => problem.next(next),
                None => problem,
            };
        }
    };
    match error {
        VolumeFormatError::NotEmpty { .. } => problem.next("To put the volume beside what is there, add --force."),
        VolumeFormatError::VolumeExists { .. } => {
            problem.next("To destroy that volume and all it holds, add --force twice.")
        }
        VolumeFormatError::Locked(LockError::Held { .. }) => {
            problem.next("Unmount it or stop its server, then format again.")
        }
        VolumeFormatError::Locked(lock) => problem.next(server::to_lock(lock)),
        VolumeFormatError::Io { .. } if directory.exists() && !directory.is_dir() => {
            problem.next("A volume is a directory: name one, or a path where nothing is yet.")
        }
        VolumeFormatError::Taken { .. } => problem.next("Nothing was made or changed."),
        VolumeFormatError::Settings(_) | VolumeFormatError::Io { .. } => problem,
    }
}

fn text(formatted: &Formatted) -> String {
    let store = formatted.store.display();
    let shown = columns(&[
        ("volume", formatted.name.clone()),
        ("id", formatted.id.clone()),
        ("store", store.to_string()),
        ("shards", formatted.shards.to_string()),
        ("split threshold", format!("{} entries", formatted.split_threshold)),
        ("inline limit", Bytes(formatted.inline_limit_bytes.into()).to_string()),
        ("sync interval", Span(std::time::Duration::from_millis(formatted.sync_interval_ms)).to_string()),
        ("acknowledged when", formatted.ack.to_owned()),
    ]);
    format!("{shown}\nMount it with: varve mount {store} DIR\n")
}
