//! The network, the store and the registry of several servers on hosts of their own.

use super::common::disk::Disk;
use super::common::etcd::Etcd;
use super::common::hosts::Network;
use super::common::{Volume, must, scratch};
use std::path::PathBuf;
use std::process::Command;

pub const SERVERS: usize = 4;

/// The host of the clients, after those of the servers.
pub const CLIENTS: usize = SERVERS;
/// The host of etcd.
pub const REGISTRY: usize = SERVERS + 1;
pub const HOSTS: usize = SERVERS + 2;

pub struct Surroundings {
    pub network: Network,
    pub registry: SharedRegistry,
}

pub enum SharedRegistry {
    Store(Disk),
    Gluster(GlusterFs),
    Etcd(Etcd),
}

/// A GlusterFS volume with two mounts, until it is dropped.
pub struct GlusterFs(tempfile::TempDir);

impl GlusterFs {
    pub fn start() -> GlusterFs {
        let gluster = GlusterFs(scratch());
        must(&mut gluster.script("start"));
        gluster
    }

    fn script(&self, verb: &str) -> Command {
        let mut command = Command::new("bash");
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/glusterfs.sh")).arg(verb).arg(self.0.path());
        command
    }

    /// One of the two mounts.
    pub fn mount(&self, number: usize) -> PathBuf {
        self.0.path().join(["mnt1", "mnt2"][number % 2])
    }
}

impl Drop for GlusterFs {
    fn drop(&mut self) {
        // Nothing can be done if it cannot be stopped.
        let _ = self.script("stop").status();
    }
}

impl Surroundings {
    /// The path of the store on a host.
    pub fn store(&self, volume: &Volume, host: usize) -> PathBuf {
        match &self.registry {
            SharedRegistry::Gluster(gluster) => gluster.mount(host).join("store"),
            _ => volume.store(),
        }
    }

    pub fn hang(&self, hangs: bool) {
        match &self.registry {
            SharedRegistry::Store(disk) => {
                self.network.perform(&if hangs { disk.freezing() } else { disk.thawing() });
            }
            SharedRegistry::Gluster(_) => unreachable!("no trouble of this store is chosen"),
            SharedRegistry::Etcd(etcd) => etcd.signal(if hangs { libc::SIGSTOP } else { libc::SIGCONT }),
        }
    }
}
