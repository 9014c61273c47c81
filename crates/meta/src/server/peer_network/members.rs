//! The other servers of the volume.

use std::cell::RefCell;
use std::collections::HashSet;
use varve_rpc::ServerAddress;
use varve_types::WorkerAddress;

/// Another server, as the cluster's map names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerMember {
    pub number: u64,
    /// The boot of its host.
    pub boot_id: String,
    /// Where it listens for servers.
    pub address: WorkerAddress,
}

impl PeerMember {
    /// Where a server of the boot `boot_id` reaches it. On the same host this is the Unix socket, whose process the kernel
    /// names; a server does not fall back to TCP there.
    pub fn reached_from(&self, boot_id: &str) -> Option<ServerAddress> {
        let WorkerAddress { unix, tcp } = &self.address;
        match unix {
            Some(path) if self.boot_id == boot_id => Some(ServerAddress::Unix(path.into())),
            _ => tcp.clone().map(ServerAddress::Tcp),
        }
    }
}

/// The numbers of the servers that may call this one.
#[derive(Default)]
pub struct Members(RefCell<HashSet<u64>>);

impl Members {
    pub fn set(&self, members: &[PeerMember]) {
        *self.0.borrow_mut() = members.iter().map(|member| member.number).collect();
    }

    pub fn contains(&self, number: u64) -> bool {
        self.0.borrow().contains(&number)
    }
}
