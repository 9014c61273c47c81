//! Merges a shard's tables with a compactor that runs only while there is something to merge: an idle compactor would
//! poll for work for ever, in every shard. It waits for one of the process's few permits for merges.

use super::settings::{TABLES_MAX, TABLES_MIN, TableConfig};
use slatedb::Db;
use slatedb::admin::Admin;
use slatedb::compactor::Compactor;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Unmerged tables at which merges run while the shard is still being opened.
const TABLES_MANY: usize = TABLES_MAX / 2;
/// A compactor without work for this long is stopped. Starting one costs two small files.
const QUIET: Duration = Duration::from_secs(10);
/// A compactor whose permit other shards wait for is stopped between two merges, if it has had the permit for this
/// long: by then it has found the work there is.
const TURN_MIN: Duration = Duration::from_secs(2);
/// How often a running compactor's results are applied.
const LOOK: Duration = Duration::from_secs(1);
/// An open that takes longer is logged.
const LONG: Duration = Duration::from_secs(10);
/// Pause after a compactor failed. A missing resource, such as room on the disk, does not come back immediately.
const RETRY: Duration = Duration::from_secs(30);

pub(super) struct Compaction {
    config: TableConfig,
    admin: Admin,
    running: Option<RunningCompaction>,
    not_before: Option<Instant>,
}

struct RunningCompaction {
    compactor: Arc<Compactor>,
    task: JoinHandle<Result<(), slatedb::Error>>,
    /// Set by the task when it has its permit.
    placed: Arc<AtomicBool>,
    /// When that was noticed.
    since: Option<Instant>,
    manifest: u64,
    changed: Instant,
}

impl Compaction {
    pub(super) fn new(config: TableConfig) -> Compaction {
        let admin = Admin::builder(config.path(), config.object_store()).build();
        Compaction { config, admin, running: None, not_before: None }
    }

    /// Starts, polls or stops the compactor. Returns when to call it again; `None`: only after tables were added.
    pub(super) async fn round(&mut self, db: &Db, now: Instant) -> Result<Option<Instant>, slatedb::Error> {
        self.notice_end(now).await;
        if self.is_placed(now) {
            db.refresh_manifest().await?;
        }
        let manifest = db.manifest();
        let wanted = manifest.l0().len() >= TABLES_MIN;
        let Some(running) = &mut self.running else {
            return Ok(match self.not_before.filter(|retry| *retry > now) {
                Some(retry) if wanted => Some(retry),
                _ if wanted => {
                    self.start(manifest.id(), now);
                    Some(now + LOOK)
                }
                _ => None,
            });
        };
        if running.manifest != manifest.id() {
            (running.manifest, running.changed) = (manifest.id(), now);
        }
        let quiet = !wanted && now.duration_since(running.changed) >= QUIET;
        let had_its_turn = running.since.is_some_and(|since| now.duration_since(since) >= TURN_MIN);
        let gives_way = had_its_turn && self.config.merges.are_waited_for();
        if (quiet || gives_way) && !self.has_work().await? {
            self.stop().await;
            return Ok(wanted.then_some(now + LOOK));
        }
        Ok(Some(now + LOOK))
    }

    /// Runs `opening` for a shard with this many unmerged `tables`. It merges tables in parallel if there are or become
    /// many: the replay may make more tables than the limit, and after repeated kills no merge may have completed.
    pub(super) async fn beside<T>(config: &TableConfig, tables: usize, opening: impl Future<Output = T>) -> T {
        let mut compaction = Compaction::new(config.clone());
        let merging = async {
            let (mut tables, begun, mut reported) = (tables, Instant::now(), false);
            loop {
                if begun.elapsed() >= LONG && !std::mem::replace(&mut reported, true) {
                    tracing::warn!(
                        shard = config.shard.0,
                        tables,
                        "opening a shard has taken {LONG:?} so far: replaying its log"
                    );
                }
                if tables >= TABLES_MANY {
                    compaction.run_on(Instant::now()).await;
                }
                tokio::time::sleep(LOOK).await;
                match compaction.admin.read_manifest(None).await {
                    Ok(manifest) => tables = manifest.map_or(0, |manifest| manifest.l0().len()),
                    Err(error) => {
                        tracing::debug!(shard = config.shard.0, %error, "cannot count the tables")
                    }
                }
            }
        };
        let opened = tokio::select! {
            opened = opening => opened,
            never = merging => never,
        };
        compaction.stop().await;
        opened
    }

    /// Runs the compactor even if other shards wait for its permit.
    async fn run_on(&mut self, now: Instant) {
        self.notice_end(now).await;
        if self.running.is_none() && self.not_before.is_none_or(|retry| retry <= now) {
            self.start(0, now);
        }
    }

    /// Stops the compactor, if it runs. A merge in progress is abandoned and repeated later.
    pub(super) async fn stop(&mut self) {
        let Some(mut running) = self.running.take() else { return };
        if !running.placed.load(Ordering::Acquire) {
            running.task.abort();
            // Whether it had its permit by then decides how it is stopped.
            let _ = (&mut running.task).await;
        }
        if running.placed.load(Ordering::Acquire) {
            if let Err(error) = running.compactor.stop().await {
                tracing::warn!(shard = self.config.shard.0, %error, "the compactor was not stopped cleanly");
            }
            running.task.abort();
        }
    }

    fn start(&mut self, manifest: u64, now: Instant) {
        let compactor = Arc::new(self.config.compactor().build());
        let placed = Arc::new(AtomicBool::new(false));
        let (runs, has_place, merges) = (compactor.clone(), placed.clone(), self.config.merges.clone());
        let task = self.config.merges.runtime().spawn(async move {
            let _place = merges.place().await;
            has_place.store(true, Ordering::Release);
            runs.run().await
        });
        self.running = Some(RunningCompaction { compactor, task, placed, since: None, manifest, changed: now });
    }

    /// Whether the compactor runs and has its permit.
    fn is_placed(&mut self, now: Instant) -> bool {
        let Some(running) = &mut self.running else { return false };
        if running.since.is_none() && running.placed.load(Ordering::Acquire) {
            (running.since, running.changed) = (Some(now), now);
        }
        running.since.is_some()
    }

    /// A compactor ends by itself only if it failed, or if another owner has one.
    async fn notice_end(&mut self, now: Instant) {
        let Some(running) = self.running.take_if(|running| running.task.is_finished()) else { return };
        self.not_before = Some(now + RETRY);
        let reason = match running.task.await {
            Ok(Ok(())) => "it was stopped".to_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(join) => join.to_string(),
        };
        tracing::warn!(shard = self.config.shard.0, reason, "the compactor has ended; restarting it later");
    }

    async fn has_work(&self) -> Result<bool, slatedb::Error> {
        let view = self.admin.read_compactor_state_view().await?;
        Ok(view.compactions().is_some_and(|merges| merges.recent_compactions().any(|merge| merge.active())))
    }
}
