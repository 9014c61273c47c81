//! Checks whether a run can be written as specified. These errors would otherwise occur later, when frames have
//! arrived.

use crate::dataset_spec::{Allocate, DatasetSpec, Fill, PLACES_FREE, Region, ScalarKind, Structure, TEXT_BYTES_MAX};
use crate::journal_entry::{ChunkGroupEntry, RECORD_BYTES_MAX};
use crate::layout_columns::NUMBERED_MAX;
use crate::limits::{BadDatasetSpec, CHUNK_BYTES_MAX, VALUE_BYTES_MAX, is_name};
use crate::structure;
use varve_detector_hdf5::IndexKind;

/// HDF5's own limit is 32 dimensions. Detector frames have two or three, and a scan rarely more than three.
const RANK_MAX: usize = 8;
/// The largest detectors have some hundred modules.
const SOURCES_MAX: usize = 1024;
/// The values lie in a message of the object header, which has less than 64 KiB.
const PLUGIN_VALUES_MAX: usize = 1024;
const COLUMNS_MAX: usize = 1024;

type CheckResult = Result<(), BadDatasetSpec>;

fn bad(text: String) -> CheckResult {
    Err(BadDatasetSpec(text))
}

impl DatasetSpec {
    /// # Errors
    /// If no file can be written from this spec. The error says what is wrong and what would be right.
    pub fn check(&self) -> CheckResult {
        self.check_scan()?;
        self.check_chunk()?;
        self.check_advice()?;
        self.fill.map_or(Ok(()), |fill| fill.check(self.element)).map_err(BadDatasetSpec)?;
        let size = self.element.size() as u64;
        let bytes = |sides: &[u64]| sides.iter().try_fold(size, |bytes, side| bytes.checked_mul(*side));
        let chunk: Vec<u64> = self.chunk_scan().into_iter().chain(self.chunk()).collect();
        if bytes(&chunk).is_none_or(|bytes| bytes > CHUNK_BYTES_MAX) {
            return bad(format!(
                "a chunk of {chunk:?} has more than {CHUNK_BYTES_MAX} bytes; give smaller sides in `chunk`"
            ));
        }
        let chunk_group: Vec<u64> = self.chunk_scan().into_iter().chain(self.frame.clone()).collect();
        if bytes(&chunk_group).is_none_or(|bytes| bytes > CHUNK_BYTES_MAX) {
            return bad(match self.chunk_group_frames() {
                1 => format!(
                    "a frame of {:?} {} has more than {CHUNK_BYTES_MAX} bytes, the limit for one frame whatever its \
                    chunks; send parts of it as frames of a scan with one more side",
                    self.frame, self.element
                ),
                frames => format!(
                    "{frames} frames that share chunks, {chunk_group:?}, have more than {CHUNK_BYTES_MAX} bytes; give \
                    smaller sides of the scan in `chunk`"
                ),
            });
        }
        let scan_max = self.scan_max.as_ref().unwrap_or(&self.scan);
        let cells = |sides: &[Option<u64>]| {
            let sides = sides.iter().zip(self.chunk_scan());
            let cells = sides.filter_map(|(side, chunk)| side.map(|side| side.div_ceil(chunk)));
            cells.into_iter().try_fold(self.chunks_per_frame(), |all, side| all.checked_mul(side))
        };
        if [&self.scan, scan_max].into_iter().any(|sides| cells(sides).is_none_or(|all| all > u64::from(u32::MAX))) {
            let (scan, most) = (ends(&self.scan), ends(scan_max));
            return bad(format!("`scan` {scan} (at most {most}) has more than 2^32 chunks"));
        }
        self.check_sources()?;
        self.check_plugin()?;
        self.check_implicit()?;
        self.check_names()?;
        if let Some(nxmx) = &self.nxmx {
            nxmx.check(&self.frame)?;
            if self.structure != Structure::Nexus {
                return bad("`nxmx` needs the structure `nexus`; a layout file defines its own datasets".into());
            }
        }
        if !self.arrays.is_empty() && self.structure != Structure::Nexus {
            return bad("`arrays` need the structure `nexus`".into());
        }
        self.check_arrays()?;
        structure::check(self).map_err(|why| BadDatasetSpec(why.to_string()))
    }

    /// The advice was measured elsewhere and may have been edited since.
    fn check_advice(&self) -> CheckResult {
        const WRITERS_MAX: usize = 256;
        const ALIGNMENT_BYTES: std::ops::RangeInclusive<u64> = 4096..=1 << 30;
        match &self.advice {
            Some(advice) if !(1..=WRITERS_MAX).contains(&advice.writers) => {
                bad(format!("the advice has {} writers; give 1 to {WRITERS_MAX}", advice.writers))
            }
            Some(advice) if !ALIGNMENT_BYTES.contains(&advice.alignment_bytes) => {
                bad(format!("the advice's alignment is {} bytes; give 4096 to 2^30", advice.alignment_bytes))
            }
            Some(advice) if serde_json::to_string(advice).is_ok_and(|text| text.len() > VALUE_BYTES_MAX) => {
                bad(format!("the advice has more than {VALUE_BYTES_MAX} bytes; give the output of `record advise`"))
            }
            _ => Ok(()),
        }
    }

    /// Checks a run that begins. A run of an earlier program continues unchecked.
    ///
    /// # Errors
    /// If memory or the data of a commit could become much larger than the received frames.
    pub fn check_begin(&self) -> CheckResult {
        match self.index_kind() {
            IndexKind::ExtensibleArray => self.check_gaps()?,
            IndexKind::FixedArray | IndexKind::BtreeV2 => self.check_index()?,
            IndexKind::Implicit { .. } => {}
        }
        self.check_numbers()?;
        self.check_record()
    }

    /// A finished file has a row for every frame of a bounded scan, and programs read the rows as a whole.
    fn check_index(&self) -> CheckResult {
        const ELEMENTS_MAX: u64 = 1 << 24;
        let sides = self.grid(0).chunks_max();
        if sides.contains(&None) {
            return Ok(());
        }
        let elements = sides.into_iter().flatten().try_fold(1_u64, u64::checked_mul);
        match elements.is_some_and(|elements| elements <= ELEMENTS_MAX) {
            true => Ok(()),
            false => bad(format!(
                "the scan {} has more than {ELEMENTS_MAX} chunks, and the finished file has rows for all; give null as \
                 the first side of `scan`, or of `scan_max`, or larger chunks",
                ends(&self.scan)
            )),
        }
    }

    /// If inner sides may grow, the index has elements for frames that may come later. Each received frame allows a
    /// limited number of them.
    fn check_gaps(&self) -> CheckResult {
        let last = self.frames_max().map(|frames| frames - 1);
        if last.and_then(|last| self.places(last)).is_some_and(|places| places <= PLACES_FREE) {
            return Ok(());
        }
        // In one step of the index along the scan's first side.
        let (frames, each) = (self.row_frames().saturating_mul(self.chunk_scan()[0]), self.places_a_frame());
        let step = self.places(frames).map_or(0, |places| places - self.chunks_per_frame());
        let is_first = self.scan_max.as_ref().unwrap_or(&self.scan)[0].is_none();
        if is_first && step <= frames.saturating_mul(each) {
            return Ok(());
        }
        bad(format!(
            "the scan {}, which may be extended to {}, leaves more than {each} places of its index free for each frame that \
             comes; give null for two sides of `scan_max`, for an index without places, or less for its inner sides",
            ends(&self.scan),
            ends(self.scan_max.as_ref().unwrap_or(&self.scan)),
        ))
    }

    /// A layout stores the number of every frame, including missing ones, and the end of the run may add all of them at
    /// once.
    fn check_numbers(&self) -> CheckResult {
        let most = self.frames_max().unwrap_or_else(|| self.row_frames());
        match matches!(self.structure, Structure::Layout(_)) && most > NUMBERED_MAX {
            false => Ok(()),
            true => bad(format!(
                "the scan {} may end with {most} missing frames, and a layout numbers at most {NUMBERED_MAX}; give \
                null as the first side of `scan`, and less for the others",
                ends(&self.scan)
            )),
        }
    }

    /// One journal record describes everything written for the frames of a chunk group.
    fn check_record(&self) -> CheckResult {
        let bytes = ChunkGroupEntry::record_bytes_max(self);
        match bytes <= RECORD_BYTES_MAX as u64 {
            true => Ok(()),
            false => bad(format!(
                "{} frames from {} sources share {} chunks, which need a journal record of {bytes} bytes (at most \
                {RECORD_BYTES_MAX}); give smaller sides of the scan in `chunk`, or larger ones of the frame",
                self.chunk_group_frames(),
                self.sources.len().max(1),
                self.chunks_per_frame()
            )),
        }
    }

    fn check_scan(&self) -> CheckResult {
        if !(1..=3).contains(&self.frame.len()) || self.frame.contains(&0) {
            return bad(format!("`frame` is {:?}; give one to three sides above 0", self.frame));
        }
        if self.scan.is_empty() || self.scan.len() + self.frame.len() > RANK_MAX || self.scan.contains(&Some(0)) {
            return bad(format!(
                "`scan` is {}; give 1 to {} sides, none 0",
                ends(&self.scan),
                RANK_MAX - self.frame.len()
            ));
        }
        if self.scan[1..].contains(&None) {
            return bad(
                "a side of `scan` other than the first is null, so a frame's number does not give its position; only \
                the first may be unlimited, others may in `scan_max`"
                    .into(),
            );
        }
        let Some(max) = &self.scan_max else { return Ok(()) };
        let fits = |(side, max): (&Option<u64>, &Option<u64>)| match (side, max) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(side), Some(max)) => side <= max,
        };
        if max.len() != self.scan.len() || !self.scan.iter().zip(max).all(fits) {
            return bad(format!(
                "`scan_max` is {}; give for each side of `scan` {} null or at least as much",
                ends(max),
                ends(&self.scan)
            ));
        }
        Ok(())
    }

    fn check_chunk(&self) -> CheckResult {
        let Some(chunk) = &self.chunk else { return Ok(()) };
        let frame = self.frame.iter().map(|side| Some(*side));
        let sides: Vec<Option<u64>> = match chunk.len() == self.frame.len() {
            true => frame.collect(),
            false => self.scan.iter().copied().chain(frame).collect(),
        };
        let fits = |(chunk, side): (&u64, &Option<u64>)| *chunk > 0 && side.is_none_or(|side| *chunk <= side.max(1));
        if chunk.len() != sides.len() || !chunk.iter().zip(&sides).all(fits) {
            return bad(format!(
                "`chunk` is {chunk:?}; give a side from 1 to the frame's for each of {:?}, and before them, \
                 if it is to hold several frames, one for each of `scan` {}",
                self.frame,
                ends(&self.scan)
            ));
        }
        Ok(())
    }

    fn check_sources(&self) -> CheckResult {
        if self.sources.len() > SOURCES_MAX {
            return bad(format!("{} sources; {SOURCES_MAX} at most", self.sources.len()));
        }
        let rank = self.frame.len();
        for (number, region) in self.sources.iter().enumerate() {
            let sides = |side: usize| (region.offset[side], region.shape[side], self.frame[side]);
            let outside = |side| {
                let (offset, shape, frame) = sides(side);
                shape == 0 || offset.checked_add(shape).is_none_or(|end| end > frame)
            };
            if region.offset.len() != rank || region.shape.len() != rank || (0..rank).any(outside) {
                return bad(format!(
                    "source {number} sends a region at {:?} of {:?}; give offset and shape within the frame {:?}",
                    region.offset, region.shape, self.frame
                ));
            }
            if let Some(other) = self.sources[..number].iter().position(|other| meet(region, other)) {
                return bad(format!("the regions of sources {other} and {number} overlap; give each element to one"));
            }
        }
        Ok(())
    }

    fn check_plugin(&self) -> CheckResult {
        let Some(plugin) = &self.plugin else { return Ok(()) };
        if plugin.values.len() > PLUGIN_VALUES_MAX {
            return bad(format!("`plugin` has {} values; {PLUGIN_VALUES_MAX} at most", plugin.values.len()));
        }
        Ok(())
    }

    fn check_implicit(&self) -> CheckResult {
        if self.allocate != Allocate::Implicit {
            return Ok(());
        }
        let ends = !self.scan.contains(&None) && self.scan_max.as_ref().is_none_or(|max| *max == self.scan);
        let zero = self.fill.is_none_or(Fill::is_zero);
        let whole = self.chunk_group_frames() == 1 && self.sources.is_empty();
        if !ends || !zero || !whole || !self.is_unfiltered() {
            return bad(
                "`allocate` implicit needs raw frames of a limited scan, from one source, in chunks of a frame \
                or less, with fill value zero; choose packed or sparse"
                    .into(),
            );
        }
        Ok(())
    }

    fn check_names(&self) -> CheckResult {
        if self.scalars.len() > COLUMNS_MAX || self.values.len() > COLUMNS_MAX {
            let (scalars, values) = (self.scalars.len(), self.values.len());
            return bad(format!("{scalars} scalars and {values} values; {COLUMNS_MAX} at most of each"));
        }
        for (number, column) in self.scalars.iter().enumerate() {
            let name = &column.name;
            if !is_name(name) || self.scalars[..number].iter().any(|other| other.name == *name) {
                return bad(format!(
                    "the scalar `{name}` has a name that is empty, too long, given twice, `.` or `..`, or contains `/`"
                ));
            }
            if let ScalarKind::Text(bytes) = column.kind
                && !(1..=TEXT_BYTES_MAX).contains(&bytes)
            {
                return bad(format!("the scalar `{name}` is a text of {bytes} bytes; give 1 to {TEXT_BYTES_MAX}"));
            }
        }
        for (name, value) in &self.values {
            if !is_name(name) || self.scalars.iter().any(|column| column.name == *name) {
                return bad(format!(
                    "the value `{name}` has a name that is empty, too long, a scalar's, `.` or `..`, or contains `/`"
                ));
            }
            value.check().map_err(|why| BadDatasetSpec(format!("the value `{name}` {why}")))?;
        }
        Ok(())
    }
}

/// Sides of a scan as the user writes them.
fn ends(sides: &[Option<u64>]) -> String {
    let side = |side: &Option<u64>| side.map_or_else(|| "null".to_owned(), |side| side.to_string());
    format!("[{}]", sides.iter().map(side).collect::<Vec<_>>().join(", "))
}

fn meet(one: &Region, other: &Region) -> bool {
    let apart = |side: usize| {
        one.offset[side] + one.shape[side] <= other.offset[side]
            || other.offset[side] + other.shape[side] <= one.offset[side]
    };
    !(0..one.offset.len()).any(apart)
}
