//! Open, first byte and close of random files among many: cold, and then the same files warm.

use super::caches::Caches;
use super::file::DataFile;
use super::rank::DataRank;
use crate::Result;
use std::path::PathBuf;
use varve_env::random::Seeded;

/// More files in one directory measure the directory; `bench mdtest --prefill` does that.
const FILES_PER_DIRECTORY: u64 = 1000;
/// One page each, so that the first byte is in the file's data and not in its inode alone.
const FILE_BYTES: usize = 4096;

pub(super) fn run(rank: &DataRank<'_>) -> Result<()> {
    let context = rank.context;
    let (ranks, own) = (context.ranks as u64, context.rank as u64);
    let directories = rank.options.files.div_ceil(FILES_PER_DIRECTORY);
    context.phase("fill", |recorder| {
        let content = [b'v'; FILE_BYTES];
        for directory in (own..directories).step_by(ranks as usize) {
            let path = rank.directory.join(format!("d{directory:06}"));
            std::fs::create_dir(&path).map_err(rank.failed("make", &path))?;
            let first = directory * FILES_PER_DIRECTORY;
            for number in first..rank.options.files.min(first + FILES_PER_DIRECTORY) {
                let path = path_of(rank, number);
                let file = DataFile::create(&path, false).map_err(rank.failed("create", &path))?;
                file.write_at(&content, 0).map_err(rank.failed("write", &path))?;
                file.close().map_err(rank.failed("close", &path))?;
                recorder.done(FILE_BYTES as u64)?;
            }
        }
        Ok(())
    })?;
    context.phase("fill_sync", |recorder| {
        if context.rank == 0 {
            let directory = std::fs::File::open(&rank.directory).map_err(rank.failed("open", &rank.directory))?;
            rustix::fs::syncfs(&directory).map_err(|errno| rank.failed("sync", &rank.directory)(errno.into()))?;
            recorder.done(0)?;
        }
        Ok(())
    })?;
    rank.drop_caches(&[], Caches::PagesAndInodes)?;
    for phase in ["open_cold", "open_warm"] {
        context.phase(phase, |recorder| {
            let mut random = Seeded::new(rank.seed ^ (own + 1) << 32);
            for _ in 0..rank.options.operations {
                let path = path_of(rank, random.below(rank.options.files as usize) as u64);
                recorder.skip();
                let file = DataFile::read(&path, false).map_err(rank.failed("open", &path))?;
                let mut first = [0];
                file.read_at(&mut first, 0).map_err(rank.failed("read", &path))?;
                file.close().map_err(rank.failed("close", &path))?;
                recorder.done(1)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn path_of(rank: &DataRank<'_>, number: u64) -> PathBuf {
    rank.directory.join(format!("d{:06}/file.{number:08}", number / FILES_PER_DIRECTORY))
}
