//! Conversion of a stream2 series to a run: its dataset spec, from the start message and the first image, and its
//! frames. Several channels form the first dimension of a frame, with one chunk per channel, so that compressed data
//! are stored as they arrive.

use super::message::{BadStream2Message, Channel, SeriesStart, Stream2Compression, Stream2Image};
use serde::{Deserialize, Serialize};
use varve_detector_dataset::dataset_spec::nxmx::{Nxmx, TEXT_BYTES_MAX};
use varve_detector_dataset::dataset_spec::{DatasetSpec, Region, Structure};
use varve_detector_dataset::frame::Payload;
use varve_detector_filters::{Compression as Codec, Decoder, Filter};
use varve_detector_hdf5::ElementType;

/// Limit for bounded scans, whatever number of images was announced. Every commit writes the index of a bounded scan as
/// a whole, and for this many images it takes 2 MiB per channel.
const SCAN_IMAGES_MAX: u64 = 1 << 17;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stream2Series {
    pub start: SeriesStart,
    element: ElementType,
    filter: Filter,
}

fn bad<T>(text: String) -> Result<T, BadStream2Message> {
    Err(BadStream2Message::Meaning(text))
}

impl Stream2Series {
    /// `plain`: the filter for images that arrive uncompressed.
    ///
    /// # Errors
    /// If the image does not belong to the series of `start`.
    pub fn begin(
        start: SeriesStart,
        first: &Stream2Image<'_>,
        plain: Filter,
    ) -> Result<Stream2Series, BadStream2Message> {
        let one = |name: &String| first.channels.iter().find(|channel| channel.name == name);
        let Some(channel) = start.channels.iter().find_map(one) else {
            return bad(format!(
                "image {} has none of the series' channels {}",
                first.number,
                start.channels.join(", ")
            ));
        };
        let filter = match channel.compression {
            Stream2Compression::None => plain,
            Stream2Compression::Lz4 => Filter { shuffle: false, compression: Codec::Lz4 },
            Stream2Compression::BitshuffleLz4 => Filter::BSLZ4,
        };
        let series = Stream2Series { start, element: channel.element, filter };
        series.channel(first, channel.name)?;
        Ok(series)
    }

    /// See [`SeriesStart::has`].
    pub fn has(&self, image: &Stream2Image<'_>) -> bool {
        self.start.has(image)
    }

    /// Adds what the detector sent about the run to `description`. The caller chooses the structure.
    pub fn describe(&self, description: DatasetSpec) -> DatasetSpec {
        let SeriesStart { height, width, channels, images, .. } = &self.start;
        let (frame, chunk) = match channels.len() {
            1 => (vec![*height, *width], None),
            count => (vec![count as u64, *height, *width], Some(vec![1, *height, *width])),
        };
        // One region per channel, so that a missing channel does not affect the others.
        let region = |channel: usize| Region { offset: vec![channel as u64, 0, 0], shape: vec![1, *height, *width] };
        let sources = if channels.len() == 1 { Vec::new() } else { (0..channels.len()).map(region).collect() };
        // A detector that is triggered without limit announces no images, or more than it will take.
        let known = (1..=SCAN_IMAGES_MAX).contains(images).then_some(*images);
        // The other structures cannot store it.
        let nxmx = (description.structure == Structure::Nexus).then(|| self.known());
        let (element, filter) = (self.element, self.filter);
        DatasetSpec { element, frame, chunk, scan: vec![known], filter, nxmx, sources, ..description }
    }

    /// Metadata of the measurement from the detector. Invalid numbers count as unknown.
    fn known(&self) -> Nxmx {
        let SeriesStart { pixel_size_x, pixel_size_y, beam_center_x, beam_center_y, .. } = &self.start;
        let number = |value: Option<f64>| value.filter(|value| value.is_finite() && *value > 0.0);
        let pair = |x: Option<f64>, y: Option<f64>| number(x).zip(number(y)).map(|(x, y)| [x, y]);
        let fits = |text: &String| (1..=TEXT_BYTES_MAX).contains(&text.len()) && !text.contains('\0');
        let text = |text: &Option<String>| text.clone().filter(fits);
        let channels = &self.start.channels;
        let energy = |channel: &String| {
            let known = self.start.threshold_energy.iter().find(|(name, _)| name == channel);
            known.map(|(_, energy)| *energy).filter(|energy| energy.is_finite())
        };
        let named = channels.len() > 1 && channels.iter().all(fits);
        Nxmx {
            wavelength: number(self.start.incident_wavelength),
            description: text(&self.start.detector_description),
            serial_number: text(&self.start.detector_serial_number),
            beam_center: pair(*beam_center_x, *beam_center_y),
            pixel_size: pair(*pixel_size_x, *pixel_size_y),
            sensor_material: text(&self.start.sensor_material),
            sensor_thickness: number(self.start.sensor_thickness),
            count_time: number(self.start.count_time),
            frame_time: number(self.start.frame_time),
            saturation_value: self.start.saturation_value.and_then(|value| i64::try_from(value).ok()),
            threshold_energy: channels.iter().map(energy).collect::<Option<_>>().unwrap_or_default(),
            channel_names: if named { channels.clone() } else { Vec::new() },
            ..Nxmx::default()
        }
    }

    /// A channel of the image, if its shape and type match the series.
    fn channel<'i, 'm>(&self, image: &'i Stream2Image<'m>, name: &str) -> Result<&'i Channel<'m>, BadStream2Message> {
        let (SeriesStart { height, width, .. }, number) = (&self.start, image.number);
        if let Some((_, why)) = image.unreadable.iter().find(|(unreadable, _)| *unreadable == name) {
            return Err(why.clone());
        }
        match image.channels.iter().find(|channel| channel.name == name) {
            None => bad(format!("image {number} has no channel `{name}`")),
            Some(channel) if channel.height != *height || channel.width != *width => bad(format!(
                "channel `{name}` of image {number} has {} rows of {}, the series {height} of {width}",
                channel.height, channel.width
            )),
            Some(channel) if channel.element != self.element => bad(format!(
                "channel `{name}` of image {number} has elements of type {}, the series of {}",
                channel.element, self.element
            )),
            Some(channel) => Ok(channel),
        }
    }

    /// The payload of each channel, in the order of the start message: the blob unchanged if it has the run's
    /// compression, else decompressed; or the reason why there is none.
    pub fn channels(&self, image: &Stream2Image<'_>) -> Vec<Result<Payload, BadStream2Message>> {
        let payload = |name: &String| {
            let channel = self.channel(image, name)?;
            if self.fits(channel) {
                return Ok(Payload::Filtered(vec![channel.bytes.to_vec().into()]));
            }
            self.plain(image, channel).map(Payload::Plain)
        };
        self.start.channels.iter().map(payload).collect()
    }

    /// The payload of all channels together: unchanged blobs if all have the run's compression.
    ///
    /// # Errors
    /// If the image does not belong to this series, or decompression is required and fails.
    pub fn payload(&self, image: &Stream2Image<'_>) -> Result<Payload, BadStream2Message> {
        let (came, wanted) = (image.channels.len() + image.unreadable.len(), self.start.channels.len());
        if came != wanted {
            return bad(format!("image {} has {came} channels, the series {wanted}", image.number));
        }
        let channels: Result<Vec<_>, _> = self.start.channels.iter().map(|name| self.channel(image, name)).collect();
        let channels = channels?;
        if channels.iter().all(|channel| self.fits(channel)) {
            return Ok(Payload::Filtered(channels.iter().map(|channel| channel.bytes.to_vec().into()).collect()));
        }
        let plain: Result<Vec<_>, _> = channels.iter().map(|channel| self.plain(image, channel)).collect();
        Ok(Payload::Plain(plain?.concat()))
    }

    fn fits(&self, channel: &Channel<'_>) -> bool {
        match channel.compression {
            Stream2Compression::None => false,
            Stream2Compression::Lz4 => self.filter.compression == Codec::Lz4 && !self.filter.shuffle,
            Stream2Compression::BitshuffleLz4 => self.filter == Filter::BSLZ4,
        }
    }

    fn plain(&self, image: &Stream2Image<'_>, channel: &Channel<'_>) -> Result<Vec<u8>, BadStream2Message> {
        let length = self.start.height as usize * self.start.width as usize * self.element.size();
        let filter = match channel.compression {
            Stream2Compression::None => Filter::RAW,
            Stream2Compression::Lz4 => Filter { shuffle: false, compression: Codec::Lz4 },
            Stream2Compression::BitshuffleLz4 => Filter::BSLZ4,
        };
        let decoder = Decoder { filter, element_bytes: self.element.size() };
        let decoded = decoder.decode(channel.bytes, length);
        decoded.or_else(|error| bad(format!("channel `{}` of image {}: {error}", channel.name, image.number)))
    }
}
