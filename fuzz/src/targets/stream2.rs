//! Streams of third-party detectors, and their files.
//!
//! Input: `M` and a message of stream2, `C` and a CBF file, `H` and the first bytes of a ZeroMQ peer.

use super::choice;
use std::io::{self, Read, Write};
use varve_detector_dataset::dataset_spec::DatasetSpec;
use varve_detector_filters::Filter;
use varve_detector_hdf5::ElementType;
use varve_detector_stream2::zmtp::{ZmtpRole, handshake, receive};
use varve_detector_stream2::{SeriesStart, Stream2Message, Stream2Series};
use varve_detector_tools::cbf;

pub fn reads(bytes: &[u8]) -> bool {
    match choice(bytes) {
        Some((b'M', message)) => reads_message(message),
        Some((b'C', file)) => cbf::decode(file).is_ok(),
        Some((b'H', sent)) => {
            let mut peer = ScriptedPeer(sent);
            let mut message = Vec::new();
            handshake(&mut peer, ZmtpRole::Pull).and_then(|()| receive(&mut peer, &mut message, 1 << 20)).is_ok()
        }
        _ => false,
    }
}

fn reads_message(bytes: &[u8]) -> bool {
    match Stream2Message::decode(bytes) {
        Ok(Stream2Message::Start(start)) => {
            let again = start.encode();
            // NaNs are not equal to themselves; encoding again gives the same bytes.
            assert!(
                matches!(Stream2Message::decode(&again), Ok(Stream2Message::Start(read)) if read.encode() == again)
            );
            true
        }
        Ok(Stream2Message::Image(image)) => {
            let names = image.channels.iter().map(|channel| channel.name.to_owned()).collect();
            // A small size suffices and does not take the memory that a message may claim.
            let start = SeriesStart { images: 1, height: 8, width: 8, channels: names, ..SeriesStart::default() };
            if let Ok(series) = Stream2Series::begin(start, &image, Filter::RAW) {
                let described = series.describe(DatasetSpec::new(ElementType::U8, vec![1]));
                assert!(described.check().is_ok(), "{described:?}");
                let _ = series.payload(&image);
                assert_eq!(series.channels(&image).len(), series.start.channels.len());
            }
            true
        }
        Ok(Stream2Message::End { .. }) => true,
        Err(_) => false,
    }
}

/// Sends its bytes and ignores all it receives.
struct ScriptedPeer<'b>(&'b [u8]);

impl Read for ScriptedPeer<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for ScriptedPeer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
