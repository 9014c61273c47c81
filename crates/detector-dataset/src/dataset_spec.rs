//! Dataset spec: shape, element type, chunks, filter and structure of a run, given before it starts. The spec is
//! checked as a whole, so that a run that starts can be written to its end.

mod fill;
pub mod nxmx;
mod run_value;
mod scalar;
pub mod static_array;

pub use fill::Fill;
pub use run_value::RunValue;
pub use scalar::{Scalar, ScalarColumn, ScalarKind, TEXT_BYTES_MAX};

use crate::advice::Advice;
use crate::geometry::{ravel, unravel};
use crate::layout::Layout;
use nxmx::Nxmx;
use serde::{Deserialize, Serialize};
use static_array::StaticArray;
use std::collections::BTreeMap;
use varve_detector_filters::{Filter, FilterRegistration, PluginChoice};
use varve_detector_hdf5::index::Element;
use varve_detector_hdf5::{ElementType, FilterMessage, Grid, IndexKind};

/// Array indexes have 32-bit element numbers.
pub const PLACES_MAX: u64 = u32::MAX as u64;
/// Number of index elements that may be unused before many frames have arrived, as when several processes start at once
/// in the middle of a scan. Unused elements take memory, and space in each commit, only near used ones.
pub const PLACES_FREE: u64 = 1 << 26;
/// Number of frame numbers that one received frame may account for. Tables have an entry for every number, so a client
/// that sends few frames with sparse numbers would take much memory.
pub const NUMBERS_A_FRAME: u64 = 1 << 10;
/// First address of chunks whose addresses follow from their numbers. Stripe sizes of stores divide it or are multiples
/// of it.
const IMPLICIT_BASE: u64 = 1 << 20;

/// The spec of one run. Its JSON form refuses unknown keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a dataset spec: an object with `element`, `frame` and others")]
pub struct DatasetSpec {
    pub element: ElementType,
    /// Sides of a frame in elements, slowest first.
    pub frame: Vec<u64>,
    /// Sides of the scan, slowest first. `null` is an unlimited side; only the first side may be unlimited. Absent: one
    /// unlimited side.
    #[serde(default = "endless")]
    pub scan: Vec<Option<u64>>,
    /// Number of the first frame, for detectors that count on from run to run. The other frames follow it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub first_frame: u64,
    /// Limits to which the sides of the scan may be extended after the run; `null`: unlimited. Absent: `scan`. With
    /// several unlimited sides the index of the file is a B-tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scan_max: Option<Vec<Option<u64>>>,
    /// Sides of a chunk within a frame, or of the scan and the frame if a chunk holds several frames. Absent: the
    /// frame.
    #[serde(default)]
    pub chunk: Option<Vec<u64>>,
    /// Regions of a multi-module detector, each sent by its own source. Absent: one source that sends whole frames.
    /// Elements between regions read as the fill value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<Region>,
    #[serde(default = "bslz4")]
    pub filter: Filter,
    /// A user's own filter, applied after `filter`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugin: Option<PluginChoice>,
    /// Value of missing elements; the element type must be able to represent it. Absent: zero.
    #[serde(default)]
    pub fill: Option<Fill>,
    #[serde(default)]
    pub structure: Structure,
    /// The scalars of each frame. The position of a column is its number.
    #[serde(default)]
    pub scalars: Vec<ScalarColumn>,
    /// Values of the whole run, by name: a group `values` beside the scalars, or a layout's NDAttributes that are not
    /// scalars.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, RunValue>,
    /// Metadata for NXmx, for the structure `nexus`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nxmx: Option<Nxmx>,
    /// Arrays of the whole run, for the structure `nexus`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arrays: Vec<StaticArray>,
    #[serde(default)]
    pub allocate: Allocate,
    /// The advice that chunk, filter, writers and alignment come from; it is stored in the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<Box<Advice>>,
}

fn endless() -> Vec<Option<u64>> {
    vec![None]
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn bslz4() -> Filter {
    Filter::BSLZ4
}

/// The part of a frame that one source sends, in elements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a region: an object with `offset` and `shape`")]
pub struct Region {
    pub offset: Vec<u64>,
    pub shape: Vec<u64>,
}

/// The groups and datasets of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Structure {
    /// `/data` and its companion datasets, at the root.
    #[default]
    Raw,
    /// NXentry, NXinstrument, NXdetector, NXdata.
    Nexus,
    /// As a layout file describes; in JSON its text.
    Layout(Layout),
}

/// How chunks get their addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Allocate {
    /// One after the other, so that many chunks are written at once.
    #[default]
    Packed,
    /// Each chunk gets the space of its uncompressed size; unwritten bytes stay a hole.
    Sparse,
    /// Each chunk has the address that its number determines, so that the file needs no index. For raw frames of a
    /// bounded scan, with zero as fill value because holes read as zero.
    Implicit,
}

impl DatasetSpec {
    /// A spec with default settings.
    pub fn new(element: ElementType, frame: Vec<u64>) -> DatasetSpec {
        DatasetSpec {
            element,
            frame,
            scan: endless(),
            first_frame: 0,
            scan_max: None,
            chunk: None,
            sources: Vec::new(),
            filter: bslz4(),
            plugin: None,
            fill: None,
            structure: Structure::default(),
            scalars: Vec::new(),
            values: BTreeMap::new(),
            nxmx: None,
            arrays: Vec::new(),
            allocate: Allocate::default(),
            advice: None,
        }
    }

    /// Sides of a chunk within a frame.
    pub fn chunk(&self) -> Vec<u64> {
        match &self.chunk {
            Some(sides) => sides[sides.len().saturating_sub(self.frame.len())..].to_vec(),
            None => self.frame.clone(),
        }
    }

    /// Sides of a chunk along the scan, in frames.
    pub fn chunk_scan(&self) -> Vec<u64> {
        match &self.chunk {
            Some(sides) if sides.len() > self.frame.len() => sides[..sides.len() - self.frame.len()].to_vec(),
            _ => vec![1; self.scan.len()],
        }
    }

    /// Number of frames that share chunks: a chunk group.
    pub fn chunk_group_frames(&self) -> u64 {
        self.chunk_scan().iter().product()
    }

    /// The region of each source.
    pub fn regions(&self) -> Vec<Region> {
        match self.sources.is_empty() {
            true => vec![Region { offset: vec![0; self.frame.len()], shape: self.frame.clone() }],
            false => self.sources.clone(),
        }
    }

    /// Number of chunks of a frame along each side.
    pub fn chunk_counts(&self) -> Vec<u64> {
        self.frame.iter().zip(self.chunk()).map(|(side, chunk)| side.div_ceil(chunk)).collect()
    }

    pub fn chunks_per_frame(&self) -> u64 {
        self.chunk_counts().iter().product()
    }

    pub fn frame_bytes(&self) -> usize {
        self.frame.iter().product::<u64>() as usize * self.element.size()
    }

    /// Bytes of one frame's part of a chunk.
    pub fn chunk_frame_bytes(&self) -> usize {
        self.chunk().iter().product::<u64>() as usize * self.element.size()
    }

    pub fn chunk_bytes(&self) -> usize {
        self.chunk_frame_bytes() * self.chunk_group_frames() as usize
    }

    /// Upper limit for the number of frames in the run.
    pub fn frames_max(&self) -> Option<u64> {
        self.scan.iter().copied().product()
    }

    /// Row-major position of frame `number` in the scan.
    pub fn place(&self, number: u64) -> Vec<u64> {
        let mut rest = number;
        let mut place: Vec<u64> = self.scan[1..]
            .iter()
            .rev()
            .map(|side| {
                let side = side.expect("checked: inner sides end");
                let at = rest % side;
                rest /= side;
                at
            })
            .collect();
        place.push(rest);
        place.reverse();
        place
    }

    /// The frame at a position of the scan; `None` outside of it.
    fn number(&self, place: &[u64]) -> Option<u64> {
        let within = place.iter().zip(&self.scan).all(|(at, side)| side.is_none_or(|side| *at < side));
        let sides: Vec<u64> = self.scan.iter().map(|side| side.unwrap_or(0)).collect();
        within.then(|| ravel(place, &sides))
    }

    /// Number of chunks along each side of the scan; 0 along an unlimited side, which is the first.
    fn cells(&self) -> Vec<u64> {
        self.scan
            .iter()
            .zip(self.chunk_scan())
            .map(|(side, chunk)| side.map_or(0, |side| side.div_ceil(chunk)))
            .collect()
    }

    /// The chunk group of a frame, and the frame's index within it.
    pub fn chunk_group_of(&self, frame: u64) -> (u64, u64) {
        let (place, chunk) = (self.place(frame), self.chunk_scan());
        let cell: Vec<u64> = place.iter().zip(&chunk).map(|(at, chunk)| at / chunk).collect();
        let within: Vec<u64> = place.iter().zip(&chunk).map(|(at, chunk)| at % chunk).collect();
        (ravel(&cell, &self.cells()), ravel(&within, &chunk))
    }

    /// Coordinates of a chunk group's chunks along the scan.
    pub fn cell(&self, chunk_group: u64) -> Vec<u64> {
        let cells = self.cells();
        let inner: u64 = cells[1..].iter().product();
        let mut cell = vec![chunk_group / inner];
        cell.extend(unravel(chunk_group % inner, &cells[1..]));
        cell
    }

    /// The chunk group of the chunk that begins at this element of the dataset, and the chunk's number within a frame.
    /// `None` if the run has no such chunk.
    pub fn chunk_at(&self, offsets: &[u64]) -> Option<(u64, usize)> {
        let sides: Vec<u64> = self.chunk_scan().into_iter().chain(self.chunk()).collect();
        let cells: Vec<Option<u64>> =
            self.scan.iter().zip(self.chunk_scan()).map(|(side, chunk)| Some(side.as_ref()?.div_ceil(chunk))).collect();
        let counts: Vec<Option<u64>> = cells.into_iter().chain(self.chunk_counts().into_iter().map(Some)).collect();
        let at: Vec<u64> = offsets.iter().zip(&sides).map(|(offset, side)| offset / side).collect();
        let within =
            at.len() == counts.len() && at.iter().zip(&counts).all(|(at, count)| count.is_none_or(|count| *at < count));
        let (cell, chunk) = at.split_at_checked(self.scan.len()).filter(|_| within)?;
        Some((ravel(cell, &self.cells()), ravel(chunk, &self.chunk_counts()) as usize))
    }

    /// The frames of a chunk group, in the order of their slots.
    pub fn frames_of(&self, chunk_group: u64) -> impl Iterator<Item = u64> {
        let (cell, chunk) = (self.cell(chunk_group), self.chunk_scan());
        (0..self.chunk_group_frames()).filter_map(move |slot| {
            let within = unravel(slot, &chunk);
            let place: Vec<u64> = (0..chunk.len()).map(|side| cell[side] * chunk[side] + within[side]).collect();
            self.number(&place)
        })
    }

    /// Number of frames in one step along the scan's first side.
    pub fn row_frames(&self) -> u64 {
        self.scan[1..].iter().map(|side| side.expect("checked: inner sides end")).product()
    }

    /// The dataset's shape when it holds the frames below `frames`.
    pub fn grid(&self, frames: u64) -> Grid {
        let mut dims = vec![frames.div_ceil(self.row_frames())];
        dims.extend(self.scan[1..].iter().flatten());
        dims.extend(&self.frame);
        let scan_max = self.scan_max.as_ref().unwrap_or(&self.scan);
        let max = scan_max.iter().copied().chain(self.frame.iter().map(|side| Some(*side))).collect();
        let chunk = self.chunk_scan().into_iter().chain(self.chunk()).collect();
        Grid::new(dims, max, chunk, self.element.size())
    }

    /// Number of elements that an array index needs for the frame's last chunk, including elements for earlier chunks
    /// that have not arrived. `None` if the index is not an array.
    pub fn places(&self, frame: u64) -> Option<u64> {
        if !matches!(self.index_kind(), IndexKind::FixedArray | IndexKind::ExtensibleArray) {
            return None;
        }
        let mut last = self.cell(self.chunk_group_of(frame).0);
        last.extend(self.chunk_counts().iter().map(|count| count - 1));
        Some(self.grid(0).linear(&last).saturating_add(1))
    }

    /// Whether the index can address this frame.
    pub fn takes_frame(&self, frame: u64) -> bool {
        self.places(frame).is_none_or(|places| places <= PLACES_MAX)
    }

    /// Number of unused index elements that each received frame may account for. A frame with many chunks may skip
    /// another one.
    pub fn places_a_frame(&self) -> u64 {
        NUMBERS_A_FRAME.max(self.chunks_per_frame().saturating_mul(2))
    }

    /// Whether the index can record a chunk of this size.
    pub fn takes_chunk(&self, bytes: u64) -> bool {
        let plain = self.chunk_bytes() as u64;
        match self.is_unfiltered() {
            true => bytes == plain,
            false => (1..=Element::new(true, plain).size_max()).contains(&bytes),
        }
    }

    /// Whether chunks are stored unfiltered.
    pub fn is_unfiltered(&self) -> bool {
        self.filter.is_raw() && self.plugin.is_none()
    }

    /// The filter pipeline that readers must undo.
    pub fn filter_messages(&self) -> Vec<FilterMessage> {
        let mut messages = self.filter.messages(self.element.size(), self.chunk_bytes() as u64);
        if let Some(plugin) = &self.plugin
            && let Some(FilterRegistration { id, name }) = plugin.registered.clone()
        {
            messages.push(FilterMessage { id, name, values: plugin.values.clone() });
        }
        messages
    }

    /// Address of chunk number `chunk` when addresses follow from numbers.
    pub fn implicit_address(&self, chunk: u64) -> u64 {
        IMPLICIT_BASE + chunk * self.chunk_bytes() as u64
    }

    /// The kind of chunk index of the dataset.
    pub fn index_kind(&self) -> IndexKind {
        match self.allocate {
            Allocate::Implicit => IndexKind::Implicit { base: IMPLICIT_BASE },
            Allocate::Packed | Allocate::Sparse => self.grid(0).index_kind(),
        }
    }

    /// The fill value as one element.
    pub fn fill_element(&self) -> Vec<u8> {
        self.fill.unwrap_or(Fill::Whole(0)).element(self.element)
    }

    /// Takes over the chunk shape and the filter of a recommendation.
    ///
    /// # Errors
    /// If the run's frames have another shape or element type.
    pub fn follow(&mut self, advice: &Advice) -> Result<(), String> {
        if advice.frame != self.frame || advice.element != self.element {
            return Err(format!(
                "the advice is for frames of {:?} {}, the run has frames of {:?} {}",
                advice.frame,
                advice.element.name(),
                self.frame,
                self.element.name()
            ));
        }
        if let Some(chunk) = &advice.chunk {
            let within = chunk[chunk.len() - advice.frame.len()..].to_vec();
            let scan = self.scan.len();
            let mut whole = vec![1; scan];
            if chunk.len() > advice.frame.len() {
                whole[scan - 1] = chunk[0].min(self.scan[scan - 1].unwrap_or(u64::MAX)).max(1);
            }
            whole.extend(within);
            self.chunk = Some(whole);
        } else {
            self.chunk = None;
        }
        self.filter = advice.filter;
        self.advice = Some(Box::new(advice.clone()));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
