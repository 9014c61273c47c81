use super::*;
use hyper::header::HeaderValue;

fn check(allowed: &[&str], uri: &str, hosts: &[&[u8]], origin: Option<&str>) -> Result<(), Denied> {
    let allowed: Vec<String> = allowed.iter().map(|name| (*name).to_owned()).collect();
    let mut headers = HeaderMap::new();
    for host in hosts {
        headers.append(HOST, HeaderValue::from_bytes(host).expect("a header"));
    }
    if let Some(origin) = origin {
        headers.append(ORIGIN, origin.parse().expect("a header"));
    }
    HostCheck::new(&allowed).check(&uri.parse().expect("a URI"), &headers, [10, 0, 0, 5].into())
}

#[test]
fn names_of_this_host_are_answered() {
    for host in [
        "localhost",
        "LOCALHOST:7421",
        "127.0.0.1",
        "127.0.0.1:7421",
        "127.9.9.9:1",
        "[::1]",
        "[::1]:7421",
        "[::ffff:127.0.0.1]:80",
        "10.0.0.5:7421",
        "daq.example",
        "DAQ.example.:7421",
    ] {
        assert_eq!(check(&["daq.Example"], "/runs", &[host.as_bytes()], None), Ok(()), "{host}");
    }
    assert_eq!(check(&[], "http://127.0.0.1:7421/runs", &[b"127.0.0.1:7421"], None), Ok(()));
}

#[test]
fn other_names_are_refused() {
    for host in [
        "",
        ":7421",
        "evil.example",
        "evil.example:7421",
        "localhost.evil.example",
        "evil.localhost",
        "127.0.0.1.evil.example",
        "127.0.0.1@evil.example",
        "evil.example#127.0.0.1",
        "10.0.0.6",
        "0.0.0.0:7421",
        "[::]",
        "[::2]:7421",
        "2130706433",
        "127.1",
        "0x7f000001",
        "daq.example.evil.example",
        "xdaq.example",
    ] {
        let denied = check(&["daq.example"], "/runs", &[host.as_bytes()], None);
        assert!(matches!(denied, Err(Denied::Host(_))), "{host}: {denied:?}");
    }
    let long = [b'a'; 5000];
    assert!(matches!(check(&[], "/", &[&long], None), Err(Denied::Host(shown)) if shown.len() == NAME_BYTES_MAX));
    let Err(Denied::Host(shown)) = check(&[], "/", &[b"\xff\xfe"], None) else { panic!("bytes that are no text") };
    assert_eq!(shown, "\\xff\\xfe");
    assert_eq!(check(&[], "http://evil.example/runs", &[b"localhost"], None), Err(Denied::Host("evil.example".into())));
}

#[test]
fn absent_and_doubled_hosts_are_refused() {
    assert_eq!(check(&[], "/", &[], None), Err(Denied::NoHost));
    assert_eq!(check(&[], "/", &[b"localhost", b"localhost"], None), Err(Denied::NoHost));
    assert_eq!(check(&[], "/", &[b"localhost", b"evil.example"], None), Err(Denied::NoHost));
}

#[test]
fn pages_of_web_sites_are_refused() {
    for origin in ["http://evil.example", "http://localhost:7421", "http://127.0.0.1:7421", "null"] {
        assert_eq!(check(&[], "/runs", &[b"localhost"], Some(origin)), Err(Denied::Origin), "{origin}");
    }
}
