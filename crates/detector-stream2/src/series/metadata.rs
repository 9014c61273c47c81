//! Metadata of a series: NXmx's fields, arrays, and values for the rest.

use super::{Stream2Series, plain};
use crate::date;
use crate::message::{SeriesStart, StartArray, Stream2Compression, Stream2Image};
use varve_detector_dataset::dataset_spec::nxmx::{Goniometer, Nxmx, TEXT_BYTES_MAX};
use varve_detector_dataset::dataset_spec::static_array::{ARRAY_BYTES_MAX, PIXEL_MASK, StaticArray};
use varve_detector_dataset::dataset_spec::{DatasetSpec, RunValue, Scalar, ScalarColumn, ScalarKind};
use varve_detector_dataset::limits::is_name;
use varve_detector_dataset::run_metadata::as_mask;
use varve_detector_filters::Compression as Codec;
use varve_detector_hdf5::ElementType;

/// Size of the smallest column for texts of images.
const TEXT_BYTES_MIN: usize = 64;
/// Limit for the table of the countrate correction: an entry for every count of 20 bits.
const TABLE_BYTES_MAX: usize = 8 << 20;
/// Limit for all arrays of a series; a mask and a flatfield for each threshold of the largest detectors have less. They are
/// unpacked in memory, and may be compressed two hundred times.
const ARRAYS_BYTES_MAX: u64 = 1 << 30;
/// Beam energy times wavelength, in electronvolt ångström.
const EV_ANGSTROM: f64 = 12_398.419_843_320_026;

/// Metadata of images, with the column of each. A text's column has room for texts of twice its length.
pub fn scalars(image: &Stream2Image<'_>) -> Vec<(ScalarColumn, Scalar)> {
    let start = image.start.map(|start| ("start_time", Scalar::Float(start as f64 / 1e9)));
    let columns = start.into_iter().chain(image.others.iter().cloned()).filter(|(name, _)| is_name(name));
    let column = |(name, value): (&str, Scalar)| {
        let kind = match &value {
            Scalar::Float(_) => ScalarKind::Float,
            Scalar::Integer(_) => ScalarKind::Integer,
            Scalar::Unsigned(_) => ScalarKind::Unsigned,
            Scalar::Text(text) => {
                let room = (2 * text.len()).next_power_of_two();
                ScalarKind::Text(room.clamp(TEXT_BYTES_MIN, varve_detector_dataset::dataset_spec::TEXT_BYTES_MAX))
            }
        };
        // The start message has user data, too.
        let name = if name == "user_data" { "image_user_data" } else { name };
        (ScalarColumn { name: name.to_owned(), kind }, value)
    };
    let mut placed: Vec<(ScalarColumn, Scalar)> = Vec::new();
    for (column, value) in columns.map(column) {
        if !placed.iter().any(|(known, _)| known.name == column.name) {
            placed.push((column, value));
        }
    }
    placed
}

impl Stream2Series {
    /// Adds the metadata, of which the detector's take precedence over those of `description`.
    pub(super) fn add_metadata(&self, mut description: DatasetSpec) -> DatasetSpec {
        let known = self.known(description.nxmx.take().unwrap_or_default());
        description.nxmx = Some(known);
        for array in self.arrays() {
            let (before, name) = (description.clone(), array.path.clone());
            description.arrays.retain(|other| other.path != array.path);
            if array.path == PIXEL_MASK {
                description.nxmx.iter_mut().for_each(|nxmx| nxmx.pixel_mask.clear());
            }
            description.arrays.push(array);
            // An array that does not fit must not refuse the series.
            if let Err(why) = description.check() {
                tracing::warn!(series = self.start.series, "series recorded without `{name}`: {why}");
                description = before;
            }
        }
        description.values.extend(self.values());
        description
    }

    /// Metadata of the measurement. `beside`: metadata from elsewhere, for fields that the detector does not send.
    /// Invalid numbers count as unknown.
    fn known(&self, beside: Nxmx) -> Nxmx {
        let SeriesStart { pixel_size_x, pixel_size_y, beam_center_x, beam_center_y, .. } = &self.start;
        let number = |value: Option<f64>| value.filter(|value| value.is_finite() && *value > 0.0);
        let pair = |x: Option<f64>, y: Option<f64>| number(x).zip(number(y)).map(|(x, y)| [x, y]);
        let fits = |text: &String| (1..=TEXT_BYTES_MAX).contains(&text.len()) && !text.contains('\0');
        let text = |text: &Option<String>| text.clone().filter(fits);
        let start = &self.start;
        let channels = &start.channels;
        let energy = |channel: &String| {
            let known = start.threshold_energy.iter().find(|(name, _)| name == channel);
            known.map(|(_, energy)| *energy).filter(|energy| energy.is_finite())
        };
        let energies: Vec<f64> = channels.iter().filter_map(energy).collect();
        let named = channels.len() > 1 && channels.iter().all(fits);
        let by_channel = channels.iter().filter_map(|channel| Some((channel.clone(), energy(channel)?)));
        let incident_energy = number(start.incident_energy).or(beside.incident_energy);
        let of_energy = incident_energy.filter(|energy| *energy > 0.0).map(|energy| EV_ANGSTROM / energy);
        Nxmx {
            wavelength: number(start.incident_wavelength).or(beside.wavelength).or(of_energy),
            incident_energy,
            description: text(&start.detector_description).or(beside.description),
            serial_number: text(&start.detector_serial_number).or(beside.serial_number),
            distance: number(start.detector_translation.get(2).copied()).or(beside.distance),
            beam_center: pair(*beam_center_x, *beam_center_y).or(beside.beam_center),
            pixel_size: pair(*pixel_size_x, *pixel_size_y).or(beside.pixel_size),
            sensor_material: text(&start.sensor_material).or(beside.sensor_material),
            sensor_thickness: number(start.sensor_thickness).or(beside.sensor_thickness),
            count_time: number(start.count_time).or(beside.count_time),
            frame_time: number(start.frame_time).or(beside.frame_time),
            saturation_value: start
                .saturation_value
                .and_then(|value| i64::try_from(value).ok())
                .or(beside.saturation_value),
            threshold_energy: if energies.is_empty() { beside.threshold_energy } else { energies },
            channel_names: if named { channels.clone() } else { Vec::new() },
            channel_energy: if named { by_channel.collect() } else { Default::default() },
            flatfield_applied: start.flatfield_enabled.or(beside.flatfield_applied),
            countrate_correction_applied: start.countrate_correction_enabled.or(beside.countrate_correction_applied),
            pixel_mask_applied: start.pixel_mask_enabled.or(beside.pixel_mask_applied),
            virtual_pixel_interpolation_applied: start
                .virtual_pixel_interpolation_enabled
                .or(beside.virtual_pixel_interpolation_applied),
            goniometer: axes(&start.goniometer, &beside.goniometer),
            ..beside
        }
    }

    /// Fields without a place in NXmx. The detector's names are kept.
    fn values(&self) -> Vec<(String, RunValue)> {
        let start = &self.start;
        let integer = |value: u64| i64::try_from(value).map_or(RunValue::Unsigned(value), RunValue::Integer);
        let mut values = vec![("series_id", integer(start.series)), ("number_of_images", integer(start.images))];
        if !start.unique.is_empty() {
            values.push(("series_unique_id", RunValue::Text(start.unique.clone())));
        }
        values.extend(start.arm_date.clone().map(|date| ("arm_date", RunValue::Text(date))));
        values.extend(self.began.map(|began| ("series_date", RunValue::Text(date::format(began)))));
        if !start.detector_translation.is_empty() {
            let list = start.detector_translation.iter().copied().map(RunValue::Float).collect();
            values.push(("detector_translation", RunValue::List(list)));
        }
        if self.first > 0 {
            values.push(("first_image_id", integer(self.first)));
        }
        let mut values: Vec<(String, RunValue)> =
            values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        for (axis, at, increment) in &start.goniometer {
            let pair = vec![RunValue::Float(*at), RunValue::Float(*increment)];
            values.push((format!("goniometer_{axis}"), RunValue::List(pair)));
        }
        values.extend(start.others.iter().cloned());
        values.retain(|(name, value)| is_name(name) && value.check().is_ok());
        values
    }

    /// Masks and flatfields of the channels, and the table of the countrate correction.
    fn arrays(&self) -> Vec<StaticArray> {
        let (mut arrays, mut left) = (Vec::new(), ARRAYS_BYTES_MAX);
        for array in &self.start.arrays {
            match self.array(array, left) {
                Ok(array) => {
                    left -= array.data.as_ref().map_or(0, |data| data.len() as u64);
                    arrays.push(array);
                }
                Err(why) => {
                    tracing::warn!(series = self.start.series, "series recorded without `{}`: {why}", array.name);
                }
            }
        }
        arrays
    }

    /// `most`: the number of bytes that it may have.
    fn array(&self, array: &StartArray, most: u64) -> Result<StaticArray, String> {
        let StartArray { name, shape, element, big_endian, compression, bytes } = array;
        let size = element.size();
        if !name.splitn(2, '/').all(is_name) {
            return Err("its channel has an impossible name".into());
        }
        let (name, shape) = match name.split_once('/') {
            Some(_) if *shape != [self.start.height, self.start.width] => {
                return Err(format!("it has the shape {shape:?}"));
            }
            // The mask of the only channel is the detector's.
            Some((channel, name)) if self.start.channels == [channel] => (name, shape.clone()),
            Some(_) => (name.as_str(), shape.clone()),
            None => {
                let length = match compression {
                    Stream2Compression::None => Some(bytes.len()),
                    Stream2Compression::Lz4 => Codec::Lz4.plain_bytes(bytes),
                    Stream2Compression::BitshuffleLz4 => Codec::BitshuffleLz4.plain_bytes(bytes),
                };
                let length = length.filter(|length| *length <= TABLE_BYTES_MAX).ok_or("it is too large")?;
                (name.as_str(), vec![(length / size) as u64])
            }
        };
        let length = shape.iter().try_fold(size as u64, |bytes, side| bytes.checked_mul(*side));
        // Masks grow to elements of four bytes.
        let grown = length.map(|length| length / size as u64 * size.max(4) as u64);
        let fits = grown.is_some_and(|grown| (1..=ARRAY_BYTES_MAX.min(most)).contains(&grown));
        let length = length.filter(|_| fits).ok_or("it is empty, or too large")?;
        let plain = plain((*compression, *big_endian), *element, bytes, length as usize);
        let plain = plain.map_err(|error| error.to_string())?;
        let is_mask = name.rsplit('/').next() == Some(PIXEL_MASK);
        if is_mask {
            let mask = as_mask(*element, &plain).ok_or("a mask consists of integers")?;
            return Ok(StaticArray::named(name, ElementType::U32, shape, mask));
        }
        Ok(StaticArray::named(name, *element, shape, plain))
    }
}

/// The detector's axes. Their directions, and axes that the detector does not know, come from `beside`. Axes without a
/// known direction are left out.
fn axes(axes: &[(String, f64, f64)], beside: &[Goniometer]) -> Vec<Goniometer> {
    // Outermost first, where the order is not given.
    const ORDER: [&str; 4] = ["omega", "kappa", "chi", "phi"];
    let of = |name: &str| axes.iter().find(|(axis, ..)| axis == name);
    let mut all: Vec<Goniometer> = beside.to_vec();
    for axis in &mut all {
        if let Some((_, start, increment)) = of(&axis.name) {
            (axis.start, axis.increment) = (*start, *increment);
        }
    }
    let mut others: Vec<_> = axes.iter().filter(|(name, ..)| !beside.iter().any(|axis| axis.name == *name)).collect();
    let place = |name: &str| ORDER.iter().position(|known| *known == name);
    others.retain(|(name, ..)| place(name).is_some());
    others.sort_by_key(|(name, ..)| place(name));
    let axis = |(name, start, increment): &(String, f64, f64)| Goniometer {
        name: name.clone(),
        vector: None,
        start: *start,
        increment: *increment,
    };
    all.extend(others.into_iter().map(axis).filter(|axis| axis.direction().is_some()));
    all
}
