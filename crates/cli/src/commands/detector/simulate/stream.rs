//! Sends frames to a service in the protocol of this project's own detectors: `formats/detector-stream.md`.

use super::{Arguments, FrameSink, SeriesInfo, description};
use crate::commands::record::protection::Asking;
use crate::commands::record::validators;
use crate::problem::{Problem, Result};
use crate::quantity::Span;
use clap::Args;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use varve_detector_dataset::dataset_spec::Region;
use varve_detector_dataset::frame::{AckLevel, FrameCounts};
use varve_detector_dataset::time::unix_nanos;
use varve_detector_hdf5::ElementType;
use varve_detector_service::StartRequest;
use varve_detector_stream::client::{Client, ClientError, ClientOptions, Outgoing, identity};
use varve_detector_stream::{ErrorCode, FinishedHead, NoticeCode};
use varve_detector_writer::Finished;

pub const SCHEME: &str = "tcp://";

/// Options for sending frames to `varve record serve`.
#[derive(Debug, Args)]
#[command(next_help_heading = "With --to tcp://HOST:PORT")]
pub struct ServiceArguments {
    /// Name of the run
    #[arg(long, value_name = "NAME", default_value = "simulated", value_parser = validators::run_name, requires = "to")]
    run: String,
    /// Start the run, into this file beneath the service's directory [default: the run exists already]
    #[arg(long, value_name = "FILE", requires = "to")]
    file: Option<PathBuf>,
    /// Connections that carry the frames
    #[arg(long, value_name = "N", default_value_t = 1, requires = "to", value_parser = clap::value_parser!(u16).range(1..))]
    connections: u16,
    /// Clients that each send a band of rows of every frame, as the modules of a detector do
    #[arg(long, value_name = "N", default_value_t = 1, requires = "to", value_parser = clap::value_parser!(u16).range(1..=1024))]
    sources: u16,
    /// Client name; a simulator with the same name continues where a killed one stopped and sends each frame once
    #[arg(long, value_name = "NAME", requires = "to")]
    client: Option<String>,
    /// Keep frames until they are acknowledged at this level: memory, written, durable
    #[arg(long, value_name = "LEVEL", default_value = "durable", requires = "to", value_parser = level)]
    level: AckLevel,
    /// At the end, leave the run open instead of reporting this source as complete
    #[arg(long, requires = "to")]
    leave: bool,
    /// How long the service may be unreachable, or accept nothing, before the simulator gives up; also the wait for the
    /// first client of zmq+tcp
    #[arg(long, alias = "patience", value_name = "TIME", default_value = "30s", requires = "to")]
    pub(super) timeout: Span,
    #[command(flatten)]
    asking: Asking,
}

fn level(text: &str) -> std::result::Result<AckLevel, String> {
    match text {
        "memory" => Ok(AckLevel::Memory),
        "written" => Ok(AckLevel::Written),
        "durable" => Ok(AckLevel::Durable),
        _ => Err("give memory, written or durable".to_owned()),
    }
}

/// A source, and the range of a frame's bytes that it sends.
struct StreamSource {
    client: Client,
    part: Range<usize>,
    sides: Vec<u32>,
}

pub struct StreamSink {
    sources: Vec<StreamSource>,
    url: String,
    level: AckLevel,
    timeout: Duration,
    /// How long a frame may wait for space; zero if the detector has a rate.
    wait: Duration,
    leave: bool,
    element: ElementType,
}

impl StreamSink {
    pub fn begin(url: &str, address: &str, arguments: &Arguments, series: &SeriesInfo) -> Result<StreamSink> {
        let service = &arguments.service;
        let mut options = ClientOptions::new(address, &service.run);
        if let Some(file) = &service.file {
            let mut description = description(arguments, series)?;
            if service.sources > 1 {
                description.sources = bands(series, service.sources)?;
            }
            let request = StartRequest::new(&service.run, file.clone(), description);
            request.check().map_err(|why| Problem::usage("the run cannot start").because(why))?;
            options.start = serde_json::to_string(&request)
                .map_err(|error| Problem::new("cannot encode the dataset spec").caused_by(&error))?;
        }
        options.token = service.asking.token()?.unwrap_or_default();
        options.tls = service.asking.tls()?;
        options.connections = service.connections.max(1);
        options.level = service.level;
        options.retry = service.timeout.0;
        options.client = service.client.as_ref().map(|client| identity(&service.run, client));
        let mut sources = Vec::new();
        let row = series.frame[1..].iter().product::<u64>() as usize * series.element.size();
        for (number, band) in bands(series, service.sources)?.into_iter().enumerate() {
            let options = ClientOptions { source: number as u16, ..options.clone() };
            let client = Client::connect(options).map_err(|error| failed(url, &error))?;
            let first = band.offset[0] as usize * row;
            let part = first..first + band.shape[0] as usize * row;
            let sides = band.shape.iter().map(|side| u32::try_from(*side).unwrap_or(u32::MAX)).collect();
            sources.push(StreamSource { client, part, sides });
        }
        let stream = StreamSink {
            sources,
            url: url.to_owned(),
            level: service.level,
            timeout: service.timeout.0,
            wait: if series.rate.is_some() { Duration::ZERO } else { service.timeout.0 },
            leave: service.leave,
            element: series.element,
        };
        stream.settle_before()?;
        Ok(stream)
    }

    /// Waits until the frames that the service has only in memory are acknowledged at the requested level. A continued
    /// run must not start before, because the service may still lose these frames.
    fn settle_before(&self) -> Result<()> {
        let deadline = Instant::now() + self.timeout;
        loop {
            let is_safe = |source: &StreamSource| {
                let safe = source.client.acknowledged(self.level);
                source.client.acknowledged(AckLevel::Memory).iter().all(|range| safe.covers(&range))
            };
            if self.sources.iter().all(is_safe) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(self.stuck("its frames in memory are not acknowledged at the requested level"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn stuck(&self, what: &str) -> Problem {
        Problem::new(format!("{} made no progress for {} s", self.url, self.timeout.as_secs_f64()))
            .because(what.to_owned())
            .next("Check `varve record status`; --timeout sets a longer timeout.")
    }

    /// Fails if the service refused a frame: a frame that does not fit the run implies that all later ones do not fit
    /// either.
    fn heed(&self) -> Result<()> {
        let mut notices = self.sources.iter().flat_map(|source| source.client.notices());
        match notices.find(|notice| notice.code == NoticeCode::Refused) {
            None => Ok(()),
            Some(notice) => Err(Problem::new(format!("the service refuses frame {}", notice.frame))
                .because(notice.text)
                .next("Use the model that the run was started for, or start another run with --file.")),
        }
    }

    /// Waits until all frames are acknowledged, as long as acknowledgements make progress.
    fn settle(&self) -> Result<()> {
        self.sources.iter().try_for_each(|source| self.settle_one(&source.client))?;
        self.heed()
    }

    fn settle_one(&self, client: &Client) -> Result<()> {
        let mut before = None;
        loop {
            match client.settle(self.timeout) {
                Ok(()) => return Ok(()),
                Err(ClientError::Late(_)) => {}
                Err(error) => return Err(failed(&self.url, &error)),
            }
            let reached = client.acknowledged(self.level).len();
            if before == Some(reached) {
                return Err(self.stuck("it acknowledges no further frames"));
            }
            before = Some(reached);
        }
    }
}

/// Divides the rows of a frame among the sources.
fn bands(series: &SeriesInfo, sources: u16) -> Result<Vec<Region>> {
    let (rows, sources) = (series.frame[0], u64::from(sources));
    if rows < sources {
        return Err(Problem::usage(format!("--sources {sources}: a frame has only {rows} rows")));
    }
    let band = |number: u64| {
        let (first, end) = (rows * number / sources, rows * (number + 1) / sources);
        let mut region = Region { offset: vec![0; series.frame.len()], shape: series.frame.clone() };
        (region.offset[0], region.shape[0]) = (first, end - first);
        region
    };
    Ok((0..sources).map(band).collect())
}

fn failed(url: &str, error: &ClientError) -> Problem {
    let problem = Problem::new(format!("cannot send frames to {url}")).caused_by(error);
    match error {
        ClientError::Unreachable { .. } => {
            problem.next("Is `varve record serve` running there? A service with --tls-cert needs --tls-ca here.")
        }
        ClientError::Refused(refusal) if refusal.code == ErrorCode::Token => {
            problem.next("Programs of the service's user find its token on the same host; others need --token-file.")
        }
        ClientError::Full { .. } => problem.next("Give a longer --timeout or fewer --connections."),
        _ => problem,
    }
}

impl FrameSink for StreamSink {
    fn has(&self, number: u64) -> bool {
        self.sources.iter().all(|source| source.client.acknowledged_frame(self.level, number))
    }

    /// Sends the frame on all sources. A source without space drops its part of the frame.
    fn take(&mut self, number: u64, frame: &mut Vec<u8>) -> Result<bool> {
        let mut whole = true;
        for source in &self.sources {
            // A killed simulator has sent this part already.
            if source.client.acknowledged_frame(self.level, number) {
                continue;
            }
            let alone = source.part.len() == frame.len();
            let out = Outgoing {
                number,
                taken: unix_nanos(),
                element: self.element,
                sides: source.sides.clone(),
                frames: 1,
                filter: String::new(),
                parts: vec![if alone { std::mem::take(frame) } else { frame[source.part.clone()].to_vec() }],
            };
            match source.client.send(out, self.wait) {
                Ok(()) => {}
                Err(ClientError::Late(_)) if self.wait.is_zero() => {
                    source.client.lost(1);
                    whole = false;
                }
                Err(ClientError::Late(_)) => return Err(self.stuck("it accepts no frame")),
                Err(error) => return Err(failed(&self.url, &error)),
            }
        }
        self.heed()?;
        Ok(whole)
    }

    /// The service counts it when the run ends.
    fn dropped(&mut self) {
        self.sources.iter().for_each(|source| source.client.lost(1));
    }

    fn finish(self: Box<Self>, _complete: bool) -> Result<Option<Finished>> {
        self.settle()?;
        let StreamSink { sources, url, timeout, leave, .. } = *self;
        // A run ends when all its sources have ended, so the sources must end concurrently: each waits for the others.
        let end = |StreamSource { client, .. }: StreamSource| {
            if leave { client.leave(timeout) } else { client.finish(timeout) }
        };
        let ended = std::thread::scope(|scope| {
            let ends: Vec<_> = sources.into_iter().map(|source| scope.spawn(|| end(source))).collect();
            ends.into_iter().map(|end| end.join().unwrap_or(Err(ClientError::Late(timeout)))).next_back()
        });
        let ended = ended.unwrap_or(Err(ClientError::Late(timeout)));
        let FinishedHead { frames, received, missing, damaged, duplicate, late, dropped, file_bytes, partial } =
            ended.map_err(|error| failed(&url, &error))?;
        // Counts by status: here each frame has exactly one.
        let received = received.saturating_sub(duplicate + late);
        let counts = FrameCounts { frames, received, missing, damaged, duplicate, late, partial };
        Ok(Some(Finished { counts, file_bytes, dropped }))
    }
}
