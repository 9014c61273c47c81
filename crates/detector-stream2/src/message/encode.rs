//! Encoding of the messages as a detector sends them, for the simulator and for tests.

use super::{DECTRIS_COMPRESSION, MULTI_DIMENSIONAL, SeriesStart, Stream2Compression, Stream2Image, TYPES};
use crate::date;
use minicbor::Encoder;
use minicbor::data::Tag;
use std::convert::Infallible;

type Encoded = Result<Vec<u8>, minicbor::encode::Error<Infallible>>;

fn encoded(written: Encoded) -> Vec<u8> {
    written.expect("memory takes all bytes")
}

impl SeriesStart {
    /// Encodes the start message with the known fields.
    pub fn encode(&self) -> Vec<u8> {
        encoded(self.write())
    }

    fn write(&self) -> Encoded {
        let floats = [
            ("beam_center_x", self.beam_center_x),
            ("beam_center_y", self.beam_center_y),
            ("count_time", self.count_time),
            ("frame_time", self.frame_time),
            ("incident_energy", self.incident_energy),
            ("incident_wavelength", self.incident_wavelength),
            ("pixel_size_x", self.pixel_size_x),
            ("pixel_size_y", self.pixel_size_y),
            ("sensor_thickness", self.sensor_thickness),
        ];
        let texts = [
            ("detector_description", &self.detector_description),
            ("detector_serial_number", &self.detector_serial_number),
            ("sensor_material", &self.sensor_material),
        ];
        let known = floats.iter().filter(|(_, value)| value.is_some()).count()
            + texts.iter().filter(|(_, value)| value.is_some()).count()
            + usize::from(self.saturation_value.is_some())
            + usize::from(!self.threshold_energy.is_empty());
        let mut out = Encoder::new(Vec::new());
        out.map(7 + known as u64)?.str("type")?.str("start")?;
        out.str("series_id")?.u64(self.series)?.str("series_unique_id")?.str(&self.unique)?;
        out.str("number_of_images")?.u64(self.images)?;
        out.str("image_size_x")?.u64(self.width)?.str("image_size_y")?.u64(self.height)?;
        out.str("channels")?.array(self.channels.len() as u64)?;
        for channel in &self.channels {
            out.str(channel)?;
        }
        for (name, value) in floats {
            if let Some(value) = value {
                out.str(name)?.f64(value)?;
            }
        }
        for (name, value) in texts {
            if let Some(value) = value {
                out.str(name)?.str(value)?;
            }
        }
        if let Some(value) = self.saturation_value {
            out.str("saturation_value")?.u64(value)?;
        }
        if !self.threshold_energy.is_empty() {
            out.str("threshold_energy")?.map(self.threshold_energy.len() as u64)?;
            for (name, energy) in &self.threshold_energy {
                out.str(name)?.f64(*energy)?;
            }
        }
        Ok(out.into_writer())
    }

    /// Encodes the end message.
    pub fn encode_end(&self) -> Vec<u8> {
        encoded(self.write_end())
    }

    fn write_end(&self) -> Encoded {
        let mut out = Encoder::new(Vec::new());
        out.map(3)?.str("type")?.str("end")?.str("series_id")?.u64(self.series)?;
        out.str("series_unique_id")?.str(&self.unique)?;
        Ok(out.into_writer())
    }
}

impl Stream2Image<'_> {
    /// Encodes the image message.
    pub fn encode(&self) -> Vec<u8> {
        encoded(self.write())
    }

    fn write(&self) -> Encoded {
        let mut out =
            Encoder::new(Vec::with_capacity(self.channels.iter().map(|channel| channel.bytes.len() + 256).sum()));
        out.map(5 + u64::from(self.start.is_some()) + u64::from(self.began.is_some()))?.str("type")?.str("image")?;
        out.str("series_id")?.u64(self.series)?.str("series_unique_id")?.str(self.unique)?;
        out.str("image_id")?.u64(self.number)?;
        if let Some(began) = self.began {
            out.str("series_date")?.tag(Tag::new(0))?.str(&date::format(began))?;
        }
        if let Some(start) = self.start {
            out.str("start_time")?.array(2)?.u64(start)?.u64(1_000_000_000)?;
        }
        out.str("data")?.map(self.channels.len() as u64)?;
        for channel in &self.channels {
            out.str(channel.name)?.tag(Tag::new(MULTI_DIMENSIONAL))?.array(2)?;
            out.array(2)?.u64(channel.height)?.u64(channel.width)?;
            let tag = TYPES.iter().find(|(_, element)| *element == channel.element).expect("all are there").0;
            out.tag(Tag::new(tag))?;
            let element = channel.element.size() as u64;
            match channel.compression {
                Stream2Compression::None => &mut out,
                Stream2Compression::Lz4 => out.tag(Tag::new(DECTRIS_COMPRESSION))?.array(3)?.str("lz4")?.u64(0)?,
                Stream2Compression::BitshuffleLz4 => {
                    out.tag(Tag::new(DECTRIS_COMPRESSION))?.array(3)?.str("bslz4")?.u64(element)?
                }
            }
            .bytes(channel.bytes)?;
        }
        Ok(out.into_writer())
    }
}
