//! Reader of CBOR items (RFC 8949), borrowed from the message. It allocates nothing, so no length field in a message
//! can cost more than the message itself.

/// stream2 messages nest four levels deep; user data may nest deeper, up to this limit.
const DEPTH_MAX: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at}")]
pub struct BadCbor {
    pub what: &'static str,
    pub at: usize,
}

/// The beginning of an item; its content follows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CborItem<'m> {
    Unsigned(u64),
    /// The value is -1 minus this.
    Negative(u64),
    Bytes(&'m [u8]),
    Text(&'m str),
    /// Number of items that follow; `None`: until [`CborItem::Break`].
    Array(Option<u64>),
    /// Number of pairs that follow; `None`: until [`CborItem::Break`].
    Map(Option<u64>),
    Tag(u64),
    Float(f64),
    Bool(bool),
    /// Null, undefined, and other simple values.
    Simple(u8),
    Break,
}

/// Reads the items of a message from its start.
#[derive(Clone, Debug)]
pub struct CborReader<'m> {
    bytes: &'m [u8],
    at: usize,
}

impl<'m> CborReader<'m> {
    pub fn new(bytes: &'m [u8]) -> CborReader<'m> {
        CborReader { bytes, at: 0 }
    }

    pub fn at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    pub fn bad<T>(&self, what: &'static str) -> Result<T, BadCbor> {
        Err(BadCbor { what, at: self.at })
    }

    fn take(&mut self, count: u64) -> Result<&'m [u8], BadCbor> {
        let rest = &self.bytes[self.at..];
        let taken = usize::try_from(count).ok().and_then(|count| rest.get(..count));
        let Some(taken) = taken else { return self.bad("the message is truncated") };
        self.at += taken.len();
        Ok(taken)
    }

    fn number(&mut self, bytes: u64) -> Result<u64, BadCbor> {
        Ok(self.take(bytes)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    pub fn item(&mut self) -> Result<CborItem<'m>, BadCbor> {
        let first = self.number(1)? as u8;
        let (major, low) = (first >> 5, first & 0x1f);
        if major == 7 {
            return self.simple(low);
        }
        let argument = match low {
            0..=23 => Some(u64::from(low)),
            24..=27 => Some(self.number(1 << (low - 24))?),
            31 if (2..=5).contains(&major) => None,
            _ => return self.bad("an item has an invalid length"),
        };
        match (major, argument) {
            (0, Some(value)) => Ok(CborItem::Unsigned(value)),
            (1, Some(value)) => Ok(CborItem::Negative(value)),
            (2, Some(length)) => Ok(CborItem::Bytes(self.take(length)?)),
            (3, Some(length)) => match std::str::from_utf8(self.take(length)?) {
                Ok(text) => Ok(CborItem::Text(text)),
                Err(_) => self.bad("a text is not UTF-8"),
            },
            (4, count) => Ok(CborItem::Array(count)),
            (5, count) => Ok(CborItem::Map(count)),
            (6, Some(tag)) => Ok(CborItem::Tag(tag)),
            _ => self.bad("strings of indefinite length are not supported"),
        }
    }

    fn simple(&mut self, low: u8) -> Result<CborItem<'m>, BadCbor> {
        Ok(match low {
            20 => CborItem::Bool(false),
            21 => CborItem::Bool(true),
            24 => CborItem::Simple(self.number(1)? as u8),
            25 => CborItem::Float(half(self.number(2)? as u16)),
            26 => CborItem::Float(f32::from_bits(self.number(4)? as u32).into()),
            27 => CborItem::Float(f64::from_bits(self.number(8)?)),
            31 => CborItem::Break,
            0..=23 => CborItem::Simple(low),
            _ => return self.bad("an item has an invalid type"),
        })
    }

    /// Skips the next item and its content.
    pub fn skip(&mut self) -> Result<(), BadCbor> {
        let item = self.item()?;
        self.skip_contents(item, DEPTH_MAX)
    }

    fn skip_contents(&mut self, item: CborItem<'m>, depth: usize) -> Result<(), BadCbor> {
        let count = match item {
            CborItem::Array(count) => count,
            CborItem::Map(Some(pairs)) => match pairs.checked_mul(2) {
                Some(items) => Some(items),
                None => return self.bad("the message is truncated"),
            },
            CborItem::Map(None) => None,
            CborItem::Tag(_) => Some(1),
            CborItem::Break => return self.bad("an end without a beginning"),
            _ => return Ok(()),
        };
        let Some(depth) = depth.checked_sub(1) else { return self.bad("items are nested too deeply") };
        let mut left = count;
        while left != Some(0) {
            let next = self.item()?;
            if next == CborItem::Break && count.is_none() {
                return Ok(());
            }
            self.skip_contents(next, depth)?;
            left = left.map(|left| left - 1);
        }
        Ok(())
    }

    pub fn text(&mut self) -> Result<&'m str, BadCbor> {
        match self.item()? {
            CborItem::Text(text) => Ok(text),
            _ => self.bad("expected a text"),
        }
    }

    pub fn unsigned(&mut self) -> Result<u64, BadCbor> {
        match self.item()? {
            CborItem::Unsigned(value) => Ok(value),
            _ => self.bad("expected an unsigned number"),
        }
    }

    pub fn tag(&mut self) -> Result<u64, BadCbor> {
        match self.item()? {
            CborItem::Tag(tag) => Ok(tag),
            _ => self.bad("expected a tag"),
        }
    }

    /// Reads the start of an array with exactly `count` items.
    pub fn array(&mut self, count: u64) -> Result<(), BadCbor> {
        match self.item()? {
            CborItem::Array(Some(items)) if items == count => Ok(()),
            _ => self.bad("not an array of the expected length"),
        }
    }

    /// Calls `each` with every key of a map whose keys are texts; `each` reads the value.
    pub fn map<E: From<BadCbor>>(
        &mut self,
        mut each: impl FnMut(&'m str, &mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        let CborItem::Map(mut left) = self.item()? else {
            return self.bad("expected a map").map_err(E::from);
        };
        while left != Some(0) {
            match self.item()? {
                CborItem::Text(key) => each(key, self)?,
                CborItem::Break if left.is_none() => return Ok(()),
                _ => return self.bad("a key is not a text").map_err(E::from),
            }
            left = left.map(|left| left - 1);
        }
        Ok(())
    }
}

fn half(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    let size = match exponent {
        0 => fraction * 2_f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (fraction + 1024.0) * 2_f64.powi(exponent - 25),
    };
    if bits & 0x8000 == 0 { size } else { -size }
}

#[derive(Debug, Default)]
pub struct CborWriter(pub Vec<u8>);

impl CborWriter {
    fn head(&mut self, major: u8, argument: u64) -> &mut CborWriter {
        let (low, bytes) = match argument {
            0..=23 => (argument as u8, 0),
            24..=0xff => (24, 1),
            0x100..=0xffff => (25, 2),
            0x1_0000..=0xffff_ffff => (26, 4),
            _ => (27, 8),
        };
        self.0.push(major << 5 | low);
        self.0.extend_from_slice(&argument.to_be_bytes()[8 - bytes..]);
        self
    }

    pub fn unsigned(&mut self, value: u64) -> &mut CborWriter {
        self.head(0, value)
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> &mut CborWriter {
        self.head(2, bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn text(&mut self, text: &str) -> &mut CborWriter {
        self.head(3, text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    pub fn array(&mut self, items: u64) -> &mut CborWriter {
        self.head(4, items)
    }

    pub fn map(&mut self, pairs: u64) -> &mut CborWriter {
        self.head(5, pairs)
    }

    pub fn tag(&mut self, tag: u64) -> &mut CborWriter {
        self.head(6, tag)
    }

    pub fn float(&mut self, value: f64) -> &mut CborWriter {
        self.0.push(7 << 5 | 27);
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }
}
