//! Encoding of the messages as a detector sends them, for the simulator and for tests.

use super::{DECTRIS_COMPRESSION, MULTI_DIMENSIONAL, SeriesStart, Stream2Compression, Stream2Image, TYPES};
use crate::cbor::CborWriter;
use crate::date;

impl SeriesStart {
    /// Encodes the start message with the known fields.
    pub fn encode(&self) -> Vec<u8> {
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
        let mut out = CborWriter::default();
        out.map(7 + known as u64).text("type").text("start");
        out.text("series_id").unsigned(self.series).text("series_unique_id").text(&self.unique);
        out.text("number_of_images").unsigned(self.images);
        out.text("image_size_x").unsigned(self.width).text("image_size_y").unsigned(self.height);
        out.text("channels").array(self.channels.len() as u64);
        for channel in &self.channels {
            out.text(channel);
        }
        for (name, value) in floats {
            if let Some(value) = value {
                out.text(name).float(value);
            }
        }
        for (name, value) in texts {
            if let Some(value) = value {
                out.text(name).text(value);
            }
        }
        if let Some(value) = self.saturation_value {
            out.text("saturation_value").unsigned(value);
        }
        if !self.threshold_energy.is_empty() {
            out.text("threshold_energy").map(self.threshold_energy.len() as u64);
            for (name, energy) in &self.threshold_energy {
                out.text(name).float(*energy);
            }
        }
        out.0
    }

    /// Encodes the end message.
    pub fn encode_end(&self) -> Vec<u8> {
        let mut out = CborWriter::default();
        out.map(3).text("type").text("end").text("series_id").unsigned(self.series);
        out.text("series_unique_id").text(&self.unique);
        out.0
    }
}

impl Stream2Image<'_> {
    /// Encodes the image message.
    pub fn encode(&self) -> Vec<u8> {
        let mut out =
            CborWriter(Vec::with_capacity(self.channels.iter().map(|channel| channel.bytes.len() + 256).sum()));
        out.map(5 + u64::from(self.start.is_some()) + u64::from(self.began.is_some())).text("type").text("image");
        out.text("series_id").unsigned(self.series).text("series_unique_id").text(self.unique);
        out.text("image_id").unsigned(self.number);
        if let Some(began) = self.began {
            out.text("series_date").tag(0).text(&date::format(began));
        }
        if let Some(start) = self.start {
            out.text("start_time").array(2).unsigned(start).unsigned(1_000_000_000);
        }
        out.text("data").map(self.channels.len() as u64);
        for channel in &self.channels {
            out.text(channel.name).tag(MULTI_DIMENSIONAL).array(2);
            out.array(2).unsigned(channel.height).unsigned(channel.width);
            let tag = TYPES.iter().find(|(_, element)| *element == channel.element).expect("all are there").0;
            out.tag(tag);
            let element = channel.element.size() as u64;
            match channel.compression {
                Stream2Compression::None => &mut out,
                Stream2Compression::Lz4 => out.tag(DECTRIS_COMPRESSION).array(3).text("lz4").unsigned(0),
                Stream2Compression::BitshuffleLz4 => {
                    out.tag(DECTRIS_COMPRESSION).array(3).text("bslz4").unsigned(element)
                }
            }
            .bytes(channel.bytes);
        }
        out.0
    }
}
