//! Items of CBOR (RFC 8949), read by `minicbor` and borrowed from the message. Items are never copied, so no length field
//! in a message can cost more than the message itself. [`CborReader::skip`] is our own, because the library's keeps a stack
//! that grows with the nesting of a hostile message.

use minicbor::Decoder;
use minicbor::data::Token;

/// stream2 messages nest four levels deep; user data may nest deeper, up to this limit.
pub(crate) const DEPTH_MAX: usize = 32;

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
    Negative(i128),
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
    Simple,
    Break,
}

/// Reads the items of a message from its start.
#[derive(Clone, Debug)]
pub struct CborReader<'m>(Decoder<'m>);

impl<'m> CborReader<'m> {
    pub fn new(bytes: &'m [u8]) -> CborReader<'m> {
        CborReader(Decoder::new(bytes))
    }

    pub fn at_end(&self) -> bool {
        self.0.position() == self.0.input().len()
    }

    /// Position in the message.
    pub fn at(&self) -> usize {
        self.0.position()
    }

    pub fn bad<T>(&self, what: &'static str) -> Result<T, BadCbor> {
        Err(BadCbor { what, at: self.0.position() })
    }

    pub fn item(&mut self) -> Result<CborItem<'m>, BadCbor> {
        let token = match self.0.decode::<Token<'m>>() {
            Ok(token) => token,
            Err(error) if error.is_end_of_input() => return self.bad("the message is truncated"),
            Err(_) => return self.bad("an item is invalid"),
        };
        Ok(match token {
            Token::U8(value) => CborItem::Unsigned(value.into()),
            Token::U16(value) => CborItem::Unsigned(value.into()),
            Token::U32(value) => CborItem::Unsigned(value.into()),
            Token::U64(value) => CborItem::Unsigned(value),
            Token::I8(value) => CborItem::Negative(value.into()),
            Token::I16(value) => CborItem::Negative(value.into()),
            Token::I32(value) => CborItem::Negative(value.into()),
            Token::I64(value) => CborItem::Negative(value.into()),
            Token::Int(value) => CborItem::Negative(value.into()),
            Token::F16(value) | Token::F32(value) => CborItem::Float(value.into()),
            Token::F64(value) => CborItem::Float(value),
            Token::Bytes(bytes) => CborItem::Bytes(bytes),
            Token::String(text) => CborItem::Text(text),
            Token::Array(count) => CborItem::Array(Some(count)),
            Token::BeginArray => CborItem::Array(None),
            Token::Map(count) => CborItem::Map(Some(count)),
            Token::BeginMap => CborItem::Map(None),
            Token::Tag(tag) => CborItem::Tag(tag.as_u64()),
            Token::Bool(value) => CborItem::Bool(value),
            Token::Simple(_) | Token::Null | Token::Undefined => CborItem::Simple,
            Token::Break => CborItem::Break,
            Token::BeginBytes | Token::BeginString => {
                return self.bad("strings of indefinite length are not supported");
            }
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
