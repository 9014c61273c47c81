//! The TCP protocol between detectors and the service.
//!
//! Input: `H` and a header; `C` and a client's message, `S` and a service's message, each as kind, flags, length of the
//! head (2 bytes), head, body, without the checksums, which mutations would break; `R` and the records of a writer's
//! report.

use super::choice;
use varve_detector_file::journal::{decode_records, encode};
use varve_detector_stream::{FromService, Header, ToService};

pub fn reads(bytes: &[u8]) -> bool {
    match choice(bytes) {
        Some((b'H', header)) => {
            let Some(bytes) = header.first_chunk() else { return false };
            let Ok(header) = Header::decode(bytes) else { return false };
            assert_eq!(Header::decode(&header.encode()), Ok(header));
            true
        }
        Some((b'C', message)) => parts(message).is_some_and(|(header, head, body)| from_client(&header, head, body)),
        Some((b'S', message)) => parts(message).is_some_and(|(header, head, _)| from_service(&header, head)),
        Some((b'R', records)) => {
            let Some(entries) = decode_records(records) else { return false };
            let mut again = Vec::new();
            entries.iter().for_each(|entry| encode(entry, &mut again));
            assert_eq!(format!("{:?}", decode_records(&again)), format!("{:?}", Some(entries)));
            true
        }
        _ => false,
    }
}

fn parts(bytes: &[u8]) -> Option<(Header, &[u8], &[u8])> {
    let (start, rest) = bytes.split_first_chunk::<4>()?;
    let (head, body) = rest.split_at_checked(usize::from(u16::from_le_bytes([start[2], start[3]])))?;
    let (head_bytes, body_bytes) = (head.len() as u32, body.len() as u64);
    Some((Header { kind: start[0], flags: start[1], head_bytes, body_bytes, checksum: 0, head_crc: 0 }, head, body))
}

fn from_client(header: &Header, head: &[u8], body: &[u8]) -> bool {
    let Ok(message) = ToService::decode(header, head) else { return false };
    let (kind, flags, again) = message.encode();
    let same = ToService::decode(&Header { kind, flags, head_bytes: again.len() as u32, ..*header }, &again);
    assert_eq!(same.as_ref(), Ok(&message));
    if let ToService::Scalars(head) = &message
        && head.check(body).is_ok()
    {
        let rows: Vec<_> = head.rows(body).collect();
        assert_eq!(rows.len(), head.rows as usize);
        assert!(rows.iter().all(|(_, values)| values.len() == head.names.len()));
        let again = head.body(&rows);
        assert_eq!(head.check(&again), Ok(()));
        assert!(head.rows(&again).eq(rows));
    }
    true
}

fn from_service(header: &Header, head: &[u8]) -> bool {
    let Ok(message) = FromService::decode(header, head) else { return false };
    let (kind, flags, again) = message.encode();
    let same = FromService::decode(&Header { kind, flags, head_bytes: again.len() as u32, ..*header }, &again);
    assert_eq!(same.as_ref(), Ok(&message));
    true
}
