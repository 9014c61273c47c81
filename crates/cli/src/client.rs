//! Flags of the commands that talk to a server.

use crate::problem::{Problem, Result};
use clap::Args;
use std::path::PathBuf;
use varve_client::ClientConfig;
use varve_env::volume_dir::KeyFile;

#[derive(Clone, Debug, Default, Args)]
pub struct ClientFlags {
    /// File of `varve key add` with the key to prove to the server, for hosts that cannot read the volume's own
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Come to the server by TCP, also on its own host
    #[arg(long)]
    pub tcp: bool,
}

/// What the flags say, with the key file read.
#[derive(Clone, Default)]
pub struct Approach {
    key: Option<KeyFile>,
    tcp: bool,
}

impl ClientFlags {
    /// Reads the key file. Called before the process takes the rights of the store's owner: the file is this user's.
    ///
    /// # Errors
    /// If there is no such file, or it is not this user's alone.
    pub fn read(&self) -> Result<Approach> {
        let key = self.key_file.as_deref().map(KeyFile::read).transpose();
        let key = key.map_err(|error| Problem::new("cannot prove a key to the server").caused_by(&error))?;
        Ok(Approach { key, tcp: self.tcp })
    }

    /// They mean a server of another process.
    pub fn any(&self) -> bool {
        self.tcp || self.key_file.is_some()
    }
}

impl Approach {
    pub fn apply(&self, config: &mut ClientConfig) {
        config.tcp = self.tcp;
        config.key_file = self.key.clone();
    }
}
