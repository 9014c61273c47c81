//! The reply to a sync of a failed shard. A store failure that is over, for example because the store was unmounted and
//! is back, may have lost nothing; reopening the shard shows whether it did.

use super::{CompletedCall, after_failure, translate};
use crate::server::opening::OpenPurpose;
use crate::server::sessions::Admitted;
use crate::server::worker::Worker;
use std::rc::Rc;
use varve_proto::{CallFailure, Reply};
use varve_types::ShardId;

/// Turns the result `answered` of a sync into its reply. If the shard has failed, the reply is the result of syncing it
/// after it is open again. If changes acknowledged to the caller are lost, the reply is an error, once.
pub(super) async fn concluded(
    worker: &Rc<Worker>,
    caller: &Admitted,
    id: ShardId,
    answered: Result<CompletedCall, CallFailure>,
) -> Result<CompletedCall, CallFailure> {
    let failed = matches!(answered, Err(CallFailure::Server { .. })) && worker.shard(id).is_none();
    let answered = if failed { again(worker, id).await } else { answered };
    match answered {
        Ok(done) => match worker.slots.report_lost(id, caller.session) {
            Some(cause) => Err(translate::failed(cause)),
            None => Ok(done),
        },
        Err(failure) => {
            if matches!(failure, CallFailure::Server { .. }) {
                worker.slots.reported(id, caller.session);
            }
            Err(failure)
        }
    }
}

async fn again(worker: &Rc<Worker>, id: ShardId) -> Result<CompletedCall, CallFailure> {
    // A failure of one shard is likely to affect others, and the caller will usually sync those too.
    worker.reopen_failed();
    let shard = worker.wanted(id, OpenPurpose::Sync).await?;
    let synced = shard.sync().await.map(|()| Reply::Done.into()).map_err(translate::failure);
    after_failure(worker, &shard, None, synced)
}
