//! Frames to a service, as this project's own detectors bring them: `formats/detector-stream.md`.

use super::{Arguments, Series, Sink, description};
use crate::commands::record::token;
use crate::problem::{Problem, Result};
use crate::quantity::Span;
use clap::Args;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use varve_detector::catalog::Counts;
use varve_detector::client::{Client, ClientError, Options, Outgoing, identity};
use varve_detector::frame::{ElementType, Level};
use varve_detector::service::StartRequest;
use varve_detector::stream::{FinishedHead, NoticeCode};
use varve_detector::writer::{Finished, now};

pub const SCHEME: &str = "tcp://";

/// How frames come to `varve record serve`.
#[derive(Debug, Args)]
#[command(next_help_heading = "With --to tcp://HOST:PORT")]
pub struct Service {
    /// Name of the run
    #[arg(long, value_name = "NAME", default_value = "simulated")]
    run: String,
    /// Start the run, into this file beneath the service's directory [default: the run was started otherwise]
    #[arg(long, value_name = "FILE", requires = "to")]
    file: Option<PathBuf>,
    /// Connections over which the frames are brought
    #[arg(long, value_name = "N", default_value_t = 1)]
    connections: u16,
    /// The same name again goes on where a simulator that was killed stopped; each frame is brought once
    #[arg(long, value_name = "NAME", requires = "to")]
    client: Option<String>,
    /// Frames are kept until they are acknowledged so: memory, written, durable
    #[arg(long, value_name = "LEVEL", default_value = "durable", value_parser = level)]
    level: Level,
    /// Leave the run as it is at the end, instead of saying that this source is complete
    #[arg(long, requires = "to")]
    leave: bool,
    /// How long the service may be away, or take nothing, before the simulator gives up
    #[arg(long, value_name = "TIME", default_value = "30s")]
    patience: Span,
    /// File with the service's token
    #[arg(long, value_name = "FILE", requires = "to")]
    token_file: Option<PathBuf>,
}

fn level(text: &str) -> std::result::Result<Level, String> {
    match text {
        "memory" => Ok(Level::Memory),
        "written" => Ok(Level::Written),
        "durable" => Ok(Level::Durable),
        _ => Err("give memory, written or durable".to_owned()),
    }
}

pub struct Stream {
    client: Client,
    url: String,
    level: Level,
    patience: Duration,
    /// How long a frame may wait for room: not at all where the detector has a rate.
    wait: Duration,
    leave: bool,
    element: ElementType,
    sides: Vec<u32>,
}

impl Stream {
    pub fn begin(url: &str, address: &str, arguments: &Arguments, series: &Series) -> Result<Stream> {
        let service = &arguments.service;
        let mut options = Options::new(address, &service.run);
        if let Some(file) = &service.file {
            let request = StartRequest::new(&service.run, file.clone(), description(arguments, series)?);
            request.check().map_err(|why| Problem::usage("the run cannot start").because(why))?;
            options.start = serde_json::to_string(&request)
                .map_err(|error| Problem::new("the run cannot be described").caused_by(&error))?;
        }
        options.token = service.token_file.as_deref().map(token).transpose()?.unwrap_or_default();
        options.connections = service.connections.max(1);
        options.level = service.level;
        options.retry = service.patience.0;
        options.client = service.client.as_ref().map(|client| identity(&service.run, client));
        let client = Client::connect(options).map_err(|error| failed(url, &error))?;
        let sides = series.frame.iter().map(|side| u32::try_from(*side).unwrap_or(u32::MAX)).collect();
        let stream = Stream {
            client,
            url: url.to_owned(),
            level: service.level,
            patience: service.patience.0,
            wait: if series.rate.is_some() { Duration::ZERO } else { service.patience.0 },
            leave: service.leave,
            element: series.element,
            sides,
        };
        stream.settle_before()?;
        Ok(stream)
    }

    /// What the service has in memory alone it may still lose: who goes on with a run waits until it is safe.
    fn settle_before(&self) -> Result<()> {
        let deadline = Instant::now() + self.patience;
        loop {
            let safe = self.client.acknowledged(self.level);
            if self.client.acknowledged(Level::Memory).iter().all(|range| safe.covers(&range)) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(self.stuck("the frames that it has already are not safe"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn stuck(&self, what: &str) -> Problem {
        Problem::new(format!("{} made no progress for {} s", self.url, self.patience.as_secs_f64()))
            .because(what.to_owned())
            .next("See what `varve record status` says; --patience waits longer.")
    }

    /// What the service says of single frames: one that does not fit the run is the same with all that follow.
    fn heed(&self) -> Result<()> {
        match self.client.notices().into_iter().find(|notice| notice.code == NoticeCode::Refused) {
            None => Ok(()),
            Some(notice) => Err(Problem::new(format!("the service refuses frame {}", notice.frame))
                .because(notice.text)
                .next("Play the model that the run was started for, or start another with --file.")),
        }
    }

    /// Until all is acknowledged, as long as ever more is.
    fn settle(&self) -> Result<()> {
        let mut before = None;
        loop {
            match self.client.settle(self.patience) {
                Ok(()) => return self.heed(),
                Err(ClientError::Late(_)) => {}
                Err(error) => return Err(failed(&self.url, &error)),
            }
            let reached = self.client.acknowledged(self.level).len();
            if before == Some(reached) {
                return Err(self.stuck("frames are not acknowledged"));
            }
            before = Some(reached);
        }
    }
}

fn failed(url: &str, error: &ClientError) -> Problem {
    let problem = Problem::new(format!("the frames do not come to {url}")).caused_by(error);
    match error {
        ClientError::Unreachable { .. } => problem.next("Is `varve record serve` running there?"),
        _ => problem,
    }
}

impl Sink for Stream {
    fn has(&self, number: u64) -> bool {
        self.client.acknowledged_frame(self.level, number)
    }

    fn take(&mut self, number: u64, frame: &mut Vec<u8>) -> Result<bool> {
        let out = Outgoing {
            number,
            taken: now(),
            element: self.element,
            sides: self.sides.clone(),
            frames: 1,
            filter: String::new(),
            parts: vec![std::mem::take(frame)],
        };
        let sent = self.client.send(out, self.wait);
        self.heed()?;
        match sent {
            Ok(()) => Ok(true),
            Err(ClientError::Late(_)) if self.wait.is_zero() => {
                self.client.lost(1);
                Ok(false)
            }
            Err(ClientError::Late(_)) => Err(self.stuck("it takes no frame")),
            Err(error) => Err(failed(&self.url, &error)),
        }
    }

    fn finish(self: Box<Self>) -> Result<Option<Finished>> {
        self.settle()?;
        let Stream { client, url, patience, leave, .. } = *self;
        let ended = if leave { client.leave(patience) } else { client.finish(patience) };
        let FinishedHead { frames, received, missing, damaged, duplicate, late, dropped, file_bytes } =
            ended.map_err(|error| failed(&url, &error))?;
        let counts = Counts { frames, received, missing, damaged, duplicate, late, partial: 0 };
        Ok(Some(Finished { counts, file_bytes, dropped }))
    }
}
