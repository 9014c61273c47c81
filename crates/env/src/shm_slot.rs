//! Memory that a server shares with the client of one connection on the same host, for requests and replies: while both
//! sides poll, neither makes a system call.
//!
//! A slot has one region for requests and one for replies. The word of each region holds its state. A sender hands over a message by one compare-and-swap from the state in which the
//! receiver polls. If the receiver no longer polls, the compare-and-swap fails and the sender uses the socket, on which
//! the receiver sleeps:
//!
//! ```text
//! request   ASLEEP ⇄ POLLING (server) → POSTED (client) → POLLING or ASLEEP (server, when it has taken it)
//! reply     SLEEPING ⇄ WAITING (client)
//!           WAITING → ANSWERED (server: it is in the slot), WAITING → BY_SOCKET (server: it is too long)
//! ```
//!
//! A connection has many calls in flight: requests leave the reply region alone, and the client opens it again only after
//! it has taken a reply out. Each region carries several whole messages at a time, and whatever does not fit or comes too
//! soon goes by the socket.
//!
//! The memory can neither shrink nor grow, and each side limits the other's words and lengths to possible values: a
//! side that writes nonsense there garbles only its own messages, which then fail their checksums.
//!
//! ```text
//! at 0      u32 word of the request, u32 its length, the request, PLACE_BYTES at most
//!    20480  u32 word of the reply, u32 its length, the reply, PLACE_BYTES at most
//! ```
//!
//! The largest cost is the transfer of a cache line, 64 or 128 bytes, from the processor that wrote it last. So a word
//! shares a cache line with the beginning of its bytes and is far from the other word.

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// A longer message goes by the socket, because copying it takes longer than the system calls.
pub const PLACE_BYTES: usize = 16 * 1024;
const REQUEST: SlotRegion = SlotRegion { word: 0 };
const ANSWER: SlotRegion = SlotRegion { word: 4096 + PLACE_BYTES };
const BYTES: usize = 2 * (4096 + PLACE_BYTES);

const ASLEEP: u32 = 0;
const POLLING: u32 = 1;
const POSTED: u32 = 2;

const SLEEPING: u32 = 0;
const WAITING: u32 = 1;
const ANSWERED: u32 = 2;
const BY_SOCKET: u32 = 3;

/// A region: the offset of its word, followed by its length and its bytes.
#[derive(Clone, Copy)]
struct SlotRegion {
    word: usize,
}

impl SlotRegion {
    fn bytes(self) -> usize {
        self.word + 8
    }
}

struct SlotMemory(NonNull<u8>);

// SAFETY: the mapping belongs to the process, whichever thread uses it, and is unmapped once.
unsafe impl Send for SlotMemory {}

impl SlotMemory {
    fn map(memory: impl AsFd) -> io::Result<SlotMemory> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), BYTES, access, flags, memory, 0)? };
        NonNull::new(at.cast()).map(SlotMemory).ok_or_else(|| io::Error::other("memory was mapped at zero"))
    }

    fn word(&self, place: SlotRegion) -> &AtomicU32 {
        self.number(place.word)
    }

    fn length(&self, place: SlotRegion) -> &AtomicU32 {
        self.number(place.word + 4)
    }

    fn number(&self, at: usize) -> &AtomicU32 {
        // SAFETY: within the mapping, which lives as long as `self`; aligned; and only ever reached as an atomic.
        unsafe { AtomicU32::from_ptr(self.0.add(at).as_ptr().cast()) }
    }

    /// The length that the other side has written, limited to the size of the region.
    fn held(&self, place: SlotRegion) -> usize {
        (self.length(place).load(Relaxed) as usize).min(PLACE_BYTES)
    }

    /// Writes `bytes` into the region. The other side does not read them before the word changes.
    fn lay(&self, place: SlotRegion, bytes: &[u8]) {
        assert!(bytes.len() <= PLACE_BYTES);
        // SAFETY: within the mapping; no reference into it is ever made. If the other side changes the bytes meanwhile,
        // it only harms itself.
        unsafe { self.0.add(place.bytes()).copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        self.length(place).store(bytes.len() as u32, Relaxed);
    }

    /// Fills `out` with bytes from offset `from` on. The end is at most [`SlotMemory::held`].
    fn copy(&self, place: SlotRegion, from: usize, out: &mut [MaybeUninit<u8>]) {
        assert!(from + out.len() <= PLACE_BYTES);
        let (at, count) = (self.0.as_ptr().wrapping_add(place.bytes() + from), out.len());
        // SAFETY: within the mapping, to memory outside of it. The other side may write there concurrently if it breaks
        // the protocol: then the bytes are garbage, which the decoders expect.
        unsafe { std::ptr::copy_nonoverlapping(at, out.as_mut_ptr().cast(), count) };
    }
}

impl Drop for SlotMemory {
    fn drop(&mut self) {
        // SAFETY: unmaps the range that was mapped, to which nothing refers any more.
        let unmapped = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), BYTES) };
        debug_assert!(unmapped.is_ok());
    }
}

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The server's side of a slot.
pub struct ServerSide {
    memory: SlotMemory,
    /// The server has announced that it polls, and must withdraw that before it sleeps.
    spins: Cell<bool>,
    /// For a request that was taken in part: bytes taken, and its total length.
    taken: Cell<(usize, usize)>,
}

impl ServerSide {
    /// Creates a slot, and the descriptor to pass to the client.
    ///
    /// # Errors
    /// If the kernel has no memory or no descriptor for it.
    pub fn make() -> io::Result<(ServerSide, OwnedFd)> {
        let shared = rustix::fs::memfd_create("varve-shm-slot", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&shared, BYTES as u64)?;
        rustix::fs::fcntl_add_seals(&shared, SEALS)?;
        let memory = SlotMemory::map(&shared)?;
        Ok((ServerSide { memory, spins: Cell::new(false), taken: Cell::default() }, shared))
    }

    /// Announces that the server polls.
    pub fn spin(&self) {
        if !self.spins.replace(true) {
            let word = self.memory.word(REQUEST);
            // If a request was posted and not taken yet, the word stays: that request is taken first.
            let _ = word.compare_exchange(ASLEEP, POLLING, AcqRel, Relaxed);
        }
    }

    pub fn spins(&self) -> bool {
        self.spins.get()
    }

    /// Withdraws the announcement. `false`: a request came before.
    pub fn sleep(&self) -> bool {
        if self.spins.replace(false) {
            let _ = self.memory.word(REQUEST).compare_exchange(POLLING, ASLEEP, AcqRel, Acquire);
        }
        !self.is_posted()
    }

    /// Whether there is a request, or the rest of one.
    pub fn is_posted(&self) -> bool {
        self.memory.word(REQUEST).load(Acquire) == POSTED
    }

    /// Copies the request to `out`, or as much of it as fits; returns the number of bytes.
    pub fn take(&self, out: &mut [MaybeUninit<u8>]) -> usize {
        if !self.is_posted() {
            return 0;
        }
        let (taken, length) = match self.taken.get() {
            (0, _) => (0, self.memory.held(REQUEST)),
            rest => rest,
        };
        let count = out.len().min(length - taken);
        self.memory.copy(REQUEST, taken, &mut out[..count]);
        if taken + count < length {
            self.taken.set((taken + count, length));
            return count;
        }
        self.taken.set((0, 0));
        let next = if self.spins.get() { POLLING } else { ASLEEP };
        self.memory.word(REQUEST).store(next, Release);
        count
    }

    /// Writes a complete reply. `false`: the reply must go by the socket.
    pub fn answer(&self, answer: &[u8]) -> bool {
        let word = self.memory.word(ANSWER);
        if word.load(Acquire) != WAITING {
            return false;
        }
        if answer.len() > PLACE_BYTES {
            // If it fails, the client has already begun to sleep on the socket.
            let _ = word.compare_exchange(WAITING, BY_SOCKET, AcqRel, Relaxed);
            return false;
        }
        self.memory.lay(ANSWER, answer);
        word.compare_exchange(WAITING, ANSWERED, AcqRel, Relaxed).is_ok()
    }
}

/// The client's side of a slot.
pub struct ClientSide(SlotMemory);

impl ClientSide {
    /// # Errors
    /// If `shared` is not a shared-memory slot.
    pub fn open(shared: &OwnedFd) -> io::Result<ClientSide> {
        let sealed = rustix::fs::fcntl_get_seals(shared)?.contains(SEALS);
        if !sealed || rustix::fs::fstat(shared)?.st_size as u64 != BYTES as u64 {
            return Err(io::Error::other("the server passed a descriptor that is not a shared-memory slot"));
        }
        SlotMemory::map(shared).map(ClientSide)
    }

    /// Posts requests if the server polls and has taken the last ones; else they must go by the socket (`false`). Leaves
    /// the reply region alone.
    pub fn post(&self, requests: &[u8]) -> bool {
        let word = self.0.word(REQUEST);
        if requests.len() > PLACE_BYTES || word.load(Acquire) != POLLING {
            return false;
        }
        self.0.lay(REQUEST, requests);
        word.compare_exchange(POLLING, POSTED, AcqRel, Relaxed).is_ok()
    }

    /// Polls for replies from now on, until [`ClientSide::sleep`]. A reply that is in the slot stays there: it is taken
    /// first. Returns whether a reply, or the notice that one comes by the socket, was there.
    pub fn listen(&self) -> bool {
        let word = self.0.word(ANSWER);
        match word.load(Acquire) {
            WAITING => false,
            ANSWERED => true,
            // The server changes the word only while it is WAITING.
            before => {
                word.store(WAITING, Release);
                before == BY_SOCKET
            }
        }
    }

    /// Appends the replies in the slot to `out`, if there are any, and opens the region for the next ones.
    pub fn take_posted(&self, out: &mut Vec<u8>) -> bool {
        let word = self.0.word(ANSWER);
        if word.load(Acquire) != ANSWERED {
            return false;
        }
        self.take(out);
        word.store(WAITING, Release);
        true
    }

    fn take(&self, out: &mut Vec<u8>) {
        let length = self.0.held(ANSWER);
        out.reserve(length);
        self.0.copy(ANSWER, 0, &mut out.spare_capacity_mut()[..length]);
        // SAFETY: `copy` has initialized this many bytes.
        unsafe { out.set_len(out.len() + length) };
    }

    /// Stops polling: from now on the reply comes by the socket. `false`: it is already in the slot.
    pub fn sleep(&self) -> bool {
        match self.0.word(ANSWER).compare_exchange(WAITING, SLEEPING, AcqRel, Acquire) {
            Ok(_) => true,
            Err(word) => word != ANSWERED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both() -> (ServerSide, ClientSide) {
        let (asked, shared) = ServerSide::make().unwrap();
        (asked, ClientSide::open(&shared).unwrap())
    }

    fn taken(asked: &ServerSide, at_most: usize) -> Vec<u8> {
        let mut out = vec![MaybeUninit::new(0xee); at_most];
        let count = asked.take(&mut out);
        // SAFETY: all of them were written above.
        out[..count].iter().map(|byte| unsafe { byte.assume_init() }).collect()
    }

    /// The reply in the slot, which is open for the next one then.
    fn answered(asking: &ClientSide) -> Option<Vec<u8>> {
        let mut out = b"before".to_vec();
        asking.take_posted(&mut out).then(|| out.split_off(6))
    }

    /// Promise: two polling sides exchange messages unchanged, repeatedly, and a message may be taken in parts.
    #[test]
    fn polling_side_receives_the_message() {
        let (asked, asking) = both();
        asked.spin();
        assert!(!asking.listen());
        for length in [0, 1, 4095, PLACE_BYTES] {
            let request: Vec<u8> = (0..length).map(|at| at as u8).collect();
            assert!(asking.post(&request) && asked.is_posted());
            let first = taken(&asked, 1000);
            assert_eq!(asked.is_posted(), length > 1000);
            assert_eq!([first, taken(&asked, PLACE_BYTES)].concat(), request);
            assert!(!asked.is_posted() && taken(&asked, 10).is_empty());
            assert_eq!(answered(&asking), None);
            assert!(asked.answer(&request));
            assert_eq!(answered(&asking), Some(request));
        }
    }

    /// Promise: with several calls in flight, a request overwrites no reply, and a reply no other one; what comes too
    /// soon goes by the socket.
    #[test]
    fn many_calls_share_a_slot() {
        let (asked, asking) = both();
        let mut out = Vec::new();
        assert!(!asking.post(b"the server sleeps") && !asking.take_posted(&mut out));
        asked.spin();
        assert!(!asking.listen());
        assert!(asking.post(b"one, two") && !asking.post(b"not taken yet"));
        assert_eq!(taken(&asked, 100), b"one, two");
        assert!(asked.answer(b"to one"));
        assert!(asking.post(b"three") && asking.listen(), "the reply is still there");
        assert!(!asked.answer(b"to two"), "the last reply was not taken");
        assert!(asking.take_posted(&mut out) && !asking.take_posted(&mut out));
        assert_eq!((out.as_slice(), taken(&asked, 100).as_slice()), (&b"to one"[..], &b"three"[..]));
        assert!(asked.answer(b"to three") && !asking.sleep(), "it came before the client slept");
        out.clear();
        assert!(asking.take_posted(&mut out) && asking.sleep() && !asked.answer(b"by the socket"));
        assert!(!asking.listen());
        assert!(!asked.answer(&vec![0; PLACE_BYTES + 1]) && asking.listen(), "a long reply is announced");
    }

    /// Promise: a request and a reply of any length in the slot at the same time do not overwrite each other.
    #[test]
    fn request_and_reply_regions_are_separate() {
        let (asked, asking) = both();
        asked.spin();
        let (request, answer) = (vec![1; PLACE_BYTES], vec![2; PLACE_BYTES]);
        assert!(!asking.listen() && asking.post(&request) && asked.answer(&answer));
        assert_eq!((taken(&asked, PLACE_BYTES), answered(&asking)), (request, Some(answer)));
    }

    /// Promise: a sleeping side gets no message through the slot, nor is a message sent that is too long; the sender
    /// learns of it, and the receiver learns to read the socket.
    #[test]
    fn sleeping_side_is_served_by_socket() {
        let (asked, asking) = both();
        let long = vec![0; PLACE_BYTES + 1];
        assert!(!asking.post(b"nobody has promised to look"));
        assert!(!asked.answer(b"it sleeps from the beginning") && answered(&asking).is_none());
        asked.spin();
        assert!(asked.sleep());
        assert!(!asking.listen() && !asking.post(b"it sleeps again"));
        assert!(asking.sleep() && !asked.answer(b"it sleeps now"));
        asked.spin();
        assert!(!asking.listen() && !asking.post(&long) && !asked.is_posted());
        assert!(!asked.answer(&long) && asking.listen() && answered(&asking).is_none(), "a long one is announced");
        // A message that came before is noticed by the side that is about to sleep.
        assert!(asking.post(b"first") && !asked.sleep());
        assert_eq!(taken(&asked, 10), b"first");
        assert!(!asking.post(b"the promise was taken back"));
        assert!(asked.answer(b"answer") && !asking.sleep());
        assert_eq!(answered(&asking).as_deref(), Some(&b"answer"[..]));
    }

    /// Promise: impossible words and lengths are limited to possible values.
    #[test]
    fn invalid_words_stay_within_the_slot() {
        let (asked, asking) = both();
        asked.spin();
        asking.0.length(REQUEST).store(u32::MAX, Relaxed);
        asking.0.word(REQUEST).store(POSTED, Release);
        assert_eq!(taken(&asked, 2 * PLACE_BYTES).len(), PLACE_BYTES);
        asking.0.word(REQUEST).store(POSTED, Release);
        assert_eq!(taken(&asked, 10).len(), 10);
        asking.0.length(REQUEST).store(3, Relaxed);
        assert_eq!(taken(&asked, 2 * PLACE_BYTES).len(), PLACE_BYTES - 10);
        asking.0.word(REQUEST).store(77, Release);
        assert!(!asked.is_posted() && taken(&asked, 10).is_empty() && asked.sleep());
        asking.0.word(ANSWER).store(77, Release);
        assert!(!asked.answer(b"answer"));
        asked.memory.length(ANSWER).store(u32::MAX, Relaxed);
        asking.0.word(ANSWER).store(ANSWERED, Release);
        assert_eq!(answered(&asking).map(|reply| reply.len()), Some(PLACE_BYTES));
    }

    /// Promise: a file without the seals is not mapped.
    #[test]
    fn unsealed_memory_is_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let shared = rustix::fs::memfd_create("varve-test", flags).unwrap();
        rustix::fs::ftruncate(&shared, BYTES as u64).unwrap();
        assert!(ClientSide::open(&shared).is_err());
    }

    /// Promise: whichever side sleeps at whatever time, each request is taken once and each reply arrives, by the slot
    /// or the socket.
    #[test]
    fn no_message_is_lost_between_polling_and_sleeping() {
        const CALLS: u32 = 20_000;
        let (asked, asking) = both();
        let (to_server, server) = std::sync::mpsc::channel::<u32>();
        let (to_client, client) = std::sync::mpsc::channel::<u32>();
        let serving = std::thread::spawn(move || {
            let mut served = 0_u32;
            let mut here = 0;
            while served < CALLS {
                asked.spin();
                let spins = served % 7;
                let found = (0..spins * 50).any(|_| {
                    std::thread::yield_now();
                    asked.is_posted()
                });
                let request = match found || !asked.sleep() {
                    true => {
                        here += 1;
                        u32::from_le_bytes(taken(&asked, 4).try_into().unwrap())
                    }
                    false => server.recv_timeout(std::time::Duration::from_secs(10)).unwrap(),
                };
                assert_eq!(request, served);
                if !asked.answer(&(request + 1).to_le_bytes()) {
                    to_client.send(request + 1).unwrap();
                }
                served += 1;
            }
            here
        });
        let mut here = 0;
        for call in 0..CALLS {
            let spins = call % 5;
            // A client that waits elsewhere has said so before.
            let listens = spins > 0 && !asking.listen();
            if !asking.post(&call.to_le_bytes()) {
                to_server.send(call).unwrap();
            }
            let found = (0..spins * 70).any(|_| {
                std::thread::yield_now();
                listens && asking.listen()
            });
            let in_slot = if found || !asking.sleep() { answered(&asking) } else { None };
            let answer = match in_slot {
                None => client.recv_timeout(std::time::Duration::from_secs(10)).unwrap(),
                Some(reply) => {
                    here += 1;
                    u32::from_le_bytes(reply.try_into().unwrap())
                }
            };
            assert_eq!(answer, call + 1);
        }
        let posted = serving.join().unwrap();
        assert!(posted > 0 && here > 0, "{posted} requests and {here} answers went through memory");
    }
}
