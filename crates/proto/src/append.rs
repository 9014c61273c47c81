//! Appends a message's encoding to a buffer. The `Flavor` of postcard that does this extends a vector through an
//! iterator, byte by byte.

use postcard::ser_flavors::Flavor;
use serde::Serialize;

struct PostcardAppender<'a>(&'a mut Vec<u8>);

impl Flavor for PostcardAppender<'_> {
    type Output = ();

    #[inline(always)]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    #[inline(always)]
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        match bytes {
            // Most values are numbers below 128. A memcpy call for each of them would take longer than the rest of the
            // encoding.
            [byte] => self.0.push(*byte),
            _ => self.0.extend_from_slice(bytes),
        }
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// Appends `message` to `out`. On an error `out` is unchanged.
pub fn append<M: Serialize + ?Sized>(message: &M, out: &mut Vec<u8>) -> postcard::Result<()> {
    let start = out.len();
    let appended = postcard::serialize_with_flavor(message, PostcardAppender(out));
    if appended.is_err() {
        out.truncate(start);
    }
    appended
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the appended bytes are postcard's encoding, after the bytes that were in the buffer.
    #[test]
    fn encoding_matches_postcard() {
        let message = (u64::MAX, "name", -1i64, Some([200u8; 3]), vec![1u16, 300]);
        let mut out = b"before".to_vec();
        append(&message, &mut out).unwrap();
        assert_eq!(out[..6], *b"before");
        assert_eq!(out[6..], postcard::to_stdvec(&message).unwrap());
    }

    /// Promise: a message that cannot be encoded leaves the buffer unchanged.
    #[test]
    fn failed_encoding_leaves_buffer_unchanged() {
        struct Half;

        impl Serialize for Half {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::{Error, SerializeTuple};
                serializer.serialize_tuple(2)?.serialize_element(&7u8)?;
                Err(S::Error::custom("the other half is missing"))
            }
        }

        let mut out = b"before".to_vec();
        assert!(append(&Half, &mut out).is_err());
        assert_eq!(out, b"before");
    }
}
