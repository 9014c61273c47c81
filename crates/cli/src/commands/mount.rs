//! `varve mount STORE DIR`: mounts a volume on a directory. If no server runs, the mount's own process serves the
//! volume (embedded). Without `-f` a child process in the background does the work, and the command returns when the
//! mount answers.

mod background;
mod log;
mod options;
mod reporting;
mod stopping;

use crate::client::ClientFlags;
use crate::definition::Global;
use crate::embedded::Embedded;
use crate::identity::{self, Rights, Work};
use crate::output::Output;
use crate::problem::{Exit, Problem, Result};
use crate::quantity::Span;
use crate::server::{self, ServerFlags};
use crate::signals::{self, Signals, StopReason};
use clap::Args;
use options::FstabOptions;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat2};
use serde::Serialize;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use stopping::Stopping;
use varve_client::{ClientConfig, CookieWidth, FileSystem};
use varve_env::identity::as_process_user;
use varve_env::service_manager::{self, ServiceState};
use varve_env::store_url::StoreUrl;
use varve_env::trusted_path;
use varve_env::volume_dir::VolumeDir;
use varve_fuse::MountSession;
use varve_meta::server::{Server, ServerConfig, ServerError};
use varve_types::{Credentials, Errno, InodeId, VolumeSettings};

/// Limits of the wait for a server that was started just before. `BEGINNING_MAX` is the time from the start of its
/// process to its lock. `STARTING_MAX` is the time until it publishes its addresses, before which it takes over each
/// shard's directory. For a volume that nobody serves, the command fails after `BEGINNING_MAX`.
const BEGINNING_MAX: Duration = Duration::from_secs(3);
const STARTING_MAX: Duration = Duration::from_secs(20);
const LOOKED_FOR_EVERY: Duration = Duration::from_millis(50);

/// Mount a volume on a directory
///
/// SIGTERM and SIGINT unmount it, and the process ends when everything is durable. While files are open, the mount
/// stays usable and is unmounted as soon as it is free. A second signal detaches it at once, and the process ends with
/// the last open file. Each signal syncs all acknowledged changes, in case SIGKILL follows.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Store of the volume: a directory, or a file:// URL of one
    pub store: StoreUrl,
    /// Directory to mount on; made if it is missing and its parent belongs to this user
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Mount options as of mount(8) and fuse(8), `remount` for flags such as ro included, and: deadline=DURATION,
    /// workers=COUNT, memory=SIZE, key_file=FILE, tcp, embedded, noembedded, threads=COUNT, inode32, nopassthrough,
    /// direct_io, nodirect_io. The last two say whether large files without passthrough bypass the mount's page cache.
    /// By default they do with a separate server while they are open for reading only or with O_DIRECT
    #[arg(short = 'o', long = "options", value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Stay in the foreground
    #[arg(short, long)]
    pub foreground: bool,
    /// Timeout for one server request; a system call may make several, one after the other
    #[arg(
        long,
        value_name = "DURATION",
        default_value_t = Span(ClientConfig::DEADLINE_DEFAULT),
        value_parser = Span::of_some_length
    )]
    pub deadline: Span,
    /// Log file: a regular file of this user, made with mode 0600. SIGHUP opens it anew [default: with -f stderr, else
    /// varve/mount-NAME.log in /var/log for root, else in $XDG_STATE_HOME, ~/.local/state or the directory for sockets]
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    #[command(flatten)]
    pub client: ClientFlags,
    #[command(flatten)]
    pub server: ServerFlags,
    /// Called by mount(8), which adds the options of fstab(5)
    #[arg(long, hide = true)]
    pub by_mount8: bool,
    /// This is the background process; its parent waits for a message on its stdout
    #[arg(long, hide = true)]
    pub in_background: bool,
}

#[derive(Serialize)]
struct MountOutput<'a> {
    store: &'a Path,
    directory: &'a Path,
    pid: u32,
    /// Whether the mount's own process serves the volume; null if only the background process knows.
    embedded: Option<bool>,
    log_file: Option<&'a Path>,
}

pub fn run(arguments: &Arguments, global: &Global, output: &Output) -> Result<Exit> {
    let options = FstabOptions::parse(arguments)?;
    if options.fuse.remount {
        return remount(&options, arguments);
    }
    if arguments.in_background {
        let waiting = background::begin()?;
        let mount = match start(&options, arguments) {
            Ok(mount) => mount,
            Err(problem) => {
                waiting.refuse(&problem);
                return Err(problem);
            }
        };
        waiting.ready()?;
        return mount.serve();
    }
    if arguments.foreground {
        let mount = start(&options, arguments)?;
        show(output, &options, std::process::id(), Some(mount.server.is_some()), arguments.log_file.as_deref())?;
        return mount.serve();
    }
    // The log's name contains the volume's name, which is read with the rights of the store's owner.
    let (_, settings) = open_store(&options)?;
    let log_file = log::path(arguments.log_file.as_deref(), &settings)?;
    let pid = background::launch(&options, arguments, global, &log_file)?;
    show(output, &options, pid, None, Some(&log_file))?;
    Ok(Exit::Done)
}

fn remount(options: &FstabOptions, arguments: &Arguments) -> Result<Exit> {
    if !options.lasting.is_empty() {
        let lasting = options.lasting.join(", ");
        if !arguments.by_mount8 {
            let what = format!("cannot remount {}", options.directory.display());
            let why = format!("a remount cannot change {lasting}");
            return Err(Problem::usage(what).because(why).next("Unmount it and mount it anew."));
        }
        // mount(8) adds the options of fstab(5), so they may be those of the mount.
        let _ = writeln!(
            io::stderr(),
            "varve: a remount changes only flags such as ro; these stay as they were: {lasting}"
        );
    }
    let is_source = |mounted: &Path| {
        let given = arguments.store.directory();
        let same_file = || Some(mounted.canonicalize().ok()? == options.store.canonicalize().ok()?);
        // Another name, by `fsname`.
        let named = mounted == Path::new(&options.fuse.source);
        mounted == given || mounted == options.store || named || same_file().unwrap_or(false)
    };
    let failed = |error: varve_fuse::Error| Problem::new(error.to_string());
    varve_fuse::remount(&options.directory, is_source, &options.fuse).map_err(failed)?;
    Ok(Exit::Done)
}

/// Makes the mount point if it is missing and the directory around it belongs to this user. Links of other users on the way
/// there are not followed, so nobody can lead root to another place.
fn make_directory(directory: &Path) -> Result<()> {
    let failed = |error: &dyn std::error::Error| {
        Problem::new(format!("cannot make the mount point {}", directory.display())).caused_by(error)
    };
    if directory.symlink_metadata().is_ok() {
        return Ok(());
    }
    let made = as_process_user(|| -> io::Result<()> {
        // The mount reports what is missing or refused.
        let (Some(around), Some(name)) = (directory.parent(), directory.file_name()) else { return Ok(()) };
        let around = if around.as_os_str().is_empty() { Path::new(".") } else { around };
        let Ok(place) = trusted_path::resolve(around) else { return Ok(()) };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat2(CWD, &place, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
        match opened.and_then(|opened| Ok((fstat(&opened)?.st_uid, opened))) {
            Ok((owner, opened)) if owner == rustix::process::geteuid().as_raw() => {
                Ok(mkdirat(&opened, name, Mode::from_raw_mode(0o777))?)
            }
            _ => Ok(()),
        }
    });
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.map_err(|error| failed(&error)),
    }
}

/// Takes the rights of the store's owner and reads the volume's settings.
fn open_store(options: &FstabOptions) -> Result<(Rights, VolumeSettings)> {
    let failed = || Problem::new(format!("cannot mount {}", options.store.display()));
    let rights = identity::take(&options.store, Work::Mount, failed)?;
    let settings = VolumeDir::new(&options.store).read_settings().map_err(|error| failed().caused_by(&error))?;
    Ok((rights, settings))
}

fn show(
    output: &Output,
    options: &FstabOptions,
    pid: u32,
    embedded: Option<bool>,
    log_file: Option<&Path>,
) -> Result<()> {
    let shown = MountOutput { store: &options.store, directory: &options.directory, pid, embedded, log_file };
    // mount(8) prints nothing on success.
    output.announce("mount", &shown, |_| String::new())
}

/// A mount that answers, with its file system and server.
struct RunningMount {
    mounted: MountSession,
    file_system: Arc<FileSystem>,
    /// Present if embedded.
    server: Option<Arc<Server>>,
    signals: Signals,
    options: FstabOptions,
}

fn start(options: &FstabOptions, arguments: &Arguments) -> Result<RunningMount> {
    let approach = options.client.read()?;
    // Done first: threads inherit the identity of the thread that starts them.
    let (rights, _) = open_store(options)?;
    let volume = VolumeDir::new(&options.store);
    let signals = signals::listen()?;
    let failed = || format!("cannot mount {} on {}", options.store.display(), options.directory.display());
    let of_mount = |error: varve_fuse::Error| match &error {
        varve_fuse::Error::Target { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            Problem::new(failed())
                .because("there is no such directory")
                .next("Make it first: `varve mount` makes it only where its parent is this user's.")
        }
        varve_fuse::Error::Target { source, .. } => Problem::new(failed()).caused_by(source),
        error => Problem::new(failed()).caused_by(error),
    };
    make_directory(&options.directory)?;
    // Checked before a server starts, because that changes the volume.
    let target = varve_fuse::check_target(&options.directory).map_err(of_mount)?;
    let endpoint = arguments.server.serve_metrics()?;
    let server = match options.may_embed() {
        true => {
            let mut config = arguments.server.config(volume.clone(), &rights)?;
            options.apply(&mut config, target);
            embed(options, config)?.map(Arc::new)
        }
        false => None,
    };
    let mut config = ClientConfig::new(volume);
    approach.apply(&mut config);
    config.deadline = options.deadline.0;
    config.read_only = options.fuse.read_only();
    config.passthrough = options.fuse.passthrough;
    config.direct_io = options.fuse.direct_io;
    config.cookies = if options.fuse.inode32 { CookieWidth::Short } else { CookieWidth::Long };
    let connected = match &server {
        Some(server) => FileSystem::connect_within(config, Arc::new(Embedded(Arc::clone(server)))),
        None => connect(config),
    };
    let file_system = connected.map_err(|error| {
        Problem::new(failed()).because(error).next("`varve status STORE` shows who serves the volume.")
    })?;
    let mounted = varve_fuse::mount(Arc::clone(&file_system), &options.directory, &options.fuse).map_err(of_mount)?;
    // This asks the file system directly and not through the mount, which the kernel serves by now. A process that dies
    // while it waits for its own mount blocks in the kernel for ever, and so does every other user of the mount.
    varve_client::block_on(file_system.attributes(&Credentials::root(), InodeId::ROOT)).map_err(|failure| {
        let problem = Problem::new(failed()).because(format!("its root directory does not answer: {failure}"));
        problem.next("`varve status STORE --shards` shows which shards can be used, and why others cannot.")
    })?;
    if let Some(endpoint) = endpoint {
        reporting::answer_for(&endpoint, &file_system, server.as_ref());
    }
    tracing::info!("{}", reporting::mounted(options, arguments, server.as_deref()));
    reporting::advise();
    service_manager::notify(&ServiceState::Ready(&format!(
        "{} on {}",
        options.store.display(),
        options.directory.display()
    )));
    Ok(RunningMount { mounted, file_system, server, signals, options: options.clone() })
}

/// Connects to a server. It also waits for a server that is just starting: one that has taken the volume's lock, or is
/// about to, and has not published its addresses yet.
fn connect(config: ClientConfig) -> varve_client::Result<Arc<FileSystem>> {
    let begun = Instant::now();
    loop {
        let connected = FileSystem::connect(config.clone());
        match &connected {
            Err(failure) if failure.errno == Errno::EHOSTDOWN => {}
            _ => return connected,
        }
        // The lock is not tested any sooner, because the test could block a server that takes it.
        let looked_for = match begun.elapsed() < BEGINNING_MAX {
            true => true,
            false => {
                begun.elapsed() < STARTING_MAX && config.store.lock_for_reading().is_err_and(|error| error.is_held())
            }
        };
        if !looked_for {
            return connected;
        }
        std::thread::sleep(LOOKED_FOR_EVERY);
    }
}

/// Starts a server in this process, unless another one has the volume. If the holder of the lock has not published its
/// record yet, this waits for it: the holder is a server that is just starting, or one that has stopped or died and is
/// about to release the lock.
fn embed(options: &FstabOptions, config: ServerConfig) -> Result<Option<Server>> {
    let failed = |error: &ServerError| server::explain(format!("cannot mount {}", options.store.display()), error);
    let until = Instant::now() + STARTING_MAX;
    loop {
        let error = match Server::start(config.clone()) {
            Ok(server) => return Ok(Some(server)),
            Err(error) => error,
        };
        let held = matches!(&error, ServerError::Locked(lock) if lock.is_held());
        if !held || options.embedded == Some(true) {
            return Err(failed(&error));
        }
        match config.volume.read_holder() {
            Some(holder) if holder.embedded => {
                let next = "Unmount it there first. To mount a volume more than once, run `varve serve STORE` before.";
                return Err(failed(&error).next(next));
            }
            Some(_) => return Ok(None),
            None if Instant::now() >= until => return Err(failed(&error)),
            None => await_word_of_holder(&config.volume, until),
        }
    }
}

/// Returns when the holder of the volume has published its record or released the lock, or when the time is over.
fn await_word_of_holder(volume: &VolumeDir, until: Instant) {
    loop {
        std::thread::sleep(LOOKED_FOR_EVERY);
        let held = volume.lock_for_reading().is_err_and(|error| error.is_held());
        if !held || volume.read_holder().is_some() || Instant::now() >= until {
            return;
        }
    }
}

impl RunningMount {
    /// Serves until the volume is unmounted. Then everything acknowledged is durable, or this returns an error.
    fn serve(self) -> Result<Exit> {
        let mut stopping = Stopping::new(self.mounted.unmounter(), Arc::clone(&self.file_system));
        self.signals.on_stop_or_later(move |asked| {
            if asked == StopReason::Now {
                service_manager::notify(&ServiceState::Stopping);
                tracing::info!("a signal asks this mount to stop");
            }
            stopping.heed(asked)
        })?;
        if let Some(server) = &self.server {
            let server = Arc::clone(server);
            let watch = move || {
                if let Err(error) = server.wait() {
                    tracing::error!("the server inside this mount has failed: {error}; unmount and mount again");
                }
            };
            let watch = std::thread::Builder::new().name("server-watch".into()).spawn(watch);
            watch.map_err(|error| Problem::new("cannot start a thread").caused_by(&error))?;
        }
        let joined = self.mounted.join();
        let stopped = self.server.map_or(Ok(()), |server| server.stop(server::STOP_DEADLINE));
        joined.map_err(|error| Problem::new("the mount did not end well").caused_by(&error))?;
        stopped.map_err(|error| server::explain("the server inside this mount did not stop well", &error))?;
        tracing::info!("unmounted {}", self.options.directory.display());
        Ok(Exit::Done)
    }
}
