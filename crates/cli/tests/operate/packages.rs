//! The installed form: `make install` into an empty root, and the packages of `make dist`.

use super::common::{LONG, SHORT, run, scratch};
use super::text;
use std::path::{Path, PathBuf};
use std::process::Command;

fn script(name: &str) -> Command {
    let mut command = Command::new("bash");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts").join(name));
    command.arg(env!("CARGO_BIN_EXE_varve"));
    command
}

/// The installed files that the guide names, below a prefix.
const INSTALLED: [&str; 10] = [
    "bin/varve",
    "lib/systemd/system/varve-server@.service",
    "lib/systemd/system/varve-mount@.service",
    "lib/systemd/system/varve-record@.service",
    "lib/modprobe.d/varve.conf",
    "share/man/man1/varve.1.gz",
    "share/man/man1/varve-serve.1.gz",
    "share/bash-completion/completions/varve",
    "share/zsh/site-functions/_varve",
    "share/fish/vendor_completions.d/varve.fish",
];

fn expect_installed(prefix: &Path) {
    for name in INSTALLED {
        assert!(prefix.join(name).is_file(), "{name} is not installed in {}", prefix.display());
    }
    let version = run(Command::new(prefix.join("bin/varve")).arg("--version"), SHORT).succeeded("the program");
    assert_eq!(version.stdout.trim(), format!("varve {}", env!("CARGO_PKG_VERSION")));
}

fn helper_of(link: &Path) -> PathBuf {
    std::fs::read_link(link).expect("the mount helper is a link")
}

/// Promise: `make install` puts program, pages, completions, units and helper into an empty root, and systemd accepts
/// the units.
#[test]
fn install_fills_an_empty_root() {
    let root = scratch();
    let install = run(script("install.sh").args(["/usr/local", text(root.path())]), LONG).succeeded("install.sh");
    assert!(install.stdout.contains("usr/local/bin/varve"), "{}", install.stdout);
    let prefix = root.path().join("usr/local");
    expect_installed(&prefix);
    assert_eq!(helper_of(&root.path().join("sbin/mount.fuse.varve")), Path::new("/usr/local/bin/varve"));
    let units = prefix.join("lib/systemd/system");
    for name in ["varve-server@", "varve-mount@", "varve-record@"] {
        let unit = std::fs::read_to_string(units.join(format!("{name}.service"))).expect("a unit");
        assert!(unit.contains("ExecStart=/usr/local/bin/varve ") && unit.contains("Type=notify"), "{unit}");
        // The unit of an instance, with a program that exists here. The mount's file of settings is the administrator's.
        let instance = root.path().join(format!("{name}tmp-volume.service"));
        std::fs::write(&instance, unit.replace("/usr/local", text(&prefix))).expect("a file");
        let mut verify = Command::new("systemd-analyze");
        let verified = run(verify.args(["verify", "--man=no", text(&instance)]), SHORT).succeeded("systemd-analyze");
        assert_eq!(verified.stderr, "", "{name}");
    }
}

/// Promise: `make dist` makes a Debian package with all of it, a tarball that installs itself, and a Containerfile.
#[test]
fn packages_contain_the_installed_form() {
    let (out, root) = (scratch(), scratch());
    run(script("dist.sh").arg(out.path()).env("DIST_COMPRESSION", "none"), LONG).succeeded("dist.sh");
    let find = |suffix: &str| {
        let entries = std::fs::read_dir(out.path()).expect("a directory");
        let found = entries.flatten().map(|entry| entry.path()).find(|path| text(path).ends_with(suffix));
        found.unwrap_or_else(|| panic!("no {suffix}"))
    };
    let package = find(".deb");
    let fields = run(Command::new("dpkg-deb").arg("--info").arg(&package), SHORT).succeeded("dpkg-deb --info").stdout;
    for field in ["Package: varve", "Depends: libc6 (>= 2.", "fuse3", "Version: "] {
        assert!(fields.contains(field), "{field} is missing in:\n{fields}");
    }
    run(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(root.path()), SHORT)
        .succeeded("dpkg-deb --extract");
    expect_installed(&root.path().join("usr"));
    assert_eq!(helper_of(&root.path().join("usr/sbin/mount.fuse.varve")), Path::new("/usr/bin/varve"));
    run(Command::new("tar").arg("-C").arg(root.path()).arg("-xzf").arg(find(".tar.gz")), SHORT).succeeded("tar");
    let tree = root.path().join(format!("varve-{}", env!("CARGO_PKG_VERSION")));
    let mut own = Command::new("bash");
    own.current_dir(&tree).args(["scripts/install.sh", "bin/varve", "/opt/varve"]).arg(root.path());
    run(&mut own, LONG).succeeded("the tarball's install.sh");
    expect_installed(&root.path().join("opt/varve"));
    assert!(find("Containerfile").is_file() && find(".debug").is_file());
}
