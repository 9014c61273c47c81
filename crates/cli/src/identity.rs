//! The rights with which a command works in a store: those of the store's owner. See [`varve_env::identity`].
//!
//! Every command that accesses a store calls [`take`] first, while this process has one thread.

use crate::problem::{Problem, Result};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use varve_env::identity::{self, IdentityError, Keep, Owner};
use varve_env::runtime_dir;
use varve_env::volume_dir::VolumeDir;

/// The work of a command in a store, which decides which of root's rights it keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Reads or changes the store, and starts no other program.
    Store,
    /// Makes the store; otherwise like `Store`.
    MakeStore,
    /// Runs a server, which needs a directory for sockets.
    Serve,
    /// Starts programs that have rights of their own, such as fusermount3.
    Bench,
    /// Mounts, and may run a server.
    Mount,
    /// Reads the store, and writes where root may.
    Dump,
    /// Changes the volume's host keys, and writes one where root may.
    Key,
    /// It writes runs of the detector service into a directory, which is then treated like a store.
    Detector,
}

/// The rights that this process has taken.
#[derive(Debug, Default)]
pub struct Rights {
    /// The owner, if it is not the user who started the process.
    pub of_another: Option<Owner>,
    /// The socket directory that root has made for that user.
    pub socket_directory: Option<PathBuf>,
}

impl Rights {
    /// Adds a hint to a failure that may result from the missing rights of root.
    pub fn explain(&self, problem: Problem) -> Problem {
        match &self.of_another {
            Some(owner) => problem.next(format!(
                "This works with the rights of user {}, who owns the store: that user must be able to reach every path given.",
                owner.uid
            )),
            None => problem,
        }
    }
}

/// Takes the rights of the owner of `store`. `failed` describes the failed action in the error.
///
/// # Errors
/// If the owner cannot be determined, or the kernel refuses.
pub fn take(store: &Path, work: Work, failed: impl Fn() -> Problem) -> Result<Rights> {
    let found = match work {
        Work::MakeStore | Work::Detector => Owner::of_store_to_be(store),
        _ => Owner::of_store(store),
    };
    let owner = found.map_err(|error| match (&error, work) {
        (IdentityError::NotADirectory { .. }, Work::MakeStore) => {
            failed().caused_by(&error).next("A volume is a directory: name one, or a path where nothing is yet.")
        }
        (_, Work::Detector) => failed().caused_by(&error),
        _ => explain(store, &error, failed()),
    })?;
    take_of(owner, work).map_err(|error| explain(store, &error, failed()))
}

/// [`take`] for several stores, which must belong to one user.
///
/// # Errors
/// As [`take`], or if they belong to several users.
pub fn take_all(stores: &[PathBuf], work: Work) -> Result<Rights> {
    let mut owners = Vec::new();
    for store in stores {
        let failed = || Problem::new(format!("cannot use {}", store.display()));
        let owner = Owner::of_store(store).map_err(|error| explain(store, &error, failed()))?;
        owners.push((store, owner));
    }
    let Some((store, owner)) = owners.first() else { return Ok(Rights::default()) };
    if let Some((other, found)) = owners.iter().find(|(_, found)| found.uid != owner.uid) {
        let why = format!(
            "{} belongs to user {} and {} to user {}, and a process has the rights of one of them",
            store.display(),
            owner.uid,
            other.display(),
            found.uid
        );
        return Err(Problem::usage("cannot use these stores together").because(why).next("Measure them one by one."));
    }
    let failed = || Problem::new(format!("cannot use {}", store.display()));
    take_of(*owner, work).map_err(|error| explain(store, &error, failed()))
}

fn take_of(owner: Owner, work: Work) -> std::result::Result<Rights, IdentityError> {
    if !identity::must_take(owner)? {
        if owner.uid == rustix::process::geteuid().as_raw() {
            identity::expect(owner);
        }
        return Ok(Rights::default());
    }
    identity::expect(owner);
    let socket_directory = matches!(work, Work::Serve | Work::Mount).then(|| socket_directory(owner));
    let keep = match work {
        Work::Mount | Work::Dump | Work::Key => Keep::AllButFiles,
        Work::Store | Work::MakeStore | Work::Serve | Work::Bench | Work::Detector => Keep::Nothing,
    };
    identity::take(owner, keep, work != Work::Bench)?;
    Ok(Rights { of_another: Some(owner), socket_directory })
}

/// Made by root, because the owner may not make anything in /run.
fn socket_directory(owner: Owner) -> PathBuf {
    runtime_dir::make_for(owner).unwrap_or_else(|error| {
        let other = runtime_dir::of_user(owner.uid);
        tracing::info!("sockets are in {}: {error}", other.display());
        other
    })
}

fn explain(store: &Path, error: &IdentityError, problem: Problem) -> Problem {
    let is_no_store = match error {
        IdentityError::Look { source, .. } => matches!(source.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
        IdentityError::NotADirectory { .. } => true,
        _ => false,
    };
    // `read_settings` gives the error that every command prints for a missing store.
    if is_no_store && let Err(absent) = VolumeDir::new(store).read_settings() {
        return problem.caused_by(&absent);
    }
    let problem = problem.caused_by(error);
    match error {
        IdentityError::Look { source, .. } if source.kind() == ErrorKind::PermissionDenied => {
            problem.next("Run it as the user who owns the store.")
        }
        _ => problem,
    }
}
