//! Reports of a mount about itself: the line of the log about its start, and its metrics.

use super::Arguments;
use super::options::FstabOptions;
use crate::metrics::Endpoint;
use std::sync::Arc;
use varve_client::FileSystem;
use varve_meta::server::Server;
use varve_types::{Credentials, InodeId};

/// The kernel's limit of requests that wait for a mount of a user other than root.
const USER_LIMIT: &str = "/sys/module/fuse/parameters/max_user_bgreq";

/// Lets the endpoint serve the metrics of the client, and answer whether the mount is ready. It does not keep the file
/// system.
pub fn answer_for(endpoint: &Endpoint, file_system: &Arc<FileSystem>, server: Option<&Arc<Server>>) {
    let counted = Arc::downgrade(file_system);
    endpoint.add(move || counted.upgrade().map_or(String::new(), |file_system| file_system.metrics_text()));
    let (mounted, server) = (Arc::downgrade(file_system), server.map(Arc::downgrade));
    endpoint.started(move || {
        let gone = || "it is unmounted".to_owned();
        let file_system = mounted.upgrade().filter(|mounted| !mounted.is_shut_down()).ok_or_else(gone)?;
        if let Some(server) = &server {
            server.upgrade().ok_or_else(gone)?.readiness()?;
        }
        let root = Credentials::root();
        let answered = varve_client::block_on(file_system.attributes(&root, InodeId::ROOT));
        answered.map(drop).map_err(|failure| format!("its root directory does not answer: {failure}"))
    });
}

/// The line of the log about a mount.
pub fn mounted(options: &FstabOptions, arguments: &Arguments, server: Option<&Server>) -> String {
    let served = match server {
        Some(server) => format!(
            "served by this process ({} workers, memory {})",
            server.addresses().len(),
            options.memory.unwrap_or_else(|| arguments.server.memory())
        ),
        None => "beside a server".to_owned(),
    };
    format!(
        "mounted {} on {}: varve {}, process {}, {served}, deadline {}, {}",
        options.store.display(),
        options.directory.display(),
        env!("CARGO_PKG_VERSION"),
        std::process::id(),
        options.deadline,
        if options.fuse.read_only() { "read-only" } else { "read-write" }
    )
}

/// Logs a setting of the kernel that slows this mount down. Root's mounts have no such limit.
pub fn advise() {
    let limit = std::fs::read_to_string(USER_LIMIT).ok().and_then(|text| text.trim().parse::<u32>().ok());
    let wanted = u32::from(varve_fuse::BACKGROUND_MAX);
    if let Some(limit) = limit.filter(|limit| *limit < wanted && !rustix::process::geteuid().is_root()) {
        tracing::info!(
            "the kernel limits this mount to {limit} requests for readahead and writeback of large files; {wanted} are faster: \
             root raises {USER_LIMIT}, or installs contrib/modprobe.d/varve.conf"
        );
    }
}
