//! The three messages of stream2. Image data are borrowed from the message; unused fields are skipped.

mod any;
mod encode;
mod start;

use super::cbor::{BadCbor, CborItem, CborReader};
use super::date;
use any::{any, scalar};
use serde::{Deserialize, Serialize};
use start::{start, wanted};
use std::borrow::Cow;
use varve_detector_dataset::dataset_spec::{RunValue, Scalar};
use varve_detector_hdf5::ElementType;

/// Tag of a row-major array (RFC 8746, 3.1.1).
const MULTI_DIMENSIONAL: u64 = 40;
/// Tag of a date as text.
const DATE: u64 = 0;
/// Tag of `[algorithm, modifier, bytes]`, in place of a byte string.
const DECTRIS_COMPRESSION: u64 = 56500;
/// Detectors have up to four thresholds and their difference.
const CHANNELS_MAX: usize = 16;
/// More fields than a message has.
const OTHERS_MAX: usize = 64;
/// Limit for user data and unknown fields; the limit of a text in the file.
const OTHER_BYTES_MAX: usize = varve_detector_dataset::limits::VALUE_BYTES_MAX;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadStream2Message {
    #[error("invalid stream2 message: {0}")]
    Cbor(#[from] BadCbor),
    #[error("{0}")]
    Meaning(String),
}

fn bad<T>(text: impl Into<String>) -> Result<T, BadStream2Message> {
    Err(BadStream2Message::Meaning(text.into()))
}

#[derive(Clone, Debug, PartialEq)]
pub enum Stream2Message<'m> {
    Start(Box<SeriesStart>),
    Image(Stream2Image<'m>),
    End {
        series: u64,
        /// Keys that are not in the format's description.
        unknown: Vec<String>,
    },
}

/// The start message of a series.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SeriesStart {
    pub series: u64,
    pub unique: String,
    pub images: u64,
    pub height: u64,
    pub width: u64,
    /// Names of the channels, in the order in which they are stored.
    pub channels: Vec<String>,
    /// Seconds.
    pub count_time: Option<f64>,
    pub frame_time: Option<f64>,
    /// In electronvolts.
    pub incident_energy: Option<f64>,
    /// In ångström.
    pub incident_wavelength: Option<f64>,
    /// In pixels.
    pub beam_center_x: Option<f64>,
    pub beam_center_y: Option<f64>,
    /// In metres.
    pub pixel_size_x: Option<f64>,
    pub pixel_size_y: Option<f64>,
    pub sensor_thickness: Option<f64>,
    pub sensor_material: Option<String>,
    pub detector_description: Option<String>,
    pub detector_serial_number: Option<String>,
    pub saturation_value: Option<u64>,
    /// In electronvolts, by channel.
    #[serde(default)]
    pub threshold_energy: Vec<(String, f64)>,
    /// Whether the detector applied these corrections.
    #[serde(default)]
    pub countrate_correction_enabled: Option<bool>,
    #[serde(default)]
    pub flatfield_enabled: Option<bool>,
    #[serde(default)]
    pub pixel_mask_enabled: Option<bool>,
    #[serde(default)]
    pub virtual_pixel_interpolation_enabled: Option<bool>,
    #[serde(default)]
    pub arm_date: Option<String>,
    /// In metres.
    #[serde(default)]
    pub detector_translation: Vec<f64>,
    /// Start and increment of each axis, in degrees.
    #[serde(default)]
    pub goniometer: Vec<(String, f64, f64)>,
    /// User data, and fields that are not in the format's description.
    #[serde(default)]
    pub others: Vec<(String, RunValue)>,
    /// Masks, flatfields and the table of the countrate correction. The file has them before its first image.
    #[serde(skip)]
    pub arrays: Vec<StartArray>,
    /// Names of fields that are not in the format's description.
    #[serde(skip)]
    pub unknown: Vec<String>,
    /// Optional fields that could not be read, with the reasons.
    #[serde(skip)]
    pub passed_over: Vec<String>,
}

/// An array of the start message, as it came.
#[derive(Clone, Debug, PartialEq)]
pub struct StartArray {
    /// `NAME`, or `CHANNEL/NAME`.
    pub name: String,
    /// Rows first.
    pub shape: Vec<u64>,
    pub element: ElementType,
    pub big_endian: bool,
    pub compression: Stream2Compression,
    pub bytes: Vec<u8>,
}

impl SeriesStart {
    /// Whether an image belongs to this series. The series number alone does not identify it, because a restarted
    /// detector restarts its numbering.
    pub fn has(&self, image: &Stream2Image<'_>) -> bool {
        let (unique, other) = (self.unique.as_str(), image.unique);
        image.series == self.series && (other.is_empty() || unique.is_empty() || other == unique)
    }
}

/// One exposure.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stream2Image<'m> {
    pub series: u64,
    /// Distinguishes series of the same number; empty if the detector does not send it.
    pub unique: &'m str,
    pub number: u64,
    /// Start of the series in nanoseconds since 1970.
    pub began: Option<u64>,
    /// Start of the exposure in nanoseconds after `began`.
    pub start: Option<u64>,
    pub channels: Vec<Channel<'m>>,
    /// Channels whose data could not be parsed, with the reasons.
    pub unreadable: Vec<(&'m str, BadStream2Message)>,
    /// Times in seconds, user data, and fields that are not in the format's description.
    pub others: Vec<(&'m str, Scalar)>,
    /// Names of the latter, and of what is too long to be kept.
    pub unknown: Vec<&'m str>,
}

/// One threshold of an exposure.
#[derive(Clone, Debug, PartialEq)]
pub struct Channel<'m> {
    pub name: &'m str,
    pub height: u64,
    pub width: u64,
    pub element: ElementType,
    /// Whether the elements, before compression, are in the byte order that HDF5 files do not have.
    pub big_endian: bool,
    pub compression: Stream2Compression,
    pub bytes: &'m [u8],
}

/// Compression of a channel's `bytes`, in the framing of HDF5's registered filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream2Compression {
    None,
    Lz4,
    BitshuffleLz4,
}

impl<'m> Stream2Message<'m> {
    /// # Errors
    /// If it is not a valid stream2 message, or not one that can be kept. The error says why.
    pub fn decode(bytes: &'m [u8]) -> Result<Stream2Message<'m>, BadStream2Message> {
        let mut kind = None;
        CborReader::new(bytes).map(|key, value| {
            if key == "type" {
                kind = Some(value.text()?);
                Ok(())
            } else {
                value.skip()
            }
        })?;
        let reader = CborReader::new(bytes);
        match kind {
            Some("start") => Ok(Stream2Message::Start(Box::new(start(reader)?))),
            Some("image") => Ok(Stream2Message::Image(image(reader)?)),
            Some("end") => end(reader),
            Some(other) => bad(format!("a message of stream2 has the unknown type `{}`", shown(other))),
            None => bad("a message has no `type`; is the detector's stream format `cbor`?"),
        }
    }
}

/// Text from outside, shortened and escaped for a message.
fn shown(text: &str) -> Cow<'_, str> {
    text.chars().take(64).flat_map(char::escape_default).collect::<String>().into()
}

fn image(reader: CborReader<'_>) -> Result<Stream2Image<'_>, BadStream2Message> {
    let (image, number, read) = read_image(reader);
    read?;
    let Some(number) = number else { return bad("an image has no `image_id`") };
    if image.channels.is_empty() && image.unreadable.is_empty() {
        return bad(format!("image {number} has no `data`"));
    }
    Ok(Stream2Image { number, ..image })
}

/// Returns the readable parts of an image, its number, and whether parsing succeeded.
fn read_image(mut reader: CborReader<'_>) -> (Stream2Image<'_>, Option<u64>, Result<(), BadStream2Message>) {
    let mut image = Stream2Image::default();
    let (mut number, mut passed_over) = (None, Vec::new());
    let read = reader.map(|key, value| {
        match key {
            "series_id" => image.series = value.unsigned()?,
            "series_unique_id" => {
                let unique = wanted(key, value, &mut passed_over, |value| Ok(Some(value.text()?)))?;
                image.unique = unique.unwrap_or_default();
            }
            "image_id" => number = Some(value.unsigned()?),
            "series_date" => image.began = wanted(key, value, &mut passed_over, date)?,
            "start_time" => image.start = wanted(key, value, &mut passed_over, rational)?,
            "real_time" | "stop_time" => {
                let time = wanted(key, value, &mut passed_over, rational)?;
                image.others.extend(time.map(|time| (key, Scalar::Float(time as f64 / 1e9))));
            }
            "type" => value.skip()?,
            "data" => {
                (image.channels, image.unreadable) = (Vec::new(), Vec::new());
                value.map(|name, value| {
                    if image.channels.len() + image.unreadable.len() == CHANNELS_MAX {
                        return bad(format!("an image of more than {CHANNELS_MAX} channels"));
                    }
                    let before = value.clone();
                    match channel(name, value) {
                        Ok(channel) => image.channels.push(channel),
                        Err(error) => {
                            *value = before;
                            value.skip()?;
                            image.unreadable.push((name, error));
                        }
                    }
                    Ok(())
                })?;
            }
            _ => {
                let before = passed_over.len();
                let other = wanted(key, value, &mut passed_over, any)?.and_then(scalar);
                if key != "user_data" || passed_over.len() > before {
                    image.unknown.push(key);
                }
                if image.others.len() < OTHERS_MAX {
                    image.others.extend(other.map(|other| (key, other)));
                }
            }
        }
        Ok::<(), BadStream2Message>(())
    });
    (image, number, read)
}

/// Reads a text with or without the date tag; an invalid date is treated as missing.
fn date(reader: &mut CborReader<'_>) -> Result<Option<u64>, BadStream2Message> {
    match reader.item()? {
        CborItem::Tag(DATE) => Ok(date::parse(reader.text()?)),
        CborItem::Text(text) => Ok(date::parse(text)),
        CborItem::Simple => Ok(None),
        _ => bad("expected a date"),
    }
}

/// Reads a ratio of seconds and converts it to nanoseconds.
fn rational(reader: &mut CborReader<'_>) -> Result<Option<u64>, BadStream2Message> {
    reader.array(2)?;
    let (over, under) = (reader.unsigned()?, reader.unsigned()?);
    let nanoseconds = (u128::from(over) * 1_000_000_000).checked_div(u128::from(under));
    Ok(nanoseconds.and_then(|time| u64::try_from(time).ok()))
}

fn channel<'m>(name: &'m str, reader: &mut CborReader<'m>) -> Result<Channel<'m>, BadStream2Message> {
    if reader.tag()? != MULTI_DIMENSIONAL {
        return bad(format!("the data of channel `{}` are not an array of rows (tag 40)", shown(name)));
    }
    reader.array(2)?;
    reader.array(2)?;
    let (height, width) = (reader.unsigned()?, reader.unsigned()?);
    let TypedArray { element, big_endian, compression, bytes } = typed_array(name, reader)?;
    Ok(Channel { name, height, width, element, big_endian, compression, bytes })
}

struct TypedArray<'m> {
    element: ElementType,
    big_endian: bool,
    compression: Stream2Compression,
    bytes: &'m [u8],
}

fn typed_array<'m>(name: &str, reader: &mut CborReader<'m>) -> Result<TypedArray<'m>, BadStream2Message> {
    let tag = reader.tag()?;
    let Some((element, big_endian)) = element_of(tag) else {
        return bad(format!(
            "the data of channel `{}` are of type {tag} (RFC 8746); only numbers of 8 to 64 bits are supported",
            shown(name)
        ));
    };
    let (compression, bytes) = match reader.item()? {
        CborItem::Bytes(bytes) => (Stream2Compression::None, bytes),
        CborItem::Tag(DECTRIS_COMPRESSION) => compressed(name, element, reader)?,
        _ => return bad(format!("the data of channel `{}` are not bytes", shown(name))),
    };
    Ok(TypedArray { element, big_endian, compression, bytes })
}

fn compressed<'m>(
    name: &str,
    element: ElementType,
    reader: &mut CborReader<'m>,
) -> Result<(Stream2Compression, &'m [u8]), BadStream2Message> {
    reader.array(3)?;
    let (algorithm, modifier) = (reader.text()?, reader.unsigned()?);
    let CborItem::Bytes(bytes) = reader.item()? else {
        return bad(format!("the data of channel `{}` are not bytes", shown(name)));
    };
    match algorithm {
        "lz4" => Ok((Stream2Compression::Lz4, bytes)),
        "bslz4" if modifier == element.size() as u64 => Ok((Stream2Compression::BitshuffleLz4, bytes)),
        "bslz4" => bad(format!("channel `{}` is bitshuffled by {modifier} bytes, not by its elements", shown(name))),
        other => bad(format!(
            "channel `{}` is compressed by `{}`; only bslz4, lz4 and none are supported",
            shown(name),
            shown(other)
        )),
    }
}

/// Tags of typed arrays with little-endian elements (RFC 8746, 2.1). The tag of the same type with big-endian elements
/// is lower by [`BIG_ENDIAN`].
const TYPES: [(u64, ElementType); 12] = [
    (64, ElementType::U8),
    (69, ElementType::U16),
    (70, ElementType::U32),
    (71, ElementType::U64),
    (72, ElementType::I8),
    (77, ElementType::I16),
    (78, ElementType::I32),
    (79, ElementType::I64),
    (84, ElementType::F16),
    (85, ElementType::F32),
    (86, ElementType::F64),
    // Clamped arithmetic; the bytes are the same.
    (68, ElementType::U8),
];
const BIG_ENDIAN: u64 = 4;

/// The type of elements, and whether they are big-endian.
fn element_of(tag: u64) -> Option<(ElementType, bool)> {
    let of = |tag: u64| TYPES.iter().find(|(known, _)| *known == tag).map(|(_, element)| *element);
    let swapped = || tag.checked_add(BIG_ENDIAN).and_then(of).filter(|element| element.size() > 1);
    of(tag).map(|element| (element, false)).or_else(|| swapped().map(|element| (element, true)))
}

fn end(mut reader: CborReader<'_>) -> Result<Stream2Message<'_>, BadStream2Message> {
    let (mut series, mut unknown) = (0, Vec::new());
    reader.map(|key, value| {
        match key {
            "series_id" => series = value.unsigned()?,
            "type" | "series_unique_id" => value.skip()?,
            _ => {
                unknown.push(key.to_owned());
                value.skip()?;
            }
        }
        Ok::<(), BadCbor>(())
    })?;
    Ok(Stream2Message::End { series, unknown })
}

impl<'m> Stream2Image<'m> {
    /// Parses a message that is damaged: returns the image's number, if it precedes the damage, with the channels
    /// before the damage.
    pub fn salvage(message: &'m [u8]) -> Option<Stream2Image<'m>> {
        let mut is_image = false;
        // The result is the known parse error.
        let _ = CborReader::new(message).map(|key, value| {
            is_image |= key == "type" && value.text()? == "image";
            if key == "type" { Ok(()) } else { value.skip() }
        });
        let (image, number, _) = read_image(CborReader::new(message));
        number.filter(|_| is_image).map(|number| Stream2Image { number, ..image })
    }

    /// Time of exposure in nanoseconds since 1970; 0 if the detector does not report it.
    pub fn taken(&self) -> u64 {
        self.began.zip(self.start).and_then(|(began, start)| began.checked_add(start)).unwrap_or(0)
    }
}
