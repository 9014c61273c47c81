//! The work of each client in each phase: pure arithmetic from the settings and a seed.

use serde::{Deserialize, Serialize};
use varve_env::random::Seeded;

/// One phase. All clients begin it together; the next one begins when all have ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    Create,
    Stat,
    Read,
    Delete,
    Mkdir,
    Rmdir,
}

impl Phase {
    /// `phase` in the JSON.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Create => "create",
            Phase::Stat => "stat",
            Phase::Read => "read",
            Phase::Delete => "delete",
            Phase::Mkdir => "mkdir",
            Phase::Rmdir => "rmdir",
        }
    }

    /// The title of the phase in mdtest's summary (`write` and `reread` belong to streams).
    pub fn title(name: &str) -> &str {
        match name {
            "create" => "File creation",
            "stat" => "File stat",
            "read" => "File read",
            "reread" => "File read again",
            "write" => "File write",
            "delete" => "File removal",
            "mkdir" => "Directory creation",
            "rmdir" => "Directory removal",
            other => other,
        }
    }

    /// The distance to the owner of the files a client works on: mdtest's `-N` with a stride of one client. No client
    /// stats, reads or deletes files that are still in its own cache, and no client deletes the files that it has just
    /// read.
    fn shift(self) -> usize {
        match self {
            Phase::Create | Phase::Mkdir => 0,
            Phase::Stat | Phase::Rmdir => 1,
            Phase::Read => 2,
            Phase::Delete => 3,
        }
    }

    fn shuffled(self) -> bool {
        self.shift() != 0
    }
}

/// One pass over one target.
#[derive(Clone, Debug)]
pub struct Plan {
    pub clients: usize,
    /// Files of all clients together.
    pub files: u64,
    /// A directory a client instead of one for all.
    pub unique_dirs: bool,
    /// The middle of the names, so that two plans can share a directory.
    pub stem: &'static str,
    /// Bytes that each file gets when it is created.
    pub write_bytes: usize,
    pub phases: Vec<Phase>,
    pub seed: u64,
}

impl Plan {
    /// The number of files of `rank`: as even as possible, the first ranks have one more.
    pub fn share(&self, rank: usize) -> u64 {
        let (each, more) = (self.files / self.clients as u64, self.files % self.clients as u64);
        each + u64::from((rank as u64) < more)
    }

    /// The owner of the files that `rank` works on in `phase`.
    pub fn owner(&self, phase: Phase, rank: usize) -> usize {
        match (phase.shift(), self.clients) {
            (0, _) | (_, 1) => rank,
            // From 1 to clients - 1: a client never returns to its own files.
            (shift, clients) => (rank + 1 + (shift - 1) % (clients - 1)) % clients,
        }
    }

    /// Directories below the pass's own: one, or one per client.
    pub fn directories(&self) -> Vec<String> {
        if self.unique_dirs {
            (0..self.clients).map(|rank| self.directory(rank)).collect()
        } else {
            vec![self.directory(0)]
        }
    }

    pub fn directory(&self, owner: usize) -> String {
        if self.unique_dirs { format!("unique.{owner}") } else { "shared".to_owned() }
    }

    /// The name of an owner's files (or directories) without the number.
    pub fn prefix(&self, phase: Phase, owner: usize) -> String {
        match phase {
            Phase::Mkdir | Phase::Rmdir => format!("dir.{}.{owner}.", self.stem),
            _ => format!("file.{}.{owner}.", self.stem),
        }
    }

    /// The numbers of the files in the order in which `rank` handles them in `phase`, each exactly once.
    pub fn order(&self, phase: Phase, rank: usize) -> FileOrder {
        let owner = self.owner(phase, rank);
        let share = self.share(owner);
        if !phase.shuffled() {
            return FileOrder::Rising(share);
        }
        let mut numbers: Vec<u32> = (0..share as u32).collect();
        Seeded::new(self.seed ^ ((phase as u64) << 56) ^ ((rank as u64) << 32)).shuffle(&mut numbers);
        FileOrder::Shuffled(numbers)
    }
}

/// File numbers are kept in 32 bits while they are shuffled.
pub const FILES_MAX: u64 = u32::MAX as u64;

pub enum FileOrder {
    Rising(u64),
    Shuffled(Vec<u32>),
}

impl FileOrder {
    pub fn len(&self) -> u64 {
        match self {
            FileOrder::Rising(len) => *len,
            FileOrder::Shuffled(numbers) => numbers.len() as u64,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// # Panics
    /// If `position` is not below [`FileOrder::len`].
    pub fn at(&self, position: u64) -> u64 {
        match self {
            FileOrder::Rising(_) => position,
            FileOrder::Shuffled(numbers) => u64::from(numbers[position as usize]),
        }
    }
}

/// Appends `number` in decimal. `write!` would cost as much as a tenth of a cached stat.
pub fn push_decimal(text: &mut String, mut number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    text.extend(digits[at..].iter().map(|digit| char::from(*digit)));
}
