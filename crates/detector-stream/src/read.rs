//! Reader of consecutive fields; bytes after the last known field are ignored.

use super::bad_message::{BadMessage, bad};

pub struct MessageReader<'b>(pub &'b [u8]);

impl<'b> MessageReader<'b> {
    pub fn bytes(&mut self, count: usize) -> Result<&'b [u8], BadMessage> {
        match self.0.split_at_checked(count) {
            Some((bytes, rest)) => {
                self.0 = rest;
                Ok(bytes)
            }
            None => bad(format!("it ends {} bytes too early", count - self.0.len())),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BadMessage> {
        Ok(self.bytes(N)?.try_into().expect("so many were read"))
    }

    pub fn u8(&mut self) -> Result<u8, BadMessage> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u16(&mut self) -> Result<u16, BadMessage> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32, BadMessage> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64, BadMessage> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub fn client(&mut self) -> Result<[u8; 16], BadMessage> {
        self.array()
    }

    pub fn text(&mut self, bytes: usize, what: &str) -> Result<String, BadMessage> {
        let bytes = self.bytes(bytes)?.to_vec();
        String::from_utf8(bytes).or_else(|_| bad(format!("{what} is not UTF-8")))
    }
}

/// Appends a text preceded by its two-byte length.
pub fn put_text(text: &str, out: &mut Vec<u8>) {
    // The service's own texts are short; a longer text from outside is truncated so that the framing stays valid.
    let end = (0..=text.len().min(u16::MAX.into())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    let text = &text[..end];
    out.extend((text.len() as u16).to_le_bytes());
    out.extend(text.as_bytes());
}
