//! miniCBF files as Pilatus detectors write them: one image a file, with a text header and pixels compressed by CBF
//! byte offsets. `formats/cbf.md` describes the subset that is read and written.
//!
//! Entries: [`CbfImage::encode`], [`decode`].

pub mod byte_offset;

use std::fmt::Write as _;
use varve_detector_hdf5::ElementType;

/// Marker in front of the pixels.
const START_OF_BINARY: [u8; 4] = [0x0c, 0x1a, 0x04, 0xd5];
const BOUNDARY: &str = "--CIF-BINARY-FORMAT-SECTION--";
/// Zero bytes after the pixels, for readers that read whole blocks.
const PADDING_BYTES: usize = 4095;
/// A header is a few KiB; the tables that some beamlines add stay far below this.
const HEADER_BYTES_MAX: usize = 1 << 20;
/// Same limit as for a run's frame.
const IMAGE_BYTES_MAX: u64 = 1 << 30;

const TYPES: [(ElementType, &str); 6] = [
    (ElementType::I32, "signed 32-bit integer"),
    (ElementType::U32, "unsigned 32-bit integer"),
    (ElementType::I16, "signed 16-bit integer"),
    (ElementType::U16, "unsigned 16-bit integer"),
    (ElementType::I8, "signed 8-bit integer"),
    (ElementType::U8, "unsigned 8-bit integer"),
];

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read the CBF image: {0}")]
pub struct BadCbf(pub String);

fn bad<T>(text: impl Into<String>) -> Result<T, BadCbf> {
    Err(BadCbf(text.into()))
}

/// An image in memory, row-major, little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CbfImage {
    pub width: u64,
    pub height: u64,
    pub element: ElementType,
    pub pixels: Vec<u8>,
}

impl CbfImage {
    /// Encodes a CBF file. `name` is the name of the data block, such as `run_00001`; `header` has the lines of the
    /// miniCBF header, such as `Exposure_time 0.04 s`.
    ///
    /// # Errors
    /// If CBF does not support the element type.
    pub fn encode(&self, name: &str, header: &[String]) -> Result<Vec<u8>, BadCbf> {
        let Some((_, kind)) = TYPES.iter().find(|(element, _)| *element == self.element) else {
            return bad(format!("CBF supports integers of 8 to 32 bits, not {}", self.element));
        };
        let mut binary = Vec::with_capacity(self.pixels.len() / 2);
        byte_offset::encode(&self.pixels, self.element, &mut binary);
        let mut text = format!("###CBF: VERSION 1.5\r\n\r\ndata_{name}\r\n\r\n");
        text.push_str("_array_data.header_convention \"PILATUS_1.2\"\r\n_array_data.header_contents\r\n;\r\n");
        for line in header {
            let _ = write!(text, "# {line}\r\n");
        }
        let _ = write!(
            text,
            ";\r\n\r\n_array_data.data\r\n;\r\n{BOUNDARY}\r\n\
             Content-Type: application/octet-stream;\r\n     conversions=\"x-CBF_BYTE_OFFSET\"\r\n\
             Content-Transfer-Encoding: BINARY\r\nX-Binary-Size: {}\r\nX-Binary-ID: 1\r\n\
             X-Binary-Element-Type: \"{kind}\"\r\nX-Binary-Element-Byte-Order: LITTLE_ENDIAN\r\n\
             X-Binary-Number-of-Elements: {}\r\nX-Binary-Size-Fastest-Dimension: {}\r\n\
             X-Binary-Size-Second-Dimension: {}\r\nX-Binary-Size-Padding: {PADDING_BYTES}\r\n\r\n",
            binary.len(),
            self.width * self.height,
            self.width,
            self.height,
        );
        let mut file = text.into_bytes();
        file.extend_from_slice(&START_OF_BINARY);
        file.append(&mut binary);
        file.resize(file.len() + PADDING_BYTES, 0);
        file.extend_from_slice(format!("\r\n{BOUNDARY}--\r\n;\r\n").as_bytes());
        Ok(file)
    }
}

/// # Errors
/// If `file` is not a CBF file of one image compressed by byte offsets, or is damaged. The error says why.
pub fn decode(file: &[u8]) -> Result<CbfImage, BadCbf> {
    if !file.starts_with(b"###CBF:") {
        return bad("it does not begin with ###CBF:");
    }
    let head = &file[..file.len().min(HEADER_BYTES_MAX)];
    let Some(start) = head.windows(START_OF_BINARY.len()).position(|bytes| bytes == START_OF_BINARY) else {
        return bad("no pixels follow its header");
    };
    let header = String::from_utf8_lossy(&file[..start]);
    if !header.contains("x-CBF_BYTE_OFFSET") {
        return bad("its pixels are not compressed by byte offsets (x-CBF_BYTE_OFFSET)");
    }
    if let Some(order) = field(&header, "X-Binary-Element-Byte-Order")
        && order != "LITTLE_ENDIAN"
    {
        return bad(format!("its byte order is {order}"));
    }
    let kind = field(&header, "X-Binary-Element-Type").unwrap_or_default();
    let Some((element, _)) = TYPES.iter().find(|(_, name)| *name == kind) else {
        return bad(format!("it has elements of type `{kind}`"));
    };
    let number = |name: &str| match field(&header, name).and_then(|text| text.parse::<u64>().ok()) {
        Some(number) => Ok(number),
        None => bad(format!("its header has no numeric field {name}")),
    };
    let (width, height) = (number("X-Binary-Size-Fastest-Dimension")?, number("X-Binary-Size-Second-Dimension")?);
    let bytes = width.checked_mul(height).and_then(|pixels| pixels.checked_mul(element.size() as u64));
    let Some(bytes) = bytes.filter(|bytes| *bytes > 0 && *bytes <= IMAGE_BYTES_MAX) else {
        return bad(format!("an image of {width} x {height} pixels; up to {IMAGE_BYTES_MAX} bytes are read"));
    };
    let binary = &file[start + START_OF_BINARY.len()..];
    let size = usize::try_from(number("X-Binary-Size")?).unwrap_or(usize::MAX);
    let Some(binary) = binary.get(..size) else { return bad("it is truncated") };
    // A compressed pixel takes at least one byte, so a shorter body is refused before memory is allocated.
    if (binary.len() as u64) < bytes / element.size() as u64 {
        return bad("it has fewer pixels than its header declares");
    }
    let mut pixels = Vec::with_capacity(bytes as usize);
    byte_offset::decode(binary, *element, bytes as usize, &mut pixels).map_err(|why| BadCbf(why.to_owned()))?;
    Ok(CbfImage { width, height, element: *element, pixels })
}

/// The value of a line `name: value`, without quotes.
fn field<'h>(header: &'h str, name: &str) -> Option<&'h str> {
    header.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.trim().eq_ignore_ascii_case(name).then(|| value.trim().trim_matches('"'))
    })
}

#[cfg(test)]
mod tests;
