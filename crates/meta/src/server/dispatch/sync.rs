//! How a sync is answered of a shard that has failed. What a store went through and is over, as when it was moved away and
//! is back, may have cost nothing; opening the shard again tells.

use super::{CompletedCall, after_failure, translate};
use crate::server::opening::OpenPurpose;
use crate::server::sessions::Admitted;
use crate::server::worker::Worker;
use std::rc::Rc;
use varve_proto::{CallFailure, Reply};
use varve_types::ShardId;

/// The answer to a sync that came to `answered`: where the shard was found to have failed, what syncing it comes to when it
/// is open again; and an error if something is lost that the caller was acknowledged, once.
pub(super) async fn concluded(
    worker: &Rc<Worker>,
    caller: &Admitted,
    id: ShardId,
    answered: Result<CompletedCall, CallFailure>,
) -> Result<CompletedCall, CallFailure> {
    let failed = matches!(answered, Err(CallFailure::Server { .. })) && worker.shard(id).is_none();
    let answered = if failed { again(worker, id).await } else { answered };
    match answered {
        Ok(done) => match worker.opening.report_lost(id, caller.session) {
            Some(cause) => Err(translate::failed(cause)),
            None => Ok(done),
        },
        Err(failure) => {
            if matches!(failure, CallFailure::Server { .. }) {
                worker.opening.reported(id, caller.session);
            }
            Err(failure)
        }
    }
}

async fn again(worker: &Rc<Worker>, id: ShardId) -> Result<CompletedCall, CallFailure> {
    // What befell one befell others, and who syncs this one will mostly sync them too.
    worker.reopen_failed();
    let shard = worker.wanted(id, OpenPurpose::Sync).await?;
    let synced = shard.sync().await.map(|()| Reply::Done.into()).map_err(translate::failure);
    after_failure(worker, &shard, None, synced)
}
