//! Models of detectors: their pixels and the gaps between their modules.

use std::str::FromStr;
use varve_detector_hdf5::ElementType;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetectorModel {
    pub width: u64,
    pub height: u64,
    pub element: ElementType,
    /// Sides of a module and of the gap after it; `None`: a single sensor.
    modules: Option<[(u64, u64); 2]>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a model; use pilatus6m, eiger16m, pco4000, pco-edge, excalibur, or WIDTHxHEIGHTxTYPE, as in \
    1024x512xu16, with sides up to {SIDE_MAX} and a type such as u8, i32 or f32"
)]
pub struct BadModel(pub String);

/// Larger sensors do not exist. A frame stays below 1 GiB.
const SIDE_MAX: u64 = 16_384;

impl DetectorModel {
    /// Whether a pixel lies between modules.
    pub fn is_dead(&self, x: u64, y: u64) -> bool {
        let Some([(width, across), (height, down)]) = self.modules else { return false };
        x % (width + across) >= width || y % (height + down) >= height
    }
}

impl FromStr for DetectorModel {
    type Err = BadModel;

    fn from_str(name: &str) -> Result<DetectorModel, BadModel> {
        let model = |width, height, element, modules| Ok(DetectorModel { width, height, element, modules });
        match name {
            "pilatus6m" => model(2463, 2527, ElementType::I32, Some([(487, 7), (195, 17)])),
            "eiger16m" => model(4150, 4371, ElementType::U16, Some([(1030, 10), (514, 37)])),
            "pco4000" => model(4008, 2672, ElementType::U16, None),
            "pco-edge" => model(2560, 2160, ElementType::U16, None),
            "excalibur" => model(2069, 1793, ElementType::U16, Some([(2069, 0), (514, 125)])),
            _ => {
                let bad = || BadModel(name.to_owned());
                let parts: Vec<&str> = name.split('x').collect();
                let [width, height, element] = parts[..] else { return Err(bad()) };
                let side = |text: &str| text.parse().ok().filter(|side| (1..=SIDE_MAX).contains(side)).ok_or_else(bad);
                let element = ElementType::named(element).ok_or_else(bad)?;
                model(side(width)?, side(height)?, element, None)
            }
        }
    }
}
