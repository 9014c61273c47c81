//! One side of a shared-memory slot (`varve_env::shm_slot`): whole messages, in both directions.

use crate::wire::{Decoder, Message, WireError};
use varve_env::shm_slot::{ClientSide, PLACE_BYTES, ServerSide};

pub enum Slot {
    Client(ClientSide),
    Server(ServerSide),
}

impl Slot {
    /// Posts whole messages. `false`: they must go by the socket.
    pub fn post(&self, bytes: &[u8]) -> bool {
        match self {
            Slot::Client(side) => {
                // First, or the server would not find the client listening when it replies.
                side.listen();
                side.post(bytes)
            }
            // A long reply is announced, too.
            Slot::Server(side) => side.answer(bytes),
        }
    }

    /// Polls from now on. Returns whether something is there, here or, if the peer says so, at the socket.
    pub fn look(&self) -> bool {
        match self {
            Slot::Client(side) => side.listen(),
            Slot::Server(side) => {
                side.spin();
                side.is_posted()
            }
        }
    }

    /// Stops polling. `false`: something came before.
    pub fn sleep(&self) -> bool {
        match self {
            Slot::Client(side) => side.sleep(),
            Slot::Server(side) => side.sleep(),
        }
    }

    /// Takes what was posted to `input`, and makes sure that it ends with a message.
    pub fn take(&self, input: &mut Decoder, messages: &mut Vec<Message>) -> Result<bool, WireError> {
        let bytes = input.input();
        let taken = match self {
            Slot::Client(side) => side.take_posted(bytes),
            Slot::Server(side) if side.is_posted() => {
                bytes.reserve(PLACE_BYTES);
                let held = bytes.len();
                let count = side.take(&mut bytes.spare_capacity_mut()[..PLACE_BYTES]);
                // SAFETY: `take` has initialized that many bytes of the spare capacity.
                unsafe { bytes.set_len(held + count) };
                true
            }
            Slot::Server(_) => false,
        };
        if !taken {
            return Ok(false);
        }
        while let Some(message) = input.take()? {
            messages.push(message);
        }
        if input.is_empty() { Ok(true) } else { Err(WireError::Cut) }
    }
}
