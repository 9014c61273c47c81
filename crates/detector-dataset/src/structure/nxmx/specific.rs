//! The group `detectorSpecific` of DECTRIS's own files, where programs for them look: XDS's plug-ins, among others.

use super::{DETECTOR, Members, arrays, field};
use crate::catalog::Catalog;
use crate::dataset_spec::nxmx::Nxmx;
use crate::dataset_spec::static_array::{CHANNEL_SUFFIX, PIXEL_MASK, SPECIFIC};
use varve_detector_hdf5::{TreeNode, Value};

/// Every image counts as one of a single trigger, so that the product of both numbers is the number of images.
const TRIGGERS: u64 = 1;

/// Path of the mask below the detector's group: the detector's own, or that of the first channel with one.
pub fn mask_path(nxmx: &Nxmx, catalog: &Catalog) -> Option<String> {
    let of_channels = nxmx.channel_names.iter().map(|name| format!("{name}{CHANNEL_SUFFIX}/{PIXEL_MASK}"));
    let mut paths = std::iter::once(PIXEL_MASK.to_owned()).chain(of_channels);
    let has_regions = !nxmx.pixel_mask.is_empty();
    paths.find(|path| catalog.description.array(path).is_some() || (has_regions && path == PIXEL_MASK))
}

pub fn members<'a>(nxmx: &Nxmx, catalog: &Catalog) -> Members<'a> {
    let mut members = arrays(catalog, SPECIFIC);
    let link = |name: &str| (name.to_owned(), TreeNode::HardLink(format!("{DETECTOR}/{name}")));
    let others =
        catalog.description.arrays.iter().filter(|array| !array.path.contains('/') && array.path != PIXEL_MASK);
    for array in others {
        if !members.iter().any(|(name, _)| *name == array.path) {
            members.push(link(&array.path));
        }
    }
    if !members.iter().any(|(name, _)| name == PIXEL_MASK)
        && let Some(path) = mask_path(nxmx, catalog)
    {
        members.push((PIXEL_MASK.to_owned(), TreeNode::HardLink(format!("{DETECTOR}/{path}"))));
    }
    if nxmx.pixel_size.is_some() {
        for name in ["x_pixel_size", "y_pixel_size"] {
            if !members.iter().any(|(known, _)| known == name) {
                members.push(link(name));
            }
        }
    }
    let numbers = [("nimages", catalog.frames()), ("ntrigger", TRIGGERS)];
    let sides = ["x_pixels_in_detector", "y_pixels_in_detector"].into_iter();
    let sides = sides.zip(catalog.description.frame.iter().rev().copied());
    for (name, value) in numbers.into_iter().chain(sides) {
        if !members.iter().any(|(known, _)| known == name) {
            members.push(field(name, Value::unsigned(value), None));
        }
    }
    members
}
