use super::*;

fn key(byte: u8) -> VolumeKey {
    VolumeKey([byte; 32])
}

fn binding() -> Binding {
    Binding {
        volume: [1; 16],
        key: KeyId(2),
        purpose: Purpose::Work,
        session: 3,
        worker: 4,
        channel: Channel::Network,
        nonce: [5; 16],
    }
}

fn welcome() -> Welcome {
    Welcome::Refused { reason: "no".into() }
}

fn offer() -> Offer {
    Offer { shm_slot: true, credential: Vec::new() }
}

fn exchanged() -> (Records, Records) {
    let (client, hello) = Initiator::begin(&key(7), &binding(), &offer()).unwrap();
    let (server, offered) = Responder::accept(&key(7), &binding(), &hello).unwrap();
    assert_eq!(offered, offer());
    let (answer, of_server) = server.finish(&welcome()).unwrap();
    let (welcomed, of_client) = client.finish(&answer).unwrap();
    assert_eq!(welcomed, welcome());
    (of_client, of_server)
}

/// Promise: two sides with the same key and binding exchange their payloads, and then records in both directions.
#[test]
fn sides_that_agree_exchange_records() {
    let (mut client, mut server) = exchanged();
    let (mut sealed, mut plain) = (Vec::new(), Vec::new());
    client.seal(b"ask", &mut sealed).unwrap();
    assert!(!sealed.windows(3).any(|window| window == b"ask"));
    server.open_all(&mut sealed, &mut plain).unwrap();
    assert_eq!(plain, b"ask");
    let (mut sealed, mut plain) = (Vec::new(), Vec::new());
    server.seal(b"answer", &mut sealed).unwrap();
    client.open_all(&mut sealed, &mut plain).unwrap();
    assert_eq!(plain, b"answer");
}

/// Promise: a different key or a different value of any bound field makes the exchange fail at the server.
#[test]
fn a_difference_in_anything_bound_fails() {
    let same = binding();
    let others = [
        Binding { volume: [2; 16], ..same.clone() },
        Binding { key: KeyId::VOLUME, ..same.clone() },
        Binding { purpose: Purpose::Observe, ..same.clone() },
        Binding { session: 4, ..same.clone() },
        Binding { worker: 5, ..same.clone() },
        Binding { channel: Channel::Local, ..same.clone() },
        Binding { nonce: [6; 16], ..same.clone() },
    ];
    for other in others {
        let (_, hello) = Initiator::begin(&key(7), &other, &offer()).unwrap();
        assert!(matches!(Responder::accept(&key(7), &same, &hello), Err(ExchangeError::Unauthentic)), "{other:?}");
    }
    let (_, hello) = Initiator::begin(&key(8), &same, &offer()).unwrap();
    assert!(matches!(Responder::accept(&key(7), &same, &hello), Err(ExchangeError::Unauthentic)));
}

/// Promise: the exchange fails if any byte of either message is changed or left out.
#[test]
fn changed_messages_are_refused() {
    let (_, hello) = Initiator::begin(&key(7), &binding(), &offer()).unwrap();
    for at in 0..hello.len() {
        let mut changed = hello.clone();
        changed[at] ^= 1;
        assert!(Responder::accept(&key(7), &binding(), &changed).is_err(), "byte {at}");
        assert!(Responder::accept(&key(7), &binding(), &hello[..at]).is_err(), "{at} bytes");
    }
    let answers = || {
        let (client, hello) = Initiator::begin(&key(7), &binding(), &offer()).unwrap();
        let (server, _) = Responder::accept(&key(7), &binding(), &hello).unwrap();
        (client, server.finish(&welcome()).unwrap().0)
    };
    let bytes = answers().1.len();
    for at in 0..bytes {
        let (client, mut changed) = answers();
        changed[at] ^= 1;
        assert!(client.finish(&changed).is_err(), "byte {at}");
        let (client, answer) = answers();
        assert!(client.finish(&answer[..at]).is_err(), "{at} bytes");
    }
}

/// Promise: a side refuses its own message sent back to it, and an answer to another client.
#[test]
fn reflected_and_foreign_answers_are_refused() {
    let (client, hello) = Initiator::begin(&key(7), &binding(), &offer()).unwrap();
    assert!(client.finish(&hello).is_err());
    let (other, _) = Initiator::begin(&key(7), &binding(), &offer()).unwrap();
    let (server, _) = Responder::accept(&key(7), &binding(), &hello).unwrap();
    let (answer, _) = server.finish(&welcome()).unwrap();
    assert_eq!(other.finish(&answer).unwrap_err(), ExchangeError::Unauthentic);
}

/// Promise: encrypted payloads do not appear on the wire, and no two exchanges have the same bytes.
#[test]
fn payloads_are_sealed_and_fresh() {
    let credential = b"a credential to be".to_vec();
    let offer = Offer { shm_slot: false, credential: credential.clone() };
    let [(_, one), (_, other)] = [(); 2].map(|()| Initiator::begin(&key(7), &binding(), &offer).unwrap());
    assert!(!one.windows(credential.len()).any(|window| window == credential));
    assert_ne!(one[..32], other[..32]);
}

/// Promise: a welcome that does not fit into a message is an error, not a panic.
#[test]
fn a_message_too_long_is_an_error() {
    let (_, hello) = Initiator::begin(&key(7), &binding(), &offer()).unwrap();
    let (server, _) = Responder::accept(&key(7), &binding(), &hello).unwrap();
    let long = Welcome::Refused { reason: "x".repeat(70_000) };
    assert!(matches!(server.finish(&long), Err(ExchangeError::Size(_))));
    assert_eq!(Responder::accept(&key(7), &binding(), &[0; 70_000]).err(), Some(ExchangeError::Size(70_000)));
}
