//! Metadata files: TOML or JSON with the tables `values`, `nxmx` and `arrays`. Arrays are read from the HDF5, npy and
//! TIFF files that the last table names, relative to the metadata file.

mod array_file;

use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use varve_detector_dataset::dataset_spec::RunValue;
use varve_detector_dataset::dataset_spec::nxmx::Nxmx;
use varve_detector_dataset::dataset_spec::static_array::{PIXEL_MASK, StaticArray};
use varve_detector_dataset::run_metadata::{RunMetadata, as_mask};
use varve_detector_hdf5::ElementType;
use varve_env::toml_text;

#[derive(Debug, thiserror::Error)]
pub enum MetadataError {
    #[error("cannot read the metadata {}: {why}", path.display())]
    File { path: PathBuf, why: String },
    #[error("cannot read the array `{name}` from {}: {why}", path.display())]
    Array { name: String, path: PathBuf, why: String },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MetadataFile {
    #[serde(default)]
    values: BTreeMap<String, RunValue>,
    nxmx: Option<Nxmx>,
    /// Names and places of arrays: `FILE`, or `FILE:/DATASET` in an HDF5 file.
    #[serde(default)]
    arrays: BTreeMap<String, String>,
}

/// Reads JSON from a `.json` file, else TOML.
///
/// # Errors
/// If the file, or a file that it names, cannot be read or understood. The error says which and why.
pub fn read(path: &Path) -> Result<RunMetadata, MetadataError> {
    let cannot = |why: String| MetadataError::File { path: path.to_owned(), why };
    let text = std::fs::read_to_string(path).map_err(|error| cannot(error.to_string()))?;
    let file: MetadataFile = match path.extension().is_some_and(|extension| extension == "json") {
        true => serde_json::from_str(&text).map_err(|error| cannot(error.to_string()))?,
        false => toml::from_str(&text).map_err(|error| cannot(toml_text::reason(&text, &error)))?,
    };
    let directory = path.parent().unwrap_or(Path::new(""));
    let arrays = file.arrays.iter().map(|(name, place)| array(name, directory, place)).collect::<Result<_, _>>()?;
    Ok(RunMetadata { values: file.values, nxmx: file.nxmx, arrays })
}

fn array(name: &str, directory: &Path, place: &str) -> Result<StaticArray, MetadataError> {
    let (file, dataset) = match place.split_once(":/") {
        Some((file, dataset)) => (file, Some(format!("/{dataset}"))),
        None => (place, None),
    };
    let path = directory.join(file);
    let cannot = |why: String| MetadataError::Array { name: name.to_owned(), path: path.clone(), why };
    let array = array_file::read(&path, dataset.as_deref()).map_err(cannot)?;
    if name.rsplit('/').next() != Some(PIXEL_MASK) {
        return Ok(StaticArray::named(name, array.element, array.shape, array.bytes));
    }
    let mask = as_mask(array.element, &array.bytes).ok_or_else(|| cannot("a mask consists of integers".into()))?;
    Ok(StaticArray::named(name, ElementType::U32, array.shape, mask))
}

#[cfg(test)]
mod tests;
