//! Metadata of a measurement for NeXus' application definition NXmx, as far as they are known.

use super::static_array::ARRAY_BYTES_MAX;
use crate::limits::{BadDatasetSpec, is_name};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;

/// Limit for the rectangles of a pixel mask; enough for every bad pixel of a large detector.
const REGIONS_MAX: usize = 100_000;
const MASK_ELEMENT_BYTES: u64 = 4;
/// More axes than any goniometer has.
const AXES_MAX: usize = 8;
pub const TEXT_BYTES_MAX: usize = 1024;

/// Values are in SI units and pixels unless the field's name or comment says otherwise. Absent fields are not written.
/// `definition` is `NXmx` if all required fields are present.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "an object with NXmx metadata")]
pub struct Nxmx {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Names of the beamline, the storage ring, the sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instrument: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<String>,
    /// Wavelength of the beam in ångström.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wavelength: Option<f64>,
    /// Energy of the beam's particles in electronvolts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incident_energy: Option<f64>,
    /// Photons per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_flux: Option<f64>,
    /// Horizontal and vertical size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beam_size: Option<[f64; 2]>,
    /// Manufacturer and model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial_number: Option<String>,
    /// Pixel, CCD, CMOS, …
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distance: Option<f64>,
    /// Position of the direct beam, in pixels along the fastest side and along the second fastest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beam_center: Option<[f64; 2]>,
    /// Along the fastest side and along the second fastest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pixel_size: Option<[f64; 2]>,
    /// Directions of the two sides in NeXus' coordinate system: z along the beam, y up, x to the left when looking
    /// along the beam. Absent: the usual orientation of a detector as seen from the sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fast_direction: Option<[f64; 3]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_direction: Option<[f64; 3]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sensor_material: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sensor_thickness: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count_time: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frame_time: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detector_readout_time: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_time: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bit_depth_readout: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saturation_value: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub underload_value: Option<i64>,
    /// In electronvolts, one per threshold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub threshold_energy: Vec<f64>,
    /// Names of the entries along the frame's first side, if that side enumerates thresholds or other channels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub channel_names: Vec<String>,
    /// Threshold energies of the channels that have one, in electronvolts.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub channel_energy: BTreeMap<String, f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gain_setting: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flatfield_applied: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub countrate_correction_applied: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pixel_mask_applied: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub virtual_pixel_interpolation_applied: Option<bool>,
    /// Regions of abnormal pixels; the bits of overlapping regions are combined.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pixel_mask: Vec<MaskRegion>,
    /// The axes that rotate the sample, one or a list. The first one stands on the floor and carries the next; the last
    /// one carries the sample.
    #[serde(deserialize_with = "one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub goniometer: Vec<Goniometer>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with `value`, `offset` and `shape`")]
pub struct MaskRegion {
    /// Bits as NXmx defines them: 1 gap, 2 dead, 4 under-responding, 8 over-responding, 16 noisy, 256 masked by the
    /// user.
    pub value: u32,
    /// First pixel and sides, slowest first.
    pub offset: Vec<u64>,
    pub shape: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with `name`, `vector`, `start` and `increment`")]
pub struct Goniometer {
    #[serde(default = "omega")]
    pub name: String,
    /// Absent: that of [`Goniometer::direction`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vector: Option<[f64; 3]>,
    /// Angle in degrees at the first frame; `increment` is the step per frame.
    #[serde(default)]
    pub start: f64,
    #[serde(default)]
    pub increment: f64,
}

fn omega() -> String {
    "omega".into()
}

fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Goniometer>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "an axis with `name`, `vector`, `start` and `increment`, or a list of them")]
    enum OneOrMany {
        One(Goniometer),
        Many(Vec<Goniometer>),
    }
    Ok(match OneOrMany::deserialize(deserializer)? {
        OneOrMany::One(axis) => vec![axis],
        OneOrMany::Many(axes) => axes,
    })
}

impl Goniometer {
    /// The axis's direction in NeXus' coordinate system. Without a vector, that of the usual horizontal spindle with
    /// its chi. `None` if the direction is unknown.
    pub fn direction(&self) -> Option<[f64; 3]> {
        self.vector.or(match self.name.as_str() {
            "omega" | "phi" => Some([-1.0, 0.0, 0.0]),
            "chi" => Some([0.0, 0.0, 1.0]),
            _ => None,
        })
    }

    pub fn moves(&self) -> bool {
        self.increment != 0.0
    }
}

impl Nxmx {
    /// Whether all fields are present that NXmx requires beside those that the run itself provides.
    pub fn is_complete(&self) -> bool {
        let texts = [&self.instrument, &self.source, &self.sample, &self.sensor_material];
        let numbers = [self.wavelength, self.total_flux, self.sensor_thickness];
        texts.iter().all(|text| text.is_some()) && numbers.iter().all(Option::is_some) && self.pixel_size.is_some()
    }

    /// # Errors
    /// If a value is impossible for frames of these sides.
    pub fn check(&self, frame: &[u64]) -> Result<(), BadDatasetSpec> {
        let bad = |what: String| Err(BadDatasetSpec(format!("nxmx: {what}")));
        let number = |value: &Option<f64>| value.is_none_or(|value| value.is_finite() && value >= 0.0);
        let numbers = [
            ("wavelength", &self.wavelength),
            ("incident_energy", &self.incident_energy),
            ("total_flux", &self.total_flux),
            ("distance", &self.distance),
            ("sensor_thickness", &self.sensor_thickness),
            ("count_time", &self.count_time),
            ("frame_time", &self.frame_time),
            ("detector_readout_time", &self.detector_readout_time),
            ("dead_time", &self.dead_time),
        ];
        if let Some((name, value)) = numbers.iter().find(|(_, value)| !number(value)) {
            let value = value.unwrap_or_default();
            return bad(format!("`{name}` is {value}; it must be a number that is not negative"));
        }
        if self.wavelength == Some(0.0)
            || self.pixel_size.iter().flatten().any(|side| !(*side > 0.0 && side.is_finite()))
        {
            return bad("`wavelength` and `pixel_size` must be above 0".into());
        }
        let finite = self.beam_center.iter().chain(&self.beam_size).flatten().chain(&self.threshold_energy);
        let finite = finite.chain(self.channel_energy.values());
        if finite.into_iter().any(|value| !value.is_finite()) {
            return bad("`beam_center`, `beam_size` and `threshold_energy` must be numbers".into());
        }
        if !self.channel_names.is_empty() && (frame.len() != 3 || frame[0] != self.channel_names.len() as u64) {
            return bad(format!("{} `channel_names` for frames of {frame:?}", self.channel_names.len()));
        }
        if self.channel_names.iter().any(|name| !(1..=TEXT_BYTES_MAX).contains(&name.len()) || name.contains('\0')) {
            return bad(format!("each of `channel_names` has 1 to {TEXT_BYTES_MAX} bytes, none of them 0"));
        }
        let axes = self.goniometer.iter().map(|axis| axis.vector);
        let mut vectors = [self.fast_direction, self.slow_direction].into_iter().chain(axes).flatten();
        if vectors.any(|vector| unit(vector).is_none()) {
            return bad("a direction has length 0, or is not a number".into());
        }
        if let (Some(fast), Some(slow)) = (self.fast_direction.and_then(unit), self.slow_direction.and_then(unit))
            && fast.iter().zip(slow).map(|(fast, slow)| fast * slow).sum::<f64>().abs() > 0.999_999
        {
            return bad("`fast_direction` and `slow_direction` are parallel".into());
        }
        self.check_goniometer()?;
        let texts = [
            &self.title,
            &self.instrument,
            &self.source,
            &self.sample,
            &self.description,
            &self.serial_number,
            &self.kind,
            &self.sensor_material,
            &self.gain_setting,
        ];
        if texts.into_iter().flatten().any(|text| text.len() > TEXT_BYTES_MAX) {
            return bad(format!("a text has more than {TEXT_BYTES_MAX} bytes"));
        }
        self.check_mask(frame)
    }

    fn check_goniometer(&self) -> Result<(), BadDatasetSpec> {
        let bad = |what: String| Err(BadDatasetSpec(format!("nxmx: {what}")));
        if self.goniometer.len() > AXES_MAX {
            return bad(format!("the goniometer has {} axes; {AXES_MAX} at most", self.goniometer.len()));
        }
        for (number, axis) in self.goniometer.iter().enumerate() {
            let name = &axis.name;
            let is_taken = self.goniometer[..number].iter().any(|other| other.name == *name);
            // Names of other members of the group for the data, which links to the axis.
            if !is_name(name) || is_taken || name.starts_with("data") {
                return bad(format!("the goniometer's axis `{name}` needs a name of its own"));
            }
            if !axis.start.is_finite() || !axis.increment.is_finite() {
                return bad(format!("the goniometer's axis `{name}` needs numbers as start and increment"));
            }
            if axis.direction().is_none() {
                return bad(format!("the direction of the goniometer's axis `{name}` is unknown; give its `vector`"));
            }
        }
        Ok(())
    }

    fn check_mask(&self, frame: &[u64]) -> Result<(), BadDatasetSpec> {
        if self.pixel_mask.len() > REGIONS_MAX {
            return Err(BadDatasetSpec(format!("nxmx: `pixel_mask` has more than {REGIONS_MAX} regions")));
        }
        let bytes = frame.iter().try_fold(MASK_ELEMENT_BYTES, |bytes, side| bytes.checked_mul(*side));
        if !self.pixel_mask.is_empty() && bytes.is_none_or(|bytes| bytes > ARRAY_BYTES_MAX) {
            return Err(BadDatasetSpec(format!("nxmx: frames of {frame:?} are too large for a `pixel_mask`")));
        }
        let outside = |region: &&MaskRegion| {
            let ends = region.offset.iter().zip(&region.shape).map(|(offset, side)| offset.checked_add(*side));
            region.offset.len() != frame.len()
                || region.shape.len() != frame.len()
                || ends.zip(frame).any(|(end, side)| end.is_none_or(|end| end > *side))
        };
        match self.pixel_mask.iter().find(outside) {
            Some(region) => Err(BadDatasetSpec(format!(
                "nxmx: the region at {:?} of {:?} of `pixel_mask` does not lie within a frame of {frame:?}",
                region.offset, region.shape
            ))),
            None => Ok(()),
        }
    }
}

/// The unit vector in this direction; `None` if there is none.
pub fn unit(vector: [f64; 3]) -> Option<[f64; 3]> {
    let length = vector.iter().map(|part| part * part).sum::<f64>().sqrt();
    (length > 0.0 && length.is_finite()).then(|| vector.map(|part| part / length))
}

#[cfg(test)]
mod tests;
