//! The programs, their arguments, and the output that a complete run prints.

use super::FILE_BYTES;
use super::process::{self, Ran};
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::str::FromStr;

/// Directory of empty files.
pub(super) const NAMES: &str = "names";
/// Tree of small files.
pub(super) const FILES: &str = "files";
/// Tree that `cp -al` links: its files have had several names, so a file system can keep them in another way.
pub(super) const LINKED: &str = "linked";
/// The tree that a copying program makes.
const COPY: &str = "copy";
/// The modules of the import storm, and the archive that is unpacked.
const MODULES: &str = "modules";
const ARCHIVE: &str = "archive.tar";
const UNPACKED: &str = "unpacked";
const PYTHON: &str = "python3";

const MAKE_MODULES: &str = include_str!("make_modules.py");
const IMPORT_MODULES: &str = include_str!("import_modules.py");
const COMMIT: &[&str] =
    &["git", "-C", FILES, "-c", "user.name=bench", "-c", "user.email=bench@localhost", "commit", "-q", "-m", "files"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeProgram {
    ListNames,
    /// `ls -f` right after a change of the directory, so that no cached listing is valid.
    ListChanged,
    ListLong,
    Find,
    DiskUsage,
    Tar,
    Unpack,
    GitAdd,
    GitClone,
    GitStatus,
    Copy,
    Remove,
    Link,
    PythonEnvironment,
    /// Several processes that import the same modules at once, as the ranks of a job do.
    ImportStorm,
}

/// The least that a complete run prints.
pub(super) struct OutputMin {
    pub lines: u64,
    pub bytes: u64,
}

impl TreeProgram {
    /// In the order in which they run. `rm -r` removes the tree that `cp -a` made.
    pub const ALL: [TreeProgram; 15] = [
        TreeProgram::ListNames,
        TreeProgram::ListChanged,
        TreeProgram::ListLong,
        TreeProgram::Find,
        TreeProgram::DiskUsage,
        TreeProgram::Tar,
        TreeProgram::Unpack,
        TreeProgram::GitAdd,
        TreeProgram::GitClone,
        TreeProgram::GitStatus,
        TreeProgram::Copy,
        TreeProgram::Remove,
        TreeProgram::Link,
        TreeProgram::PythonEnvironment,
        TreeProgram::ImportStorm,
    ];

    /// The name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            TreeProgram::ListNames => "ls-f",
            TreeProgram::ListChanged => "ls-f-changed",
            TreeProgram::ListLong => "ls-l",
            TreeProgram::Find => "find",
            TreeProgram::DiskUsage => "du",
            TreeProgram::Tar => "tar",
            TreeProgram::Unpack => "untar",
            TreeProgram::GitAdd => "git-add",
            TreeProgram::GitClone => "git-clone",
            TreeProgram::GitStatus => "git-status",
            TreeProgram::PythonEnvironment => "python-env",
            TreeProgram::ImportStorm => "import-storm",
            TreeProgram::Copy => "cp-a",
            TreeProgram::Remove => "rm-r",
            TreeProgram::Link => "cp-al",
        }
    }

    pub fn program(self) -> &'static str {
        self.command()[0]
    }

    /// The program and its arguments, for a working directory that has the run's files. Python is isolated (`-I`), or it
    /// would import its own modules from that directory.
    pub fn command(self) -> &'static [&'static str] {
        match self {
            TreeProgram::ListNames | TreeProgram::ListChanged => &["ls", "-f", NAMES],
            TreeProgram::ListLong => &["ls", "-l", NAMES],
            TreeProgram::Find => &["find", FILES, "-printf", "%s %p\\n"],
            TreeProgram::Tar => &["tar", "-cf", "-", FILES],
            TreeProgram::DiskUsage => &["du", "-s", FILES],
            TreeProgram::Unpack => &["tar", "-xf", ARCHIVE, "-C", UNPACKED],
            TreeProgram::GitAdd => &["git", "-C", FILES, "add", "."],
            TreeProgram::GitClone => &["git", "clone", "-q", "--no-hardlinks", FILES, COPY],
            TreeProgram::GitStatus => &["git", "-C", FILES, "status", "--porcelain"],
            TreeProgram::PythonEnvironment => &[PYTHON, "-I", "-m", "venv", "--without-pip", COPY],
            TreeProgram::ImportStorm => &[PYTHON, "-I", "-c", IMPORT_MODULES],
            TreeProgram::Copy => &["cp", "-a", FILES, COPY],
            TreeProgram::Remove => &["rm", "-r", COPY],
            TreeProgram::Link => &["cp", "-al", LINKED, COPY],
        }
    }

    /// The command line for the report. A script is named, not printed.
    pub fn command_line(self) -> String {
        let words = self.command().iter().map(|word| if word.contains('\n') { "SCRIPT" } else { word });
        words.collect::<Vec<_>>().join(" ")
    }

    /// The part of the run's files that it reads.
    pub(super) fn part(self) -> &'static str {
        match self {
            TreeProgram::ListNames | TreeProgram::ListChanged | TreeProgram::ListLong => NAMES,
            TreeProgram::Link => LINKED,
            _ => FILES,
        }
    }

    pub(super) fn is_installed(self) -> bool {
        let mut command = Command::new(self.program());
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    pub(super) fn output_min(self, names: u64, files: u64, directories: u64) -> OutputMin {
        let lines = |lines| OutputMin { lines, bytes: lines };
        match self {
            TreeProgram::ListNames | TreeProgram::ListChanged => lines(names + 2),
            TreeProgram::ListLong => lines(names + 1),
            TreeProgram::Find => lines(files + directories + 1),
            TreeProgram::DiskUsage => lines(1),
            TreeProgram::Tar => OutputMin { lines: 0, bytes: files * FILE_BYTES.start },
            _ => lines(0),
        }
    }

    /// Runs it in `root`. Preparation and clean-up are not timed. `None`: the benchmark was interrupted.
    pub(super) fn run(self, root: &Path) -> io::Result<Option<Ran>> {
        let in_root = |words: &[&str]| process::run(command(root, words));
        let prepare: &[&[&str]] = match self {
            TreeProgram::ListChanged => &[&["mkdir", "names/new"], &["rmdir", "names/new"]],
            TreeProgram::GitAdd => &[&["git", "init", "-q", FILES]],
            TreeProgram::GitClone | TreeProgram::GitStatus => {
                &[&["git", "init", "-q", FILES], &["git", "-C", FILES, "add", "."], COMMIT]
            }
            TreeProgram::Unpack => &[&["tar", "-cf", ARCHIVE, FILES], &["mkdir", UNPACKED]],
            TreeProgram::ImportStorm => &[&[PYTHON, "-I", "-c", MAKE_MODULES]],
            TreeProgram::Remove => &[&["cp", "-a", FILES, COPY]],
            _ => &[],
        };
        for words in prepare {
            if in_root(words)?.is_none() {
                return Ok(None);
            }
        }
        let Some(ran) = in_root(self.command())? else { return Ok(None) };
        let left: &[&str] = match self {
            TreeProgram::GitAdd | TreeProgram::GitStatus => &["rm", "-rf", "files/.git"],
            TreeProgram::GitClone => &["rm", "-rf", "files/.git", COPY],
            TreeProgram::Unpack => &["rm", "-r", ARCHIVE, UNPACKED],
            TreeProgram::ImportStorm => &["rm", "-r", MODULES],
            TreeProgram::Copy | TreeProgram::Link | TreeProgram::PythonEnvironment => &["rm", "-r", COPY],
            _ => return Ok(Some(ran)),
        };
        Ok(in_root(left)?.map(|_| ran))
    }
}

/// Configuration of the user must not change the work of git(1), nor their language the output.
fn command(root: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(words[1..].iter().map(OsStr::new)).current_dir(root).env("LC_ALL", "C");
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "TAR_OPTIONS"] {
        command.env_remove(variable);
    }
    command
}

impl fmt::Display for TreeProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for TreeProgram {
    type Err = String;

    fn from_str(text: &str) -> Result<TreeProgram, String> {
        TreeProgram::ALL.into_iter().find(|program| program.name() == text).ok_or_else(|| {
            let names = TreeProgram::ALL.map(TreeProgram::name).join(", ");
            format!("there is no such program: use some of {names}")
        })
    }
}
