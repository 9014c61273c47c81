//! Images of a series become frames of its run, with their metadata as scalars.

use super::ITS_OWN;
use crate::run::Run;
use std::sync::atomic::Ordering::Relaxed;
use varve_detector_dataset::frame::{AckLevel, Frame, Payload};
use varve_detector_stream::{ErrorCode, NoticeCode, StreamRefusal};
use varve_detector_stream2::series::scalars;
use varve_detector_stream2::{Stream2Image, Stream2Series};

/// Whether all images that the detector announced have arrived. Of a series without an announced number nothing else
/// is known.
pub fn is_complete(series: &Stream2Series, run: &Run) -> bool {
    let sets = run.request.sets();
    (0..sets).all(|set| run.board.frames(set, AckLevel::Memory).len() >= series.start.images)
}

/// Marks the image in the file; the series continues.
fn damaged(run: &Run, image: &Stream2Image<'_>, frame: u64) {
    if let Err(refusal) = run.damaged(0, std::iter::once(frame)) {
        tracing::error!(series = image.series, image = image.number, "{}", refusal.text);
    }
}

/// Takes an image. Each channel is kept separately. The image is partial if a channel is missing or cannot be kept, and
/// damaged if none can be kept. Lost channels are counted, and the series continues.
///
/// # Errors
/// If the run accepts nothing any more.
pub fn take(series: &Stream2Series, run: &Run, image: &Stream2Image<'_>) -> Result<(), StreamRefusal> {
    let Some(frame) = series.frame(image) else {
        return Err(StreamRefusal::new(
            ErrorCode::Description,
            format!("the images of the series begin with number {}", series.first()),
        ));
    };
    // A run without regions is a series of one channel, or was begun by an earlier service that kept only whole images.
    let bytes = image.channels.iter().map(|channel| channel.bytes.len() as u64).sum();
    run.tallies.received_bytes.fetch_add(bytes, Relaxed);
    let parts = if run.request.has_regions() { series.channels(image) } else { vec![series.payload(image)] };
    let (all, mut kept) = (parts.len(), 0);
    for (source, part) in parts.into_iter().enumerate() {
        let why = match part {
            Ok(payload) => keep(run, (source as u16, frame), image, payload)?,
            Err(error) => {
                run.tallies.refused.fetch_add(1, Relaxed);
                Some(error.to_string())
            }
        };
        match why {
            None => kept += 1,
            Some(why) => {
                tracing::error!(series = image.series, image = image.number, "part of an image not recorded: {why}")
            }
        }
    }
    if kept == 0 {
        damaged(run, image, frame);
    } else if kept < all {
        // The file records which channels are missing.
        run.tallies.damaged.fetch_add(1, Relaxed);
    }
    if kept > 0 {
        add_scalars(run, image, frame)?;
    }
    Ok(())
}

/// Adds the image's metadata as scalars of its frame. Values that do not fit their columns are logged and counted.
///
/// # Errors
/// If the run accepts nothing any more.
fn add_scalars(run: &Run, image: &Stream2Image<'_>, frame: u64) -> Result<(), StreamRefusal> {
    let columns = scalars(image);
    if columns.is_empty() {
        return Ok(());
    }
    run.with(|sink| {
        let known = sink.columns();
        let mut values = Vec::new();
        for (column, value) in columns {
            let found = known.iter().position(|known| known.name == column.name);
            let placed = match found {
                Some(at) => known[at].kind.element(&value).map(|_| at as u32),
                None => sink.column(column.clone()).map_err(|error| error.to_string()),
            };
            match placed {
                Ok(at) => values.push((at, value)),
                Err(why) => {
                    // A field that does not fit usually comes with every image.
                    let before = run.tallies.refused.fetch_add(1, Relaxed);
                    let (series, image) = (image.series, image.number);
                    if before == 0 {
                        tracing::warn!(series, image, "image recorded without its `{}`: {why}", column.name);
                    }
                }
            }
        }
        if let Err(error) = sink.scalars(frame, values) {
            tracing::warn!(series = image.series, image = image.number, "image recorded without its metadata: {error}");
        }
        Ok(())
    })
}

/// Returns the reason if the payload is not kept. Other notices are counted and logged.
///
/// # Errors
/// If the run accepts nothing any more.
fn keep(
    run: &Run,
    (source, number): (u16, u64),
    image: &Stream2Image<'_>,
    payload: Payload,
) -> Result<Option<String>, StreamRefusal> {
    let frame = Frame { number, taken: image.taken(), payload };
    match run.take(source, frame, || false, ITS_OWN)? {
        Ok(()) => {}
        Err(notice) if matches!(notice.code, NoticeCode::Refused | NoticeCode::Dropped) => {
            return Ok(Some(notice.text));
        }
        Err(notice) => tracing::warn!(series = image.series, image = image.number, "{}", notice.text),
    }
    Ok(None)
}
