//! Replay of an existing series: an HDF5 file of any writer, or a directory of CBF files in the order of their names.

mod error;
mod hdf5_series;
mod linked_files;

pub use error::ReplayError;
pub(crate) use hdf5_series::element;

use crate::cbf;
pub use hdf5_series::hdf5_array;

use error::unfit;
use hdf5_series::Hdf5Series;
use std::path::{Path, PathBuf};
use varve_detector_hdf5::ElementType;

pub struct FrameReplay {
    pub element: ElementType,
    /// Sides of a frame, slowest first.
    pub frame: Vec<u64>,
    pub frames: u64,
    images: Images,
}

enum Images {
    Cbf(Vec<PathBuf>),
    Hdf5(Hdf5Series),
}

impl FrameReplay {
    /// `dataset` names the dataset in an HDF5 file; by default the usual paths are tried.
    ///
    /// # Errors
    /// If there is nothing to replay. The error says what was looked for.
    pub fn open(path: &Path, dataset: Option<&str>) -> Result<FrameReplay, ReplayError> {
        let io = |source| ReplayError::Io { path: path.to_owned(), source };
        if std::fs::metadata(path).map_err(io)?.is_dir() {
            return FrameReplay::cbf(path);
        }
        let (series, element, frame, frames) = Hdf5Series::open(path, dataset)?;
        Ok(FrameReplay { element, frame, frames, images: Images::Hdf5(series) })
    }

    fn cbf(directory: &Path) -> Result<FrameReplay, ReplayError> {
        let io = |source| ReplayError::Io { path: directory.to_owned(), source };
        let mut files = Vec::new();
        for entry in std::fs::read_dir(directory).map_err(io)? {
            let path = entry.map_err(io)?.path();
            if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("cbf")) {
                files.push(path);
            }
        }
        files.sort();
        let Some(first) = files.first() else { return unfit(directory, "there are no .cbf files in this directory") };
        let image = read_cbf(first)?;
        Ok(FrameReplay {
            element: image.element,
            frame: vec![image.height, image.width],
            frames: files.len() as u64,
            images: Images::Cbf(files),
        })
    }

    /// Whether the series records that frame `number` was not received. The series repeats after its last frame.
    pub fn is_missing(&self, number: u64) -> bool {
        match &self.images {
            Images::Hdf5(series) => series.is_missing(number % self.frames),
            Images::Cbf(_) => false,
        }
    }

    /// Replaces `bytes` by frame `number`: row-major, little-endian. The series repeats after its last frame.
    ///
    /// # Errors
    /// If the frame cannot be read, or has another shape than the first.
    pub fn frame_into(&self, number: u64, bytes: &mut Vec<u8>) -> Result<(), ReplayError> {
        let number = number % self.frames;
        match &self.images {
            Images::Hdf5(series) => series.frame_into(number, self.element, bytes),
            Images::Cbf(files) => {
                let path = &files[number as usize];
                let image = read_cbf(path)?;
                if image.element != self.element || [image.height, image.width] != self.frame[..] {
                    return unfit(path, "it has another shape or type than the first image of the series");
                }
                *bytes = image.pixels;
                Ok(())
            }
        }
    }
}

fn read_cbf(path: &Path) -> Result<cbf::CbfImage, ReplayError> {
    let file = std::fs::read(path).map_err(|source| ReplayError::Io { path: path.to_owned(), source })?;
    cbf::decode(&file).or_else(|error| unfit(path, error))
}

#[cfg(test)]
mod tests;
