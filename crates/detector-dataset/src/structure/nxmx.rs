//! NXmx additions to the built-in NeXus structure.

mod specific;

use super::parts::{class, text};
use crate::catalog::Catalog;
use crate::dataset_spec::DatasetSpec;
use crate::dataset_spec::nxmx::{Goniometer, Nxmx, unit};
use crate::dataset_spec::static_array::{CHANNEL_ENERGY, CHANNEL_SUFFIX, PIXEL_MASK, StaticArray};
use crate::limits::is_name;
use crate::mask;
use std::collections::BTreeSet;
use varve_detector_hdf5::{Attribute, Dataset, Datatype, ElementType, Group, Storage, TreeNode, Value};

const DETECTOR: &str = "/entry/instrument/detector";
/// Directions for a detector seen from the sample, with its first pixel at the upper left.
const FAST: [f64; 3] = [-1.0, 0.0, 0.0];
const SLOW: [f64; 3] = [0.0, -1.0, 0.0];
const ALONG_BEAM: [f64; 3] = [0.0, 0.0, 1.0];

type Members<'a> = Vec<(String, TreeNode<'a>)>;

/// Path of the angles of a goniometer's axis.
pub fn path_of(axis: &Goniometer) -> String {
    format!("/entry/sample/transformations/{}", axis.name)
}

/// The axis whose angle changes from frame to frame.
pub fn moving_axis(nxmx: &Nxmx) -> Option<&Goniometer> {
    nxmx.goniometer.iter().find(|axis| axis.moves())
}

/// Members of the entry: description of the measurement.
pub fn entry<'a>(nxmx: &Nxmx, catalog: &'a Catalog) -> Members<'a> {
    let mut members = Members::new();
    if nxmx.is_complete() {
        members.push(field("definition", Value::text("NXmx"), None));
    }
    push_text(&mut members, "title", nxmx.title.as_deref());
    if let Some((first, last)) = catalog.span() {
        members.push(field("start_time", Value::text(&iso_8601(first)), None));
        members.push(field("end_time_estimated", Value::text(&iso_8601(last)), None));
    }
    if let Some(name) = &nxmx.source {
        members.push(group("source", "NXsource", vec![field("name", Value::text(name), None)]));
    }
    let mut sample = Members::new();
    push_text(&mut sample, "name", nxmx.sample.as_deref());
    let carrier = nxmx.goniometer.last().map_or_else(|| ".".to_owned(), path_of);
    sample.push(field("depends_on", Value::text(&carrier), None));
    if !nxmx.goniometer.is_empty() {
        let mut before = ".".to_owned();
        let axis = |axis: &Goniometer| {
            let angles = rotation(axis, catalog.frames(), &std::mem::replace(&mut before, path_of(axis)));
            (axis.name.clone(), angles)
        };
        let axes = nxmx.goniometer.iter().map(axis).collect();
        sample.push(group("transformations", "NXtransformations", axes));
    }
    members.push(group("sample", "NXsample", sample));
    members
}

/// Members of the instrument: its name and the beam.
pub fn instrument<'a>(nxmx: &Nxmx) -> Members<'a> {
    let mut members = Members::new();
    push_text(&mut members, "name", nxmx.instrument.as_deref());
    let mut beam = Members::new();
    push_float(&mut beam, "incident_wavelength", nxmx.wavelength, "angstrom");
    push_float(&mut beam, "incident_energy", nxmx.incident_energy, "eV");
    push_float(&mut beam, "total_flux", nxmx.total_flux, "Hz");
    if let Some(size) = nxmx.beam_size {
        beam.push(field("incident_beam_size", Value::floats(&size), Some("m")));
    }
    members.push(group("beam", "NXbeam", beam));
    members
}

/// Members of the detector: its properties and position.
pub fn detector<'a>(nxmx: &Nxmx, catalog: &'a Catalog) -> Members<'a> {
    let mut members = Members::new();
    let texts = [
        ("description", &nxmx.description),
        ("serial_number", &nxmx.serial_number),
        ("type", &nxmx.kind),
        ("sensor_material", &nxmx.sensor_material),
        ("gain_setting", &nxmx.gain_setting),
    ];
    for (name, value) in texts {
        push_text(&mut members, name, value.as_deref());
    }
    let [center_x, center_y] = [0, 1].map(|side| nxmx.beam_center.map(|center| center[side]));
    let [pixel_x, pixel_y] = [0, 1].map(|side| nxmx.pixel_size.map(|size| size[side]));
    let numbers = [
        ("distance", nxmx.distance, "m"),
        ("beam_center_x", center_x, "pixel"),
        ("beam_center_y", center_y, "pixel"),
        ("x_pixel_size", pixel_x, "m"),
        ("y_pixel_size", pixel_y, "m"),
        ("sensor_thickness", nxmx.sensor_thickness, "m"),
        ("count_time", nxmx.count_time, "s"),
        ("frame_time", nxmx.frame_time, "s"),
        ("detector_readout_time", nxmx.detector_readout_time, "s"),
        ("dead_time", nxmx.dead_time, "s"),
    ];
    for (name, value, units) in numbers {
        push_float(&mut members, name, value, units);
    }
    let flag = |flag: Option<bool>| flag.map(i64::from);
    let integers = [
        ("bit_depth_readout", nxmx.bit_depth_readout),
        ("saturation_value", nxmx.saturation_value),
        ("underload_value", nxmx.underload_value),
        ("flatfield_applied", flag(nxmx.flatfield_applied)),
        ("countrate_correction_applied", flag(nxmx.countrate_correction_applied)),
        ("pixel_mask_applied", flag(nxmx.pixel_mask_applied)),
        ("virtual_pixel_interpolation_applied", flag(nxmx.virtual_pixel_interpolation_applied)),
    ];
    for (name, value) in integers {
        members.extend(value.map(|value| field(name, Value::integer(value), None)));
    }
    if !nxmx.threshold_energy.is_empty() {
        members.push(field("threshold_energy", Value::floats(&nxmx.threshold_energy), Some("eV")));
    }
    if !nxmx.channel_names.is_empty() {
        let names: Vec<&str> = nxmx.channel_names.iter().map(String::as_str).collect();
        members.push(field("channel_names", Value::texts(&names), None));
    }
    members.extend(arrays(catalog, ""));
    members.extend(mask_of_regions(nxmx, &catalog.description));
    // The mask of the first channel stands for all, as in files of one threshold.
    let mask = specific::mask_path(nxmx, catalog).filter(|path| path.contains('/'));
    members.extend(mask.map(|path| (PIXEL_MASK.to_owned(), TreeNode::HardLink(format!("{DETECTOR}/{path}")))));
    members.extend(channels(nxmx, catalog));
    members.extend(geometry(nxmx, &catalog.description.frame));
    members.push(group("detectorSpecific", "NXcollection", specific::members(nxmx, catalog)));
    members
}

/// The arrays in a group below the detector's; the detector's own group is empty.
fn arrays<'a>(catalog: &Catalog, group: &str) -> Members<'a> {
    let description = &catalog.description;
    let placed = description.arrays.iter().zip(description.array_addresses());
    let lies = |array: &StaticArray| array.path.rsplit_once('/').map_or("", |(group, _)| group) == group;
    let node = |(array, address): (&StaticArray, u64)| {
        let (datatype, dims) = (Datatype::Number(array.element), array.shape.clone());
        let storage = Storage::Placed { datatype, dims, address };
        (array.name().to_owned(), TreeNode::Dataset(Dataset { attributes: Vec::new(), storage }))
    };
    placed.filter(|(array, _)| lies(array)).map(node).collect()
}

/// The mask of a run that an earlier build began: its spec still has the regions, and its file has no room for an array.
fn mask_of_regions<'a>(nxmx: &Nxmx, description: &DatasetSpec) -> Option<(String, TreeNode<'a>)> {
    if nxmx.pixel_mask.is_empty() || description.array(PIXEL_MASK).is_some() {
        return None;
    }
    let datatype = Datatype::Number(mask::ELEMENT);
    let data = mask::mask(&description.frame, &nxmx.pixel_mask);
    Some(field(PIXEL_MASK, Value { datatype, dims: description.frame.clone(), data }, None))
}

/// A group for each channel, for example a threshold: its energy and its arrays.
fn channels<'a>(nxmx: &Nxmx, catalog: &Catalog) -> Members<'a> {
    let named = nxmx.channel_names.iter().map(|name| format!("{name}{CHANNEL_SUFFIX}"));
    let of_arrays = catalog.description.arrays.iter().filter_map(|array| array.path.rsplit_once('/'));
    let of_arrays = of_arrays.map(|(group, _)| group).filter(|group| group.ends_with(CHANNEL_SUFFIX));
    let names: BTreeSet<String> = named.chain(of_arrays.map(str::to_owned)).collect();
    let channel = |name: String| {
        let mut members = arrays(catalog, &name);
        let energy = nxmx.channel_energy.get(name.trim_end_matches(CHANNEL_SUFFIX)).copied();
        push_float(&mut members, CHANNEL_ENERGY, energy, "eV");
        group(&name, "NXdetector_channel", members)
    };
    names.into_iter().filter(|name| is_name(name)).map(channel).collect()
}

/// Positions of the pixels: from the sample along the beam, then to the first pixel, then from pixel to pixel.
fn geometry<'a>(nxmx: &Nxmx, frame: &[u64]) -> Members<'a> {
    let mut members = Members::new();
    let mut before = ".".to_owned();
    if let Some(distance) = nxmx.distance {
        let axis = translation(distance, ALONG_BEAM, &before);
        members.push(group("transformations", "NXtransformations", vec![("translation".to_owned(), axis)]));
        before = format!("{DETECTOR}/transformations/translation");
    }
    members.push(field("depends_on", Value::text(&before), None));
    let Some(pixel) = nxmx.pixel_size else { return members };
    let fast = nxmx.fast_direction.and_then(unit).unwrap_or(FAST);
    let slow = nxmx.slow_direction.and_then(unit).unwrap_or(SLOW);
    let integers = |values: &[u64]| {
        let data = values.iter().flat_map(|value| (*value as i64).to_le_bytes()).collect();
        Value { datatype: Datatype::Number(ElementType::I64), dims: vec![values.len() as u64], data }
    };
    let mut module =
        vec![field("data_origin", integers(&vec![0; frame.len()]), None), field("data_size", integers(frame), None)];
    if let Some(center) = nxmx.beam_center {
        // From the beam centre back to the corner of the first pixel.
        let way = [0, 1, 2].map(|axis| -(center[0] * pixel[0] * fast[axis] + center[1] * pixel[1] * slow[axis]));
        let length = way.iter().map(|part| part * part).sum::<f64>().sqrt();
        let offset = translation(length, unit(way).unwrap_or(fast), &before);
        module.push(("module_offset".to_owned(), offset));
        before = format!("{DETECTOR}/module/module_offset");
    }
    module.push(("fast_pixel_direction".to_owned(), translation(pixel[0], fast, &before)));
    module.push(("slow_pixel_direction".to_owned(), translation(pixel[1], slow, &before)));
    members.push(group("module", "NXdetector_module", module));
    members
}

fn transformation(kind: &str, vector: [f64; 3], units: &str, depends_on: &str) -> Vec<Attribute> {
    vec![
        text("transformation_type", kind),
        Attribute { name: "vector".into(), value: Value::floats(&vector) },
        Attribute { name: "offset".into(), value: Value::floats(&[0.0; 3]) },
        text("units", units),
        text("depends_on", depends_on),
    ]
}

fn translation<'a>(length: f64, vector: [f64; 3], depends_on: &str) -> TreeNode<'a> {
    let attributes = transformation("translation", vector, "m", depends_on);
    TreeNode::Dataset(Dataset { attributes, storage: Storage::Whole(Value::float(length)) })
}

fn rotation<'a>(axis: &Goniometer, frames: u64, depends_on: &str) -> TreeNode<'a> {
    let frames = if axis.moves() { frames } else { 1 };
    let angles: Vec<f64> = (0..frames).map(|frame| axis.start + frame as f64 * axis.increment).collect();
    let vector = axis.direction().expect("checked: its direction is known");
    let attributes = transformation("rotation", vector, "degree", depends_on);
    TreeNode::Dataset(Dataset { attributes, storage: Storage::Whole(Value::floats(&angles)) })
}

fn field<'a>(name: &str, value: Value, units: Option<&str>) -> (String, TreeNode<'a>) {
    let attributes = units.map(|units| text("units", units)).into_iter().collect();
    (name.to_owned(), TreeNode::Dataset(Dataset { attributes, storage: Storage::Whole(value) }))
}

fn push_text(members: &mut Members<'_>, name: &str, value: Option<&str>) {
    members.extend(value.map(|value| field(name, Value::text(value), None)));
}

fn push_float(members: &mut Members<'_>, name: &str, value: Option<f64>, units: &str) {
    members.extend(value.map(|value| field(name, Value::float(value), Some(units))));
}

fn group<'a>(name: &str, kind: &str, members: Members<'a>) -> (String, TreeNode<'a>) {
    (name.to_owned(), TreeNode::Group(Group { attributes: class(kind), members }))
}

/// Formats nanoseconds since 1970 as date and time in UTC, with microseconds.
fn iso_8601(nanoseconds: u64) -> String {
    let seconds = nanoseconds / 1_000_000_000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years that start in March have their leap day at the end; all eras of 400 years have the same number of days.
    let since = days + 719_468;
    let (era, day_of_era) = (since / 146_097, since % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = 400 * era + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let micros = nanoseconds / 1000 % 1_000_000;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

#[cfg(test)]
mod tests;
