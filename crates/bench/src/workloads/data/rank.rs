//! One rank's operations on large files.

use super::caches::{Caches, drop_caches};
use super::file::{AlignedBuffer, DataFile};
use super::pattern::BytePattern;
use super::{DataOptions, DataPattern, open_files};
use crate::ranks::RankContext;
use crate::workloads::Job;
use crate::{Error, Result};
use std::io;
use std::path::{Path, PathBuf};
use varve_env::random::Seeded;

pub(crate) fn run_rank(job: &Job, options: &DataOptions, context: &RankContext<'_>) -> Result<()> {
    let via = job.target()?;
    let directory = via.directory().join(&job.directory);
    let rank = DataRank { via: via.to_string(), directory, options, context, seed: job.seed };
    if options.pattern == DataPattern::OpenFiles {
        return open_files::run(&rank);
    }
    rank.write()?;
    if options.write_only { Ok(()) } else { rank.read() }
}

pub(super) struct DataRank<'a> {
    pub via: String,
    pub directory: PathBuf,
    pub options: &'a DataOptions,
    pub context: &'a RankContext<'a>,
    pub seed: u64,
}

/// One transfer: its place in the file, and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transfer {
    pub offset: u64,
    pub bytes: u64,
}

/// The transfers of `owner`'s share of the data, in order.
pub(super) fn transfers(options: &DataOptions, ranks: usize, owner: usize) -> impl Iterator<Item = Transfer> + use<> {
    let DataOptions { pattern, bytes, transfer_bytes, block_bytes, .. } = *options;
    let (ranks, owner) = (ranks as u64, owner as u64);
    let mut done = 0;
    std::iter::from_fn(move || {
        let left = bytes - done;
        if left == 0 {
            return None;
        }
        let (offset, most) = match pattern {
            DataPattern::Segmented => (owner * bytes + done, left),
            DataPattern::Strided | DataPattern::Frames => {
                let (block, within) = (done / block_bytes, done % block_bytes);
                ((block * ranks + owner) * block_bytes + within, block_bytes - within)
            }
            _ => (done, left),
        };
        let bytes = transfer_bytes.min(most);
        done += bytes;
        Some(Transfer { offset, bytes })
    })
}

impl DataRank<'_> {
    pub(super) fn failed(&self, operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
        let (via, path) = (self.via.clone(), path.display().to_string());
        move |source| Error::Operation { via, operation, path, source }
    }

    fn has_one_file(&self) -> bool {
        matches!(self.options.pattern, DataPattern::Segmented | DataPattern::Strided | DataPattern::Frames)
    }

    /// The number of the file that has `owner`'s data.
    fn file_number(&self, owner: usize) -> u64 {
        if self.has_one_file() { 0 } else { owner as u64 }
    }

    pub(super) fn path(&self, owner: usize) -> PathBuf {
        self.directory.join(format!("data.{}", self.file_number(owner)))
    }

    /// Open, barrier, all transfers, barrier, sync, close.
    pub(super) fn write(&self) -> Result<()> {
        let DataRank { options, context, .. } = self;
        let path = self.path(context.rank);
        let mut file = None;
        // The first rank makes the shared file, and the others open it.
        let makes = !self.has_one_file() || context.rank == 0;
        context.phase("open", |recorder| {
            if makes {
                file = Some(DataFile::create(&path, options.direct).map_err(self.failed("create", &path))?);
                recorder.done(0)?;
            }
            Ok(())
        })?;
        if self.has_one_file() {
            context.barrier()?;
        }
        let file = match file {
            Some(file) => file,
            None => DataFile::write(&path, options.direct).map_err(self.failed("open", &path))?,
        };
        let pattern = BytePattern::new(self.seed);
        let mut buffer = AlignedBuffer::new(options.transfer_bytes as usize);
        let (number, mut filled) = (self.file_number(context.rank), None);
        // The first bytes are made before the clock starts.
        pattern.fill(number, 0, buffer.part(options.transfer_bytes as usize), None);
        context.phase("write", |recorder| {
            for Transfer { offset, bytes } in transfers(options, context.ranks, context.rank) {
                let part = buffer.part(bytes as usize);
                // A buffer of another length may have other bytes after a shorter transfer.
                pattern.fill(number, offset, part, filled.filter(|_| bytes == options.transfer_bytes));
                filled = (bytes == options.transfer_bytes).then_some(offset);
                recorder.skip();
                file.write_at(part, offset).map_err(self.failed("write", &path))?;
                recorder.done(bytes)?;
            }
            Ok(())
        })?;
        context.phase("sync", |recorder| {
            file.sync().map_err(self.failed("sync", &path))?;
            recorder.done(0)
        })?;
        context.phase("close", |recorder| {
            file.close().map_err(self.failed("close", &path))?;
            recorder.done(0)
        })
    }

    pub(super) fn drop_caches(&self, files: &[PathBuf], caches: Caches) -> Result<()> {
        self.context.phase("drop", |recorder| {
            let dropped = self.options.drop_caches && drop_caches(files, caches);
            recorder.late(std::time::Duration::ZERO, !dropped);
            recorder.done(0)
        })
    }

    /// Reads what the next rank has written.
    pub(super) fn read(&self) -> Result<()> {
        let DataRank { options, context, .. } = self;
        self.drop_caches(&[self.path(context.rank)], Caches::Pages)?;
        let owner = (context.rank + 1) % context.ranks;
        let (path, number) = (self.path(owner), self.file_number(owner));
        let pattern = options.verify.then(|| BytePattern::new(self.seed));
        let mut buffer = AlignedBuffer::new(options.transfer_bytes as usize);
        let mut expected = Vec::new();
        let is_random = options.pattern == DataPattern::RandomRead;
        context.phase(if is_random { "random_read" } else { "read" }, |recorder| {
            let file = DataFile::read(&path, options.direct).map_err(self.failed("open", &path))?;
            // The caches of the file may belong to this client, where a network file system is below.
            if options.drop_caches {
                file.forget();
            }
            recorder.skip();
            let mut one = |Transfer { offset, bytes }: Transfer| {
                let part = buffer.part(bytes as usize);
                file.read_at(part, offset).map_err(self.failed("read", &path))?;
                recorder.done(bytes)?;
                let wrong = pattern.as_ref().and_then(|pattern| pattern.compare(number, offset, part, &mut expected));
                if let Some(wrong) = wrong {
                    let what = format!(
                        "byte {} of {} is {:#04x}, and {:#04x} was written",
                        wrong.offset,
                        path.display(),
                        wrong.found,
                        wrong.expected
                    );
                    return Err(Error::WrongAnswer { via: self.via.clone(), what });
                }
                if pattern.is_some() {
                    recorder.skip();
                }
                Ok(())
            };
            if is_random {
                let mut random = Seeded::new(self.seed ^ ((context.rank as u64 + 1) << 32));
                let bytes = options.transfer_bytes.min(options.bytes);
                let places = (options.bytes / bytes) as usize;
                (0..options.operations)
                    .try_for_each(|_| one(Transfer { offset: random.below(places) as u64 * bytes, bytes }))?;
            } else {
                transfers(options, context.ranks, owner).try_for_each(&mut one)?;
            }
            file.close().map_err(self.failed("close", &path))
        })
    }
}
