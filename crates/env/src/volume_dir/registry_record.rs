//! `cluster/registry.toml`: where the servers of the volume find each other. The first server that joins writes it.

use super::VolumeDir;
use super::rights::Readers;
use crate::disk;
use crate::printable::printable;
use crate::store_path::StorePath;
use crate::toml_text;
use serde::{Deserialize, Serialize};
use std::io;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RegistryRecord {
    registry: String,
}

impl VolumeDir {
    pub fn registry_file(&self) -> StorePath {
        self.cluster().join("registry.toml")
    }

    /// The address of the registry. `None`: no server has ever joined.
    pub fn read_registry(&self) -> io::Result<Option<String>> {
        let path = self.registry_file();
        let text = match self.open_own(&path, Readers::Anybody).and_then(disk::text_of) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io::Error::new(error.kind(), format!("cannot read {path}: {error}"))),
        };
        let parsed: Result<RegistryRecord, _> = toml::from_str(&text);
        parsed.map(|record| Some(record.registry)).map_err(|error| {
            let reason = printable(&toml_text::reason(&text, &error));
            io::Error::new(io::ErrorKind::InvalidData, format!("{path} does not name a registry: {reason}"))
        })
    }

    /// Records the address of the registry, unless there is one. Returns the recorded one: another server may have been
    /// faster.
    pub fn record_registry(&self, address: &str) -> io::Result<String> {
        let path = self.registry_file();
        disk::create_directories(&self.cluster())?;
        match disk::create_if_absent(self.exclusive().unwrap_or_default(), &path, render(address).as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => self.read_registry()?.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound)),
        }
    }
}

fn render(address: &str) -> String {
    let record = RegistryRecord { registry: address.to_owned() };
    let body = toml::to_string(&record).expect("a string is always TOML");
    format!("# The registry of this volume's servers. Written by the first `varve serve --join`.\n{body}")
}
