//! Reception from DECTRIS detectors: a PULL socket that connects to the detector, and one run for each series. The
//! socket provides back-pressure: while a run's queue is full, the detector keeps its images for as long as it can.

mod images;
mod patient;

use super::records::{EndKind, TakenSeries};
use super::request::StartRequest;
use super::run::Run;
use super::shared::{Asker, ServiceShared};
use super::threads::named;
use images::{is_complete, take};
use patient::Patient;
use std::collections::BTreeSet;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use varve_detector_dataset::dataset_spec::{DatasetSpec, Structure};
use varve_detector_filters::Filter;
use varve_detector_hdf5::ElementType;
use varve_detector_stream2::series::scalars;
use varve_detector_stream2::zmtp::{Received, ZmtpRole, handshake, receive};
use varve_detector_stream2::{SeriesStart, Stream2Image, Stream2Message, Stream2Series};
use varve_detector_writer::WaitPolicy;

/// Pause between connection attempts, while the detector or its network starts up.
const RETRY: Duration = Duration::from_secs(1);
const CONNECT: Duration = Duration::from_secs(5);
/// A peer that pauses in the middle of a message for this long is lost. Between messages, detectors may be silent.
const SILENCE: Duration = Duration::from_secs(30);
/// How soon a waiting thread notices a stop of the service.
const GLANCE: Duration = Duration::from_millis(200);
/// Several channels of the largest frame that a run accepts.
const MESSAGE_BYTES_MAX: u64 = 4 << 30;
/// A detector keeps its images as long as it can, but not for ever, so it may use the whole queue.
const ITS_OWN: WaitPolicy = WaitPolicy::Within(Duration::from_secs(365 * 86400));
/// After this many consecutive images of another series, the current series is over.
const ASTRAY_MAX: u32 = 16;
/// Limit for the names of unknown fields that are logged.
const TOLD_FIELDS_MAX: usize = 64;
const ENDED: &str = "the detector ended the series";
/// Only one of this many consecutive connection failures is logged.
const TOLD: u64 = 60;

/// Starts the thread that receives from the detector at `address` (HOST:PORT).
pub fn start(shared: &Arc<ServiceShared>, address: String) -> io::Result<JoinHandle<()>> {
    let mine = Arc::clone(shared);
    named("stream2", move || {
        let Some(series) = taken_up(&mine, &address) else { return };
        Intake { shared: mine, address, series, passed_over: None, astray: 0, lowest: None, told: BTreeSet::new() }
            .run();
    })
}

/// The unfinished series of a previous service. A detector does not send its start message again, and keeps its images
/// while nobody requests them, until the series' run can be taken up. `None`: the service is being stopped.
fn taken_up(shared: &ServiceShared, address: &str) -> Option<SeriesState> {
    let is_its =
        |run: &Arc<Run>| run.ended_as().is_none() && run.series.as_ref().is_some_and(|taken| taken.detector == address);
    while !shared.is_stopping() {
        let found = shared.runs().into_iter().filter(is_its).max_by_key(|run| run.request.file.clone());
        match found.as_ref().and_then(|run| Some((Arc::clone(run), run.series.clone()?))) {
            Some((run, _)) if run.awaits().is_some() => std::thread::sleep(GLANCE),
            Some((run, taken)) => {
                tracing::info!(address, series = taken.series.start.series, "the detector's series continues");
                return Some(SeriesState::Running { series: Box::new(taken.series), run });
            }
            None => return Some(SeriesState::Idle),
        }
    }
    None
}

/// How long after the end of a series its images may still arrive, as from a sender with several sockets.
const OVERTAKEN: Duration = Duration::from_secs(2);

enum SeriesState {
    Idle,
    /// The start message has arrived; the first image has the remaining information.
    Announced(Box<SeriesStart>),
    Running {
        series: Box<Stream2Series>,
        run: Arc<Run>,
    },
    /// The end of the series has arrived before all of its images. At this time it is over.
    Ending {
        series: Box<Stream2Series>,
        run: Arc<Run>,
        until: Instant,
    },
    /// A series that cannot be kept; its images are skipped.
    Refused(u64),
}

struct Intake {
    shared: Arc<ServiceShared>,
    address: String,
    series: SeriesState,
    /// The series whose skipped images were last logged.
    passed_over: Option<u64>,
    /// Number of consecutive images of other series.
    astray: u32,
    /// Lowest number of an image since the series was announced, readable or not.
    lowest: Option<u64>,
    /// Unknown fields of images and ends that were logged.
    told: BTreeSet<String>,
}

impl Intake {
    fn run(mut self) {
        let mut failures = 0_u64;
        while !self.shared.is_stopping() {
            self.end_in_time();
            match self.connect() {
                Ok(stream) => {
                    failures = 0;
                    tracing::info!(address = self.address, "connected to the detector's stream");
                    if let Err(error) = self.take_all(stream)
                        && !self.shared.is_stopping()
                    {
                        tracing::warn!(address = self.address, "lost the connection to the detector's stream: {error}");
                    }
                }
                Err(error) if failures.is_multiple_of(TOLD) => {
                    failures += 1;
                    tracing::warn!(
                        address = self.address,
                        "cannot connect to the detector's stream, retrying: {error}"
                    );
                }
                Err(_) => failures += 1,
            }
            let until = Instant::now() + RETRY;
            while Instant::now() < until && !self.shared.is_stopping() {
                std::thread::sleep(GLANCE);
            }
        }
        if let SeriesState::Ending { run, .. } = &self.series {
            run.end(EndKind::Finished, ENDED);
        }
    }

    /// Ends a series whose end has arrived, once its images have had time to arrive.
    fn end_in_time(&mut self) {
        if let SeriesState::Ending { series, run, until } = &self.series
            && (is_complete(series, run) || Instant::now() >= *until)
        {
            run.end(EndKind::Finished, ENDED);
            self.series = SeriesState::Idle;
        }
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name does not resolve to an address");
        for address in self.address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT) {
                Ok(mut stream) => {
                    stream.set_read_timeout(Some(SILENCE))?;
                    stream.set_write_timeout(Some(SILENCE))?;
                    handshake(&mut stream, ZmtpRole::Pull)?;
                    stream.set_read_timeout(Some(GLANCE))?;
                    // A detector that loses power sends nothing; keepalive lets the kernel detect it.
                    rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn take_all(&mut self, stream: TcpStream) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let mut patient = Patient { stream, shared: &shared, heard: None };
        let (mut message, mut legacy) = (Vec::new(), false);
        loop {
            // During a series, reads do not time out.
            if shared.is_stopping() {
                return Err(io::Error::other("the service is stopping"));
            }
            patient.heard = None;
            while matches!(self.series, SeriesState::Ending { .. }) && !patient.has_data()? {
                self.end_in_time();
            }
            if receive(&mut patient, &mut message, MESSAGE_BYTES_MAX)? == Received::Parts {
                // Logged once per connection, because such a detector sends many of these messages.
                if !legacy {
                    tracing::error!(
                        address = self.address,
                        "multipart messages of the detector's legacy stream are ignored; set its stream format to \
                        `cbor`"
                    );
                }
                legacy = true;
                continue;
            }
            match Stream2Message::decode(&message) {
                Ok(Stream2Message::Start(start)) => self.announce(*start),
                Ok(Stream2Message::Image(image)) => self.image(&image),
                Ok(Stream2Message::End { series, unknown }) => {
                    self.tell_unknown(series, unknown.iter().map(String::as_str));
                    self.end(series);
                }
                Err(error) => {
                    tracing::error!(address = self.address, "message of the detector refused: {error}");
                    self.unreadable(&message);
                }
            }
        }
    }

    /// Handles an image whose message cannot be fully parsed. If series and number are readable, its readable channels
    /// are kept.
    fn unreadable(&mut self, message: &[u8]) {
        if let SeriesState::Announced(start) = &self.series
            && let Some(image) = Stream2Image::salvage(message)
            && start.has(&image)
        {
            self.lowest = Some(self.lowest.unwrap_or(image.number).min(image.number));
        }
        if let Some((series, run)) = self.series.running()
            && let Some(image) = Stream2Image::salvage(message)
            && series.has(&image)
        {
            self.take(series, run, &image);
        }
    }

    /// Takes an image of the current series, or counts it as skipped if the run is over.
    fn take(&self, series: &Stream2Series, run: &Run, image: &Stream2Image<'_>) {
        if let Err(refusal) = take(series, run, image) {
            self.shared.images_passed_over.fetch_add(1, Relaxed);
            tracing::error!(series = image.series, image = image.number, "image not recorded: {}", refusal.text);
        }
    }

    /// Counts fields that the format's description does not have. Each is logged once.
    fn tell_unknown<'f>(&mut self, series: u64, fields: impl Iterator<Item = &'f str>) {
        for field in fields {
            self.shared.fields_unknown.fetch_add(1, Relaxed);
            if self.told.len() < TOLD_FIELDS_MAX && self.told.insert(field.to_owned()) {
                let field: String = field.chars().take(64).flat_map(char::escape_default).collect();
                tracing::warn!(series, "unknown field `{field}` of the detector's stream; recorded by its name");
            }
        }
    }

    fn announce(&mut self, start: SeriesStart) {
        if let Some((_, run)) = self.series.running() {
            run.end(EndKind::Finished, "the detector started another series");
        }
        self.tell_unknown(start.series, start.unknown.iter().map(String::as_str));
        self.shared.fields_unknown.fetch_add(start.passed_over.len() as u64, Relaxed);
        tracing::info!(series = start.series, images = start.images, "the detector started a series");
        for what in &start.passed_over {
            tracing::warn!(series = start.series, "series recorded without {what}");
        }
        self.series = SeriesState::Announced(Box::new(start));
        (self.passed_over, self.lowest) = (None, None);
    }

    /// Skips an image that no run keeps. Images of another series end the current series only if no image of the
    /// current one comes in between.
    fn pass_over(&mut self, image: &Stream2Image<'_>) {
        self.shared.images_passed_over.fetch_add(1, Relaxed);
        if self.passed_over.replace(image.series) != Some(image.series) {
            tracing::error!(
                series = image.series,
                image = image.number,
                "images ignored: the start of their series was not received; is another client connected?"
            );
        }
        self.astray += 1;
        if self.astray >= ASTRAY_MAX
            && let Some((_, run)) = self.series.running()
        {
            run.end(EndKind::Finished, "the detector started another series, whose start was not received");
            self.series = SeriesState::Refused(image.series);
        }
    }

    fn image(&mut self, image: &Stream2Image<'_>) {
        if let SeriesState::Announced(start) = &self.series
            && start.has(image)
        {
            self.lowest = Some(self.lowest.unwrap_or(image.number).min(image.number));
            if image.channels.is_empty() {
                let why =
                    image.unreadable.first().map_or_else(|| "it has no channel".into(), |(_, why)| why.to_string());
                tracing::error!(
                    series = image.series,
                    image = image.number,
                    "cannot read an image, waiting for the next: {why}"
                );
                self.shared.images_passed_over.fetch_add(1, Relaxed);
                return;
            }
            self.series = match self.begin(SeriesStart::clone(start), image) {
                Ok((series, run)) => SeriesState::Running { series: Box::new(series), run },
                Err(why) => {
                    tracing::error!(series = start.series, "cannot record the series: {why}");
                    SeriesState::Refused(start.series)
                }
            };
        }
        match &self.series {
            SeriesState::Running { series, run } if series.has(image) => {
                self.astray = 0;
                self.take(series, run, image);
                self.tell_unknown(image.series, image.unknown.iter().copied());
            }
            SeriesState::Ending { series, run, until } if series.has(image) => {
                self.take(series, run, image);
                if is_complete(series, run) || Instant::now() >= *until {
                    run.end(EndKind::Finished, ENDED);
                    self.series = SeriesState::Idle;
                }
            }
            SeriesState::Refused(series) if *series == image.series => {
                self.shared.images_passed_over.fetch_add(1, Relaxed);
            }
            _ => self.pass_over(image),
        }
    }

    fn begin(&self, start: SeriesStart, image: &Stream2Image<'_>) -> Result<(Stream2Series, Arc<Run>), String> {
        // Several detectors number their series independently.
        let numbered = |tries: u32| match tries {
            0 => format!("series-{}", start.series),
            tries => format!("series-{}-{tries}", start.series),
        };
        // The status of an ended series also uses its name.
        let taken = |name: &String| self.shared.run(name).is_some();
        let name = (0..u32::MAX).map(numbered).find(|name| !taken(name)).expect("no service has so many runs");
        let series = Stream2Series::begin(start, image, Filter::BSLZ4).map_err(|error| error.to_string())?;
        let mut series = series.with_image(self.lowest.unwrap_or(image.number));
        let mut base = DatasetSpec::new(ElementType::U8, vec![1]);
        base.structure = Structure::Nexus;
        let mut description = series.describe(base.clone());
        if let Some(metadata) = &self.shared.config.metadata {
            // Directions of axes come from these metadata, their angles from the detector.
            let beside = metadata.complete(&name, &description);
            let described = series.describe(DatasetSpec { nxmx: beside.nxmx, ..base });
            if described.check().is_ok() {
                description.nxmx = described.nxmx;
            }
        }
        description.scalars = scalars(image).into_iter().map(|(column, _)| column).collect();
        description.values.retain(|name, _| !description.scalars.iter().any(|column| column.name == *name));
        if series.first() > 0 {
            tracing::info!(series = series.start.series, "the detector numbers its images from {}", series.first());
        }
        // A detector restarts its numbering when it is restarted.
        let free = |tries: u32| {
            let suffix = if tries == 0 { String::new() } else { format!("-{tries}") };
            PathBuf::from(format!("series_{:06}{suffix}.h5", series.start.series))
        };
        let taken = |file: &PathBuf| self.shared.config.root.join(file).symlink_metadata().is_ok();
        let file = (0..u32::MAX).map(free).find(|file| !taken(file)).expect("no directory holds so many files");
        let request = StartRequest { finish: false, ..StartRequest::new(&name, file, description) };
        // They are in the description. The record and the run, which outlives the series, do not need them.
        series.start.arrays = Vec::new();
        let taken = Box::new(TakenSeries { detector: self.address.clone(), series: series.clone() });
        match self.shared.begin_for(request, &Asker::Detector(taken)) {
            Ok(run) => Ok((series, run)),
            Err(refusal) => Err(refusal.text),
        }
    }

    fn end(&mut self, series: u64) {
        match std::mem::replace(&mut self.series, SeriesState::Idle) {
            SeriesState::Running { series: mine, run } if mine.start.series == series => {
                if is_complete(&mine, &run) {
                    run.end(EndKind::Finished, ENDED);
                } else {
                    self.series = SeriesState::Ending { series: mine, run, until: Instant::now() + OVERTAKEN };
                }
            }
            SeriesState::Announced(start) => {
                tracing::warn!(series = start.series, "the series ended without an image, no file created");
            }
            other => self.series = other,
        }
    }
}

impl SeriesState {
    /// The series whose images are taken, and its run.
    fn running(&self) -> Option<(&Stream2Series, &Arc<Run>)> {
        match self {
            SeriesState::Running { series, run } | SeriesState::Ending { series, run, .. } => Some((series, run)),
            _ => None,
        }
    }
}
