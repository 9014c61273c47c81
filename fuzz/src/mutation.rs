//! Mutations of bytes from a seed: every run of `cargo test` is the same.

use varve_env::random::Seeded;

/// Lengths, counts and numbers that often break decoders: as varints, little- and big-endian.
const HOSTILE: [&[u8]; 10] = [
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
    &[0xff, 0xff, 0xff, 0xff, 0x0f],
    &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80],
    &[0x80, 0x80, 0x80, 0x80, 0x04],
    &[0xff, 0xff, 0xff, 0xff],
    &[0xff, 0xff, 0xff, 0x7f],
    &[0x00, 0x00, 0x00, 0x00],
    &[0xff, 0xff],
    &[0x7f],
    &[0x00],
];

/// Words that often break parsers of text.
const WORDS: [&str; 12] = ["=", "\n", "\"", "[[", "]]", "{", "-1", "99999999999999999999", "%", "\u{0}", "é", "../"];

/// A mutation of one of `corpus`: a few changes, or only noise.
pub fn mutated(corpus: &[Vec<u8>], random: &mut Seeded, bytes_max: usize) -> Vec<u8> {
    if corpus.is_empty() || random.below(50) == 0 {
        let length = random.below(200);
        return random.bytes(length);
    }
    let mut bytes = corpus[random.below(corpus.len())].clone();
    for _ in 0..1 + random.below(4) {
        change(&mut bytes, corpus, random);
    }
    bytes.truncate(bytes_max);
    bytes
}

fn change(bytes: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut Seeded) {
    let at = random.below(bytes.len() + 1);
    match random.below(9) {
        0 | 1 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        2 if at < bytes.len() => bytes[at] = random.number() as u8,
        3 => bytes.truncate(at),
        4 => drop(bytes.drain(at..(at + 1 + random.below(8)).min(bytes.len()))),
        5 => {
            let hostile = HOSTILE[random.below(HOSTILE.len())];
            let end = (at + random.below(hostile.len() + 1)).min(bytes.len());
            bytes.splice(at..end, hostile.iter().copied());
        }
        6 => {
            let word = WORDS[random.below(WORDS.len())];
            bytes.splice(at..at, word.bytes());
        }
        7 => {
            let other = &corpus[random.below(corpus.len())];
            let from = random.below(other.len() + 1);
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
        _ => {
            let end = (at + random.below(40)).min(bytes.len());
            let again = bytes[at..end].to_vec();
            bytes.splice(at..at, again);
        }
    }
}
