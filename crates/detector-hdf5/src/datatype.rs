//! Datatype messages: numbers, fixed-length strings, and enumerations of bytes.

use super::bytes::Block;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Type of the elements of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ElementType {
    U8,
    U16,
    U32,
    U64,
    I8,
    I16,
    I32,
    I64,
    F16,
    F32,
    F64,
}

impl ElementType {
    pub const ALL: [ElementType; 11] = [
        ElementType::U8,
        ElementType::U16,
        ElementType::U32,
        ElementType::U64,
        ElementType::I8,
        ElementType::I16,
        ElementType::I32,
        ElementType::I64,
        ElementType::F16,
        ElementType::F32,
        ElementType::F64,
    ];

    /// Bytes of one element.
    pub fn size(self) -> usize {
        use ElementType::*;
        match self {
            U8 | I8 => 1,
            U16 | I16 | F16 => 2,
            U32 | I32 | F32 => 4,
            U64 | I64 | F64 => 8,
        }
    }

    /// The name used in dataset specs, on the command line and in the stream protocol.
    pub fn name(self) -> &'static str {
        use ElementType::*;
        match self {
            U8 => "u8",
            U16 => "u16",
            U32 => "u32",
            U64 => "u64",
            I8 => "i8",
            I16 => "i16",
            I32 => "i32",
            I64 => "i64",
            F16 => "f16",
            F32 => "f32",
            F64 => "f64",
        }
    }

    pub fn named(name: &str) -> Option<ElementType> {
        ElementType::ALL.into_iter().find(|element| element.name() == name)
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Datatype {
    Number(ElementType),
    /// UTF-8, padded with zero bytes to this length.
    Text(usize),
    /// ASCII of this length with a terminating zero, as the type `H5T_C_S1` of C programs.
    Ascii(usize),
    /// Named byte values, as used for the frame status.
    Enumeration(Vec<(&'static str, u8)>),
}

const CLASS_INTEGER: u8 = 0;
const CLASS_FLOAT: u8 = 1;
const CLASS_STRING: u8 = 3;
const CLASS_ENUMERATION: u8 = 8;
/// Version 1 suffices for numbers and strings. From version 3 on, names of enumeration members are unpadded.
const VERSION: u8 = 1;
const VERSION_ENUMERATION: u8 = 3;

impl Datatype {
    pub fn size(&self) -> usize {
        match self {
            Datatype::Number(element) => element.size(),
            Datatype::Text(length) | Datatype::Ascii(length) => *length,
            Datatype::Enumeration(_) => 1,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut block = Block::new();
        match self {
            Datatype::Number(element) => number(&mut block, *element, VERSION),
            // Null-padded, UTF-8.
            Datatype::Text(length) => {
                block.byte(VERSION << 4 | CLASS_STRING).bytes(&[0x11, 0, 0]).word(*length as u32);
            }
            // Null-terminated, ASCII. The library has no conversion from UTF-8 to the ASCII that C programs ask for.
            Datatype::Ascii(length) => {
                block.byte(VERSION << 4 | CLASS_STRING).bytes(&[0x00, 0, 0]).word(*length as u32);
            }
            Datatype::Enumeration(members) => {
                block.byte(VERSION_ENUMERATION << 4 | CLASS_ENUMERATION).short(members.len() as u16).byte(0).word(1);
                number(&mut block, ElementType::U8, VERSION_ENUMERATION);
                for (name, _) in members {
                    block.bytes(name.as_bytes()).byte(0);
                }
                for (_, value) in members {
                    block.byte(*value);
                }
            }
        }
        block.into_bytes()
    }
}

fn number(block: &mut Block, element: ElementType, version: u8) {
    use ElementType::*;
    let bits = 8 * element.size() as u16;
    match element {
        U8 | U16 | U32 | U64 | I8 | I16 | I32 | I64 => {
            let signed = matches!(element, I8 | I16 | I32 | I64);
            block.byte(version << 4 | CLASS_INTEGER).bytes(&[u8::from(signed) << 3, 0, 0]);
            block.word(element.size() as u32).short(0).short(bits);
        }
        F16 | F32 | F64 => {
            let (exponent, mantissa, bias) = match element {
                F16 => (5, 10, 15),
                F32 => (8, 23, 127),
                _ => (11, 52, 1023),
            };
            // Bit 5: the highest bit of the mantissa is implied. The next byte is the position of the sign.
            block.byte(version << 4 | CLASS_FLOAT).bytes(&[0x20, bits as u8 - 1, 0]);
            block.word(element.size() as u32).short(0).short(bits);
            block.byte(mantissa).byte(exponent).byte(0).byte(mantissa).word(bias);
        }
    }
}
