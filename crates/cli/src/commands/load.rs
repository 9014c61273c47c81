//! `varve load FILE STORE`: makes a volume from a dump.

use crate::identity::{self, Work};
use crate::output::{Output, columns};
use crate::problem::{Exit, Problem, Result};
use crate::server;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use varve_admin::dump::{self, Data, Dropped, DumpError, LoadError, Loaded, Privileges};
use varve_admin::fsck::FindingKind;
use varve_env::store_url::StoreUrl;
use varve_env::trusted_path;
use varve_env::volume_dir::{FormatOver, VolumeDir, VolumeFormatError};

/// Make a volume from a dump
///
/// The volume belongs to the owner of its directory, as with `varve format`; root makes it with that user's rights.
///
/// The volume exists once everything is loaded and checked. A load that fails leaves no volume and removes its files.
/// There is one exception: if the report cannot be written to stdout, the volume stays, the error says so, and the exit
/// code is 1. A load that is killed leaves a directory that the next load accepts with --force. Exit code 3: large
/// files are left out or without content, or the check found damage that it could not repair. The volume has the dump's
/// settings, shards and inode ids, so it can use the `data` directory of the dumped volume: copy it with --data, put it
/// into STORE before the load (with --force), or add it later.
#[derive(Debug, Args)]
pub struct Arguments {
    /// File that `varve dump` wrote; - for stdin
    file: PathBuf,
    /// Store to make: a directory, or a file:// URL of one
    store: StoreUrl,
    /// Copy the content of large files from this `data` directory; a missing file is left out
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Accept a directory that is not empty: other files stay, and the volume uses an existing `data` directory
    #[arg(long, short)]
    force: bool,
    /// As root: keep set-user-id and set-group-id bits, security.capability, and the owners and modes of devices. Only
    /// for a dump that nobody else could modify since it was made: the file owners in it are those that its maker wrote
    #[arg(long)]
    keep_set_id: bool,
}

#[derive(Serialize)]
struct LoadReport {
    store: PathBuf,
    rows: u64,
    names: u64,
    files_copied: u64,
    files_left_out: u64,
    /// Large files whose content is not in the store.
    files_without_content: u64,
    /// Files whose set-user-id and set-group-id bits were dropped.
    set_ids_dropped: u64,
    /// Files whose security.capability was dropped.
    capabilities_dropped: u64,
    /// Devices that now belong to root alone.
    devices_restricted: u64,
    /// Repairs that the check of the loaded volume made.
    repairs: Vec<String>,
    sound: bool,
}

const MAKES_ONE: &str = "`varve dump STORE -o FILE` makes a dump.";

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let store = std::path::absolute(arguments.store.directory())
        .map_err(|error| Problem::new("cannot find the current directory").caused_by(&error))?;
    let failed = || Problem::new(format!("cannot load {} into {}", arguments.file.display(), store.display()));
    let mut input: Box<dyn Read> = match arguments.file.as_os_str() == "-" {
        true => Box::new(io::stdin().lock()),
        false => {
            let opened = trusted_path::resolve(&arguments.file).map_err(io::Error::from).and_then(File::open);
            let file = opened.map_err(|error| failed().caused_by(&error).next(MAKES_ONE))?;
            Box::new(file)
        }
    };
    // The dump may be readable by root alone. All other work runs with the rights of the volume's future owner.
    let rights = identity::take(&store, Work::MakeStore, failed)?;
    if let Some(data) = &arguments.data {
        check_data(data, &VolumeDir::new(&store))
            .map_err(|why| rights.explain(failed().because(why).next("Nothing was made or changed.")))?;
    }
    let bar = if output.shows_progress() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("{elapsed} {msg}").unwrap_or_else(|_| ProgressStyle::default_spinner());
    bar.set_style(style);
    let over = if arguments.force { FormatOver::OtherFiles } else { FormatOver::Nothing };
    let data = arguments.data.as_deref().map_or(Data::InPlace, Data::CopiedFrom);
    // Without root, set-id bits on files of other users grant nothing.
    let drops = rustix::process::geteuid().is_root() && !arguments.keep_set_id;
    let privileges = if drops { Privileges::Drop } else { Privileges::Keep };
    let loaded = dump::load(&mut *input, &VolumeDir::new(&store), over, (data, privileges), &mut |progress| {
        bar.set_message(format!("shard {}, {} rows", progress.shard, progress.rows));
    });
    bar.finish_and_clear();
    let loaded = loaded.map_err(|error| {
        let problem = failed().caused_by(&error);
        match &error {
            LoadError::Format(VolumeFormatError::NotEmpty { .. }) => {
                problem.next("To put the volume beside what is there, add --force.")
            }
            LoadError::Format(VolumeFormatError::VolumeExists { .. }) => {
                problem.next("Load into another directory, or remove that volume first.")
            }
            LoadError::Format(VolumeFormatError::Locked(lock)) => problem.next(server::to_lock(lock)),
            LoadError::Format(VolumeFormatError::Taken { .. }) => problem.next("Nothing was made or changed."),
            LoadError::Dump(DumpError::NoDump) => problem.next(format!("Nothing was made or changed. {MAKES_ONE}")),
            LoadError::Dump(DumpError::Newer { .. }) => problem.next("Nothing was made or changed."),
            _ if VolumeDir::new(&store).volume_file().exists() => {
                problem.next("The volume that is there was not touched.")
            }
            _ if VolumeDir::new(&store).data().exists() => problem.next(
                "There is no volume: the unfinished one was removed, except for files that were copied into an \
                 existing data directory; fix the cause and load again.",
            ),
            _ => problem.next("There is no volume: the unfinished one was removed; fix the cause and load again."),
        }
    })?;
    let report = report(store, loaded);
    let complete = report.sound && report.files_left_out == 0 && report.files_without_content == 0;
    let exit = if complete { Exit::Done } else { Exit::Degraded };
    let reported = output.result("load", &report, text);
    reported.map_err(|problem| problem.next(kept(&report, complete)))?;
    Ok(exit)
}

/// Checks the data directory first. A wrong directory contains none of the files, and the load would leave out all of
/// them.
fn check_data(data: &Path, volume: &VolumeDir) -> std::result::Result<(), String> {
    let shown = data.display();
    match std::fs::metadata(data) {
        Err(error) => Err(format!("--data {shown}: {error}")),
        Ok(found) if !found.is_dir() => Err(format!("--data {shown}: it is no directory")),
        Ok(_) if VolumeDir::new(data).volume_file().exists() => {
            Err(format!("--data {shown}: it is a store; the content of its large files is in {shown}/data"))
        }
        Ok(found) if volume.data().metadata().is_ok_and(|own| (own.dev(), own.ino()) == (found.dev(), found.ino())) => {
            Err(format!(
                "--data {shown}: it is the volume's own data directory already, so there is nothing to copy; leave out \
                 --data"
            ))
        }
        Ok(_) => Ok(()),
    }
}

/// The message for a volume whose report could not be written. The volume stays, because a load may take hours.
fn kept(report: &LoadReport, complete: bool) -> String {
    let store = report.store.display();
    match complete {
        true => format!("The load itself is done: the volume in {store} is complete, and stays."),
        false => format!(
            "The load itself is done, and the volume in {store} stays; `varve fsck {store}` shows what is missing."
        ),
    }
}

fn report(store: PathBuf, loaded: Loaded) -> LoadReport {
    let Loaded { rows, entries, files_copied, files_left_out, dropped, repaired } = loaded;
    let Dropped { set_ids, capabilities, devices } = dropped;
    let missing = repaired.after.totals.get(&FindingKind::MissingBackingFile).copied().unwrap_or(0);
    LoadReport {
        store,
        rows,
        names: entries,
        files_copied,
        files_left_out,
        files_without_content: missing,
        set_ids_dropped: set_ids,
        capabilities_dropped: capabilities,
        devices_restricted: devices,
        sound: repaired.after.is_sound(),
        repairs: repaired.repairs,
    }
}

fn text(report: &LoadReport) -> String {
    let mut text = columns(&[
        ("store", report.store.display().to_string()),
        ("names", report.names.to_string()),
        ("rows", report.rows.to_string()),
        ("large files copied", report.files_copied.to_string()),
    ]);
    report.repairs.iter().for_each(|repair| text += &format!("put right: {repair}\n"));
    let LoadReport { set_ids_dropped, capabilities_dropped, devices_restricted, .. } = report;
    if set_ids_dropped + capabilities_dropped + devices_restricted > 0 {
        text += &format!(
            "dropped: set-user-id and set-group-id bits of {set_ids_dropped} files, security.capability of \
             {capabilities_dropped}, access to {devices_restricted} devices by others than root; --keep-set-id keeps \
             them, for a dump from a trusted source\n"
        );
    }
    if report.files_left_out > 0 {
        text += &format!(
            "{} files were left out: the directory given with --data does not have their content, which was removed after the dump \
             or is elsewhere\n",
            report.files_left_out
        );
    }
    if report.files_without_content > 0 {
        let data = report.store.join("data");
        text += &format!(
            "{} files have no content: copy the dumped volume's data directory to {}, then run varve fsck\n",
            report.files_without_content,
            data.display()
        );
    }
    text
}
