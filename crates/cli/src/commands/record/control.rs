//! `varve record start|stop|abort|status|watch`: requests to the service over HTTP.

use super::protection::Asking;
use super::validators::{self, HttpPlace};
use crate::output::{Output, columns};
use crate::problem::{Exit, Problem, Result};
use clap::Args;
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;
use varve_detector_dataset::advice::Advice;
use varve_detector_dataset::dataset_spec::{DatasetSpec, Region};
use varve_detector_filters::Filter;
use varve_detector_hdf5::ElementType;
use varve_detector_service::StartRequest;
use varve_detector_stream::control::{Control, ControlError, printable};
use varve_env::toml_text;

/// Making or ending a file on a slow store takes a while.
const CHANGE_WAIT: Duration = Duration::from_secs(600);
const LOOK_WAIT: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
pub struct ServiceAddress {
    /// HTTP address of the service: HOST:PORT, http://HOST:PORT or https://HOST:PORT
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7421", value_parser = validators::http)]
    http: HttpPlace,
    #[command(flatten)]
    asking: Asking,
}

impl ServiceAddress {
    fn control(&self) -> Result<Control> {
        let HttpPlace { address, tls } = self.http.clone();
        if tls && !self.asking.has_ca() {
            return Err(Problem::usage(format!("--http https://{address} needs --tls-ca"))
                .because("HTTPS needs a CA certificate to verify the service's certificate")
                .next("Give --tls-ca FILE with the certificate of the authority that signed the service's."));
        }
        Ok(Control { address, token: self.asking.token()?, tls: self.asking.tls()? })
    }
}

/// Start a run that accepts frames from detectors
#[derive(Debug, Args)]
pub struct StartArguments {
    /// Name of the run: 1 to 64 letters, digits, `.`, `_`, `-`; it does not start with `.`
    #[arg(value_parser = validators::run_name)]
    name: String,
    /// HDF5 file to make, beneath the service's directory
    file: PathBuf,
    /// The run's dataset spec in JSON or TOML, instead of the flags that follow
    #[arg(long, value_name = "FILE", conflicts_with_all = ["frame", "element", "scan", "chunk", "filter"])]
    description: Option<PathBuf>,
    /// Chunk, filter, writers and alignment as `varve --json record advise` proposed them; its frame too, unless given
    #[arg(long, value_name = "FILE", conflicts_with_all = ["chunk", "filter"])]
    advice: Option<PathBuf>,
    /// Sides of a frame, the slowest first: HEIGHTxWIDTH
    #[arg(long, value_name = "HxW", required_unless_present_any = ["description", "advice"])]
    frame: Option<String>,
    /// u8 to u64, i8 to i64, f16 to f64 [default: u16, or the advice's]
    #[arg(long)]
    element: Option<String>,
    /// Sides of the scan, the slowest first; `-` as the first: without end
    #[arg(long, value_name = "NxM", default_value = "-", allow_hyphen_values = true)]
    scan: String,
    /// Number of the first frame, of a detector that counts on from run to run
    #[arg(long, value_name = "N", default_value_t = 0)]
    first_frame: u64,
    /// Sides of a chunk within a frame [default: the frame]
    #[arg(long, value_name = "HxW")]
    chunk: Option<String>,
    /// raw, gzip[:1-9], lz4, zstd[:1-22], bslz4, bszstd[:1-22]; shuffle+ before gzip, lz4 or zstd
    #[arg(long, default_value = "bslz4")]
    filter: Filter,
    /// Groups and datasets of the file: raw, nexus, or an XML layout file
    #[arg(long, value_name = "NAME|FILE")]
    layout: Option<PathBuf>,
    /// Metadata of the whole run, in JSON or TOML: tables `values`, `nxmx`, and `arrays` with the files of masks and
    /// flatfields (HDF5, npy, TIFF)
    #[arg(long, value_name = "FILE")]
    metadata: Option<PathBuf>,
    /// Name of a scalar that each frame has; may be repeated
    #[arg(long, value_name = "NAME")]
    scalar: Vec<String>,
    /// Clients that each send a part of the frames
    #[arg(long, default_value_t = 1, conflicts_with = "region")]
    sources: u16,
    /// Region of every frame that one source sends, the first for source 0; repeated for each source. Bytes outside the
    /// regions, and missing bytes, read as the fill value
    #[arg(long, value_name = "Y,X:HxW")]
    region: Vec<String>,
    /// Continue when all sources are complete, until the run is stopped
    #[arg(long)]
    keep: bool,
    /// Seconds to wait for clients that disconnected, before the run is finished; 30 more after a restart of the
    /// service
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    absence: f64,
    #[command(flatten)]
    service: ServiceAddress,
}

/// One run, and its service
#[derive(Debug, Args)]
pub struct RunArguments {
    /// Name of the run
    #[arg(value_parser = validators::run_name)]
    name: String,
    #[command(flatten)]
    service: ServiceAddress,
}

/// Show a run, or all
#[derive(Debug, Args)]
pub struct StatusArguments {
    /// Name of the run
    #[arg(value_parser = validators::run_name)]
    name: Option<String>,
    #[command(flatten)]
    service: ServiceAddress,
}

fn asked(what: &str, error: &ControlError) -> Problem {
    let problem = Problem::new(what.to_owned()).caused_by(error);
    match error {
        ControlError::Unreachable { .. } => problem.next(
            "Is `varve record serve` running there? --http sets the address. A service with --tls-cert needs --tls-ca \
            here.",
        ),
        ControlError::Refused { code, .. } if code == "token" => {
            problem.next("Commands of the service's user find its token on the same host; others need --token-file.")
        }
        ControlError::Refused { .. } => problem,
    }
}

fn sides(flag: &str, text: &str) -> Result<Vec<Option<u64>>> {
    let side = |(at, word): (usize, &str)| match word {
        "-" if at == 0 => Some(None),
        word => word.parse().ok().map(Some),
    };
    let sides: Option<Vec<_>> = text.split('x').enumerate().map(side).collect();
    sides.ok_or_else(|| Problem::usage(format!("{flag} {text} is not a shape")).next("Write sides as in 1024x512."))
}

fn closed(flag: &str, text: &str) -> Result<Vec<u64>> {
    let sides: Option<Vec<u64>> = sides(flag, text)?.into_iter().collect();
    sides.ok_or_else(|| Problem::usage(format!("{flag} {text} is unlimited; only the first side of --scan may be `-`")))
}

/// The offset of a region in a frame, and its sides.
fn region(text: &str) -> Result<Region> {
    let numbers = |text: &str, by: char| text.split(by).map(|word| word.parse().ok()).collect::<Option<Vec<u64>>>();
    let parts = text.split_once(':').and_then(|(offset, shape)| numbers(offset, ',').zip(numbers(shape, 'x')));
    let (offset, shape) = parts.ok_or_else(|| {
        Problem::usage(format!("--region {text} is not a region")).next("Write offset and shape, as in 512,0:512x1024.")
    })?;
    Ok(Region { offset, shape })
}

impl StartArguments {
    fn request(&self) -> Result<StartRequest> {
        let advice = self.advice.as_deref().map(super::advice).transpose()?;
        let mut description = match &self.description {
            Some(path) => described(path)?,
            None => self.flags(advice.as_ref())?,
        };
        if let Some(advice) = &advice {
            description.follow(advice).map_err(|why| Problem::usage("--advice").because(why))?;
        }
        if let Some(layout) = &self.layout {
            description.structure = super::structure(layout)?;
        }
        if let Some(metadata) = &self.metadata {
            super::metadata(metadata)?.add_to(&mut description);
        }
        if self.first_frame > 0 {
            description.first_frame = self.first_frame;
        }
        description.scalars.extend(self.scalar.iter().map(|name| name.as_str().into()));
        let regions: Result<Vec<Region>> = self.region.iter().map(|text| region(text)).collect();
        description.sources.extend(regions?);
        let mut request = StartRequest::new(&self.name, self.file.clone(), description);
        (request.sources, request.finish, request.absence_s) = (self.sources, !self.keep, self.absence);
        request.check().map_err(|why| Problem::usage("the run cannot start").because(why))?;
        Ok(request)
    }

    fn flags(&self, advice: Option<&Advice>) -> Result<DatasetSpec> {
        let element = match (&self.element, advice) {
            (Some(name), _) => ElementType::named(name).ok_or_else(|| {
                Problem::usage(format!("--element {name} is not a type")).next("Use u8 to u64, i8 to i64, f16 to f64.")
            })?,
            (None, Some(advice)) => advice.element,
            (None, None) => ElementType::U16,
        };
        let frame = match (&self.frame, advice) {
            (Some(frame), _) => closed("--frame", frame)?,
            (None, Some(advice)) => advice.frame.clone(),
            (None, None) => return Err(Problem::usage("--frame is missing")),
        };
        let mut description = DatasetSpec::new(element, frame);
        description.scan = sides("--scan", &self.scan)?;
        description.chunk = self.chunk.as_deref().map(|chunk| closed("--chunk", chunk)).transpose()?;
        description.filter = self.filter;
        Ok(description)
    }
}

fn described(path: &std::path::Path) -> Result<DatasetSpec> {
    let cannot = |what: &str| Problem::usage(format!("cannot {what} the description {}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| cannot("read").caused_by(&error))?;
    if path.extension().is_some_and(|extension| extension == "json") {
        return serde_json::from_str(&text).map_err(|error| cannot("understand").caused_by(&error));
    }
    toml::from_str(&text).map_err(|error| cannot("understand").because(toml_text::reason(&text, &error)))
}

pub fn start(arguments: &StartArguments, output: &Output) -> Result<Exit> {
    let request = arguments.request()?;
    let what = format!("cannot start run `{}`", arguments.name);
    let body = serde_json::to_value(&request).map_err(|error| Problem::new(what.clone()).caused_by(&error))?;
    let started = arguments.service.control()?.post("/runs", Some(body), CHANGE_WAIT);
    let status = started.map_err(|error| asked(&what, &error))?;
    output.result("record start", &status, lines)?;
    Ok(Exit::Done)
}

/// Ends a run; `verb` is `stop` or `abort`.
pub fn end(verb: &str, arguments: &RunArguments, output: &Output) -> Result<Exit> {
    let path = format!("/runs/{}/{verb}", arguments.name);
    let ended = arguments.service.control()?.post(&path, None, CHANGE_WAIT);
    let status = ended.map_err(|error| asked(&format!("cannot {verb} run `{}`", arguments.name), &error))?;
    output.result(&format!("record {verb}"), &status, lines)?;
    Ok(exit(&status))
}

/// The exit code distinguishes a run that failed or lost frames.
fn exit(status: &Value) -> Exit {
    match status["state"].as_str() {
        Some("failed" | "waiting") => Exit::Failed,
        _ if status["dropped_frames"].as_u64().unwrap_or(0) > 0 => Exit::Degraded,
        _ => Exit::Done,
    }
}

pub fn status(arguments: &StatusArguments, output: &Output) -> Result<Exit> {
    let control = arguments.service.control()?;
    let cannot = |error: ControlError| asked("cannot show the status", &error);
    if let Some(name) = &arguments.name {
        let status = control.get(&format!("/runs/{name}"), LOOK_WAIT).map_err(cannot)?;
        output.result("record status", &status, lines)?;
        return Ok(exit(&status));
    }
    let all = control.get("/runs", LOOK_WAIT).map_err(cannot)?;
    output.result("record status", &all, |all| {
        let runs = all["runs"].as_array().map_or(&[][..], Vec::as_slice);
        runs.iter().map(|run| format!("{}\n", line(run))).collect()
    })?;
    Ok(Exit::Done)
}

/// Follows a run: prints a line whenever frames have become durable, until it ends.
pub fn watch(arguments: &RunArguments, output: &Output) -> Result<Exit> {
    const WAIT_S: u64 = 20;
    let control = arguments.service.control()?;
    let mut seen = None;
    let mut is_first = true;
    loop {
        let after = seen.map_or(String::new(), |frame: u64| format!("&after={frame}"));
        // The first line appears at once, also before the first frame.
        let wait_s = if is_first { 0 } else { WAIT_S };
        let path = format!("/runs/{}/latest?wait_s={wait_s}{after}", arguments.name);
        let status = control.get(&path, LOOK_WAIT);
        let status = status.map_err(|error| asked(&format!("cannot watch run `{}`", arguments.name), &error))?;
        let latest = status["latest_durable"].as_u64();
        let ended = !matches!(status["state"].as_str(), Some("waiting" | "running" | "ending"));
        if std::mem::take(&mut is_first) || latest > seen || ended {
            let read = output.one_of_many("record watch", &status, line)?;
            if !read {
                return Ok(Exit::Done);
            }
        }
        seen = latest.or(seen);
        if ended {
            return Ok(exit(&status));
        }
    }
}

fn word(status: &Value, key: &str) -> String {
    match &status[key] {
        Value::Null => "-".into(),
        Value::String(text) => printable(text),
        value => value.to_string(),
    }
}

fn line(status: &Value) -> String {
    let word = |key| word(status, key);
    format!(
        "{}  {}  durable {}  latest {}  dropped {}",
        word("name"),
        word("state"),
        word("durable"),
        word("latest_durable"),
        word("dropped_frames")
    )
}

fn lines(status: &Value) -> String {
    let mut rows: Vec<(&str, String)> = Vec::new();
    for key in [
        "name",
        "file",
        "state",
        "why",
        "connections",
        "taken",
        "durable",
        "latest_durable",
        "dropped_frames",
        "damaged",
        "duplicate",
        "refused",
    ] {
        if !status[key].is_null() {
            rows.push((key, word(status, key)));
        }
    }
    let finished = &status["finished"];
    for (key, label) in [
        ("received", "frames received"),
        ("missing", "frames missing"),
        ("late", "frames late"),
        ("file_bytes", "file bytes"),
    ] {
        if !finished[key].is_null() {
            rows.push((label, word(finished, key)));
        }
    }
    columns(&rows)
}
