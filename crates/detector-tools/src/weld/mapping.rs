//! The mappings of a virtual dataset: which frames of which file lie where. HDF5 keeps them as objects of its global heap;
//! this module finds them by their checksums, wherever the dataset has its name.

use super::{WeldError, unfit};
use std::ops::Range;
use std::path::{Path, PathBuf};
use varve_detector_hdf5::checksum::lookup3;

/// A master has mappings and metadata; a larger file is not one.
const MASTER_BYTES_MAX: u64 = 1 << 30;
/// Limit for the numbers of frames, which are kept in memory. The index of a new file has at most a quarter of them.
const FRAMES_MAX: u64 = 1 << 26;
/// Limit for the sides of a frame. HDF5 limits chunks to 4 GiB.
const SIDE_MAX: u64 = 1 << 32;
const UNLIMITED: &str = "its virtual dataset is unlimited; weld one whose selections have an end";
/// Frames with two sides, numbered along one.
const RANK: usize = 3;

#[derive(Debug, PartialEq, Eq)]
pub struct VirtualDataset {
    pub mappings: Vec<FrameMapping>,
    pub frames: u64,
    /// Sides of a frame, slowest first.
    pub frame: Vec<u64>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct FrameMapping {
    pub file: PathBuf,
    pub dataset: String,
    pub source: FrameSelection,
    pub target: FrameSelection,
}

/// A selection of frames, all by the same window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameSelection {
    /// Ranges of numbers, rising; `None`: all frames.
    pub frames: Option<Vec<Range<u64>>>,
    /// Offset and length along each side of the frame; `None`: the whole frame.
    pub window: Option<Vec<(u64, u64)>>,
}

impl VirtualDataset {
    pub fn read(master: &Path, dataset: Option<&str>) -> Result<VirtualDataset, WeldError> {
        let length = std::fs::metadata(master).or_else(|error| unfit(master, error))?.len();
        if length > MASTER_BYTES_MAX {
            return unfit(master, format!("it has {length} bytes; a file with a virtual dataset has few"));
        }
        let bytes = std::fs::read(master).or_else(|error| unfit(master, error))?;
        let beside = master.parent().unwrap_or(Path::new(""));
        let mut found: Vec<Vec<FrameMapping>> = Vec::new();
        let mut trouble = None;
        for object in heap_objects(&bytes) {
            match mappings(object, beside) {
                None => {}
                Some(Ok(own)) => {
                    let wanted = dataset.is_none_or(|name| own.iter().all(|one| same_name(&one.dataset, name)));
                    if wanted && !own.is_empty() && !found.contains(&own) {
                        found.push(own);
                    }
                }
                Some(Err(why)) => trouble = Some(why),
            }
        }
        match (found.len(), trouble) {
            (1, _) => VirtualDataset::of(master, found.remove(0)),
            (0, Some(why)) => unfit(master, why),
            (0, None) => unfit(master, "it has no virtual dataset of frames"),
            (..) => unfit(
                master,
                "it has several virtual datasets of frames; choose one by the name of its dataset in their files \
                (--dataset)",
            ),
        }
    }

    fn of(master: &Path, mappings: Vec<FrameMapping>) -> Result<VirtualDataset, WeldError> {
        let ends = |mapping: &FrameMapping| {
            let frames = mapping.target.frames.as_ref()?.last()?.end;
            let sides = mapping.target.window.as_ref()?.iter().map(|(from, side)| from + side).collect::<Vec<_>>();
            Some((frames, sides))
        };
        let (mut frames, mut frame) = (0, vec![0; RANK - 1]);
        for mapping in &mappings {
            let Some((own_frames, sides)) = ends(mapping) else {
                return unfit(master, "a mapping of its virtual dataset fills all of it");
            };
            frames = own_frames.max(frames);
            frame = sides.into_iter().zip(frame).map(|(side, other)| side.max(other)).collect();
        }
        Ok(VirtualDataset { mappings, frames, frame })
    }
}

fn same_name(one: &str, other: &str) -> bool {
    one.trim_start_matches('/') == other.trim_start_matches('/')
}

/// The objects of all collections of the global heap.
fn heap_objects(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    const SIGNATURE: &[u8] = b"GCOL";
    let starts = bytes.windows(SIGNATURE.len()).enumerate().filter(|(_, window)| *window == SIGNATURE);
    starts.flat_map(|(start, _)| collection(&bytes[start..]))
}

fn collection(bytes: &[u8]) -> Vec<&[u8]> {
    const HEADER: usize = 16;
    const OBJECT: usize = 16;
    let mut objects = Vec::new();
    let size = bytes.get(8..HEADER).and_then(|size| usize::try_from(word(size)).ok());
    let Some(mut rest) = size.and_then(|size| bytes.get(HEADER..size)) else { return objects };
    while let Some((header, after)) = rest.split_at_checked(OBJECT) {
        let Ok(size) = usize::try_from(word(&header[8..])) else { break };
        // Object 0 is the free space.
        if header[..2] == [0, 0] || size > after.len() {
            break;
        }
        objects.push(&after[..size]);
        rest = &after[size.next_multiple_of(8).min(after.len())..];
    }
    objects
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// The mappings of an object; `None` if the object is something else.
fn mappings(object: &[u8], beside: &Path) -> Option<Result<Vec<FrameMapping>, String>> {
    let (body, checksum) = object.split_at_checked(object.len().checked_sub(4)?)?;
    if word(checksum) != u64::from(lookup3(body)) {
        return None;
    }
    let mut reader = Reader(body);
    match reader.number(1)? {
        0 => {}
        version => return Some(Err(format!("its virtual dataset has format version {version}; 0 is supported"))),
    }
    let count = reader.number(8)?;
    let mut mappings = Vec::new();
    for _ in 0..count {
        let (file, dataset) = (reader.text()?, reader.text()?);
        let (source, target) = (reader.selection()?, reader.selection()?);
        let (source, target) = match (source, target) {
            (Ok(source), Ok(target)) => (source, target),
            (Err(why), _) | (_, Err(why)) => return Some(Err(why)),
        };
        if file.contains("%b") || dataset.contains("%b") {
            return Some(Err(format!("its virtual dataset names a series of files, {file}, which is not supported")));
        }
        mappings.push(FrameMapping { file: beside.join(file), dataset, source, target });
    }
    Some(Ok(mappings))
}

struct Reader<'b>(&'b [u8]);

type Selected = Result<FrameSelection, String>;

impl Reader<'_> {
    fn number(&mut self, bytes: usize) -> Option<u64> {
        let (number, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(word(number))
    }

    fn numbers(&mut self, count: usize, bytes: usize) -> Option<Vec<u64>> {
        (0..count).map(|_| self.number(bytes)).collect()
    }

    fn text(&mut self) -> Option<String> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let text = String::from_utf8(self.0[..end].to_vec()).ok()?;
        self.0 = &self.0[end + 1..];
        Some(text)
    }

    /// A selection as HDF5 stores it. `None`: it is damaged.
    fn selection(&mut self) -> Option<Selected> {
        const HYPERSLABS: u64 = 2;
        const ALL: u64 = 3;
        let (kind, version) = (self.number(4)?, self.number(4)?);
        match kind {
            HYPERSLABS => self.hyperslabs(version),
            ALL => {
                // Reserved, and the length of nothing.
                self.number(8)?;
                Some(Ok(FrameSelection::default()))
            }
            kind => Some(Err(format!("its virtual dataset has a selection of kind {kind}; hyperslabs are supported"))),
        }
    }

    fn hyperslabs(&mut self, version: u64) -> Option<Selected> {
        const REGULAR: u64 = 1;
        let (is_regular, width) = match version {
            1 => {
                self.number(8)?;
                (false, 4)
            }
            2 => {
                let flags = self.number(1)?;
                self.number(4)?;
                (flags & REGULAR != 0, 8)
            }
            3 => (self.number(1)? & REGULAR != 0, self.number(1)? as usize),
            version => return Some(Err(format!("its virtual dataset has selections of version {version}"))),
        };
        let rank = self.number(4)? as usize;
        if rank != RANK {
            return Some(Err(format!("its virtual dataset has {rank} dimensions; frames of two sides have {RANK}")));
        }
        if is_regular {
            let sides: Option<Vec<Vec<u64>>> = (0..rank).map(|_| self.numbers(4, width)).collect();
            let (sides, unlimited) = (sides?, u64::MAX >> (64 - 8 * width.clamp(1, 8)));
            if sides.iter().any(|side| side[2..].contains(&unlimited)) {
                return Some(Err(UNLIMITED.into()));
            }
            return Some(regular(&sides));
        }
        let count = self.number(width)?;
        let mut blocks = Vec::new();
        for _ in 0..count {
            blocks.push((self.numbers(rank, width)?, self.numbers(rank, width)?));
        }
        Some(irregular(blocks))
    }
}

/// Start, stride, count and block along each dimension.
fn regular(sides: &[Vec<u64>]) -> Selected {
    let (start, stride, count, block) = (sides[0][0], sides[0][1], sides[0][2], sides[0][3]);
    let end = count.checked_mul(stride.max(block)).and_then(|length| start.checked_add(length));
    if end.is_none_or(|end| end > FRAMES_MAX) {
        return Err(format!("its virtual dataset has more than {FRAMES_MAX} frames"));
    }
    let frames = (0..count).map(|number| start + number * stride..start + number * stride + block);
    let window = sides[1..].iter().map(|side| match side[..] {
        [start, _, 1, block] => Ok((start, block)),
        [start, stride, count, block] if stride == block => Ok((start, count.saturating_mul(block))),
        _ => Err("its virtual dataset takes frames apart".to_owned()),
    });
    let window = window.collect::<Result<Vec<_>, _>>()?;
    if window.iter().any(|(start, side)| start.saturating_add(*side) > SIDE_MAX) {
        return Err(format!("its virtual dataset has frames with a side above {SIDE_MAX}"));
    }
    Ok(FrameSelection { frames: Some(frames.collect()), window: Some(window) })
}

/// First and last element of each block.
fn irregular(blocks: Vec<(Vec<u64>, Vec<u64>)>) -> Selected {
    let (mut frames, mut window) = (Vec::new(), None);
    for (start, end) in blocks {
        if start.iter().zip(&end).any(|(start, end)| start > end) || end[0] >= FRAMES_MAX {
            return Err("its virtual dataset has a block of no elements".into());
        }
        if end[1..].iter().any(|end| *end >= SIDE_MAX) {
            return Err(format!("its virtual dataset has frames with a side above {SIDE_MAX}"));
        }
        let own: Vec<(u64, u64)> =
            start[1..].iter().zip(&end[1..]).map(|(start, end)| (*start, end - start + 1)).collect();
        if *window.get_or_insert_with(|| Vec::clone(&own)) != own {
            return Err("its virtual dataset takes frames apart".into());
        }
        frames.push(start[0]..end[0] + 1);
    }
    frames.sort_by_key(|range| range.start);
    Ok(FrameSelection { frames: Some(frames), window })
}
