//! Flags of the commands that talk to a server.

use crate::problem::{Problem, Result};
use clap::Args;
use std::path::PathBuf;
use varve_client::ClientConfig;
use varve_env::volume_dir::KeyFile;

#[derive(Clone, Debug, Default, Args)]
pub struct ClientFlags {
    /// File with the client key, made by `varve key add`, for hosts that cannot read the volume's own key
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Connect to the server by TCP, also on its own host
    #[arg(long)]
    pub tcp: bool,
}

/// The values of the flags, with the key file read.
#[derive(Clone, Default)]
pub struct Approach {
    key: Option<KeyFile>,
    tcp: bool,
}

impl ClientFlags {
    /// Reads the key file. The caller runs this before the process takes the rights of the store's owner, because the
    /// file belongs to the starting user.
    ///
    /// # Errors
    /// If there is no such file, or it is not private to this user.
    pub fn read(&self) -> Result<Approach> {
        let key = self.key_file.as_deref().map(KeyFile::read).transpose();
        let key = key.map_err(|error| Problem::new("cannot prove a key to the server").caused_by(&error))?;
        Ok(Approach { key, tcp: self.tcp })
    }

    /// Whether a flag is set that requires a server in another process.
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
