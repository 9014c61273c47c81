//! `varve bench profile`: the time of create, stat and delete by stage. It makes its own volumes. For the library,
//! client and server both live in this process. Each mount lives with its server in another process
//! ([`super::companion`]). So one set of counters sees all stages.

use super::companion::Companion;
use super::explain;
use super::new_volume;
use super::work::WorkDirectory;
use crate::embedded::Embedded;
use crate::output::Output;
use crate::problem::{Exit, Problem, Result};
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use varve_bench::target::{DirectoryTarget, LibraryTarget};
use varve_bench::workloads::mdtest::{self, CounterCost, OperationProfile, OwnStages};
use varve_client::{ClientConfig, FileSystem};
use varve_env::volume_dir::VolumeDir;
use varve_fuse::{MountOptions, MountSession};
use varve_meta::server::{Server, ServerConfig};
use varve_types::VolumeSettings;

/// Show where the time of create, stat and delete goes, stage by stage
#[derive(Debug, Args)]
pub struct Arguments {
    /// Directory for the temporary volumes; leftovers of killed runs are removed from it too [default: the system's for
    /// temporary files]
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Files of all clients together
    #[arg(long, value_name = "COUNT", default_value_t = 5_000)]
    files: u64,
    /// Number of clients; with one, the stages add up to the latency
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    clients: usize,
}

#[derive(Serialize)]
struct Profile {
    files: u64,
    clients: usize,
    counters: CounterCost,
    #[serde(rename = "doors")]
    frontends: Vec<FrontendProfile>,
}

#[derive(Serialize)]
struct FrontendProfile {
    #[serde(rename = "door")]
    frontend: &'static str,
    operations: Vec<OperationProfile>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let work = WorkDirectory::make_in(arguments.directory.as_deref())?;
    let profiled = profile(arguments, &work);
    let removed = work.remove();
    let profile = profiled?;
    removed?;
    output.result("bench profile", &profile, text)?;
    Ok(Exit::Done)
}

fn profile(arguments: &Arguments, work: &WorkDirectory) -> Result<Profile> {
    let counters = mdtest::counter_cost();
    let mut frontends = vec![FrontendProfile {
        frontend: "library",
        operations: profile_library(arguments, &work.path().join("library"))?,
    }];
    for (frontend, embedded) in [("served mount", false), ("embedded mount", true)] {
        let store = work.path().join(if embedded { "embedded" } else { "served" });
        frontends.push(FrontendProfile {
            frontend,
            operations: profile_mount(arguments, &store, &work.mount_point(), embedded)?,
        });
    }
    Ok(Profile { files: arguments.files, clients: arguments.clients, counters, frontends })
}

fn profile_library(arguments: &Arguments, store: &Path) -> Result<Vec<OperationProfile>> {
    let site = ProfileSite::new(store, false)?;
    let target = LibraryTarget::open(&store.display().to_string()).map_err(|error| explain(&error))?;
    let profiled = mdtest::profile(&target, &mut OwnStages, arguments.files, arguments.clients);
    drop(target);
    let ended = site.end();
    let profiled = profiled.map_err(|error| explain(&error))?;
    ended.map(|()| profiled)
}

fn profile_mount(
    arguments: &Arguments,
    store: &Path,
    directory: &Path,
    embedded: bool,
) -> Result<Vec<OperationProfile>> {
    let failed =
        |error: std::io::Error| Problem::new(format!("cannot mount at {}", directory.display())).caused_by(&error);
    std::fs::create_dir(directory).map_err(failed)?;
    let mut companion = Companion::volume(store, directory, embedded).map_err(failed)?;
    let profiled = DirectoryTarget::open("mount", directory)
        .and_then(|target| mdtest::profile(&target, &mut companion, arguments.files, arguments.clients));
    let ended = companion.end();
    let profiled = profiled.map_err(|error| explain(&error))?;
    ended.map_err(|error| Problem::new("the mount did not end well").caused_by(&error))?;
    std::fs::remove_dir(directory).map_err(failed)?;
    Ok(profiled)
}

/// A volume with its server.
pub(super) struct ProfileSite {
    volume: VolumeDir,
    server: Arc<Server>,
    embedded: bool,
}

impl ProfileSite {
    pub fn new(store: &Path, embedded: bool) -> Result<ProfileSite> {
        let volume = VolumeDir::new(store);
        new_volume::make(&volume, "profile", VolumeSettings::SPLIT_THRESHOLD_DEFAULT)?;
        let mut config = ServerConfig::new(volume.clone());
        config.embedded = embedded;
        let server = Server::start(config)
            .map_err(|error| crate::server::explain(format!("cannot serve a volume at {}", store.display()), &error))?;
        Ok(ProfileSite { volume, server: Arc::new(server), embedded })
    }

    /// Mounts the volume. This process serves it and therefore does not access it.
    pub fn mount(&self, directory: &Path) -> Result<MountSession> {
        let failed = || format!("cannot mount at {}", directory.display());
        let options = MountOptions::new(self.volume.root().display().to_string());
        let config = ClientConfig::new(self.volume.clone());
        let connected = match self.embedded {
            true => FileSystem::connect_within(config, Arc::new(Embedded(Arc::clone(&self.server)))),
            false => FileSystem::connect(config),
        };
        let file_system = connected.map_err(|error| Problem::new(failed()).because(error))?;
        varve_fuse::mount(file_system, directory, &options).map_err(|error| Problem::new(failed()).caused_by(&error))
    }

    pub fn end(self) -> Result<()> {
        let stopped = self.server.stop(crate::server::STOP_DEADLINE);
        stopped.map_err(|error| crate::server::explain("the server did not stop well", &error))
    }
}

fn text(profile: &Profile) -> String {
    let frontends: Vec<_> =
        profile.frontends.iter().map(|frontend| (frontend.frontend.to_owned(), frontend.operations.clone())).collect();
    let CounterCost { off_ns, on_ns } = profile.counters;
    format!(
        "{} files in one directory, clients: {}\n\n{}A stage costs {off_ns:.1} ns while nobody profiles, {on_ns:.0} ns \
         now.\n",
        profile.files,
        profile.clients,
        mdtest::table(&frontends)
    )
}
