//! Frames as a DECTRIS detector sends them: a PUSH socket, stream2, bitshuffle+LZ4.

use super::{FrameSink, SeriesInfo};
use crate::problem::{Problem, Result};
use std::time::{Duration, Instant};
use varve_detector_dataset::time::unix_nanos;
use varve_detector_filters::{Encoder, Filter};
use varve_detector_hdf5::ElementType;
use varve_detector_stream2::message::{Channel, Stream2Compression};
use varve_detector_stream2::{Push, SeriesStart, Stream2Image};
use varve_detector_writer::Finished;

const SCHEME: &str = "zmq+tcp://";
const CHANNEL: &str = "threshold_1";

pub struct Stream2Sink {
    url: String,
    push: Push,
    start: SeriesStart,
    begun: Instant,
    /// Start time in nanoseconds since 1970.
    began: u64,
    element: ElementType,
    encoder: Encoder,
    chunk: Vec<u8>,
}

impl Stream2Sink {
    /// `wait`: how long to wait for the client, which may start after the simulator.
    pub fn begin(url: &str, series: &SeriesInfo, wait: Duration) -> Result<Stream2Sink> {
        let address = url.strip_prefix(SCHEME).ok_or_else(|| {
            Problem::usage(format!("--to {url} is not a frame destination"))
                .next("Use tcp://HOST:PORT, or zmq+tcp://HOST:PORT for stream2.")
        })?;
        let [height, width] = series.frame[..] else {
            return Err(Problem::usage("--to: stream2 carries only two-dimensional frames"));
        };
        // ZeroMQ libraries write `*` for all addresses of a machine.
        let address = address.replacen('*', "0.0.0.0", 1);
        let mut push = Push::bind(&address)
            .map_err(|error| Problem::new(format!("cannot listen on {address}")).caused_by(&error))?;
        push.accept(wait).map_err(|error| {
            Problem::new(format!("no client connected to the stream at {url}"))
                .caused_by(&error)
                .next("Connect one, such as `varve record serve --stream2`; --timeout sets a longer timeout.")
        })?;
        let start = SeriesStart {
            series: 1,
            unique: "varve-simulator".to_owned(),
            images: series.frames,
            height,
            width,
            channels: vec![CHANNEL.to_owned()],
            frame_time: series.rate.map(|rate| 1.0 / rate),
            detector_description: Some("Varve simulator".to_owned()),
            ..SeriesStart::default()
        };
        let encoder = Encoder::new(Filter::BSLZ4, series.element.size())
            .map_err(|error| Problem::new("cannot compress the frames").caused_by(&error))?;
        let mut sink = Stream2Sink {
            url: url.to_owned(),
            push,
            start,
            begun: Instant::now(),
            began: unix_nanos(),
            element: series.element,
            encoder,
            chunk: Vec::new(),
        };
        sink.send(&sink.start.encode())?;
        Ok(sink)
    }

    fn send(&mut self, message: &[u8]) -> Result<()> {
        self.push
            .send(message)
            .map_err(|error| Problem::new(format!("the client of {} disconnected", self.url)).caused_by(&error))
    }
}

impl FrameSink for Stream2Sink {
    fn take(&mut self, number: u64, frame: &mut Vec<u8>) -> Result<bool> {
        self.chunk.clear();
        self.encoder
            .encode(frame, &mut self.chunk)
            .map_err(|error| Problem::new(format!("cannot compress frame {number}")).caused_by(&error))?;
        let channel = Channel {
            name: CHANNEL,
            height: self.start.height,
            width: self.start.width,
            element: self.element,
            big_endian: false,
            compression: Stream2Compression::BitshuffleLz4,
            bytes: &self.chunk,
        };
        let start = Some(self.begun.elapsed().as_nanos() as u64);
        let began = Some(self.began);
        let SeriesStart { series, unique, .. } = &self.start;
        let image = Stream2Image {
            series: *series,
            unique,
            number,
            began,
            start,
            channels: vec![channel],
            ..Stream2Image::default()
        };
        let message = image.encode();
        self.send(&message)?;
        Ok(true)
    }

    fn finish(mut self: Box<Self>, _complete: bool) -> Result<Option<Finished>> {
        let message = self.start.encode_end();
        self.send(&message)?;
        Ok(None)
    }
}
