//! Chance, from the kernel.

use rustix::rand::{GetRandomFlags, getrandom};

/// Fills `buffer` with random bytes.
///
/// # Panics
/// If the kernel has no random source, which Linux rules out once it has booted: without one no key and no id of a
/// volume could be trusted.
pub fn fill(buffer: &mut [u8]) {
    let mut filled = 0;
    while filled < buffer.len() {
        match getrandom(&mut buffer[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("the kernel's random source failed: {error}"),
        }
    }
}

pub fn bytes<const COUNT: usize>() -> [u8; COUNT] {
    let mut buffer = [0; COUNT];
    fill(&mut buffer);
    buffer
}

pub fn number() -> u64 {
    u64::from_le_bytes(bytes())
}
