//! Keeps the servers of a volume away while a command works in it without them.
//!
//! The flock on the volume is enough while no server has joined, and on a store whose flocks hold on all hosts. Else the
//! command also claims the volume in the servers' registry ([`varve_cluster::claim`]), first of all, because it may have
//! to wait for dead servers.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use tokio::sync::oneshot;
use varve_cluster::address::{RegistryAddress, RegistryChoiceError};
use varve_cluster::claim::{ClaimConfig, ClaimError, LivingServer, VolumeClaim};
use varve_cluster::membership::MembershipError;
use varve_cluster::registry::{Registry, RegistryError};
use varve_env::clock::{Clock, RealClock};
use varve_env::volume_dir::{LockError, ReadLock, VolumeDir, boot_id, host_name};
use varve_types::VolumeSettings;

/// The lease of a claim in a registry without a map, which is rare.
const LEASE: Duration = Duration::from_secs(2);

/// How long the end of a claim may take. After that it ends by itself.
const RELEASED_WITHIN: Duration = Duration::from_secs(10);

/// How often a command looks whether its late claim was renewed.
const LOOKED_AT_EVERY: Duration = Duration::from_millis(20);

/// A volume without servers, until it is dropped.
#[derive(Debug)]
pub struct Maintenance {
    /// `None`: no server has ever joined, or the registry is in a store that takes no writes of servers either.
    claim: Option<KeptClaim>,
}

#[derive(Debug)]
struct KeptClaim {
    claim: Arc<VolumeClaim>,
    stop: Option<oneshot::Sender<Release>>,
    /// Disconnected once the claim was released or lost.
    ended: mpsc::Receiver<()>,
}

/// The end of a claim in the registry.
#[derive(Debug)]
enum Release {
    Remove,
    /// The registry is about to be removed: leave it as it is.
    Leave,
}

#[derive(Debug, thiserror::Error)]
pub enum MaintenanceError {
    #[error(transparent)]
    Registry(#[from] RegistryChoiceError),
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error("cannot keep the servers of the volume away: {0}")]
    Io(#[from] io::Error),
    #[error("the claim that kept servers away was ended, by `varve cluster evict` or because this process stood still")]
    Lost,
}

impl From<RegistryError> for MaintenanceError {
    fn from(error: RegistryError) -> MaintenanceError {
        MaintenanceError::Claim(error.into())
    }
}

impl MaintenanceError {
    /// The servers because of which the volume cannot be claimed.
    pub fn servers(&self) -> &[LivingServer] {
        match self {
            MaintenanceError::Claim(ClaimError::InUse(servers)) => servers,
            _ => &[],
        }
    }

    /// Whether a registry outside of the store does not answer.
    pub fn is_of_unreachable_etcd(&self) -> bool {
        match self {
            MaintenanceError::Claim(ClaimError::Membership(MembershipError::Registry(
                RegistryError::Unavailable { registry, .. },
            ))) => registry.starts_with("etcd://"),
            _ => false,
        }
    }

    fn is_of_unwritable_registry(&self) -> bool {
        matches!(
            self,
            MaintenanceError::Claim(ClaimError::Membership(MembershipError::Registry(
                RegistryError::Unwritable { .. }
            )))
        )
    }
}

impl Maintenance {
    /// Claims the volume for the command `purpose`. Must not be called on a thread of an asynchronous runtime.
    pub fn begin(
        volume: &VolumeDir,
        settings: &VolumeSettings,
        purpose: &str,
    ) -> Result<Maintenance, MaintenanceError> {
        let Some(address) = RegistryAddress::of_volume(volume, None)? else { return Ok(Maintenance { claim: None }) };
        let registry = address.open(volume, settings.id)?;
        let config = ClaimConfig {
            registry: Arc::clone(&registry),
            clock: Arc::new(RealClock::new()) as Arc<dyn Clock>,
            shards: settings.shards,
            lease_time: LEASE,
            purpose: purpose.to_owned(),
            host: host_name(),
            pid: std::process::id(),
        };
        match KeptClaim::take(config) {
            // They serve the original. The flock keeps processes of this host away from the copy.
            Err(MaintenanceError::Claim(ClaimError::InUse(_))) if is_of_original(&*registry, volume)? => {
                Ok(Maintenance { claim: None })
            }
            taken => Ok(Maintenance { claim: Some(taken?) }),
        }
    }

    /// For a volume that does not exist yet.
    pub fn of_new_volume() -> Maintenance {
        Maintenance { claim: None }
    }

    /// [`Maintenance::begin`] for a command that only reads. Where the registry takes no writes, no server can join, and
    /// there is no claim; but those that have joined may live, and renew on a full store.
    pub fn begin_to_read(
        volume: &VolumeDir,
        settings: &VolumeSettings,
        purpose: &str,
    ) -> Result<Maintenance, MaintenanceError> {
        match Maintenance::begin(volume, settings, purpose) {
            Err(error) if error.is_of_unwritable_registry() => {
                tracing::debug!("no claim, since no server can join: {error}");
                let Some(address) = RegistryAddress::of_volume(volume, None)? else {
                    return Ok(Maintenance { claim: None });
                };
                let registry = address.open(volume, settings.id)?;
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                runtime.block_on(VolumeClaim::look_for_servers(&*registry, &RealClock::new()))?;
                Ok(Maintenance { claim: None })
            }
            begun => begun,
        }
    }

    /// The lock of the volume for a command that only reads.
    pub fn lock_for_reading(&self, volume: &VolumeDir) -> Result<ReadLock, LockError> {
        match self.claim {
            Some(_) => volume.lock_under_claim(),
            None => volume.lock_for_reading(),
        }
    }

    /// Fails if servers may have been in the volume since the beginning, or may be now. Waits for a late renewal.
    pub fn check(&self) -> Result<(), MaintenanceError> {
        let Some(KeptClaim { claim, ended, .. }) = &self.claim else { return Ok(()) };
        while !claim.is_valid() {
            if let Err(RecvTimeoutError::Disconnected) = ended.recv_timeout(LOOKED_AT_EVERY) {
                return Err(MaintenanceError::Lost);
            }
        }
        Ok(())
    }

    /// The volume and its registry are about to be removed. The claim counts for a lease and a tenth from here on.
    pub fn stop_renewing(&mut self) {
        if let Some(claim) = &mut self.claim {
            claim.end(Release::Leave);
        }
    }

    /// Ends a claim that is not renewed any more, because the volume was not removed.
    pub fn release(&mut self) {
        let Some(KeptClaim { claim, .. }) = &self.claim else { return };
        let released = tokio::runtime::Builder::new_current_thread().enable_all().build().map(|runtime| {
            let released = runtime.block_on(async { tokio::time::timeout(RELEASED_WITHIN, claim.release()).await });
            runtime.shutdown_background();
            released
        });
        if !matches!(released, Ok(Ok(Ok(())))) {
            tracing::debug!("the claim of the volume was not ended, and ends by itself soon: {released:?}");
        }
    }
}

/// Whether a registry outside of the store is that of the directory from which this store was copied.
fn is_of_original(registry: &dyn Registry, volume: &VolumeDir) -> Result<bool, MaintenanceError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let Some(map) = runtime.block_on(registry.newest_map())? else { return Ok(false) };
    let refused = map.check_same_store(&boot_id()?, Some(&volume.store_id()?));
    if let Err(refusal) = &refused {
        tracing::debug!("no claim: {refusal}");
    }
    Ok(refused.is_err())
}

impl KeptClaim {
    /// Claims the volume, and renews the claim on a thread of its own.
    fn take(config: ClaimConfig) -> Result<KeptClaim, MaintenanceError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let claim = Arc::new(runtime.block_on(VolumeClaim::take(config))?);
        let (stop, stopped) = oneshot::channel();
        let (alive, ended) = mpsc::channel();
        let kept = Arc::clone(&claim);
        std::thread::Builder::new().name("varve-claim".into()).spawn(move || {
            runtime.block_on(async {
                let release = tokio::select! {
                    () = kept.keep() => Release::Leave,
                    release = stopped => release.unwrap_or(Release::Leave),
                };
                if let Release::Remove = release
                    && let Err(error) = kept.release().await
                {
                    tracing::warn!("cannot end the claim of the volume, which ends by itself soon: {error}");
                }
            });
            // A call of the registry may hang.
            runtime.shutdown_background();
            drop(alive);
        })?;
        Ok(KeptClaim { claim, stop: Some(stop), ended })
    }

    fn end(&mut self, release: Release) {
        if let Some(stop) = self.stop.take()
            && stop.send(release).is_ok()
        {
            // Nothing is sent: this waits for the end of the thread.
            let _ = self.ended.recv_timeout(RELEASED_WITHIN);
        }
    }
}

impl Drop for Maintenance {
    fn drop(&mut self) {
        if let Some(claim) = &mut self.claim {
            claim.end(Release::Remove);
        }
    }
}
