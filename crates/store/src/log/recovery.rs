//! Takes a log over: ends the epochs before, finds the batches that the tables lack, and begins a new file.

use super::config::LogConfig;
use super::directory::{self, EpochFiles};
use super::failure::LogError;
use super::format::{FileHeader, LogFormatError, Seal};
use super::mark::{self, Mark};
use super::open_log::Log;
use super::replay::{LogReplay, Segment};
use super::scan::{Break, GroupOrder, LogRecord, StreamReader, synced_mark};
use super::writer::LogWriter;
use async_trait::async_trait;
use slatedb::wal::{WalError, WriterInit, WriterInitResult, WriterManifest};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, OnceLock};
use varve_env::disk;
use varve_env::store_path::StorePath;

/// Opens the log once SlateDB has claimed the epoch.
pub struct LogInit {
    config: LogConfig,
    /// Receives the opened log for the table.
    opened: Arc<OnceLock<Arc<Log>>>,
}

impl LogInit {
    pub fn new(config: LogConfig) -> (LogInit, Arc<OnceLock<Arc<Log>>>) {
        let opened = Arc::new(OnceLock::new());
        (LogInit { config, opened: opened.clone() }, opened)
    }
}

#[async_trait]
impl WriterInit for LogInit {
    async fn fence_and_init(&self, manifest: &mut WriterManifest) -> Result<WriterInitResult, WalError> {
        let claim = Claim {
            epoch: manifest.epoch(),
            replay_after: manifest.replay_after_wal_id(),
            flushed: manifest.manifest().next_wal_sst_id().saturating_sub(1),
        };
        let tick = manifest.manifest().last_l0_clock_tick();
        let config = self.config.clone();
        let taken = self.config.background.spawn_blocking(move || take_over(&config, claim)).await;
        let (replay, log) = taken.map_err(|join| WalError::InternalError(Arc::new(join)))??;
        let log = Arc::new(log);
        let writer = LogWriter::start(log.clone());
        if self.opened.set(log).is_err() {
            return Err(WalError::InternalError(Arc::new(io::Error::other("a log can be opened only once"))));
        }
        Ok(WriterInitResult { replay_iterator: Box::new(replay.not_before(tick)), wal_writer: Box::new(writer) })
    }
}

/// The manifest's state when an epoch is claimed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) epoch: u64,
    /// The last group whose rows are all in tables.
    pub(super) replay_after: u64,
    /// The last group that is fsynced according to the manifest.
    pub(super) flushed: u64,
}

pub(super) fn take_over(config: &LogConfig, claim: Claim) -> Result<(LogReplay, Log), LogError> {
    let directory = &config.directory;
    let mut epochs = directory::list(directory)?;
    if epochs.keys().next_back().is_some_and(|epoch| *epoch >= claim.epoch) {
        return Err(LogError::Fenced);
    }
    refuse_if_gone(config, &epochs, claim)?;
    seal_highest(config, &mut epochs, claim.replay_after)?;
    let segments = segments(config, &epochs, claim, None)?;
    let last_group = last_group(config, &segments, claim)?;
    let header = FileHeader { shard: config.shard.0, epoch: claim.epoch, number: 0, base: 0, synced: 0, last_group };
    let path = directory::file_path(directory, claim.epoch, 0);
    disk::create_if_absent(config.exclusive, &path, &header.encode()).map_err(LogError::io("create", &path))?;
    let mark = Mark::begin(config, claim.epoch)?;
    let log = Log::begin(config.clone(), header, path, mark, !segments.is_empty())?;
    Ok((LogReplay::new(config.shard.0, segments, claim.replay_after), log))
}

/// Fails if all files of the log are gone, which is not the same as an empty log. Only during the first takeover does
/// the first file of an epoch not exist yet; then nothing is in tables either.
pub(super) fn refuse_if_gone(
    config: &LogConfig,
    epochs: &BTreeMap<u64, EpochFiles>,
    claim: Claim,
) -> Result<(), LogError> {
    if let Some(epoch) = directory::gone(epochs) {
        return Err(LogError::Gone {
            shard: config.shard,
            mark: directory::begun_path(&config.directory, epoch).into(),
        });
    }
    if epochs.is_empty() && claim.replay_after > 0 {
        let (shard, directory) = (config.shard, config.directory.clone().into());
        return Err(LogError::Missing { shard, directory, found: 0, needed: claim.replay_after });
    }
    Ok(())
}

/// Ends the highest epoch. The lower ones are ended already: an owner makes its first file only after it has ended all
/// epochs before its own. So an unsealed epoch below another was written by a late owner after its end, and does not
/// count.
fn seal_highest(config: &LogConfig, epochs: &mut BTreeMap<u64, EpochFiles>, replay_after: u64) -> Result<(), LogError> {
    let Some((epoch, files)) = epochs.iter_mut().next_back() else { return Ok(()) };
    if files.sealed {
        return Ok(());
    }
    let (epoch, directory) = (*epoch, &config.directory);
    publish(config, &directory::fence_path(directory, epoch), &[])?;
    // Listed again after the fence: until then its owner may have begun another file.
    *files = directory::list(directory)?.remove(&epoch).unwrap_or_default();
    let seal = measure(config.shard.0, directory, epoch, files, replay_after)?;
    for path in files.files.values() {
        disk::File::open(path).and_then(|file| file.sync_all()).map_err(LogError::io("fsync", path))?;
    }
    disk::sync_directory(directory).map_err(LogError::io("fsync", directory))?;
    publish(config, &directory::seal_path(directory, epoch), &seal.encode())?;
    files.sealed = true;
    Ok(())
}

/// Creates a file that another process may have created already with the same meaning.
fn publish(config: &LogConfig, path: &StorePath, content: &[u8]) -> Result<(), LogError> {
    match disk::create_if_absent(config.exclusive, path, content) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other.map_err(LogError::io("create", path)),
    }
}

/// Finds the intact length of the stream of an unsealed epoch, in complete batches. Logs what is cut off.
pub(super) fn measure(
    shard: u16,
    directory: &StorePath,
    epoch: u64,
    files: &EpochFiles,
    replay_after: u64,
) -> Result<Seal, LogError> {
    let (seal, broken) = intact(shard, directory, epoch, files, replay_after)?;
    if let Some(broken) = broken {
        tracing::warn!(
            shard, epoch, file = %broken.path.display(), offset = broken.offset, reason = %broken.reason,
            "the log ends with incomplete bytes; they are cut off. There is no mark that they were fsynced: after a \
             power loss they were not; otherwise the disk has changed them"
        );
    }
    Ok(seal)
}

/// Finds the intact length of the stream of an unsealed epoch, in complete batches, and the break after it, if the
/// stream does not simply end. Fails if the damaged bytes were fsynced, or if a file is needed whose header is not
/// intact. All groups up to `replay_after` are in tables.
pub(super) fn intact(
    shard: u16,
    directory: &StorePath,
    epoch: u64,
    files: &EpochFiles,
    replay_after: u64,
) -> Result<(Seal, Option<Break>), LogError> {
    let marked = mark::synced(shard, directory, epoch);
    let mut stream = StreamReader::open(shard, epoch, files, u64::MAX)?;
    // The first file is durable before the mark is made, and so is each file that later becomes the first.
    let headless = files.begun && stream.is_headless();
    if let Some(lost) = stream.lost_head(replay_after) {
        return Err(lost.damage());
    }
    let mut order = GroupOrder::new(stream.last_group);
    // After the last complete batch, so that a group's header whose first batch is torn is cut off too.
    let mut seal = Seal { shard, epoch, length: stream.position(), last_group: stream.last_group };
    let broken = loop {
        let before = stream.position();
        let record = match stream.next()? {
            Ok(Some(record)) => record,
            Ok(None) => break None,
            Err(broken) => break Some(broken),
        };
        if let Err(reason) = order.check(&record) {
            let path = files.files.values().next_back().map(|path| path.path().to_owned()).unwrap_or_default();
            break Some(Break { position: before, path, offset: 0, reason });
        }
        if matches!(record, LogRecord::Batch(_)) {
            seal = Seal { length: stream.position(), last_group: order.last_group, ..seal };
        }
    };
    match broken {
        Some(broken) if headless || marked > seal.length || synced_mark(epoch, files)? > broken.position => {
            Err(broken.damage())
        }
        None if marked > seal.length => cut(files, seal.length).map_or(Ok((seal, None)), |cut| Err(cut?.damage())),
        broken => Ok((seal, broken)),
    }
}

/// The end of the last file, as a break where the rest is missing. `None` if there is no file, which is found
/// elsewhere.
fn cut(files: &EpochFiles, position: u64) -> Option<Result<Break, LogError>> {
    let path: StorePath = files.files.values().next_back()?.clone();
    Some(match path.metadata() {
        Ok(found) => Ok(Break { position, path: path.into(), offset: found.len(), reason: LogFormatError::Cut }),
        Err(error) => Err(LogError::io("look at", &path)(error)),
    })
}

/// The last group of the log: in the segments, or in the tables. The log must reach as far as the manifest records.
pub(super) fn last_group(config: &LogConfig, segments: &[Segment], claim: Claim) -> Result<u64, LogError> {
    let last_group = segments.last().map_or(claim.replay_after, |segment| segment.seal.last_group);
    if last_group < claim.flushed {
        return Err(LogError::Missing {
            shard: config.shard,
            directory: config.directory.clone().into(),
            found: last_group,
            needed: claim.replay_after,
        });
    }
    Ok(last_group)
}

/// The ended epochs that hold groups missing from the tables, in order and without a gap: the sealed ones, and the
/// epoch of `unpublished`, a seal that is in no file.
pub(super) fn segments(
    config: &LogConfig,
    epochs: &BTreeMap<u64, EpochFiles>,
    claim: Claim,
    unpublished: Option<Seal>,
) -> Result<Vec<Segment>, LogError> {
    let mut segments: Vec<Segment> = Vec::new();
    let mut last_group = claim.replay_after;
    for (epoch, files) in epochs {
        let seal = match files.sealed {
            true => directory::read_seal(&config.directory, *epoch)?,
            false => unpublished.filter(|seal| seal.epoch == *epoch),
        };
        let Some(seal) = seal else { continue };
        if seal.last_group <= claim.replay_after {
            continue;
        }
        let stream = StreamReader::open(config.shard.0, *epoch, files, seal.length)?;
        if let Some(lost) = stream.lost_head(last_group) {
            return Err(lost.damage());
        }
        if files.files.is_empty() || stream.last_group > last_group {
            return Err(LogError::Missing {
                shard: config.shard,
                directory: config.directory.clone().into(),
                found: last_group,
                needed: claim.replay_after,
            });
        }
        last_group = seal.last_group;
        segments.push(Segment { epoch: *epoch, files: files.clone(), seal });
    }
    Ok(segments)
}
