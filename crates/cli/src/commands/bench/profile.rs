//! `varve bench profile`: where the time of create, stat and delete goes, stage by stage. Server, mount and library live
//! in this process, around volumes of their own, so that one set of counters sees all stages.

use super::explain;
use crate::embedded::Embedded;
use crate::output::Output;
use crate::problem::{Exit, Problem, Result};
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use varve_bench::target::{DirectoryTarget, LibraryTarget};
use varve_bench::workloads::mdtest::{self, CounterCost, OperationProfile};
use varve_client::{ClientConfig, FileSystem};
use varve_fuse::{MountOptions, Mounted};
use varve_meta::server::{Server, ServerConfig};
use varve_types::{ShardCount, VolumeId, VolumeSettings};
use varve_world::random;
use varve_world::volume_dir::{FormatOver, VolumeDir};

/// Show where the time of create, stat and delete goes, stage by stage
#[derive(Debug, Args)]
pub struct Arguments {
    /// Directory in which volumes are made for this, and removed [default: the system's for temporary files]
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Files of all clients together
    #[arg(long, value_name = "COUNT", default_value_t = 5_000)]
    files: u64,
    /// Clients at once; with one, the stages add up to the latency
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    clients: usize,
}

#[derive(Serialize)]
struct Profile {
    files: u64,
    clients: usize,
    counters: CounterCost,
    doors: Vec<Door>,
}

#[derive(Serialize)]
struct Door {
    door: &'static str,
    operations: Vec<OperationProfile>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let beneath = arguments.directory.clone().unwrap_or_else(std::env::temp_dir);
    let work = beneath.join(format!("varve-profile.{}", std::process::id()));
    std::fs::create_dir(&work)
        .map_err(|error| Problem::new(format!("cannot make {}", work.display())).caused_by(&error))?;
    let profiled = profile(arguments, &work);
    let removed = std::fs::remove_dir_all(&work);
    let profile = profiled?;
    removed.map_err(|error| Problem::new(format!("cannot remove {}", work.display())).caused_by(&error))?;
    output.result("bench profile", &profile, text)?;
    Ok(Exit::Done)
}

fn profile(arguments: &Arguments, work: &Path) -> Result<Profile> {
    let counters = mdtest::counter_cost();
    let mut doors = Vec::new();
    {
        let site = Site::new(work, "served", false)?;
        let store = site.volume.root().display().to_string();
        let target = LibraryTarget::open(&store).map_err(|error| explain(&error))?;
        let operations = mdtest::profile(&target, arguments.files, arguments.clients);
        doors.push(Door { door: "library", operations: operations.map_err(|error| explain(&error))? });
        doors.push(Door { door: "served mount", operations: site.profile_mount(arguments, work)? });
        site.end()?;
    }
    let site = Site::new(work, "embedded", true)?;
    doors.push(Door { door: "embedded mount", operations: site.profile_mount(arguments, work)? });
    site.end()?;
    Ok(Profile { files: arguments.files, clients: arguments.clients, counters, doors })
}

/// A volume with its server.
struct Site {
    volume: VolumeDir,
    server: Arc<Server>,
    embedded: bool,
}

impl Site {
    fn new(work: &Path, name: &str, embedded: bool) -> Result<Site> {
        let failed = |doing: &str| format!("cannot {doing} a volume in {}", work.display());
        let volume = VolumeDir::new(work.join(name));
        let settings = VolumeSettings {
            id: VolumeId(random::bytes()),
            name: name.to_owned(),
            shards: ShardCount::new(VolumeSettings::SHARDS_DEFAULT).expect("the default is valid"),
            split_threshold: VolumeSettings::SPLIT_THRESHOLD_DEFAULT,
            inline_limit: VolumeSettings::INLINE_LIMIT_DEFAULT,
            sync_interval: VolumeSettings::SYNC_INTERVAL_DEFAULT,
            owner_uid: rustix::process::geteuid().as_raw(),
        };
        varve_meta::format::format(&volume, &settings, FormatOver::Nothing)
            .map_err(|error| Problem::new(failed("make")).caused_by(&error))?;
        let mut config = ServerConfig::new(volume.clone());
        config.embedded = embedded;
        let server = Server::start(config).map_err(|error| crate::server::explain(failed("serve"), &error))?;
        Ok(Site { volume, server: Arc::new(server), embedded })
    }

    fn profile_mount(&self, arguments: &Arguments, work: &Path) -> Result<Vec<OperationProfile>> {
        let directory = work.join("mnt");
        let failed = || format!("cannot mount at {}", directory.display());
        match std::fs::create_dir(&directory) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(Problem::new(failed()).caused_by(&error));
            }
            _ => {}
        }
        let mounted = self.mount(&directory)?;
        let profiled = DirectoryTarget::open("mount", &directory)
            .and_then(|target| mdtest::profile(&target, arguments.files, arguments.clients));
        let unmounted = mounted.unmount();
        let profiled = profiled.map_err(|error| explain(&error))?;
        unmounted.map_err(|error| Problem::new("the mount did not end well").caused_by(&error))?;
        Ok(profiled)
    }

    fn mount(&self, directory: &Path) -> Result<Mounted> {
        let failed = || format!("cannot mount at {}", directory.display());
        let options = MountOptions::new(self.volume.root().display().to_string());
        let config = ClientConfig::new(self.volume.clone());
        let connected = match self.embedded {
            true => FileSystem::connect_within(config, Arc::new(Embedded(Arc::clone(&self.server)))),
            false => FileSystem::connect(config),
        };
        let file_system = connected.map_err(|error| Problem::new(failed()).because(error))?;
        let mounted = varve_fuse::mount(file_system, directory, &options)
            .map_err(|error| Problem::new(failed()).caused_by(&error))?;
        std::fs::metadata(directory).map_err(|error| Problem::new(failed()).caused_by(&error))?;
        Ok(mounted)
    }

    fn end(self) -> Result<()> {
        let stopped = self.server.stop(crate::server::STOP_DEADLINE);
        stopped.map_err(|error| crate::server::explain("the server did not stop well", &error))
    }
}

fn text(profile: &Profile) -> String {
    let doors: Vec<_> = profile.doors.iter().map(|door| (door.door.to_owned(), door.operations.clone())).collect();
    let CounterCost { off_ns, on_ns } = profile.counters;
    format!(
        "{} files in one directory, clients: {}\n\n{}A stage costs {off_ns:.1} ns while nobody profiles, {on_ns:.0} ns \
         now.\n",
        profile.files,
        profile.clients,
        mdtest::table(&doors)
    )
}
