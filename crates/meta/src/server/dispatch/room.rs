//! Refuses calls that need space while the store is short of it, unless space is about to come back.

use super::errno;
use crate::server::worker::Worker;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use varve_proto::{Call, CallFailure};
use varve_types::Errno;

/// How long after a removal its space may come back: backing files are removed within a second, logs are reclaimed
/// within a second on a full store, and the free space is looked at every second.
const COMES_BACK_WITHIN: Duration = Duration::from_secs(5);

/// Refuses a call that makes the volume larger while the store is short of space. If something was removed a moment ago,
/// the client tries again until its space is there. Not applied to a retry of a call that was already done.
pub(super) fn check(worker: &Worker, call: &Call) -> Result<(), CallFailure> {
    if !grows(call) || !worker.shared.reserve.is_short() {
        return Ok(());
    }
    let freed = Duration::from_millis(worker.shared.freed_ms.load(Relaxed));
    let since = worker.shared.clock.monotonic().0.saturating_sub(freed);
    match !freed.is_zero() && since < COMES_BACK_WITHIN {
        true => Err(CallFailure::Busy),
        false => Err(errno(Errno::ENOSPC)),
    }
}

/// Called after a call that frees space.
pub(super) fn freed(worker: &Worker) {
    let now = worker.shared.clock.monotonic().0;
    worker.shared.freed_ms.store(u64::try_from(now.as_millis()).unwrap_or(u64::MAX), Relaxed);
}

/// Whether a call can free space.
pub(super) fn frees(call: &Call) -> bool {
    match call {
        Call::Unlink { .. } | Call::Rename { .. } | Call::RemoveDirectory { .. } => true,
        Call::SetAttributes { set, .. } => set.size.is_some(),
        Call::Open { truncate, .. } => *truncate,
        _ => false,
    }
}

/// Whether a call adds to the volume: such a call is refused while only the reserve for removals is left in the store.
fn grows(call: &Call) -> bool {
    match call {
        Call::WriteInline { data, .. } => !data.is_empty(),
        Call::Create { .. }
        | Call::CreateUnnamed { .. }
        | Call::MakeDirectory { .. }
        | Call::Link { .. }
        | Call::Promote { .. }
        | Call::SetXattr { .. } => true,
        _ => false,
    }
}
