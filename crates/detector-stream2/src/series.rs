//! Conversion of a stream2 series to a run: its dataset spec, from the start message and the first image, and its
//! frames. Several channels form the first dimension of a frame, with one chunk per channel, so that compressed data
//! are stored as they arrive.

mod metadata;

pub use metadata::scalars;

use super::message::{BadStream2Message, Channel, SeriesStart, Stream2Compression, Stream2Image};
use serde::{Deserialize, Serialize};
use varve_detector_dataset::dataset_spec::{DatasetSpec, Region, Structure};
use varve_detector_dataset::frame::Payload;
use varve_detector_dataset::frame_numbers::JUMP_MAX;
use varve_detector_filters::{Compression as Codec, Decoder, Filter, FilterError};
use varve_detector_hdf5::ElementType;

/// Limit for bounded scans, whatever number of images was announced. Every commit writes the index of a bounded scan as
/// a whole, and for this many images it takes 2 MiB per channel.
const SCAN_IMAGES_MAX: u64 = 1 << 17;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stream2Series {
    pub start: SeriesStart,
    element: ElementType,
    filter: Filter,
    /// Number of the first image: 0, unless the detector counts from 1, or on from series to series.
    #[serde(default)]
    first: u64,
    /// Start of the series as the first image states it, in nanoseconds since 1970.
    #[serde(default)]
    began: Option<u64>,
}

/// The number of the first image of a series, of which this is the lowest number that arrived. Images come in order on one
/// connection, so a series that begins with image 1 has no image 0. Numbers that a run would refuse are those of a
/// detector that counts on from series to series.
fn numbering(lowest: u64) -> u64 {
    if lowest == 1 || lowest > JUMP_MAX { lowest } else { 0 }
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
        let numbering = numbering(first.number);
        let series = Stream2Series { start, element: channel.element, filter, first: numbering, began: first.began };
        series.channel(first, channel.name)?;
        Ok(series)
    }

    /// The series, of which an image with this number has arrived, too.
    pub fn with_image(self, number: u64) -> Stream2Series {
        let first = self.first.min(numbering(number));
        Stream2Series { first, ..self }
    }

    /// See [`SeriesStart::has`].
    pub fn has(&self, image: &Stream2Image<'_>) -> bool {
        self.start.has(image)
    }

    /// The frame of an image; `None` if the image comes before the first one of the series.
    pub fn frame(&self, image: &Stream2Image<'_>) -> Option<u64> {
        image.number.checked_sub(self.first)
    }

    /// Number of the first image.
    pub fn first(&self) -> u64 {
        self.first
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
        let (element, filter) = (self.element, self.filter);
        let described = DatasetSpec { element, frame, chunk, scan: vec![known], filter, sources, ..description };
        // The other structures cannot store it.
        match described.structure {
            Structure::Nexus => self.add_metadata(described),
            _ => described,
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
            _ if channel.big_endian => false,
            Stream2Compression::None => false,
            Stream2Compression::Lz4 => self.filter.compression == Codec::Lz4 && !self.filter.shuffle,
            Stream2Compression::BitshuffleLz4 => self.filter == Filter::BSLZ4,
        }
    }

    fn plain(&self, image: &Stream2Image<'_>, channel: &Channel<'_>) -> Result<Vec<u8>, BadStream2Message> {
        let length = self.start.height as usize * self.start.width as usize * self.element.size();
        let decoded = plain((channel.compression, channel.big_endian), self.element, channel.bytes, length);
        decoded.or_else(|error| bad(format!("channel `{}` of image {}: {error}", channel.name, image.number)))
    }
}

/// Decompresses `bytes` to `length` little-endian bytes.
fn plain(
    (compression, big_endian): (Stream2Compression, bool),
    element: ElementType,
    bytes: &[u8],
    length: usize,
) -> Result<Vec<u8>, FilterError> {
    let filter = match compression {
        Stream2Compression::None => Filter::RAW,
        Stream2Compression::Lz4 => Filter { shuffle: false, compression: Codec::Lz4 },
        Stream2Compression::BitshuffleLz4 => Filter::BSLZ4,
    };
    let mut plain = Decoder { filter, element_bytes: element.size() }.decode(bytes, length)?;
    if big_endian {
        plain.chunks_exact_mut(element.size()).for_each(<[u8]>::reverse);
    }
    Ok(plain)
}
