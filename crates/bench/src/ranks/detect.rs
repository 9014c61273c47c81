//! The launcher of this process: its rank from the environment of `mpirun`, `srun` or a benchmark itself.

/// The launcher's facts about this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    pub launcher: &'static str,
    pub rank: usize,
    pub ranks: usize,
    /// The same text in all processes of one start, another one in each start.
    pub job: String,
}

struct Names {
    launcher: &'static str,
    rank: &'static str,
    ranks: &'static str,
    /// Variables that tell two starts apart, as far as the launcher has them.
    job: &'static [&'static str],
    /// It must be set too. In a batch script, Slurm sets the rank of the script's only process.
    needs: Option<&'static str>,
}

const LAUNCHERS: [Names; 3] = [
    Names {
        launcher: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        ranks: "OMPI_COMM_WORLD_SIZE",
        job: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"],
        needs: None,
    },
    Names {
        launcher: "PMI",
        rank: "PMI_RANK",
        ranks: "PMI_SIZE",
        job: &["PMI_JOBID", "HYDRA_JOBID", "SLURM_JOB_ID", "SLURM_STEP_ID"],
        needs: None,
    },
    Names {
        launcher: "Slurm",
        rank: "SLURM_PROCID",
        ranks: "SLURM_STEP_NUM_TASKS",
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
        needs: Some("SLURM_STEP_ID"),
    },
];

impl Launched {
    /// `None`: nobody started several processes.
    ///
    /// # Errors
    /// If the variables contradict each other.
    pub fn detect(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Launched>, String> {
        for names in &LAUNCHERS {
            let (Some(rank), Some(ranks)) = (variable(names.rank), variable(names.ranks)) else { continue };
            if names.needs.is_some_and(|needed| variable(needed).is_none()) {
                continue;
            }
            let number = |name: &str, text: &str| {
                text.parse::<usize>().map_err(|_| format!("{name}={text:?} is no number; start this with one launcher"))
            };
            let (rank, ranks) = (number(names.rank, &rank)?, number(names.ranks, &ranks)?);
            if rank >= ranks {
                return Err(format!("{}={rank} is not below {}={ranks}", names.rank, names.ranks));
            }
            if ranks == 1 {
                return Ok(None);
            }
            let job: Vec<String> = names.job.iter().filter_map(|name| variable(name)).collect();
            return Ok(Some(Launched { launcher: names.launcher, rank, ranks, job: job.join(".") }));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(set: &[(&str, &str)]) -> Result<Option<Launched>, String> {
        Launched::detect(|name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn rank_comes_from_the_environment_of_each_launcher() {
        let open_mpi = [("OMPI_COMM_WORLD_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "4"), ("PMIX_NAMESPACE", "prte-7")];
        let found = detect(&open_mpi).unwrap().unwrap();
        assert_eq!((found.launcher, found.rank, found.ranks, found.job.as_str()), ("Open MPI", 3, 4, "prte-7"));
        let hydra = detect(&[("PMI_RANK", "0"), ("PMI_SIZE", "2")]).unwrap().unwrap();
        assert_eq!((hydra.launcher, hydra.rank, hydra.ranks), ("PMI", 0, 2));
        let step =
            [("SLURM_PROCID", "5"), ("SLURM_STEP_NUM_TASKS", "8"), ("SLURM_JOB_ID", "12"), ("SLURM_STEP_ID", "0")];
        let srun = detect(&step).unwrap().unwrap();
        assert_eq!((srun.launcher, srun.rank, srun.ranks, srun.job.as_str()), ("Slurm", 5, 8, "12.0"));
    }

    #[test]
    fn batch_scripts_and_single_processes_are_no_ranks() {
        assert_eq!(detect(&[]), Ok(None));
        assert_eq!(detect(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8"), ("SLURM_JOB_ID", "12")]), Ok(None));
        assert_eq!(detect(&[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")]), Ok(None));
    }

    #[test]
    fn contradictory_ranks_are_refused() {
        assert!(detect(&[("PMI_RANK", "4"), ("PMI_SIZE", "4")]).unwrap_err().contains("not below"));
        assert!(detect(&[("PMI_RANK", "x"), ("PMI_SIZE", "4")]).unwrap_err().contains("no number"));
    }
}
