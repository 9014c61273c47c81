use super::*;

/// Promise: the client falls back to no address that was not requested, and each refusal says what to do.
#[test]
fn no_other_way_is_taken_unasked() {
    let (unix, tcp) = (Some("/none".to_owned()), Some("127.0.0.1:1".to_owned()));
    let both = WorkerAddress { unix: unix.clone(), tcp: tcp.clone() };
    let [by_unix, by_tcp] = [WorkerAddress { unix, tcp: None }, WorkerAddress { unix: None, tcp }];
    let refused = |address, local, tcp, part: &str| {
        let why = address_of(address, local, tcp).unwrap_err();
        assert!(why.contains(part), "{why}");
    };
    refused(&by_tcp, true, false, "add --tcp");
    refused(&by_unix, true, true, "--listen HOST:PORT");
    refused(&by_unix, false, false, "--listen HOST:PORT");
    assert_eq!(address_of(&both, true, false), Ok(ServerAddress::Unix("/none".into())));
    for (local, tcp) in [(true, true), (false, false), (false, true)] {
        assert_eq!(address_of(&both, local, tcp), Ok(ServerAddress::Tcp("127.0.0.1:1".into())));
    }
}
