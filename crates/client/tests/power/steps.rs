//! The steps of a program, through the library, on a few names that all sequences use.

use varve_env::random::Seeded;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Path {
    A,
    B,
    C,
    D,
}

impl Path {
    pub const ALL: [Path; 4] = [Path::A, Path::B, Path::C, Path::D];

    /// In two directories, which are in different shards if the volume has several.
    pub fn text(self) -> &'static str {
        match self {
            Path::A => "/one/a",
            Path::B => "/one/b",
            Path::C => "/two/c",
            Path::D => "/two/d",
        }
    }

    fn random(chance: &mut Seeded) -> Path {
        Path::ALL[chance.below(Path::ALL.len())]
    }
}

/// A step does nothing if its name is missing or in the way; a step that writes creates the file first.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// Open, write at an offset, close.
    Write(Path, usize, usize),
    /// Open, write at the end, close.
    Append(Path, usize),
    /// Write at an offset through a descriptor that stays open, and flush.
    Hold(Path, usize, usize),
    /// Close that descriptor.
    Drop(Path),
    /// truncate(2)
    Cut(Path, usize),
    /// Open with `O_TRUNC`, close.
    Empty(Path),
    Fsync(Path),
    /// Rename the first over the second.
    Rename(Path, Path),
    Link(Path, Path),
    Remove(Path),
    /// Sync the whole volume.
    Sync,
    /// The background's work a sync interval after a close.
    RecordSize,
}

impl Step {
    pub fn random(chance: &mut Seeded) -> Step {
        let path = Path::random(chance);
        let size = |chance: &mut Seeded| match chance.below(3) {
            0 => chance.below(500),
            1 => chance.below(9000),
            _ => chance.below(40_000),
        };
        match chance.below(20) {
            0..4 => Step::Write(path, size(chance), 1 + size(chance)),
            4..7 => Step::Append(path, 1 + size(chance)),
            7..9 => Step::Hold(path, size(chance), 1 + size(chance)),
            9 => Step::Drop(path),
            10 | 11 => Step::Cut(path, size(chance)),
            12 => Step::Empty(path),
            13 => Step::Fsync(path),
            14 | 15 => Step::Rename(path, Path::random(chance)),
            16 => Step::Link(path, Path::random(chance)),
            17 => Step::Remove(path),
            18 => Step::Sync,
            _ => Step::RecordSize,
        }
    }
}
