//! Files that external links of a master file name. The library's own resolver opens them without our filters.

use super::hdf5_series::filters;
use hdf5_reader::error::Error;
use hdf5_reader::{ExternalLinkResolver, Hdf5File, OpenOptions};
use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};

pub struct LinkedFiles {
    directory: PathBuf,
    opened: Mutex<HashMap<PathBuf, Hdf5File>>,
}

impl LinkedFiles {
    /// Resolves names relative to the directory of the file at `path`.
    pub fn beside(path: &Path) -> LinkedFiles {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        LinkedFiles { directory: directory.to_owned(), opened: Mutex::default() }
    }
}

impl ExternalLinkResolver for LinkedFiles {
    fn resolve_external_link(&self, name: &str) -> hdf5_reader::error::Result<Option<Hdf5File>> {
        let name = Path::new(name);
        // A file from elsewhere must not make this program read files outside of its directory.
        if !name.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
            return Err(Error::InvalidData(format!(
                "the external link to {} leaves the directory of its file",
                name.display()
            )));
        }
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = opened.get(name) {
            return Ok(Some(file.clone()));
        }
        let path = self.directory.join(name);
        if !path.exists() {
            return Ok(None);
        }
        let file = Hdf5File::open_with_options(&path, OpenOptions::default().with_filter_registry(filters()))?;
        opened.insert(name.to_owned(), file.clone());
        Ok(Some(file))
    }
}
