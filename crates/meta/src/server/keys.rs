//! The keys that clients may hold: the volume's own key and the keys of hosts. A host's key is read from the store when
//! a client names it, and is checked again for as long as the client is connected.

use super::sessions::Sessions;
use super::worker::Worker;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::watch;
use varve_env::volume_dir::VolumeDir;
use varve_proto::handshake::{KeyId, VolumeKey};

pub struct Keys {
    volume: VolumeDir,
    own: VolumeKey,
    /// Keys of hosts that connected clients hold.
    used: Mutex<HashMap<KeyId, Used>>,
}

struct Used {
    key: VolumeKey,
    connections: usize,
    revoked: watch::Sender<bool>,
}

impl Keys {
    pub fn new(volume: VolumeDir, own: VolumeKey) -> Keys {
        Keys { volume, own, used: Mutex::default() }
    }

    /// The volume's own key.
    pub fn own(&self) -> &VolumeKey {
        &self.own
    }

    /// The key with this id, if it is valid. An error if the store cannot be read.
    pub async fn find(&self, id: KeyId) -> io::Result<Option<VolumeKey>> {
        if id == KeyId::VOLUME {
            return Ok(Some(self.own.clone()));
        }
        let volume = self.volume.clone();
        // If the store hangs, only this handshake waits.
        let found = tokio::task::spawn_blocking(move || volume.host_key(id.0)).await.map_err(io::Error::other)?;
        Ok(found?.map(|found| VolumeKey(found.secret)))
    }

    /// Counts one more connection of a client that holds `key`.
    pub fn enter(self: &Arc<Keys>, id: KeyId, key: VolumeKey) -> KeyStay {
        if id == KeyId::VOLUME {
            return KeyStay { keys: Arc::clone(self), id, revoked: None };
        }
        let mut used = self.used.lock();
        let new = || Used { key, connections: 0, revoked: watch::Sender::new(false) };
        let entry = used.entry(id).or_insert_with(new);
        entry.connections += 1;
        let revoked = Some(entry.revoked.subscribe());
        KeyStay { keys: Arc::clone(self), id, revoked }
    }

    /// Checks all keys in use, and ends the connections and sessions of keys that are missing or changed.
    pub async fn check(&self, sessions: &Sessions) {
        let used: Vec<_> = self.used.lock().iter().map(|(id, used)| (*id, used.key.clone())).collect();
        for (id, key) in used {
            match self.find(id).await {
                Ok(Some(found)) if found == key => continue,
                Ok(_) => tracing::info!("the key {id} was revoked: its sessions end"),
                Err(error) if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidData) => {
                    tracing::warn!("the key {id} is no longer trusted: its sessions end: {error}");
                }
                Err(error) => {
                    tracing::warn!("cannot check whether the key {id} was revoked: {error}");
                    continue;
                }
            }
            sessions.revoke(id);
            if let Some(used) = self.used.lock().get(&id) {
                used.revoked.send_replace(true);
            }
        }
    }
}

/// Ends the connections and sessions of revoked keys, until the server stops.
pub async fn tend(worker: Rc<Worker>) {
    let mut stopping = std::pin::pin!(worker.stopping());
    loop {
        tokio::select! {
            () = &mut stopping => return,
            () = tokio::time::sleep(worker.shared.limits.keys_checked_every) => {}
        }
        worker.shared.keys.check(&worker.shared.sessions).await;
    }
}

/// Counts a connection for its client's key until dropped, when the connection closes.
pub struct KeyStay {
    keys: Arc<Keys>,
    id: KeyId,
    revoked: Option<watch::Receiver<bool>>,
}

impl KeyStay {
    /// Ready when the key is revoked. The volume's own key never is.
    pub fn revoked(&self) -> impl Future<Output = ()> + 'static {
        let revoked = self.revoked.clone();
        async move {
            let Some(mut revoked) = revoked else { return std::future::pending().await };
            if revoked.wait_for(|revoked| *revoked).await.is_err() {
                // The key can no longer be revoked.
                std::future::pending().await
            }
        }
    }
}

impl Drop for KeyStay {
    fn drop(&mut self) {
        let mut used = self.keys.used.lock();
        if let Some(entry) = used.get_mut(&self.id) {
            entry.connections -= 1;
            if entry.connections == 0 {
                used.remove(&self.id);
            }
        }
    }
}
