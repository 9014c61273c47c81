//! Calls about the place of a shard. They are answered in any state of the shard.

use super::CompletedCall;
use crate::server::sessions::Admitted;
use crate::server::worker::Worker;
use std::rc::Rc;
use varve_proto::{Call, CallFailure, Reply, Request};
use varve_types::{Errno, ShardId};

pub(super) async fn answer(
    worker: &Rc<Worker>,
    caller: &Admitted,
    request: &Request,
) -> Result<CompletedCall, CallFailure> {
    let id = ShardId(request.shard);
    if !worker.owns(id) {
        return Err(worker.not_owner());
    }
    match &request.call {
        Call::MoveShard { .. } if !caller.administers => Err(CallFailure::Errno(Errno::EPERM.number())),
        Call::MoveShard { .. } if worker.shared.joined => {
            let reason = "the servers of this volume divide its shards: name the server in place of the worker".into();
            Ok(Reply::ShardStays { reason }.into())
        }
        Call::MoveShard { worker: to } => {
            // The first attempt may still be in progress after its connection was lost.
            let Some(_entered) = worker.in_flight.enter(request.id) else { return Err(CallFailure::Busy) };
            Ok(moved(worker, id, *to).await.into())
        }
        _ => Ok(Reply::ShardLocation(worker.locate(id)).into()),
    }
}

async fn moved(worker: &Rc<Worker>, id: ShardId, to: u16) -> Reply {
    match worker.move_shard(id, usize::from(to)).await {
        Ok(away) => {
            let microseconds = u64::try_from(away.as_micros()).unwrap_or(u64::MAX);
            // At most WORKERS_MAX workers.
            Reply::ShardMoved { from: worker.index as u16, to, microseconds }
        }
        Err(reason) => Reply::ShardStays { reason },
    }
}
