use super::*;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use varve_env::identity::NOBODY;

const TOKEN: &str = "0123456789abcdef";

fn file(directory: &Path, name: &str, text: &[u8], mode: u32) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, text).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
    path
}

#[test]
fn tokens_are_read_from_private_files() {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, mode) in [("a", 0o600), ("b", 0o400), ("c", 0o700)] {
        let path = file(directory.path(), name, format!("{TOKEN}\n").as_bytes(), mode);
        assert_eq!(read(&path).expect(name), TOKEN);
    }
}

#[test]
fn unfit_token_files_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = directory.path();
    let good = file(at, "good", TOKEN.as_bytes(), 0o600);
    symlink(&good, at.join("link")).expect("made");
    symlink(at.join("nowhere"), at.join("dangling")).expect("made");
    fs::create_dir(at.join("directory")).expect("made");
    rustix::fs::mknodat(rustix::fs::CWD, at.join("fifo"), FileType::Fifo, Mode::RWXU, 0).expect("made");
    for mode in [0o640, 0o604, 0o620, 0o602, 0o610, 0o601, 0o666, 0o660] {
        file(at, &format!("mode-{mode:o}"), TOKEN.as_bytes(), mode);
    }
    file(at, "empty", b"", 0o600);
    file(at, "short", b"1234567", 0o600);
    file(at, "long", &[b'x'; 1025], 0o600);
    file(at, "spaces", &[b' '; 100], 0o600);
    file(at, "lines", b"12345678\n12345678", 0o600);
    file(at, "escape", b"12345678\x1b[31m", 0o600);
    file(at, "binary", &[0xff; 16], 0o600);
    let mut cases = vec![
        ("link", "is a symbolic link"),
        ("dangling", "is a symbolic link"),
        ("directory", "is not a regular file"),
        ("fifo", "is not a regular file"),
        ("nowhere", "No such file"),
        ("mode-640", "chmod 600"),
        ("mode-604", "chmod 600"),
        ("mode-620", "chmod 600"),
        ("mode-602", "chmod 600"),
        ("mode-610", "chmod 600"),
        ("mode-601", "chmod 600"),
        ("mode-666", "chmod 600"),
        ("mode-660", "chmod 600"),
        ("empty", "has 0 bytes"),
        ("short", "has 7 bytes"),
        ("long", "has 1025 bytes"),
        ("spaces", "has 0 bytes"),
        ("lines", "visible ASCII"),
        ("escape", "visible ASCII"),
        ("binary", "visible ASCII"),
    ];
    if rustix::process::geteuid().is_root() {
        for (name, owner) in [("another", 47111), ("nobody", NOBODY)] {
            chown(file(at, name, TOKEN.as_bytes(), 0o600), Some(owner), None).expect("given away");
            cases.push((name, "belongs to user"));
        }
    }
    for (name, words) in cases {
        let refused = read(&at.join(name)).expect_err(name).to_string();
        assert!(refused.contains(words), "{name}: {refused}");
        assert!(!refused.contains('\x1b'), "{name}: {refused}");
    }
}

#[test]
fn only_this_user_and_root_are_trusted() {
    for (owner, user, trusted) in
        [(0, 0, true), (0, 1000, true), (1000, 1000, true), (1001, 1000, false), (1000, 0, false)]
    {
        assert_eq!(is_trusted(owner, user), trusted, "{owner} {user}");
    }
    assert!(!is_trusted(NOBODY, NOBODY) && !is_trusted(NOBODY, 0), "the overflow uid stands for everyone");
}

#[test]
fn tokens_match_only_themselves() {
    assert!(matches(TOKEN, TOKEN));
    for given in ["", "0", "0123456789abcdeg", "0123456789ABCDEF", "0123456789abcdef0", "0123456789abcde"] {
        assert!(!matches(TOKEN, given), "{given}");
    }
    assert!(random() != random() && random().len() == 64);
}

#[test]
fn other_hosts_get_only_what_was_given() {
    let far = SocketAddr::from(([10, 0, 0, 5], 7420));
    assert_eq!(for_peer("", far).expect("none"), "");
    assert_eq!(for_peer("given", far).expect("given"), "given");
    assert_eq!(for_peer("given", SocketAddr::from(([127, 0, 0, 1], 1))).expect("given"), "given");
}

/// The test has its own port, so that its files do not collide with others.
#[test]
fn a_published_token_is_found_until_withdrawn() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    assert_eq!(for_peer("", address).expect("none so far"), "");
    let first = Published::new(address, TOKEN).expect("published");
    assert_eq!(for_peer("", address).expect("found"), TOKEN);
    let mode = first.path().metadata().expect("there").permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    let second = Published::new(address, "another-token").expect("published");
    drop(first);
    assert_eq!(for_peer("", address).expect("found"), "another-token", "the later one stays");
    let path = second.path().to_owned();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("set");
    assert!(matches!(for_peer("", address), Err(TokenError::Mode { .. })));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("set");
    drop(second);
    assert!(!path.exists());
}
