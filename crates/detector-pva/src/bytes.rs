//! Numbers, sizes, texts and bit sets, in the byte order of the connection.

use crate::{BadPva, bad};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ByteOrder {
    #[default]
    Little,
    Big,
}

/// Reads a message from its beginning. Every length is checked against the bytes that are left.
#[derive(Clone, Debug)]
pub struct ByteReader<'b> {
    bytes: &'b [u8],
    order: ByteOrder,
}

macro_rules! numbers {
    ($($name:ident),*) => {$(
        pub fn $name(&mut self) -> Result<$name, BadPva> {
            let bytes = self.array()?;
            Ok(match self.order {
                ByteOrder::Little => $name::from_le_bytes(bytes),
                ByteOrder::Big => $name::from_be_bytes(bytes),
            })
        }
    )*};
}

impl<'b> ByteReader<'b> {
    pub fn new(bytes: &'b [u8], order: ByteOrder) -> ByteReader<'b> {
        ByteReader { bytes, order }
    }

    pub fn order(&self) -> ByteOrder {
        self.order
    }

    pub fn left(&self) -> usize {
        self.bytes.len()
    }

    pub fn take(&mut self, count: usize) -> Result<&'b [u8], BadPva> {
        match self.bytes.split_at_checked(count) {
            Some((taken, rest)) => {
                self.bytes = rest;
                Ok(taken)
            }
            None => bad(format!("a message ends {} bytes early", count - self.bytes.len())),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BadPva> {
        Ok(self.take(N)?.try_into().expect("it has this length"))
    }

    numbers!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

    /// A count of elements or bytes; `None` is null. One byte below 254, else 255 for null, or 254 and four bytes, whose
    /// highest value announces eight.
    pub fn size(&mut self) -> Result<Option<usize>, BadPva> {
        const NULL: u8 = 255;
        const WIDE: u8 = 254;
        let size = match self.u8()? {
            NULL => return Ok(None),
            WIDE => match self.i32()? {
                i32::MAX => self.i64()?,
                size => i64::from(size),
            },
            size => i64::from(size),
        };
        usize::try_from(size).map(Some).or_else(|_| bad(format!("a size is {size}")))
    }

    /// A count of elements that take at least one byte each.
    pub fn count(&mut self) -> Result<usize, BadPva> {
        let count = self.size()?.unwrap_or(0);
        match count <= self.left() {
            true => Ok(count),
            false => bad(format!("a message announces {count} elements and has {} bytes left", self.left())),
        }
    }

    pub fn text(&mut self) -> Result<String, BadPva> {
        let count = self.count()?;
        Ok(String::from_utf8_lossy(self.take(count)?).into_owned())
    }

    /// A set of bits: whole words of eight bytes in the order of the connection, the rest from the lowest byte.
    pub fn bits(&mut self) -> Result<BitSet, BadPva> {
        let count = self.count()?;
        let mut bytes = self.take(count)?.to_vec();
        if self.order == ByteOrder::Big {
            bytes.chunks_exact_mut(8).for_each(<[u8]>::reverse);
        }
        Ok(BitSet(bytes))
    }
}

/// The fields that an update contains, by their position in a walk of the type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BitSet(Vec<u8>);

impl BitSet {
    pub fn has(&self, bit: usize) -> bool {
        self.0.get(bit / 8).is_some_and(|byte| byte & (1 << (bit % 8)) != 0)
    }
}

/// Writes a message in the byte order of the connection.
#[derive(Clone, Debug)]
pub struct ByteWriter {
    pub bytes: Vec<u8>,
    order: ByteOrder,
}

impl ByteWriter {
    pub fn new(order: ByteOrder) -> ByteWriter {
        ByteWriter { bytes: Vec::new(), order }
    }

    pub fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub fn u16(&mut self, value: u16) {
        self.bytes.extend(match self.order {
            ByteOrder::Little => value.to_le_bytes(),
            ByteOrder::Big => value.to_be_bytes(),
        });
    }

    pub fn u32(&mut self, value: u32) {
        self.bytes.extend(match self.order {
            ByteOrder::Little => value.to_le_bytes(),
            ByteOrder::Big => value.to_be_bytes(),
        });
    }

    #[cfg(test)]
    pub fn u64(&mut self, value: u64) {
        self.bytes.extend(match self.order {
            ByteOrder::Little => value.to_le_bytes(),
            ByteOrder::Big => value.to_be_bytes(),
        });
    }

    /// # Panics
    /// If the text has 254 bytes or more; this client sends none.
    pub fn text(&mut self, text: &str) {
        assert!(text.len() < 254, "a text of one length byte");
        self.u8(text.len() as u8);
        self.bytes.extend(text.as_bytes());
    }
}
