//! The runs that the frames of one PV become.

use super::PvaTarget;
use crate::records::EndKind;
use crate::request::StartRequest;
use crate::run::Run;
use crate::shared::{Asker, ServiceShared};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use varve_detector_dataset::dataset_spec::{DatasetSpec, Scalar, ScalarColumn, ScalarKind, Structure};
use varve_detector_dataset::frame::{AckLevel, Frame, Payload};
use varve_detector_dataset::frame_numbers::JUMP_MAX;
use varve_detector_dataset::limits::is_name;
use varve_detector_filters::{Compression, Decoder, Filter, chunk_of_bitshuffle_lz4, chunk_of_lz4};
use varve_detector_pva::nt_ndarray::{PvaCodec, PvaFrame};
use varve_detector_pva::value::PvValue;
use varve_detector_stream::NoticeCode;
use varve_detector_writer::WaitPolicy;

/// The server buffers little, so its frames may use the whole queue.
const WAIT: WaitPolicy = WaitPolicy::Within(Duration::from_secs(365 * 86400));
/// Texts of attributes; longer ones are cut.
const TEXT_BYTES: usize = 256;
/// A frame has about twenty attributes; a column takes memory for each frame.
const ATTRIBUTES_MAX: usize = 256;
const UNIQUE_ID: &str = "NDArrayUniqueId";
const TIME_STAMP: &str = "NDArrayTimeStamp";
/// Pause while the queue of scalars is full.
const SCALARS_PAUSE: Duration = Duration::from_millis(10);

/// Which frames of which PV a run has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PvaSource {
    pub pv: String,
    /// `uniqueId` of the run's frame 0.
    pub first: i64,
}

pub struct PvaIntake {
    shared: Arc<ServiceShared>,
    target: PvaTarget,
    /// The run of the last acquisition, which may have been ended by others.
    run: Option<PvaRun>,
    /// The last reason why a frame was refused; the same reason is logged once.
    refused: Option<String>,
}

struct PvaRun {
    run: Arc<Run>,
    first: i64,
    /// `uniqueId` of the last frame.
    last: i64,
    /// When it came.
    heard: Instant,
}

impl PvaIntake {
    /// Continues the unfinished run of a previous service, once it can be taken up. `None`: the service is stopping.
    pub fn resume(shared: &Arc<ServiceShared>, target: &PvaTarget) -> Option<PvaIntake> {
        const PAUSE: Duration = Duration::from_millis(200);
        while !shared.is_stopping() {
            let found = shared
                .runs()
                .into_iter()
                .find(|run| run.ended_as().is_none() && run.pva.as_ref().is_some_and(|source| source.pv == target.pv));
            let run = match &found {
                Some(run) if run.awaits().is_some() => {
                    std::thread::sleep(PAUSE);
                    continue;
                }
                Some(run) => run.pva.as_ref().map(|source| {
                    let frames = i64::try_from(run.board.end(AckLevel::Memory)).unwrap_or(i64::MAX);
                    let last = source.first.saturating_add(frames - 1);
                    PvaRun { run: Arc::clone(run), first: source.first, last, heard: Instant::now() }
                }),
                None => None,
            };
            return Some(PvaIntake { shared: Arc::clone(shared), target: target.clone(), run, refused: None });
        }
        None
    }

    /// Whether the frame belongs to the acquisition of the last run: its number is higher, by no more than a run accepts,
    /// and its form the same.
    pub fn continues(&self, frame: &PvaFrame) -> bool {
        self.run.as_ref().is_some_and(|current| {
            let spec = &current.run.request.description;
            frame.unique_id > current.last
                && frame.unique_id.abs_diff(current.last) <= JUMP_MAX
                && spec.element == frame.element
                && spec.frame == frame.shape
                && filter_of(&frame.codec).is_ok_and(|filter| filter == spec.filter)
        })
    }

    /// Finishes a run that has received no frame for a while.
    pub fn end_if_idle(&mut self) {
        if self.run.as_ref().is_some_and(|current| current.heard.elapsed() > self.target.idle) {
            self.end(&format!("no frame came from {} for {} s", self.target.pv, self.target.idle.as_secs_f64()));
        }
    }

    fn end(&mut self, why: &str) {
        if let Some(PvaRun { run, .. }) = self.run.take() {
            run.end(EndKind::Finished, why);
        }
    }

    /// Counts a frame that no run keeps.
    pub fn refuse(&mut self, why: &str) {
        self.shared.images_passed_over.fetch_add(1, Relaxed);
        if self.refused.as_deref() != Some(why) {
            tracing::error!(pv = self.target.pv, "frame of a PV not recorded: {why}");
            self.refused = Some(why.to_owned());
        }
    }

    pub fn take(&mut self, frame: PvaFrame) {
        if !self.continues(&frame) {
            self.end("another acquisition began");
            match self.begin(&frame) {
                Ok(run) => self.run = Some(run),
                Err(why) => return self.refuse(&why),
            }
        }
        let Some(current) = &mut self.run else { return };
        (current.last, current.heard) = (frame.unique_id, Instant::now());
        // A run that was stopped refuses the rest of its acquisition.
        let kept = match current.run.is_running() {
            true => keep(&current.run, current.first, frame),
            false => Err(format!("run `{}` has ended", current.run.request.name)),
        };
        if let Err(why) = kept {
            self.refuse(&why);
        }
    }

    fn begin(&self, frame: &PvaFrame) -> Result<PvaRun, String> {
        let mut description = DatasetSpec::new(frame.element, frame.shape.clone());
        description.structure = Structure::Nexus;
        description.filter = filter_of(&frame.codec)?;
        description.scalars = columns(&frame.attributes);
        let stem: String = self.target.pv.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        // The limit of run names, less the number.
        let stem = &stem[stem.len().saturating_sub(50)..];
        let free = |number: &u32| {
            let name = format!("{stem}-{number:04}");
            let file = self.shared.config.root.join(format!("{name}.h5"));
            self.shared.run(&name).is_none() && file.symlink_metadata().is_err()
        };
        let number = (1..u32::MAX).find(free).expect("no directory holds so many files");
        let name = format!("{stem}-{number:04}");
        let request = StartRequest {
            finish: false,
            ..StartRequest::new(&name, PathBuf::from(format!("{name}.h5")), description)
        };
        let source = PvaSource { pv: self.target.pv.clone(), first: frame.unique_id };
        let run = self.shared.begin_for(request, &Asker::Pva(source)).map_err(|refusal| refusal.text)?;
        tracing::info!(pv = self.target.pv, run = name, "a run began with a frame of a PV");
        Ok(PvaRun { run, first: frame.unique_id, last: frame.unique_id, heard: Instant::now() })
    }
}

fn filter_of(codec: &PvaCodec) -> Result<Filter, String> {
    match codec {
        PvaCodec::Plain | PvaCodec::BitshuffleLz4 => Ok(Filter::BSLZ4),
        PvaCodec::Lz4 => Ok(Filter { shuffle: false, compression: Compression::Lz4 }),
        PvaCodec::Other(name) => Err(format!(
            "its codec `{name}` is not a filter of this service; set the codec plugin to LZ4, BSLZ4 or none"
        )),
    }
}

/// The columns of a run: what areaDetector's files have of each frame, then the attributes of its first frame.
fn columns(attributes: &[(String, PvValue)]) -> Vec<ScalarColumn> {
    let mut columns = vec![
        ScalarColumn { name: UNIQUE_ID.into(), kind: ScalarKind::Integer },
        ScalarColumn { name: TIME_STAMP.into(), kind: ScalarKind::Float },
    ];
    for (name, value) in attributes {
        let kind = match value {
            PvValue::Integer(_) | PvValue::Boolean(_) => ScalarKind::Integer,
            PvValue::Unsigned(_) => ScalarKind::Unsigned,
            PvValue::Float(_) => ScalarKind::Float,
            PvValue::Text(_) => ScalarKind::Text(TEXT_BYTES),
            PvValue::Absent | PvValue::Numbers(..) | PvValue::Structure(_) | PvValue::Many(_) => {
                tracing::warn!(attribute = name, "attribute of a PV not recorded: it is neither number nor text");
                continue;
            }
        };
        let is_new = !columns.iter().any(|column| column.name == *name);
        if !is_name(name) || !is_new || columns.len() >= ATTRIBUTES_MAX {
            tracing::warn!(
                attribute = name,
                "attribute of a PV not recorded: its name is taken or not allowed, or there are too many"
            );
            continue;
        }
        columns.push(ScalarColumn { name: name.clone(), kind });
    }
    columns
}

fn scalar(value: PvValue) -> Option<Scalar> {
    Some(match value {
        PvValue::Integer(value) => Scalar::Integer(value),
        PvValue::Boolean(value) => Scalar::Integer(value.into()),
        PvValue::Unsigned(value) => Scalar::Unsigned(value),
        PvValue::Float(value) => Scalar::Float(value),
        PvValue::Text(mut text) => {
            let end = (0..=TEXT_BYTES.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
            text.truncate(end);
            Scalar::Text(text)
        }
        PvValue::Absent | PvValue::Numbers(..) | PvValue::Structure(_) | PvValue::Many(_) => return None,
    })
}

/// The `length` bytes of an LZ4 block that is larger than they are.
fn unpack_lz4(block: &[u8], length: usize) -> Result<Vec<u8>, String> {
    let size = |bytes: usize| u32::try_from(bytes).map_err(|_| format!("its LZ4 block has {bytes} bytes"));
    // In a chunk, a block of exactly this length would be an uncompressed one.
    if block.len() == length {
        return Err(format!("its LZ4 block has {length} bytes, like the frame; send it uncompressed"));
    }
    let mut chunk = (length as u64).to_be_bytes().to_vec();
    chunk.extend(size(length)?.to_be_bytes());
    chunk.extend(size(block.len())?.to_be_bytes());
    chunk.extend(block);
    let filter = Filter { shuffle: false, compression: Compression::Lz4 };
    Decoder { filter, element_bytes: 1 }.decode(&chunk, length).map_err(|error| error.to_string())
}

/// Gives the frame and its attributes to the run. `Err`: why the run does not keep the frame.
fn keep(run: &Run, first: i64, frame: PvaFrame) -> Result<(), String> {
    run.tallies.received_bytes.fetch_add(frame.bytes.len() as u64, Relaxed);
    let number = frame.unique_id.abs_diff(first);
    let description = &run.request.description;
    let payload = match frame.codec {
        PvaCodec::Plain => Payload::Plain(frame.bytes),
        PvaCodec::Lz4 => match chunk_of_lz4(&frame.bytes, description.frame_bytes()) {
            Ok(chunk) => Payload::Filtered(vec![chunk.into()]),
            // The filter cannot store a block that LZ4 has not shrunk, as of a frame of noise.
            Err(_) => Payload::Plain(unpack_lz4(&frame.bytes, description.frame_bytes())?),
        },
        PvaCodec::BitshuffleLz4 => {
            let chunk = chunk_of_bitshuffle_lz4(&frame.bytes, description.frame_bytes());
            Payload::Filtered(vec![chunk.into()])
        }
        PvaCodec::Other(_) => return filter_of(&frame.codec).map(drop),
    };
    let kept = run.take(0, Frame { number, taken: frame.taken, payload }, || false, WAIT);
    if let Err(notice) = kept.map_err(|refusal| refusal.text)? {
        match notice.code {
            NoticeCode::Refused | NoticeCode::Dropped => return Err(notice.text),
            _ => tracing::warn!(run = run.request.name, number, "{}", notice.text),
        }
    }
    let mut values = vec![(0, Scalar::Integer(frame.unique_id)), (1, Scalar::Float(frame.driver_time))];
    for (name, value) in frame.attributes {
        let at = description.scalars.iter().position(|column| column.name == name).filter(|at| *at > 1);
        // An attribute may change its type, or appear in the middle of an acquisition.
        if let Some(at) = at
            && let Some(value) = scalar(value)
            && description.scalars[at].kind.element(&value).is_ok()
        {
            values.push((at as u32, value));
        }
    }
    take_scalars(run, number, &values)
}

/// Waits for the committer while too many values are queued.
fn take_scalars(run: &Run, number: u64, values: &[(u32, Scalar)]) -> Result<(), String> {
    use varve_detector_writer::WriteError;
    loop {
        match run.with(|sink| Ok(sink.scalars(number, values.to_vec()))).map_err(|refusal| refusal.text)? {
            Ok(()) => return Ok(()),
            Err(WriteError::Full) => std::thread::sleep(SCALARS_PAUSE),
            Err(error) => return Err(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests;
