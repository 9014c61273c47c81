//! Buffers and encoder of a writing thread.

use super::assemble::Shapes;
use super::stripes::StreamPosition;
use std::io;
use varve_detector_dataset::dataset_spec::DatasetSpec;
use varve_detector_filters::Encoder;

/// Per-thread state for writing.
pub struct Tools {
    pub shapes: Shapes,
    pub encoder: Encoder,
    /// Stream position up to which chunks must be written before the current chunk group is.
    pub position: StreamPosition,
    pub plain: Vec<u8>,
    /// Estimated size of a filtered chunk.
    pub filtered_bytes: usize,
}

impl Tools {
    pub fn new(description: &DatasetSpec) -> io::Result<Tools> {
        let encoder = Encoder::new(description.filter, description.element.size()).map_err(io::Error::other)?;
        Ok(Tools { shapes: Shapes::new(description), encoder, position: 0, plain: Vec::new(), filtered_bytes: 0 })
    }
}
