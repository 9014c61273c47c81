//! Requests that wait for a run's next durable frame.

use super::http_error::HttpError;
use crate::run::{Run, RunStatus};
use crate::shared::ServiceShared;
use std::time::{Duration, Instant};
use varve_detector_stream::ErrorCode;

/// Longest wait of a watch request; the client then repeats it.
const WATCH_MAX: Duration = Duration::from_secs(30);
const WATCH_STEP: Duration = Duration::from_millis(50);

/// The last frame that a watcher has seen, and how long it waits for a newer one.
pub struct WatchRequest {
    after: Option<u64>,
    wait: Duration,
}

impl WatchRequest {
    pub fn read(query: &str) -> Result<WatchRequest, HttpError> {
        let mut wish = WatchRequest { after: None, wait: Duration::ZERO };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let bad = || HttpError::of(ErrorCode::Protocol, format!("`{pair}`: give after=FRAME and wait_s=SECONDS"));
            match key {
                "after" => wish.after = Some(value.parse().map_err(|_| bad())?),
                "wait_s" => {
                    let seconds: f64 = value.parse().map_err(|_| bad())?;
                    wish.wait = Duration::try_from_secs_f64(seconds).map_err(|_| bad())?.min(WATCH_MAX);
                }
                _ => return Err(bad()),
            }
        }
        Ok(wish)
    }
}

pub async fn latest(shared: &ServiceShared, run: &Run, wish: WatchRequest) -> RunStatus {
    let deadline = Instant::now() + wish.wait;
    loop {
        let status = run.status();
        let newer = match (status.latest_durable, wish.after) {
            (Some(latest), Some(after)) => latest > after,
            (latest, None) => latest.is_some(),
            (None, Some(_)) => false,
        };
        if newer || run.ended_as().is_some() || shared.is_stopping() || Instant::now() >= deadline {
            return status;
        }
        tokio::time::sleep(WATCH_STEP).await;
    }
}
