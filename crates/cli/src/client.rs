//! Flags of the commands that talk to a server.

use crate::problem::{Problem, Result};
use clap::Args;
use std::path::PathBuf;
use varve_client::ClientConfig;

#[derive(Clone, Debug, Default, Args)]
pub struct ClientFlags {
    /// File of `varve key add` with the key to prove to the server, for hosts that cannot read the volume's own
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Come to the server by TCP, also on its own host
    #[arg(long)]
    pub tcp: bool,
}

impl ClientFlags {
    pub fn apply(&self, config: &mut ClientConfig) -> Result<()> {
        config.tcp = self.tcp;
        config.key_file = self.key_file.as_ref().map(std::path::absolute).transpose().map_err(|error| {
            Problem::new("cannot find the current directory").caused_by(&error)
        })?;
        Ok(())
    }

    /// They mean a server of another process.
    pub fn any(&self) -> bool {
        self.tcp || self.key_file.is_some()
    }
}
