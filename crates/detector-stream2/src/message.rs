//! The three messages of stream2. Image data are borrowed from the message; unused fields are skipped.

mod encode;

use super::cbor::{BadCbor, CborItem, CborReader};
use super::date;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use varve_detector_hdf5::ElementType;

/// Tag of a row-major array (RFC 8746, 3.1.1).
const MULTI_DIMENSIONAL: u64 = 40;
/// Tag of `[algorithm, modifier, bytes]`, in place of a byte string.
const DECTRIS_COMPRESSION: u64 = 56500;
/// Detectors have up to four thresholds and their difference.
const CHANNELS_MAX: usize = 16;

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
    End { series: u64 },
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
    /// Optional fields that could not be read, with the reasons.
    #[serde(skip)]
    pub passed_over: Vec<String>,
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
#[derive(Clone, Debug, PartialEq)]
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
}

/// One threshold of an exposure.
#[derive(Clone, Debug, PartialEq)]
pub struct Channel<'m> {
    pub name: &'m str,
    pub height: u64,
    pub width: u64,
    pub element: ElementType,
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

fn start(mut reader: CborReader<'_>) -> Result<SeriesStart, BadStream2Message> {
    let mut start = SeriesStart::default();
    let (mut images, mut passed_over) = (None, Vec::new());
    reader.map(|key, value| {
        match key {
            "series_id" => start.series = value.unsigned()?,
            "series_unique_id" => {
                start.unique = wanted(key, value, &mut passed_over, optional_text)?.unwrap_or_default();
            }
            "number_of_images" => images = Some(value.unsigned()?),
            "image_size_x" => start.width = value.unsigned()?,
            "image_size_y" => start.height = value.unsigned()?,
            "channels" => start.channels = channel_names(value)?,
            "count_time" => start.count_time = wanted(key, value, &mut passed_over, float)?,
            "frame_time" => start.frame_time = wanted(key, value, &mut passed_over, float)?,
            "incident_energy" => start.incident_energy = wanted(key, value, &mut passed_over, float)?,
            "incident_wavelength" => start.incident_wavelength = wanted(key, value, &mut passed_over, float)?,
            "beam_center_x" => start.beam_center_x = wanted(key, value, &mut passed_over, float)?,
            "beam_center_y" => start.beam_center_y = wanted(key, value, &mut passed_over, float)?,
            "pixel_size_x" => start.pixel_size_x = wanted(key, value, &mut passed_over, float)?,
            "pixel_size_y" => start.pixel_size_y = wanted(key, value, &mut passed_over, float)?,
            "sensor_thickness" => start.sensor_thickness = wanted(key, value, &mut passed_over, float)?,
            "sensor_material" => start.sensor_material = wanted(key, value, &mut passed_over, optional_text)?,
            "detector_description" => start.detector_description = wanted(key, value, &mut passed_over, optional_text)?,
            "detector_serial_number" => {
                start.detector_serial_number = wanted(key, value, &mut passed_over, optional_text)?
            }
            "saturation_value" => start.saturation_value = wanted(key, value, &mut passed_over, optional_unsigned)?,
            "threshold_energy" => {
                start.threshold_energy = wanted(key, value, &mut passed_over, energies)?.unwrap_or_default();
            }
            _ => value.skip()?,
        }
        Ok::<(), BadStream2Message>(())
    })?;
    let Some(images) = images else { return bad("the start of a series has no `number_of_images`") };
    (start.images, start.passed_over) = (images, passed_over);
    if start.width == 0 || start.height == 0 || start.channels.is_empty() {
        return bad("the start of a series has no `image_size_x`, `image_size_y` or `channels`");
    }
    Ok(start)
}

/// Reads an optional field. If that fails, the field is skipped and recorded in `passed_over`.
fn wanted<'m, T>(
    key: &str,
    reader: &mut CborReader<'m>,
    passed_over: &mut Vec<String>,
    read: impl FnOnce(&mut CborReader<'m>) -> Result<Option<T>, BadStream2Message>,
) -> Result<Option<T>, BadStream2Message> {
    let before = reader.clone();
    match read(reader) {
        Ok(value) => Ok(value),
        Err(error) => {
            *reader = before;
            reader.skip()?;
            passed_over.push(format!("`{key}`: {error}"));
            Ok(None)
        }
    }
}

fn channel_names(reader: &mut CborReader<'_>) -> Result<Vec<String>, BadStream2Message> {
    let CborItem::Array(Some(count)) = reader.item()? else { return bad("`channels` is not an array") };
    if count > CHANNELS_MAX as u64 {
        return bad(format!("a series has {count} channels; at most {CHANNELS_MAX} are allowed"));
    }
    let mut names: Vec<String> = Vec::new();
    for _ in 0..count {
        let name = reader.text()?;
        if names.iter().any(|known| known == name) {
            return bad(format!("duplicate channel `{}`", shown(name)));
        }
        names.push(name.to_owned());
    }
    Ok(names)
}

fn float(reader: &mut CborReader<'_>) -> Result<Option<f64>, BadStream2Message> {
    match reader.item()? {
        CborItem::Float(value) => Ok(Some(value)),
        CborItem::Unsigned(value) => Ok(Some(value as f64)),
        CborItem::Negative(value) => Ok(Some(value as f64)),
        CborItem::Simple => Ok(None),
        _ => bad("expected a number"),
    }
}

/// One energy for each channel that has one.
fn energies(reader: &mut CborReader<'_>) -> Result<Option<Vec<(String, f64)>>, BadStream2Message> {
    let mut energies = Vec::new();
    reader.map(|name, value| {
        if energies.len() == CHANNELS_MAX {
            return bad(format!("there are more than {CHANNELS_MAX}"));
        }
        // JSON, the format of the run's record, has no NaN or infinity.
        let energy = float(value)?.filter(|energy| energy.is_finite());
        energies.extend(energy.map(|energy| (name.to_owned(), energy)));
        Ok(())
    })?;
    Ok(Some(energies))
}

fn optional_text(reader: &mut CborReader<'_>) -> Result<Option<String>, BadStream2Message> {
    match reader.item()? {
        CborItem::Text(text) => Ok(Some(text.to_owned())),
        CborItem::Simple => Ok(None),
        _ => bad("expected a text"),
    }
}

fn optional_unsigned(reader: &mut CborReader<'_>) -> Result<Option<u64>, BadStream2Message> {
    match reader.item()? {
        CborItem::Unsigned(value) => Ok(Some(value)),
        CborItem::Simple => Ok(None),
        _ => bad("expected an unsigned number"),
    }
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
    let (channels, unreadable) = (Vec::new(), Vec::new());
    let mut image = Stream2Image { series: 0, unique: "", number: 0, began: None, start: None, channels, unreadable };
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
            _ => value.skip()?,
        }
        Ok::<(), BadStream2Message>(())
    });
    (image, number, read)
}

/// Reads a text with or without the date tag; an invalid date is treated as missing.
fn date(reader: &mut CborReader<'_>) -> Result<Option<u64>, BadStream2Message> {
    const DATE: u64 = 0;
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
    let tag = reader.tag()?;
    let Some(element) = element_of(tag) else {
        return bad(format!(
            "the data of channel `{}` are of type {tag} (RFC 8746); only little-endian numbers of 8 to 64 bits are \
            supported",
            shown(name)
        ));
    };
    let (compression, bytes) = match reader.item()? {
        CborItem::Bytes(bytes) => (Stream2Compression::None, bytes),
        CborItem::Tag(DECTRIS_COMPRESSION) => compressed(name, element, reader)?,
        _ => return bad(format!("the data of channel `{}` are not bytes", shown(name))),
    };
    Ok(Channel { name, height, width, element, compression, bytes })
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

/// Tags of typed arrays whose elements have the byte order of the HDF5 file (RFC 8746, 2.1).
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

fn element_of(tag: u64) -> Option<ElementType> {
    TYPES.iter().find(|(known, _)| *known == tag).map(|(_, element)| *element)
}

fn end(mut reader: CborReader<'_>) -> Result<Stream2Message<'_>, BadStream2Message> {
    let mut series = 0;
    reader.map(|key, value| {
        if key == "series_id" {
            series = value.unsigned()?;
            Ok(())
        } else {
            value.skip()
        }
    })?;
    Ok(Stream2Message::End { series })
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
