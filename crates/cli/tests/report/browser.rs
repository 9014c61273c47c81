//! A page in headless Chromium: its document, the messages of its console, and its requests to the network.
//!
//! All requests go to a proxy that answers nothing and counts them. Those of the browser's own services do not count.

use crate::common::{SHORT, run};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

const QUIET: [&str; 12] = [
    "--headless",
    // Chromium's sandbox refuses root, which some test environments run as.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--disable-domain-reliability",
    "--no-first-run",
    "--no-pings",
    "--enable-logging=stderr",
];

/// Services that the browser itself calls whatever it shows.
const OWN_SERVICES: [&str; 4] = ["update.googleapis.com", "clients2.google.com", "accounts.google.com", "gvt1.com"];

pub struct Browser {
    program: PathBuf,
}

pub struct ShownPage {
    /// The document after it was loaded.
    pub document: String,
    /// Messages of the console.
    pub console: Vec<String>,
    /// Connections that it tried to make.
    pub requests: usize,
}

impl Browser {
    /// # Panics
    /// If there is none.
    pub fn find() -> Browser {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found =
            std::env::split_paths(&path).map(|directory| directory.join("chromium")).find(|path| path.is_file());
        Browser { program: found.expect("chromium is there: `make setup` installs it") }
    }

    /// Loads a page from a file. `profile`: a directory for the browser's own files.
    pub fn show(&self, page: &Path, profile: &Path) -> ShownPage {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let proxy = listener.local_addr().expect("an address");
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = requests.clone();
        std::thread::spawn(move || {
            // Each connection is closed after its request. The thread ends with the test process.
            listener.incoming().flatten().for_each(|stream| {
                let mut line = String::new();
                let read = BufReader::new(stream).read_line(&mut line);
                let is_own = OWN_SERVICES.iter().any(|service| line.contains(service));
                counted.fetch_add(usize::from(read.is_ok() && !line.is_empty() && !is_own), SeqCst);
            });
        });
        let mut command = Command::new(&self.program);
        command.args(QUIET).arg(format!("--user-data-dir={}", profile.display()));
        command.arg(format!("--proxy-server={proxy}")).arg("--proxy-bypass-list=<-loopback>");
        command.arg("--dump-dom").arg(format!("file://{}", page.display()));
        let shown = run(&mut command, SHORT).succeeded("chromium");
        let console = shown.stderr.lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned).collect();
        ShownPage { document: shown.stdout, console, requests: requests.load(SeqCst) }
    }
}
