//! Detector simulator. Frames have the statistics of real ones: Poisson background falling off from the beam, rings,
//! Bragg spots that change from frame to frame, module gaps, and bad pixels. Their brightness is fitted so that
//! bitshuffle+LZ4 reaches a given compression ratio. The same seed gives the same frames.

mod count;
mod model;
mod random;

pub use model::{BadModel, DetectorModel};

use random::FrameRandom;
use varve_detector_filters::{Encoder, Filter};

/// Number of exposures. Each row of a frame is a row of a randomly chosen exposure, so that no two frames are alike and
/// a frame costs little more than its copy.
const EXPOSURES: u64 = 3;
/// Pixels per reflection: a Pilatus 6M's frame of a protein crystal shows some two hundred.
const PIXELS_PER_SPOT: u64 = 30_000;
/// Bad pixels per million.
const BAD_PER_MILLION: u64 = 50;
/// Elements in the sample for the fit; enough for the ratio to within a few percent.
const SAMPLE_ELEMENTS: u64 = 1 << 19;
/// Number of consecutive rows in a sample.
const STRIP: u64 = 16;

/// Error if no brightness gives the requested ratio.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum OutOfReach {
    #[error("frames of this model cannot compress {asked}:1; give a ratio from {least:.2} to {most:.2}")]
    Ratio { asked: f64, least: f64, most: f64 },
    #[error(
        "frames of {frame_bytes} bytes are too small to compress {asked}:1, because the filter's headers take the \
        gain; use a larger model, or give a ratio of 1"
    )]
    Small { asked: f64, frame_bytes: u64 },
}

fn chance(seed: u64, what: u64) -> FrameRandom {
    FrameRandom::new(seed ^ what.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Whether frame `number` is lost by a detector that loses this share of its frames.
pub fn is_lost(seed: u64, number: u64, share: f64) -> bool {
    const PARTS: u64 = 1 << 32;
    (chance(seed, !number).below(PARTS) as f64) < share * PARTS as f64
}

pub struct Simulator {
    model: DetectorModel,
    seed: u64,
    /// Counts per pixel at the beam.
    brightness: f64,
    exposures: Vec<Vec<u8>>,
}

impl Simulator {
    /// `ratio`: compression ratio of the frames with bitshuffle+LZ4.
    ///
    /// # Errors
    /// If no brightness gives that ratio.
    pub fn new(model: DetectorModel, ratio: f64, seed: u64) -> Result<Simulator, OutOfReach> {
        let mut simulator = Simulator { model, seed, brightness: 0.0, exposures: Vec::new() };
        simulator.brightness = simulator.fit(ratio)?;
        for exposure in 0..EXPOSURES {
            let mut chance = simulator.chance(exposure);
            let rows: Vec<u64> = (0..simulator.model.height).collect();
            let bytes = simulator.expose(&mut chance, &rows, simulator.brightness);
            simulator.exposures.push(bytes);
        }
        Ok(simulator)
    }

    pub fn model(&self) -> &DetectorModel {
        &self.model
    }

    fn chance(&self, what: u64) -> FrameRandom {
        chance(self.seed, what)
    }

    /// Finds the brightness by bisection: brighter frames have more noise and compress less.
    fn fit(&self, asked: f64) -> Result<f64, OutOfReach> {
        let strips = (SAMPLE_ELEMENTS / self.model.width / STRIP).clamp(1, self.model.height.div_ceil(STRIP));
        let rows: Vec<u64> = (0..strips)
            .flat_map(|strip| {
                let first = strip * self.model.height / strips;
                first..(first + STRIP).min(self.model.height)
            })
            .collect();
        let ratio = |exponent: f64| {
            let bytes = self.expose(&mut self.chance(u64::MAX), &rows, exponent.exp());
            let mut encoder = Encoder::new(Filter::BSLZ4, self.model.element.size()).expect("LZ4 needs no context");
            let mut encoded = Vec::new();
            encoder.encode(&bytes, &mut encoded).expect("a sample is far below LZ4's limit");
            bytes.len() as f64 / encoded.len() as f64
        };
        // From one count in ten thousand pixels to a quarter of the element type's range.
        let brightest =
            2_f64.powi(8 * self.model.element.size().min(3) as i32 - 2).min(count::largest(self.model.element) as f64);
        let (mut dark, mut bright) = (1e-4_f64.ln(), brightest.ln());
        let (most, least) = (ratio(dark), ratio(bright));
        if most <= 1.0 {
            let frame_bytes = self.model.width * self.model.height * self.model.element.size() as u64;
            let as_they_are = asked > 0.0 && asked <= 1.0;
            return if as_they_are { Ok(1.0) } else { Err(OutOfReach::Small { asked, frame_bytes }) };
        }
        // Values as rounded in the error message must be accepted.
        const ROUNDED: f64 = 0.005;
        if !(least - ROUNDED..=most + ROUNDED).contains(&asked) {
            return Err(OutOfReach::Ratio { asked, least, most });
        }
        for _ in 0..14 {
            let middle = (dark + bright) / 2.0;
            if ratio(middle) > asked {
                dark = middle;
            } else {
                bright = middle;
            }
        }
        Ok(((dark + bright) / 2.0).exp())
    }

    /// Simulates the given rows of an exposure without spots.
    fn expose(&self, chance: &mut FrameRandom, rows: &[u64], brightness: f64) -> Vec<u8> {
        let DetectorModel { width, height, element, .. } = self.model;
        let size = element.size();
        let radius = (width.min(height) / 2) as f64;
        let mut bytes = Vec::with_capacity(rows.len() * width as usize * size);
        for y in rows {
            let down = (*y as f64 - height as f64 / 2.0) / radius;
            for x in 0..width {
                let across = (x as f64 - width as f64 / 2.0) / radius;
                let distance = (across * across + down * down).sqrt();
                let pixel = !self.model.is_dead(x, *y) && !self.is_bad(x, *y);
                let count =
                    pixel.then(|| chance.poisson(brightness * intensity(distance)).min(count::largest(element)));
                bytes.extend_from_slice(&count::bytes(element, count)[..size]);
            }
        }
        bytes
    }

    /// Bad pixels are the same in all frames.
    fn is_bad(&self, x: u64, y: u64) -> bool {
        FrameRandom::new(self.seed ^ (y * self.model.width + x)).below(1_000_000) < BAD_PER_MILLION
    }

    /// Frame `number`: row-major, little-endian.
    pub fn frame(&self, number: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.frame_into(number, &mut bytes);
        bytes
    }

    /// Replaces `bytes` by frame `number`; see [`Simulator::frame`].
    pub fn frame_into(&self, number: u64, bytes: &mut Vec<u8>) {
        let row = self.model.width as usize * self.model.element.size();
        let mut chance = self.chance(EXPOSURES + number);
        bytes.clear();
        bytes.reserve(row * self.model.height as usize);
        for y in 0..self.model.height as usize {
            let exposure = &self.exposures[chance.below(EXPOSURES) as usize];
            bytes.extend_from_slice(&exposure[y * row..(y + 1) * row]);
        }
        for _ in 0..self.model.width * self.model.height / PIXELS_PER_SPOT {
            self.spot(bytes, &mut chance);
        }
    }

    /// Adds a reflection: a few pixels wide, its centre some hundred counts above the background.
    fn spot(&self, bytes: &mut [u8], chance: &mut FrameRandom) {
        const REACH: u64 = 3;
        let DetectorModel { width, height, element, .. } = self.model;
        let (x, y) = (chance.below(width), chance.below(height));
        let height_counts = 20.0 + chance.below(400) as f64;
        for row in y.saturating_sub(REACH)..(y + REACH + 1).min(height) {
            for column in x.saturating_sub(REACH)..(x + REACH + 1).min(width) {
                let squared = column.abs_diff(x).pow(2) + row.abs_diff(y).pow(2);
                let added = (height_counts * (-(squared as f64) / 2.9).exp()) as u64;
                let at = (row * width + column) as usize * element.size();
                let place = &mut bytes[at..at + element.size()];
                if let Some(count) = count::of(element, place) {
                    let more = (count + added).min(count::largest(element));
                    place.copy_from_slice(&count::bytes(element, Some(more))[..element.size()]);
                }
            }
        }
    }
}

/// Intensity of background and rings at a distance from the beam, in units of half the shorter side; about 1 at the
/// beam.
fn intensity(distance: f64) -> f64 {
    const RINGS: [(f64, f64); 3] = [(0.35, 0.3), (0.55, 0.25), (0.8, 0.15)];
    const RING_WIDTH: f64 = 0.012;
    let background = (-2.0 * distance).exp();
    let ring = |(at, height): (f64, f64)| height * (-((distance - at) / RING_WIDTH).powi(2)).exp();
    background + RINGS.into_iter().map(ring).sum::<f64>()
}

#[cfg(test)]
mod tests;
