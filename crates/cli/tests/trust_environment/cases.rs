//! Cases as shell scripts of several users, each in a mount namespace with its own /tmp and /run.

use crate::common::{LONG, copy_program, run};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Functions that the scripts share. USER has no entry in the user database; OTHER is `bin`.
const PRELUDE: &str = r#"
set -u
USER=47111
OTHER=2
mount -t tmpfs -o mode=1777 none /tmp
mount -t tmpfs -o mode=755 none /run
cd /
# as UID [NAME=VALUE]... COMMAND: with an empty environment, but for what is given.
as() {
  uid=$1
  shift
  setpriv --reuid="$uid" --regid="$uid" --clear-groups env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
}
# give UID PATH...
give() {
  uid=$1
  shift
  chown -h "$uid:$uid" "$@"
}
# put UID MODE FILE TEXT
put() {
  mkdir -p "${3%/*}"
  printf '%b' "$4" >"$3"
  chown "$1:$1" "$3"
  chmod "$2" "$3"
}
# store UID: a volume of that user at $S.
store() {
  install -d -o "$1" -g "$1" "$S"
  as "$1" "$V" format "$S" --shards 1 >/dev/null || exit 99
}
# begin UID [NAME=VALUE]... COMMAND: starts a server, prints what it says and sets PID, or prints why it has failed.
begin() {
  : >"$D/out"
  as "$@" >"$D/out" 2>"$D/err" &
  job=$!
  while [ ! -s "$D/out" ] && kill -0 "$job" 2>/dev/null; do sleep 0.05; done
  cat "$D/out" "$D/err"
  PID=$(sed -n 's/.*"pid":\([0-9]*\).*/\1/p' "$D/out")
}
# finish: ends it.
finish() {
  [ -n "$PID" ] && kill -TERM "$PID"
  wait "$job"
}
# access PATH: mode and owner.
access() {
  stat -c 'access %a of %u' "$1"
}
"#;

pub struct Case {
    pub name: &'static str,
    /// `$V`: the program; `$D`: a directory of the case's own; `$S`: the path of its store.
    pub script: &'static str,
    pub code: i32,
    /// Texts that the two outputs together must contain.
    pub says: &'static [&'static str],
    /// Texts that they must not contain.
    pub never: &'static [&'static str],
}

/// Whether the suite can play several users.
pub fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("SKIPPED: only root can play several users");
    }
    is_root
}

/// A directory that is not below /tmp, which the scripts cover.
pub struct Site {
    directory: tempfile::TempDir,
    program: PathBuf,
}

impl Site {
    pub fn new() -> Site {
        let directory = tempfile::Builder::new().prefix("varve-trust-").tempdir_in("/var/tmp").expect("a directory");
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).expect("it is ours");
        let built = PathBuf::from(env!("CARGO_BIN_EXE_varve"));
        let is_open = |path: &Path| path.metadata().is_ok_and(|found| found.mode() & 0o001 != 0);
        let program = match built.ancestors().all(is_open) && !built.starts_with("/tmp") && !built.starts_with("/run") {
            true => built,
            // A checkout in root's home is closed to others.
            false => {
                let copy = directory.path().join("varve");
                copy_program(&built, &copy);
                copy
            }
        };
        Site { directory, program }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Runs a script in namespaces of its own; returns both outputs together.
    pub fn script(&self, name: &str, script: &str) -> (Option<i32>, String) {
        let here = self.path().join(name.replace(' ', "-"));
        std::fs::create_dir(&here).expect("names of cases differ");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c"]).arg(format!("{PRELUDE}\n{script}"));
        command.env("V", &self.program).env("D", &here).env("S", here.join("store"));
        let outcome = run(&mut command, LONG);
        (outcome.code(), format!("{}{}", outcome.stdout, outcome.stderr))
    }
}

/// # Panics
/// If a case fails, after all have been tried.
pub fn check(cases: &[Case]) {
    if !is_root() {
        return;
    }
    let site = Site::new();
    let mut failures = Vec::new();
    for Case { name, script, code, says, never } in cases {
        let (found, text) = site.script(name, script);
        let lacks = says.iter().filter(|words| !text.contains(**words)).collect::<Vec<_>>();
        let has = never.iter().filter(|words| text.contains(**words)).collect::<Vec<_>>();
        if found != Some(*code) || !lacks.is_empty() || !has.is_empty() {
            failures.push(format!(
                "{name}: exit code {found:?} and not {code}; lacks {lacks:?}, has {has:?}\n--- it said:\n{text}---"
            ));
        }
    }
    assert!(failures.is_empty(), "{} of {} cases failed\n{}", failures.len(), cases.len(), failures.join("\n"));
}
