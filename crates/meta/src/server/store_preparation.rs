//! The work of a server in the store before it opens shards.

use super::{ServerConfig, ServerError, doing};
use std::sync::Arc;
use varve_env::clock::{Clock, Instant, RealClock};
use varve_env::disk::{CLOCK_SKEW_S_MAX, WriterId, store_clock_ahead_s};
use varve_env::posix_store::PosixStore;
use varve_env::reserve::Reserve;
use varve_env::volume_dir::{ShutdownState, VolumeDir, VolumeLock};
use varve_types::VolumeSettings;

/// A volume whose lock this server has.
pub struct PreparedStore {
    pub lock: VolumeLock,
    /// Of the tables.
    pub store: PosixStore,
    pub state: StoreState,
}

/// The volume for all workers.
pub struct StoreState {
    pub volume: VolumeDir,
    pub settings: VolumeSettings,
    pub clock: Arc<dyn Clock>,
    /// When the lock was taken.
    pub owned_since: Instant,
    pub reserve: Arc<Reserve>,
    /// The state that the last server left.
    pub left: ShutdownState,
}

/// Takes the lock of the volume, and makes the store ready.
pub fn prepare(config: &ServerConfig) -> Result<PreparedStore, ServerError> {
    let volume = config.volume.clone();
    let settings = volume.read_settings()?;
    let uid = rustix::process::geteuid().as_raw();
    if uid != settings.owner_uid && uid != 0 {
        let (directory, owner) = (volume.root().to_owned(), settings.owner_uid);
        return Err(ServerError::NotYours { directory, owner, uid });
    }
    let volume = volume.held().map_err(doing("cannot serve the volume"))?;
    let lock = if config.join.is_some() { volume.lock_to_join()? } else { volume.lock()? };
    if !volume.shards().is_dir() {
        return Err(ServerError::NoTables { directory: volume.shards().into() });
    }
    let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
    let owned_since = clock.monotonic();
    let room = "cannot read the free space of the store";
    let reserve = Reserve::of(volume.reserve()).map_err(doing(room))?.while_starting();
    reserve.release_if_full().map_err(doing(room))?;
    let (left, living) = match config.join {
        None => prepare_alone(&volume, &lock, &settings)?,
        Some(_) => prepare_to_join(&volume, &*clock)?,
    };
    volume.close_to_others().map_err(doing("cannot restrict access to the volume's directories"))?;
    let store = PosixStore::of_volume(&volume).map_err(doing("cannot open the volume's table directory"))?;
    let reserve = Arc::new(reserve);
    let store = store.with_reserve(Arc::clone(&reserve)).with_place(volume.place().cloned());
    if let Some(living) = living {
        store.remove_leftovers(&living).map_err(doing(LEFTOVERS))?;
        warn_of_wrong_clock(&volume, &*clock);
    }
    Ok(PreparedStore { lock, store, state: StoreState { volume, settings, clock, owned_since, reserve, left } })
}

const LEFTOVERS: &str = "cannot remove leftovers from the volume's directory";

/// The work of a server that is alone in the volume. Returns the state that the last server left, and whose temporary files
/// stay.
fn prepare_alone(
    volume: &VolumeDir,
    lock: &VolumeLock,
    settings: &VolumeSettings,
) -> Result<(ShutdownState, Option<Vec<WriterId>>), ServerError> {
    let living = volume.remove_leftovers(lock).map_err(doing(LEFTOVERS))?;
    volume.raise_format(lock, settings).map_err(doing("cannot upgrade the volume to this format"))?;
    let left = volume.left_by_server(lock).map_err(doing("cannot read the state that the last server left"))?;
    Ok((left, Some(living)))
}

/// Others may use the volume: this server neither upgrades it nor removes temporary files of others, and sessions of
/// earlier owners of a shard may always come back.
fn prepare_to_join(
    volume: &VolumeDir,
    clock: &dyn Clock,
) -> Result<(ShutdownState, Option<Vec<WriterId>>), ServerError> {
    if !volume.is_of_this_format().map_err(doing("cannot read the volume's format"))? {
        return Err(ServerError::OldFormat { directory: volume.root().to_owned() });
    }
    match store_clock_ahead_s(&volume.shards(), clock) {
        Ok(ahead_s) if ahead_s.unsigned_abs() > CLOCK_SKEW_S_MAX => Err(ServerError::WrongClock { ahead_s }),
        Ok(_) => Ok((ShutdownState::OpenFiles, None)),
        Err(error) => Err(doing("cannot compare the clocks of this host and of the store")(error)),
    }
}

/// Garbage collection compares times of files with this host's wall clock, and several servers compare each other's.
fn warn_of_wrong_clock(volume: &VolumeDir, clock: &dyn Clock) {
    match store_clock_ahead_s(&volume.shards(), clock) {
        Ok(ahead) if ahead.unsigned_abs() > CLOCK_SKEW_S_MAX => tracing::warn!(
            "the clock of this host differs by {ahead} s from that of the store: set both by NTP or PTP and start \
             again; several servers of a volume need clocks within {CLOCK_SKEW_S_MAX} s"
        ),
        Ok(_) => {}
        // A full or read-only store: the volume still serves reads.
        Err(error) => tracing::debug!(%error, "cannot compare the clocks of this host and of the store"),
    }
}
