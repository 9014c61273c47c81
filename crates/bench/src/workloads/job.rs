//! A job: the work of one pass at one target, as each rank gets it.

use super::{data, images, mdtest_tree, mixed, small_files};
use crate::Result;
use crate::ranks::RankContext;
use crate::target::{self, Via};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// The target, as `--via` gives it.
    pub via: String,
    /// The pass's own directory, relative to the target's root. It exists and is empty.
    pub directory: String,
    pub seed: u64,
    pub work: RankWork,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum RankWork {
    Mdtest(mdtest_tree::MdtestOptions),
    Data(data::DataOptions),
    SmallFiles(small_files::SmallFilesOptions),
    Images(images::ImagesOptions),
    Mixed(mixed::MixedOptions),
}

impl Job {
    pub(crate) fn target(&self) -> Result<Via> {
        self.via.parse()
    }
}

/// Runs one rank's part of a job.
pub(crate) fn execute(job: &Job, context: &RankContext<'_>) -> Result<()> {
    // On another host, the path can lead elsewhere.
    target::check_trusted(&job.target()?)?;
    match &job.work {
        RankWork::Mdtest(options) => mdtest_tree::run_rank(job, options, context),
        RankWork::Data(options) => data::run_rank(job, options, context),
        RankWork::SmallFiles(options) => small_files::run_rank(job, options, context),
        RankWork::Images(options) => images::run_rank(job, options, context),
        RankWork::Mixed(options) => mixed::run_rank(job, options, context),
    }
}
