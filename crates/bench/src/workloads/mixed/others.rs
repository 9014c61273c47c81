//! The other users. Each works until the experiment ends, and copes with files that others remove at the same time.

use crate::ranks::Recorder;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};
use varve_env::random::Seeded;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OtherUser {
    /// Reads images of the experiment, newest or older.
    Reader,
    /// Writes trees of small files, as tar(1) does.
    Unpacker,
    /// Lists the experiment's directory with the attributes of all files.
    Lister,
    /// Makes and removes trees of empty files.
    Deleter,
}

impl OtherUser {
    pub const ALL: [OtherUser; 4] = [OtherUser::Reader, OtherUser::Unpacker, OtherUser::Lister, OtherUser::Deleter];

    pub fn name(self) -> &'static str {
        match self {
            OtherUser::Reader => "reader",
            OtherUser::Unpacker => "unpacker",
            OtherUser::Lister => "lister",
            OtherUser::Deleter => "deleter",
        }
    }
}

impl fmt::Display for OtherUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for OtherUser {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<OtherUser, String> {
        OtherUser::ALL.into_iter().find(|user| user.name() == text).ok_or_else(|| {
            format!("there is no such user: use some of {}", OtherUser::ALL.map(OtherUser::name).join(", "))
        })
    }
}

pub(super) struct Place {
    pub via: String,
    /// The experiment's directory.
    pub directory: PathBuf,
    pub number: usize,
    pub seed: u64,
}

/// Files of one unpacked directory.
const TREE_FILES: u64 = 50;
/// Most source files are of this size or below.
const SOURCE_BYTES: usize = 4096;
/// A user that finds nothing to do looks again so soon.
const PAUSE: Duration = Duration::from_millis(20);

impl Place {
    fn failed(&self, operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
        let (via, path) = (self.via.clone(), path.display().to_string());
        move |source| Error::Operation { via, operation, path, source }
    }
}

pub(super) fn run(user: OtherUser, place: &Place, time: Duration, recorder: &mut Recorder<'_>) -> Result<()> {
    let end = Instant::now() + time;
    let mut random = Seeded::new(place.seed ^ ((place.number as u64) << 40));
    let mut round = 0;
    while Instant::now() < end {
        recorder.check()?;
        let worked = match user {
            OtherUser::Reader => read_one(place, &mut random, recorder)?,
            OtherUser::Unpacker => make_tree(place, round, &[b'v'; SOURCE_BYTES], end, recorder).map(|()| true)?,
            OtherUser::Lister => list(place, recorder)?,
            OtherUser::Deleter => {
                make_tree(place, round, &[], end, recorder)?;
                remove_tree(place, round, recorder)?;
                true
            }
        };
        round += 1;
        if !worked {
            std::thread::sleep(PAUSE);
            recorder.skip();
        }
    }
    Ok(())
}

fn images(place: &Place) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(&place.directory).map_err(place.failed("list", &place.directory))?;
    let paths = entries.flatten().map(|entry| entry.path());
    Ok(paths.filter(|path| path.extension().is_some_and(|ending| ending == "cbf")).collect())
}

/// `false`: there is no image yet.
fn read_one(place: &Place, random: &mut Seeded, recorder: &mut Recorder<'_>) -> Result<bool> {
    let images = images(place)?;
    if images.is_empty() {
        return Ok(false);
    }
    let path = &images[random.below(images.len())];
    recorder.skip();
    let mut content = Vec::new();
    let read = File::open(path).and_then(|mut file| file.read_to_end(&mut content));
    let bytes = read.map_err(place.failed("read", path))?;
    recorder.done(bytes as u64)?;
    Ok(true)
}

fn list(place: &Place, recorder: &mut Recorder<'_>) -> Result<bool> {
    let images = images(place)?;
    for path in &images {
        recorder.skip();
        fs::symlink_metadata(path).map_err(place.failed("stat", path))?;
        recorder.done(0)?;
    }
    Ok(!images.is_empty())
}

fn tree(place: &Place, round: u64) -> PathBuf {
    place.directory.join(format!("tree.{}.{round}", place.number))
}

fn make_tree(place: &Place, round: u64, content: &[u8], end: Instant, recorder: &mut Recorder<'_>) -> Result<()> {
    let tree = tree(place, round);
    fs::create_dir(&tree).map_err(place.failed("make", &tree))?;
    for number in 0..TREE_FILES {
        if Instant::now() >= end {
            break;
        }
        let path = tree.join(format!("file.{number:04}"));
        recorder.skip();
        fs::write(&path, content).map_err(place.failed("write", &path))?;
        recorder.done(content.len() as u64)?;
    }
    Ok(())
}

fn remove_tree(place: &Place, round: u64, recorder: &mut Recorder<'_>) -> Result<()> {
    let tree = tree(place, round);
    for entry in fs::read_dir(&tree).map_err(place.failed("list", &tree))? {
        let path = entry.map_err(place.failed("list", &tree))?.path();
        recorder.skip();
        fs::remove_file(&path).map_err(place.failed("remove", &path))?;
        recorder.done(0)?;
    }
    fs::remove_dir(&tree).map_err(place.failed("remove", &tree))
}
