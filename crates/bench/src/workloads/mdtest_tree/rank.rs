//! One rank's operations.

use super::MdtestOptions;
use super::shape::TreeShape;
use crate::ranks::{RankContext, Recorder};
use crate::target::{self, BenchTarget, TargetClient};
use crate::workloads::Job;
use crate::workloads::mdtest::push_decimal;
use crate::{Error, Result};
use std::io;

/// The end of the name of the phase in which the file system below gets everything.
pub(super) const DRAIN: &str = ".drain";
/// The end of the name of a renamed item.
const RENAMED: &str = ".renamed";

#[derive(Clone, Copy, PartialEq, Eq)]
enum ItemKind {
    Directory,
    File,
}

/// One phase over items.
struct ItemPhase {
    name: String,
    /// For messages.
    verb: &'static str,
    kind: ItemKind,
    /// Strides to the owner of the items.
    strides: usize,
}

struct MdtestRank<'a> {
    job: &'a Job,
    options: &'a MdtestOptions,
    context: &'a RankContext<'a>,
    shape: TreeShape,
    target: Box<dyn BenchTarget>,
    client: Box<dyn TargetClient>,
}

pub(crate) fn run_rank(job: &Job, options: &MdtestOptions, context: &RankContext<'_>) -> Result<()> {
    let shape = TreeShape::of(options)?;
    let target = target::open(&job.target()?)?;
    let mut client = target.connect()?;
    client.enter(&job.directory).map_err(|source| Error::Operation {
        via: target.label(),
        operation: "open the directory",
        path: job.directory.clone(),
        source,
    })?;
    let mut rank = MdtestRank { job, options, context, shape, target, client };
    if options.creates() {
        rank.tree("tree_create", false)?;
    }
    if !options.files_only {
        rank.items(ItemKind::Directory)?;
    }
    if !options.directories_only {
        rank.items(ItemKind::File)?;
    }
    if options.removes() {
        rank.tree("tree_remove", true)?;
    }
    Ok(())
}

impl MdtestRank<'_> {
    /// Makes or removes the directories of the tree. A shared tree is rank 0's work.
    fn tree(&mut self, phase: &str, removes: bool) -> Result<()> {
        let MdtestRank { options, context, shape, target, client, .. } = self;
        let directories = if options.unique || context.rank == 0 { shape.directories } else { 0 };
        let tree = if options.unique { context.rank } else { 0 };
        let mut path = String::new();
        context.phase(phase, |recorder| {
            for number in 0..directories {
                shape.directory(tree, if removes { directories - 1 - number } else { number }, &mut path);
                let name = path.trim_end_matches('/');
                let result = if removes { client.remove_directory(name) } else { client.make_directory(name) };
                result.map_err(|source| failed(&**target, phase_verb(removes), name, source))?;
                recorder.done(0)?;
            }
            Ok(())
        })
    }

    fn items(&mut self, kind: ItemKind) -> Result<()> {
        let options = self.options;
        let prefix = if kind == ItemKind::Directory { "dir_" } else { "" };
        let phase = |name: &str, verb, strides| ItemPhase { name: format!("{prefix}{name}"), verb, kind, strides };
        let content = self.content();
        if options.creates() {
            let create = phase("create", "create", 0);
            self.each(&create, "", |client, path| match kind {
                ItemKind::Directory => client.make_directory(path).map(|()| 0),
                ItemKind::File => client.create(path, &content).map(|()| content.len() as u64),
            })?;
            self.drain(&create.name)?;
        }
        if options.stats() {
            let expected = content.len() as u64;
            self.each(&phase("stat", "stat", 1), "", |client, path| {
                let size = client.stat(path)?;
                if kind == ItemKind::File && options.creates() && size != expected {
                    return Err(io::Error::other(format!("it has {size} bytes, and {expected} were written")));
                }
                Ok(0)
            })?;
        }
        if kind == ItemKind::File && options.reads() {
            let mut buffer = vec![0; options.read_bytes as usize];
            self.each(&phase("read", "read", 2), "", |client, path| {
                client.read_first(path, &mut buffer)?;
                if buffer != content[..buffer.len()] {
                    return Err(io::Error::other("it has other bytes than were written"));
                }
                Ok(buffer.len() as u64)
            })?;
        }
        if options.renames() {
            let mut to = String::new();
            self.each(&phase("rename", "rename", 0), "", |client, path| {
                to.clear();
                to.push_str(path);
                to.push_str(RENAMED);
                client.rename(path, &to).map(|()| 0)
            })?;
        }
        if options.removes() {
            let remove = phase("remove", "remove", 3);
            let suffix = if options.renames() { RENAMED } else { "" };
            self.each(&remove, suffix, |client, path| match kind {
                ItemKind::Directory => client.remove_directory(path).map(|()| 0),
                ItemKind::File => client.unlink(path).map(|()| 0),
            })?;
            self.drain(&remove.name)?;
        }
        Ok(())
    }

    /// The content of a file: no zero byte, which a store could omit.
    fn content(&self) -> Vec<u8> {
        (0..self.options.write_bytes.max(self.options.read_bytes)).map(|i| (i % 251) as u8 + 1).collect()
    }

    /// Runs `operate` for each item of the phase's owner; `suffix` ends the names.
    fn each(
        &mut self,
        phase: &ItemPhase,
        suffix: &str,
        mut operate: impl FnMut(&mut dyn TargetClient, &str) -> io::Result<u64>,
    ) -> Result<()> {
        let MdtestRank { options, context, shape, target, client, .. } = self;
        let owner = options.owner(context.rank, context.ranks, phase.strides);
        let tree = if options.unique { owner } else { 0 };
        let prefix = match phase.kind {
            ItemKind::Directory => format!("dir.mdtest.{owner}."),
            ItemKind::File => format!("file.mdtest.{owner}."),
        };
        let (mut path, mut directory_len, mut entered) = (String::new(), 0, None);
        context.phase(&phase.name, |recorder: &mut Recorder<'_>| {
            for item in 0..shape.items() {
                let holder = shape.holder(item);
                if entered != Some(holder) {
                    shape.directory(tree, holder, &mut path);
                    directory_len = path.len();
                    entered = Some(holder);
                }
                path.truncate(directory_len);
                path.push_str(&prefix);
                push_decimal(&mut path, item);
                path.push_str(suffix);
                let bytes =
                    operate(&mut **client, &path).map_err(|source| failed(&**target, phase.verb, &path, source))?;
                recorder.done(bytes)?;
            }
            Ok(())
        })
    }

    /// Waits until the file system below has everything.
    fn drain(&mut self, phase: &str) -> Result<()> {
        let MdtestRank { context, target, client, job, .. } = self;
        context.phase(&format!("{phase}{DRAIN}"), |recorder| {
            if context.rank != 0 {
                return Ok(());
            }
            let drained = client.drain().map_err(|source| failed(&**target, "sync", &job.directory, source))?;
            if drained { recorder.done(0) } else { Ok(()) }
        })
    }
}

fn phase_verb(removes: bool) -> &'static str {
    if removes { "remove" } else { "make" }
}

fn failed(target: &dyn BenchTarget, operation: &'static str, path: &str, source: io::Error) -> Error {
    Error::Operation { via: target.label(), operation, path: path.to_owned(), source }
}
