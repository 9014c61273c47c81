//! The start message.

use super::{
    BadStream2Message, CHANNELS_MAX, DATE, MULTI_DIMENSIONAL, OTHERS_MAX, SeriesStart, StartArray, TypedArray, any,
    bad, shown, typed_array,
};
use crate::cbor::{CborItem, CborReader};
use varve_detector_dataset::dataset_spec::RunValue;
use varve_detector_dataset::limits::is_name;

/// More axes than any goniometer has.
const AXES_MAX: usize = 16;
/// Sides of a vector in space.
const FLOATS_MAX: usize = 16;

pub(super) fn start(mut reader: CborReader<'_>) -> Result<SeriesStart, BadStream2Message> {
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
            "countrate_correction_enabled" => {
                start.countrate_correction_enabled = wanted(key, value, &mut passed_over, flag)?;
            }
            "flatfield_enabled" => start.flatfield_enabled = wanted(key, value, &mut passed_over, flag)?,
            "pixel_mask_enabled" => start.pixel_mask_enabled = wanted(key, value, &mut passed_over, flag)?,
            "virtual_pixel_interpolation_enabled" => {
                start.virtual_pixel_interpolation_enabled = wanted(key, value, &mut passed_over, flag)?;
            }
            "arm_date" => start.arm_date = wanted(key, value, &mut passed_over, date_text)?,
            "detector_translation" => {
                start.detector_translation = wanted(key, value, &mut passed_over, floats)?.unwrap_or_default();
            }
            "goniometer" => start.goniometer = wanted(key, value, &mut passed_over, axes)?.unwrap_or_default(),
            "pixel_mask" | "flatfield" => {
                let arrays = wanted(key, value, &mut passed_over, |value| images_by_channel(key, value))?;
                add_new(&mut start.arrays, arrays.unwrap_or_default());
            }
            "countrate_correction_lookup_table" => {
                let array = wanted(key, value, &mut passed_over, |value| table(key, value))?;
                add_new(&mut start.arrays, array);
            }
            "type" => value.skip()?,
            _ => {
                if key != "user_data" && start.unknown.len() < OTHERS_MAX {
                    start.unknown.push(key.to_owned());
                }
                let other = wanted(key, value, &mut passed_over, any)?.and_then(run_value);
                let is_taken = start.others.iter().any(|(name, _)| name == key);
                match other {
                    Some(other)
                        if is_name(key) && !is_taken && start.others.len() < OTHERS_MAX && other.check().is_ok() =>
                    {
                        start.others.push((key.to_owned(), other));
                    }
                    Some(_) if passed_over.len() < OTHERS_MAX => {
                        passed_over.push(format!("`{}`: its value or its name is too long", shown(key)));
                    }
                    Some(_) => {}
                    None => {}
                }
            }
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

/// A key that is repeated adds nothing.
fn add_new(arrays: &mut Vec<StartArray>, others: impl IntoIterator<Item = StartArray>) {
    for other in others {
        if !arrays.iter().any(|array| array.name == other.name) {
            arrays.push(other);
        }
    }
}

/// Reads an optional field. If that fails, the field is skipped and recorded in `passed_over`.
pub(super) fn wanted<'m, T>(
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
            if passed_over.len() < OTHERS_MAX {
                passed_over.push(format!("`{}`: {error}", shown(key)));
            }
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

fn flag(reader: &mut CborReader<'_>) -> Result<Option<bool>, BadStream2Message> {
    match reader.item()? {
        CborItem::Bool(value) => Ok(Some(value)),
        CborItem::Simple => Ok(None),
        _ => bad("expected true or false"),
    }
}

/// A date, with or without its tag, as it came.
fn date_text(reader: &mut CborReader<'_>) -> Result<Option<String>, BadStream2Message> {
    match reader.item()? {
        CborItem::Tag(DATE) => Ok(Some(reader.text()?.to_owned())),
        CborItem::Text(text) => Ok(Some(text.to_owned())),
        CborItem::Simple => Ok(None),
        _ => bad("expected a date"),
    }
}

fn floats(reader: &mut CborReader<'_>) -> Result<Option<Vec<f64>>, BadStream2Message> {
    let mut values = Vec::new();
    let count = match reader.item()? {
        CborItem::Array(count) => count,
        CborItem::Simple => return Ok(None),
        _ => return bad("expected an array of numbers"),
    };
    while count.is_none_or(|count| (values.len() as u64) < count) {
        if values.len() == FLOATS_MAX {
            return bad(format!("there are more than {FLOATS_MAX}"));
        }
        let before = reader.clone();
        if count.is_none() && reader.item()? == CborItem::Break {
            break;
        }
        *reader = before;
        match float(reader)?.filter(|value| value.is_finite()) {
            Some(value) => values.push(value),
            None => return bad("expected numbers"),
        }
    }
    Ok(Some(values))
}

/// Name, start and increment of an axis.
type Axis = (String, f64, f64);

/// The axes of a goniometer, each a map of numbers.
fn axes(reader: &mut CborReader<'_>) -> Result<Option<Vec<Axis>>, BadStream2Message> {
    let mut axes = Vec::new();
    reader.map(|name, value| {
        if axes.len() == AXES_MAX {
            return bad(format!("there are more than {AXES_MAX} axes"));
        }
        let (mut start, mut increment) = (0.0, 0.0);
        value.map(|key, value| {
            match key {
                "start" => start = float(value)?.unwrap_or(0.0),
                "increment" => increment = float(value)?.unwrap_or(0.0),
                _ => value.skip()?,
            }
            Ok::<(), BadStream2Message>(())
        })?;
        if !start.is_finite() || !increment.is_finite() {
            return bad("expected numbers");
        }
        if !axes.iter().any(|(axis, ..): &Axis| axis == name) {
            axes.push((name.to_owned(), start, increment));
        }
        Ok(())
    })?;
    Ok(Some(axes))
}

/// One image for each channel.
fn images_by_channel(key: &str, reader: &mut CborReader<'_>) -> Result<Option<Vec<StartArray>>, BadStream2Message> {
    let mut arrays = Vec::new();
    reader.map(|channel, value| {
        if arrays.len() == CHANNELS_MAX {
            return bad(format!("there are more than {CHANNELS_MAX}"));
        }
        if value.tag()? != MULTI_DIMENSIONAL {
            return bad(format!("that of channel `{}` is not an array of rows (tag 40)", shown(channel)));
        }
        value.array(2)?;
        value.array(2)?;
        let shape = vec![value.unsigned()?, value.unsigned()?];
        arrays.push(start_array(format!("{channel}/{key}"), shape, typed_array(channel, value)?));
        Ok(())
    })?;
    Ok(Some(arrays))
}

/// An array of one dimension, whose length follows from its bytes.
fn table(key: &str, reader: &mut CborReader<'_>) -> Result<Option<StartArray>, BadStream2Message> {
    Ok(Some(start_array(key.to_owned(), Vec::new(), typed_array(key, reader)?)))
}

fn start_array(name: String, shape: Vec<u64>, array: TypedArray<'_>) -> StartArray {
    let TypedArray { element, big_endian, compression, bytes } = array;
    StartArray { name, shape, element, big_endian, compression, bytes: bytes.to_vec() }
}

/// Values that are not simple are stored as JSON.
fn run_value(value: serde_json::Value) -> Option<RunValue> {
    if value.is_null() {
        return None;
    }
    let simple = serde_json::from_value::<RunValue>(value.clone()).ok();
    Some(simple.filter(|simple| simple.check().is_ok()).unwrap_or_else(|| RunValue::Text(value.to_string())))
}
