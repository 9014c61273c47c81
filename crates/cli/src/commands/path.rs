//! `varve path STORE INODE`: the paths of an inode in a volume, served or not.

use super::served::Served;
use crate::client::ClientFlags;
use crate::identity::{self, Work};
use crate::output::Output;
use crate::problem::{Exit, Problem, Result};
use crate::server;
use clap::Args;
use serde::Serialize;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use varve_admin::dump::DumpError;
use varve_admin::paths;
use varve_client::ClientConfig;
use varve_env::store_url::StoreUrl;
use varve_env::volume_dir::{LockError, VolumeDir};
use varve_types::InodeId;

/// Show the paths of an inode number
///
/// Messages, `varve fsck` and `ls -i` name inodes by number. The command reads all names of the volume, which takes as long
/// as a dump without small files. It exits with 1 if no name leads to the inode.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Store of the volume: a directory, or a file:// URL of one
    store: StoreUrl,
    /// Number of the inode: 16 hexadecimal digits as in messages and `varve info`, or decimal as in `ls -i`
    #[arg(value_parser = inode)]
    inode: InodeId,
    #[command(flatten)]
    client: ClientFlags,
}

/// Digits of a number in messages and names of backing files.
const HEX_DIGITS: usize = 16;

fn inode(text: &str) -> std::result::Result<InodeId, String> {
    let is_hex = text.len() == HEX_DIGITS && text.chars().all(|digit| digit.is_ascii_hexdigit());
    let number = if is_hex { u64::from_str_radix(text, 16).ok() } else { text.parse().ok() };
    number
        .map(InodeId)
        .ok_or_else(|| format!("{text:?} is no inode number: give {HEX_DIGITS} hexadecimal digits or a decimal number"))
}

#[derive(Serialize)]
struct PathOutput {
    store: PathBuf,
    /// In hexadecimal, as everywhere.
    inode: String,
    /// Below the root directory of the volume, without a leading slash.
    paths: Vec<PathBuf>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let store = std::path::absolute(arguments.store.directory())
        .map_err(|error| Problem::new("cannot find the current directory").caused_by(&error))?;
    let inode = arguments.inode;
    let failed = || Problem::new(format!("cannot find the paths of inode {:016x} in {}", inode.0, store.display()));
    let approach = arguments.client.read()?;
    identity::take(&store, Work::Dump, failed)?;
    let mut config = ClientConfig::new(VolumeDir::new(&store));
    approach.apply(&mut config);
    let found = find(&config, inode).map_err(|error| {
        let problem = failed().caused_by(&error);
        match &error {
            DumpError::Locked(lock) => problem.next(server::to_lock(lock)),
            DumpError::Maintenance(error) => match server::to_maintenance(error) {
                Some(next) => problem.next(next),
                None => problem,
            },
            _ => problem,
        }
    })?;
    if found.is_empty() {
        let why = "no name leads to it: it was removed, or its number is another volume's";
        return Err(failed()
            .because(why)
            .next("`varve fsck STORE` finds inodes without a name, and --repair gives them one."));
    }
    let paths = found.into_iter().map(|path| PathBuf::from(OsString::from_vec(path))).collect();
    let shown = PathOutput { store, inode: format!("{:016x}", inode.0), paths };
    let text = |shown: &PathOutput| shown.paths.iter().map(|path| format!("/{}\n", path.display())).collect();
    output.result("path", &shown, text)?;
    Ok(Exit::Done)
}

/// From the server if there is one, else from the tables.
fn find(config: &ClientConfig, inode: InodeId) -> std::result::Result<Vec<Vec<u8>>, DumpError> {
    match paths::paths_offline(&config.store, inode) {
        Err(DumpError::Locked(LockError::Held { .. })) => {}
        // One server that has joined has all shards, so its snapshot is one of the whole volume.
        Err(DumpError::Maintenance(error)) if error.servers().len() == 1 => {}
        done => return done,
    }
    let settings = config.store.read_settings()?;
    let mut served = Served::connect(config.clone(), &settings)?;
    let found = varve_client::block_on(paths::paths(&mut served, inode));
    served.end();
    found
}

#[cfg(test)]
mod tests {
    use super::inode;
    use varve_types::InodeId;

    /// Promise: 16 digits are hexadecimal, anything else decimal.
    #[test]
    fn inode_numbers_are_hexadecimal_or_decimal() {
        assert_eq!(inode("0000000000000010"), Ok(InodeId(16)));
        assert_eq!(inode("10"), Ok(InodeId(10)));
        assert!(inode("0x10").is_err() && inode("").is_err());
    }
}
