//! The options of a mount, from `-o` and the flags together.

use super::Arguments;
use crate::client::ClientFlags;
use crate::problem::{Problem, Result};
use crate::quantity::{Bytes, Span};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use varve_fuse::MountOptions;
use varve_meta::server::{ServerConfig, WORKERS_MAX};

#[derive(Clone, Debug)]
pub struct FstabOptions {
    /// Absolute, because a background process has another working directory.
    pub store: PathBuf,
    pub directory: PathBuf,
    pub fuse: MountOptions,
    pub deadline: Span,
    /// Whether the mount serves the volume itself; `None`: only if no other server does.
    pub embedded: Option<bool>,
    /// How to connect to a server in another process.
    pub client: ClientFlags,
    /// The options of `-o` that a remount cannot change.
    pub lasting: Vec<String>,
    workers: Option<u16>,
    pub memory: Option<Bytes>,
}

impl FstabOptions {
    /// Options of `-o` override flags of the same meaning, because they were given for this mount.
    pub fn parse(arguments: &Arguments) -> Result<FstabOptions> {
        let absolute = |path: &std::path::Path| {
            std::path::absolute(path)
                .map_err(|error| Problem::new(format!("cannot find {}", path.display())).caused_by(&error))
        };
        let store = absolute(arguments.store.directory())?;
        let mut options = FstabOptions {
            fuse: MountOptions::new(store.to_string_lossy()),
            store,
            directory: absolute(&arguments.directory)?,
            deadline: arguments.deadline,
            embedded: None,
            client: arguments.client.clone(),
            lasting: Vec::new(),
            workers: None,
            memory: None,
        };
        options.check_apart()?;
        for list in &arguments.options {
            options.add(list).map_err(|why| Problem::usage(format!("-o {list}")).because(why))?;
        }
        let key_file = options.client.key_file.as_deref().map(absolute);
        options.client.key_file = key_file.transpose()?;
        Ok(options)
    }

    /// Refuses overlapping directories. A mount over its own store, or over a parent of it, would wait for itself. A
    /// mount inside the store would appear among the volume's files.
    fn check_apart(&self) -> Result<()> {
        let (Ok(store), Ok(directory)) = (self.store.canonicalize(), self.directory.canonicalize()) else {
            // The first operation that needs a missing path reports it.
            return Ok(());
        };
        if !directory.starts_with(&store) && !store.starts_with(&directory) {
            return Ok(());
        }
        let why = if directory == store {
            "that directory is the store itself"
        } else if directory.starts_with(&store) {
            "that directory is inside the store"
        } else {
            "the store is inside that directory, and could not be reached once something is mounted there"
        };
        let problem = Problem::new(format!("cannot mount {} on {}", store.display(), directory.display()));
        Err(problem.because(why).next("Choose a directory apart from the store, or move the store."))
    }

    /// Consumes Varve's own options and passes the rest to the frontend. `\,` escapes a comma within a value; pieces
    /// that were split there are joined again unchanged.
    fn add(&mut self, list: &str) -> std::result::Result<(), String> {
        let mut rest = Vec::new();
        for option in list.split(',') {
            if !varve_fuse::is_remountable(option) {
                self.lasting.push(option.to_owned());
            }
            match option.split_once('=') {
                Some(("deadline", value)) => self.deadline = Span::of_some_length(value)?,
                Some(("memory", value)) => self.memory = Some(value.parse()?),
                Some(("workers", value)) => self.workers = Some(workers(value)?),
                Some(("key_file", value)) => self.client.key_file = Some(PathBuf::from(value)),
                None if option == "tcp" => self.client.tcp = true,
                None if option == "embedded" => self.embedded = Some(true),
                None if option == "noembedded" => self.embedded = Some(false),
                _ => rest.push(option),
            }
        }
        self.fuse.parse(&rest.join(",")).map_err(|error| error.to_string())
    }

    /// Whether this process serves the volume if no other does.
    pub fn may_embed(&self) -> bool {
        self.embedded.unwrap_or_else(|| !self.client.any())
    }

    /// Configures the server inside a mount on `target`.
    pub fn apply(&self, config: &mut ServerConfig, target: PathBuf) {
        config.embedded = true;
        config.mount_point = (Path::new(&self.fuse.source) != self.store).then_some(target);
        if let Some(workers) = self.workers {
            config.workers = workers.into();
        }
        if let Some(memory) = self.memory {
            config.memory_bytes = memory.0;
        }
    }
}

fn workers(value: &str) -> std::result::Result<u16, String> {
    let workers = u16::from_str(value).ok().filter(|workers| (1..=WORKERS_MAX).contains(&usize::from(*workers)));
    workers.ok_or_else(|| format!("workers={value}: give a number from 1 to {WORKERS_MAX}"))
}
