//! Metadata of runs from outside of the detector: of a run, or of all runs of a service.

use crate::dataset_spec::nxmx::{Goniometer, Nxmx};
use crate::dataset_spec::static_array::{PIXEL_MASK, StaticArray};
use crate::dataset_spec::{DatasetSpec, RunValue, Structure};
use std::collections::BTreeMap;
use varve_detector_hdf5::ElementType;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunMetadata {
    pub values: BTreeMap<String, RunValue>,
    pub nxmx: Option<Nxmx>,
    pub arrays: Vec<StaticArray>,
}

impl RunMetadata {
    /// Adds the metadata to `description`. They replace those of the same names.
    pub fn add_to(self, description: &mut DatasetSpec) {
        description.values.extend(self.values);
        description.nxmx = self.nxmx.or(description.nxmx.take());
        for array in self.arrays {
            description.arrays.retain(|other| other.path != array.path);
            description.arrays.push(array);
        }
    }

    /// Returns `description` with the metadata that it lacks. Those that do not suit its structure, or that have no
    /// place because a frame has a scalar of the name, are left out.
    ///
    /// # Errors
    /// If the metadata do not fit the run, for example a mask of another shape. The error says why.
    pub fn complete(&self, description: &DatasetSpec) -> Result<DatasetSpec, String> {
        let mut whole = description.clone();
        for (name, value) in &self.values {
            if !whole.scalars.iter().any(|scalar| scalar.name == *name) {
                whole.values.entry(name.clone()).or_insert_with(|| value.clone());
            }
        }
        if whole.structure == Structure::Nexus {
            if let Some(nxmx) = &self.nxmx {
                whole.nxmx = Some(merged(whole.nxmx.as_ref(), nxmx));
            }
            for array in &self.arrays {
                if whole.array(&array.path).is_none() {
                    whole.arrays.push(array.clone());
                }
            }
            if whole.array(PIXEL_MASK).is_some() {
                whole.nxmx.iter_mut().for_each(|nxmx| nxmx.pixel_mask.clear());
            }
        }
        match whole.check() {
            Ok(()) => Ok(whole),
            Err(bad) => Err(bad.0),
        }
    }
}

/// The fields of `own`, and those of `others` that it lacks.
fn merged(own: Option<&Nxmx>, others: &Nxmx) -> Nxmx {
    let fields = |nxmx: &Nxmx| match serde_json::to_value(nxmx) {
        Ok(serde_json::Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let mut all = fields(others);
    all.extend(own.map(fields).unwrap_or_default());
    let all: Nxmx = serde_json::from_value(all.into()).unwrap_or_else(|_| others.clone());
    let own = own.map_or(&[][..], |own| &own.goniometer[..]);
    Nxmx { goniometer: axes(own, &others.goniometer), ..all }
}

/// The axes of `others`, with the angles and directions that `own` has for them, and then its other axes.
fn axes(own: &[Goniometer], others: &[Goniometer]) -> Vec<Goniometer> {
    let of = |axes: &[Goniometer], name: &str| axes.iter().find(|axis| axis.name == name).cloned();
    let known = others.iter().map(|other| match of(own, &other.name) {
        Some(axis) => Goniometer { vector: axis.vector.or(other.vector), ..axis },
        None => other.clone(),
    });
    known.chain(own.iter().filter(|axis| of(others, &axis.name).is_none()).cloned()).collect()
}

/// A mask with 32 bits a pixel, as NXmx has it, from one with other integers. `None` if it has no integers.
pub fn as_mask(element: ElementType, bytes: &[u8]) -> Option<Vec<u8>> {
    use ElementType::*;
    let size = element.size();
    match element {
        U8 | I8 | U16 | I16 | U32 | I32 | U64 | I64 => {}
        F16 | F32 | F64 => return None,
    }
    let wide = |element: &[u8]| -> [u8; 4] { std::array::from_fn(|at| element.get(at).copied().unwrap_or(0)) };
    Some(bytes.chunks_exact(size).flat_map(wide).collect())
}

#[cfg(test)]
mod tests;
