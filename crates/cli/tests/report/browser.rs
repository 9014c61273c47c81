//! A page in headless Chromium: its document, the messages of its console, and its requests to the network.
//!
//! All requests go to a proxy that answers nothing and counts connections. The browser's own background requests are
//! switched off.

use crate::common::{SHORT, run};
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
            // Each connection is closed at once. The thread ends with the test process.
            listener.incoming().flatten().for_each(|_| {
                counted.fetch_add(1, SeqCst);
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
