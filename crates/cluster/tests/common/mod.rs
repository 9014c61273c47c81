//! Registries for tests: a directory of this host as the store, and an etcd server of its own.

use object_store::ObjectStore;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use varve_cluster::etcd::EtcdRegistry;
use varve_cluster::registry::{Registry, RegistryError};
use varve_cluster::store_registry::StoreRegistry;
use varve_env::posix_store::PosixStore;
use varve_env::store_path::StoreRoot;
use varve_types::VolumeId;

/// A store in a temporary directory.
pub struct Store(tempfile::TempDir);

impl Store {
    pub fn new() -> Store {
        Store(tempfile::tempdir().expect("a directory"))
    }

    /// Opens the store as one more process would.
    pub fn side(&self) -> Arc<dyn Registry> {
        let root = StoreRoot::hold(self.0.path()).expect("a directory");
        let store: Arc<dyn ObjectStore> = Arc::new(PosixStore::open(root.itself()).expect("a store"));
        let registry = StoreRegistry::new(store, self.0.path().display().to_string());
        Arc::new(registry.in_directory(root.join("cluster")))
    }

    /// The number of chains of beats.
    pub fn chains(&self) -> usize {
        std::fs::read_dir(self.0.path().join("cluster/beat")).map_or(0, |chains| chains.count())
    }

    /// Removes what the registry holds.
    pub fn lose(&self) {
        std::fs::remove_dir_all(self.0.path().join("cluster")).expect("it holds something");
    }
}

/// An etcd server, until it is dropped.
pub struct Etcd {
    process: Child,
    address: String,
    volume: VolumeId,
    _data: tempfile::TempDir,
}

impl Etcd {
    pub fn start() -> Etcd {
        Etcd::start_with("http", &[])
    }

    fn start_with(scheme: &str, options: &[String]) -> Etcd {
        let data = tempfile::tempdir().expect("a directory");
        let [clients, peers] = [free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
        let process = Command::new("etcd")
            .args(["--name", "test", "--unsafe-no-fsync", "--logger", "zap", "--log-level", "error"])
            .arg("--data-dir")
            .arg(data.path())
            .args(["--listen-client-urls", &format!("{scheme}://{clients}")])
            .args(["--advertise-client-urls", &format!("{scheme}://{clients}")])
            .args(["--listen-peer-urls", &format!("http://{peers}")])
            .args(["--initial-advertise-peer-urls", &format!("http://{peers}")])
            .args(["--initial-cluster", &format!("test=http://{peers}")])
            .args(options)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd starts; `make setup` installs it");
        let mut etcd = Etcd { process, address: clients, volume: VolumeId(varve_env::random::bytes()), _data: data };
        let deadline = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(&etcd.address).is_err() {
            assert!(Instant::now() < deadline, "etcd does not listen");
            // Another process may have taken the port.
            if etcd.process.try_wait().expect("a child").is_some() {
                return Etcd::start_with(scheme, options);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        etcd
    }

    /// Stops the process. It answers nothing from the return of this on: kill(2) alone returns before threads on other
    /// processors have stopped.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let (pid, mut status) = (self.process.id() as i32, 0);
        // SAFETY: the status is written to a place that lives through the call.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, libc::WUNTRACED) }, pid);
        assert!(libc::WIFSTOPPED(status), "it has ended: {status:#x}");
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: a system call that touches no memory. The process is a child that was not waited for.
        assert_eq!(unsafe { libc::kill(self.process.id() as i32, signal) }, 0);
    }

    /// Removes what the registry holds.
    pub fn lose(&self) {
        let client = ["--endpoints", &self.address, "del", "--prefix", "/varve/"];
        run(Command::new("etcdctl").env("ETCDCTL_API", "3").args(client));
    }

    pub fn side(&self) -> Arc<dyn Registry> {
        let address = format!("etcd://{}", self.address).parse().expect("an address");
        Arc::new(EtcdRegistry::new(address, self.volume).expect("no files to read"))
    }
}

/// An etcd server that speaks TLS to clients with a certificate, or to users with a password.
pub struct SecuredEtcd {
    pub etcd: Etcd,
    files: tempfile::TempDir,
}

impl SecuredEtcd {
    /// Clients need a certificate.
    pub fn with_certificates() -> SecuredEtcd {
        let files = certificates();
        let path = |name: &str| files.path().join(name).display().to_string();
        let options = [
            format!("--cert-file={}", path("server.pem")),
            format!("--key-file={}", path("server.key")),
            format!("--trusted-ca-file={}", path("ca.pem")),
            "--client-cert-auth".to_owned(),
        ];
        SecuredEtcd { etcd: Etcd::start_with("https", &options), files }
    }

    /// Clients log in as user root with the password "secret".
    pub fn with_password() -> SecuredEtcd {
        let files = certificates();
        let path = |name: &str| files.path().join(name).display().to_string();
        let options = [format!("--cert-file={}", path("server.pem")), format!("--key-file={}", path("server.key"))];
        let secured = SecuredEtcd { etcd: Etcd::start_with("https", &options), files };
        for command in
            [&["user", "add", "root:secret"][..], &["user", "grant-role", "root", "root"], &["auth", "enable"]]
        {
            run(Command::new("etcdctl")
                .env("ETCDCTL_API", "3")
                .args([
                    "--endpoints",
                    &format!("https://{}", secured.etcd.address),
                    "--cacert",
                    &secured.path("ca.pem"),
                ])
                .args(command));
        }
        std::fs::write(secured.path("password"), "secret\n").expect("a file");
        std::fs::write(secured.path("wrong"), "guess\n").expect("a file");
        secured
    }

    pub fn path(&self, name: &str) -> String {
        self.files.path().join(name).display().to_string()
    }

    /// `options`: those of the address, with file names of this server.
    pub fn side(&self, options: &[(&str, &str)]) -> Result<Arc<dyn Registry>, RegistryError> {
        let option = |(name, file): &(&str, &str)| match *name {
            "user" => format!("user={file}"),
            _ => format!("{name}={}", self.path(file)),
        };
        let options: Vec<_> = options.iter().map(option).collect();
        let address = format!("etcd://{}?{}", self.etcd.address, options.join("&")).parse().expect("an address");
        Ok(Arc::new(EtcdRegistry::new(address, self.etcd.volume)?))
    }
}

/// An authority, and certificates of a server on 127.0.0.1 and of a client, each `NAME.pem` with `NAME.key`.
fn certificates() -> tempfile::TempDir {
    let files = tempfile::tempdir().expect("a directory");
    let openssl = |arguments: &[&str]| run(Command::new("openssl").current_dir(files.path()).args(arguments));
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    openssl(
        &[&["req", "-x509", "-days", "2", "-subj", "/CN=authority", "-out", "ca.pem", "-keyout", "ca.key"], &key[..]]
            .concat(),
    );
    // etcd's gateway takes a common name of the server's certificate for a user.
    for (name, extension) in [("server", "subjectAltName=IP:127.0.0.1"), ("client", "extendedKeyUsage=clientAuth")] {
        let (request, pem, private) = (format!("{name}.csr"), format!("{name}.pem"), format!("{name}.key"));
        std::fs::write(files.path().join("extensions"), extension).expect("a file");
        openssl(&[&["req", "-new", "-subj", "/O=varve", "-out", &request, "-keyout", &private], &key[..]].concat());
        openssl(&[
            "x509",
            "-req",
            "-days",
            "2",
            "-in",
            &request,
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-extfile",
            "extensions",
            "-out",
            &pem,
        ]);
    }
    files
}

fn run(command: &mut Command) {
    let output = command.output().expect("`make setup` installs it");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Drop for Etcd {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}
