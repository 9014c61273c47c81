//! Frames into one CBF file each, as a Pilatus writes them.

use super::{FrameSink, SeriesInfo};
use crate::problem::{Problem, Result};
use std::path::{Path, PathBuf};
use varve_detector_hdf5::ElementType;
use varve_detector_tools::cbf::CbfImage;
use varve_detector_writer::Finished;

pub struct CbfSink {
    directory: PathBuf,
    header: Vec<String>,
    element: ElementType,
    height: u64,
    width: u64,
}

impl CbfSink {
    pub fn begin(directory: &Path, series: &SeriesInfo) -> Result<CbfSink> {
        let [height, width] = series.frame[..] else {
            return Err(Problem::usage("--cbf: a CBF file holds only two-dimensional frames"));
        };
        std::fs::create_dir_all(directory).map_err(|error| {
            Problem::new(format!("cannot create directory {}", directory.display())).caused_by(&error)
        })?;
        let first = directory.join(format!("{}.cbf", name(0)));
        if first.symlink_metadata().is_ok() {
            return Err(Problem::new(format!("{} exists; a series never overwrites another", first.display()))
                .next("Give another directory, or move that series."));
        }
        let mut header = vec!["Detector: Varve simulator".to_owned(), "Pixel_size 172e-6 m x 172e-6 m".to_owned()];
        if let Some(rate) = series.rate {
            header.push(format!("Exposure_period {:.7} s", 1.0 / rate));
        }
        Ok(CbfSink { directory: directory.to_owned(), header, element: series.element, height, width })
    }
}

fn name(number: u64) -> String {
    format!("run_{:06}", number + 1)
}

impl FrameSink for CbfSink {
    /// Readers of the directory see only complete files.
    fn take(&mut self, number: u64, frame: &mut Vec<u8>) -> Result<bool> {
        let name = name(number);
        let image =
            CbfImage { width: self.width, height: self.height, element: self.element, pixels: std::mem::take(frame) };
        let file = image.encode(&name, &self.header).map_err(|error| Problem::usage("--cbf").caused_by(&error))?;
        *frame = image.pixels;
        let (unfinished, path) =
            (self.directory.join(format!(".{name}.cbf")), self.directory.join(format!("{name}.cbf")));
        std::fs::write(&unfinished, file)
            .and_then(|()| std::fs::rename(&unfinished, &path))
            .map_err(|error| Problem::new(format!("cannot write {}", path.display())).caused_by(&error))?;
        Ok(true)
    }

    fn finish(self: Box<Self>, _complete: bool) -> Result<Option<Finished>> {
        Ok(None)
    }
}
