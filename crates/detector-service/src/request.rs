//! Requests to start a run, and rules for the location of its file.

use serde::{Deserialize, Serialize};
use std::path::{Component, Path, PathBuf};
use varve_detector_dataset::dataset_spec::DatasetSpec;
use varve_env::disk;

pub const RECORDS: &str = ".varve-record";

/// Default time that a run waits for clients that have disconnected.
const ABSENCE_S: f64 = 60.0;
/// More than the modules of any detector.
const SOURCES_MAX: u16 = 1024;
/// File name limit of stores, minus space for `.journal.bad-99`.
const FILE_NAME_BYTES_MAX: usize = 255 - 15;

/// The body of `POST /runs`, and the start request in a HELLO. Unknown keys are refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with `name`, `file` and `description`")]
pub struct StartRequest {
    /// Letters, digits, `.`, `_`, `-`. May be omitted in a HELLO, which has a run name of its own.
    #[serde(default)]
    pub name: String,
    /// The HDF5 file to create, below the service's directory.
    pub file: PathBuf,
    pub description: DatasetSpec,
    /// Number of clients that each send a part of the frames. The run is complete when all have sent END. If the
    /// dataset spec has regions, there is one client per region and this field has no effect.
    #[serde(default = "one")]
    pub sources: u16,
    /// Whether the run finishes when all sources are complete; otherwise it continues until it is stopped.
    #[serde(default = "yes")]
    pub finish: bool,
    /// How long the run waits for clients that left without END. It is then finished with the frames so far.
    #[serde(default = "absence")]
    pub absence_s: f64,
    /// How many missing directories above the file may be created.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub directories: u8,
}

fn one() -> u16 {
    1
}

fn yes() -> bool {
    true
}

fn is_zero(number: &u8) -> bool {
    *number == 0
}

fn absence() -> f64 {
    ABSENCE_S
}

impl StartRequest {
    pub fn new(name: &str, file: PathBuf, description: DatasetSpec) -> StartRequest {
        StartRequest {
            name: name.into(),
            file,
            description,
            sources: 1,
            finish: true,
            absence_s: ABSENCE_S,
            directories: 0,
        }
    }

    /// # Errors
    /// If this is not the JSON of a request. The error says where.
    pub fn from_json(json: &[u8]) -> Result<StartRequest, String> {
        // The parser would also accept an array of the values, in the order of the fields.
        match json.trim_ascii_start().first() {
            Some(b'{') | None => serde_json::from_slice(json).map_err(|error| error.to_string()),
            Some(_) => Err("it must be an object with `name`, `file` and `description`".into()),
        }
    }

    /// Whether both requests begin the same run. The elements of arrays are not compared: the service keeps them only in
    /// the run's file.
    pub fn is_same(&self, other: &StartRequest) -> bool {
        let bare = |request: &StartRequest| {
            let mut request = request.clone();
            request.description.take_array_data();
            request
        };
        bare(self) == bare(other)
    }

    /// Whether each source sends a region of every frame.
    pub fn has_regions(&self) -> bool {
        !self.description.sources.is_empty()
    }

    /// Number of clients that send frames.
    pub fn source_count(&self) -> u16 {
        match self.description.sources.len() {
            0 => self.sources,
            regions => u16::try_from(regions).unwrap_or(u16::MAX),
        }
    }

    /// The index of the set of frames that a source belongs to.
    pub fn set_of(&self, source: u16) -> usize {
        if self.has_regions() { usize::from(source) } else { 0 }
    }

    /// The number of distinguished sets.
    pub fn sets(&self) -> usize {
        if self.has_regions() { usize::from(self.source_count()) } else { 1 }
    }

    /// # Errors
    /// If the request or its dataset spec is invalid. The error says what is wrong. The writer checks the spec further.
    pub fn check(&self) -> Result<(), String> {
        varve_detector_stream::hello::check_run_name(&self.name).map_err(|error| error.to_string())?;
        if !(1..=SOURCES_MAX).contains(&self.sources) {
            return Err(format!("`sources` is {}; give 1 to {SOURCES_MAX}", self.sources));
        }
        let regions = self.description.sources.len();
        if regions > 0 && self.sources != 1 && usize::from(self.sources) != regions {
            return Err(format!(
                "`sources` is {}, but the description has {regions} regions; leave it out",
                self.sources
            ));
        }
        if !(self.absence_s >= 0.0 && self.absence_s <= 1e6) {
            return Err(format!("`absence_s` is {}; give seconds from 0 to 1000000", self.absence_s));
        }
        // The caller adds that the run cannot start.
        self.description.check().map_err(|error| error.0)
    }
}

/// Whether the path contains `..`, which [`place`] refuses.
fn has_parent_component(file: &Path) -> bool {
    file.components().any(|part| matches!(part, Component::ParentDir))
}

/// Creates the missing directories of `file` below `root`, `directories` at most.
///
/// # Errors
/// If `file` is not below `root`, more directories are missing, or one cannot be created.
pub fn create_directories(root: &Path, file: &Path, directories: u8) -> Result<(), String> {
    let path = root.join(file);
    let Some(parent) = path.parent().filter(|_| !has_parent_component(file)) else { return Ok(()) };
    let missing: Vec<&Path> = parent.ancestors().take_while(|above| above.symlink_metadata().is_err()).collect();
    let Some(highest) = missing.last() else { return Ok(()) };
    if missing.len() > usize::from(directories) {
        return Err(format!(
            "`file` {}: {} directories are missing, the highest is {}; create them, or raise `directories`, which is {directories}",
            file.display(),
            missing.len(),
            highest.display()
        ));
    }
    // Checks that the file is below the root, through the directory that exists.
    place(root, highest)?;
    disk::create_directories_below(root, parent)
        .map_err(|error| format!("`file` {}: cannot create {}: {error}", file.display(), parent.display()))
}

/// The path of `file` below `root`, which must be absolute and without symbolic links.
///
/// # Errors
/// If `file` is not below `root`, or its directory does not exist.
pub fn place(root: &Path, file: &Path) -> Result<PathBuf, String> {
    let shown = file.display();
    if file.as_os_str().as_encoded_bytes().contains(&0) {
        return Err("`file` contains a NUL byte".into());
    }
    let refused = || format!("`file` {shown} is not beneath {}, the service's directory", root.display());
    if has_parent_component(file) {
        return Err(format!("`file` {shown} contains `..`; name the file without it"));
    }
    let name = file.file_name().ok_or_else(|| format!("`file` {shown} names no file"))?;
    let parent = root.join(file.parent().unwrap_or(Path::new("")));
    // Symbolic links below the root may point outside of it.
    let parent = match parent.canonicalize() {
        Ok(parent) => parent,
        Err(_) if !parent.starts_with(root) => return Err(refused()),
        Err(error) => {
            return Err(format!(
                "`file` {shown}: the directory {}: {error}",
                parent.display().to_string().trim_end_matches('/')
            ));
        }
    };
    if name.len() > FILE_NAME_BYTES_MAX {
        return Err(format!("`file` has a name of {} bytes; give at most {FILE_NAME_BYTES_MAX}", name.len()));
    }
    let hidden = parent.strip_prefix(root).map_err(|_| refused())?;
    if hidden.starts_with(RECORDS) || name.to_string_lossy().starts_with(".varve") {
        return Err(format!("`file` {shown} is in the directory where this service keeps its own files"));
    }
    Ok(parent.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_stay_beneath_the_root() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = directory.path().canonicalize().expect("it is there");
        std::fs::create_dir(root.join("scan")).expect("made");
        std::os::unix::fs::symlink("/", root.join("out")).expect("made");
        std::fs::create_dir(root.join(".varve-record")).expect("made");
        assert_eq!(place(&root, Path::new("scan/a.h5")), Ok(root.join("scan/a.h5")));
        assert_eq!(place(&root, &root.join("a.h5")), Ok(root.join("a.h5")));
        for (file, words) in [
            ("/etc/a.h5", "not beneath"),
            ("/nowhere/a.h5", "not beneath"),
            ("scan/../../a.h5", "contains `..`"),
            ("out/a.h5", "not beneath"),
            ("missing/a.h5", "No such file"),
            (&"a".repeat(241), "give at most 240"),
            (".varve-record/a.h5", "its own files"),
            ("/", "names no file"),
        ] {
            let refused = place(&root, Path::new(file)).expect_err(file);
            assert!(refused.contains(words), "{file}: {refused}");
        }
    }
}
