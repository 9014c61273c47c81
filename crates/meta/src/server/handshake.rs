//! Decides whether to admit a client that has proved its key.

use super::clients::{ClientStay, Clients};
use super::keys::KeyStay;
use super::sessions::{Admitted, NotAdmitted, Peer, SessionGuard};
use super::worker::Worker;
use std::rc::Rc;
use varve_proto::handshake::{Hello, KeyId, Offer, VolumeKey, Welcome};
use varve_rpc::{Admission, PeerOrigin};
use varve_types::SessionId;

/// The resources of an admitted connection; released on drop.
pub struct Stays {
    pub key: KeyStay,
    _session: SessionGuard,
    _client: ClientStay,
}

/// Admits one peer to a worker.
pub struct ClientAdmission {
    pub worker: Rc<Worker>,
    pub peer: Peer,
}

impl Admission for ClientAdmission {
    type Admitted = (Admitted, Stays);

    fn volume(&self) -> [u8; 16] {
        self.worker.shared.settings.id.0
    }

    fn worker(&self) -> u16 {
        // A server has a few hundred workers at most.
        self.worker.index as u16
    }

    fn volume_name(&self) -> String {
        let settings = &self.worker.shared.settings;
        format!("volume {} ({})", settings.name, settings.id)
    }

    async fn key(&self, id: KeyId) -> Result<Option<VolumeKey>, String> {
        let found = self.worker.shared.keys.find(id).await;
        found.map_err(|error| format!("the server cannot read the key {id}: {error}"))
    }

    fn admit(
        &self,
        hello: &Hello,
        offer: &Offer,
        key: VolumeKey,
        _: PeerOrigin,
    ) -> Result<(Self::Admitted, Welcome), Welcome> {
        match self.judge(hello, offer, key) {
            Ok(admitted) => Ok((admitted, self.worker.shared.welcome())),
            Err(NotAdmitted::Refused(reason)) => Err(Welcome::Refused { reason }),
            Err(NotAdmitted::Crowded(reason)) => Err(Welcome::Crowded { reason }),
        }
    }
}

impl ClientAdmission {
    fn judge(&self, hello: &Hello, offer: &Offer, key: VolumeKey) -> Result<(Admitted, Stays), NotAdmitted> {
        let shared = &self.worker.shared;
        if !offer.credential.is_empty() {
            let reason = "the client sends a user credential, which this server does not support";
            return Err(NotAdmitted::Refused(reason.into()));
        }
        if !shared.lease.is_valid() {
            // No reply could leave: the connection would end with the first one, and the client would connect again.
            let reason =
                "this server has not renewed its lease in time: try again, here or at another server of the volume";
            return Err(NotAdmitted::Crowded(reason.into()));
        }
        let client = Clients::enter(&self.worker, self.peer.principals(hello.key))?;
        let session = SessionId(hello.session);
        let (admitted, session) = shared.sessions.admit(session, hello.purpose, self.peer, hello.key)?;
        let key = shared.keys.enter(hello.key, key);
        Ok((admitted, Stays { key, _session: session, _client: client }))
    }
}
