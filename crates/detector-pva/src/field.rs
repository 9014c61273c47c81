//! Descriptions of types. A peer may number a description and refer to it later by its number.

use crate::bytes::ByteReader;
use crate::{BadPva, bad};
use std::collections::BTreeMap;
use std::sync::Arc;

/// An NTNDArray nests five deep; values of attributes may nest further.
const DEPTH_MAX: usize = 16;
/// Number of fields of a type with all that it contains; an NTNDArray has about 60.
pub const NODES_MAX: usize = 4096;
/// Descriptions that a connection may number.
const NUMBERED_MAX: usize = 1024;
/// Fields of all descriptions in one message, and of all numbered ones. Limits the memory that a connection can take, and
/// is not a limit for the connection as a whole, because values of attributes bring their types with each frame.
const FIELDS_MAX: usize = 1 << 16;

const NULL: u8 = 0xff;
const BY_NUMBER: u8 = 0xfe;
const NUMBERED: u8 = 0xfd;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PvNumber {
    Boolean,
    Byte,
    Short,
    Int,
    Long,
    UByte,
    UShort,
    UInt,
    ULong,
    Float,
    Double,
}

impl PvNumber {
    /// In the order of pvData's ScalarType, by which codecs name the type of their elements.
    pub const ALL: [PvNumber; 11] = [
        PvNumber::Boolean,
        PvNumber::Byte,
        PvNumber::Short,
        PvNumber::Int,
        PvNumber::Long,
        PvNumber::UByte,
        PvNumber::UShort,
        PvNumber::UInt,
        PvNumber::ULong,
        PvNumber::Float,
        PvNumber::Double,
    ];

    pub fn bytes(self) -> usize {
        match self {
            PvNumber::Boolean | PvNumber::Byte | PvNumber::UByte => 1,
            PvNumber::Short | PvNumber::UShort => 2,
            PvNumber::Int | PvNumber::UInt | PvNumber::Float => 4,
            PvNumber::Long | PvNumber::ULong | PvNumber::Double => 8,
        }
    }

    fn of_code(code: u8) -> Option<PvNumber> {
        Some(match code {
            0x00 => PvNumber::Boolean,
            0x20 => PvNumber::Byte,
            0x21 => PvNumber::Short,
            0x22 => PvNumber::Int,
            0x23 => PvNumber::Long,
            0x24 => PvNumber::UByte,
            0x25 => PvNumber::UShort,
            0x26 => PvNumber::UInt,
            0x27 => PvNumber::ULong,
            0x42 => PvNumber::Float,
            0x43 => PvNumber::Double,
            _ => return None,
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldType {
    Number(PvNumber),
    Text,
    /// `Some`: every value has this many elements.
    Numbers(PvNumber, Option<usize>),
    Texts(Option<usize>),
    Structure(Arc<StructureType>),
    Structures(Arc<StructureType>),
    /// A value of one of the fields.
    Union(Arc<StructureType>),
    Unions(Arc<StructureType>),
    /// A value that brings its type.
    Any,
    Anys,
}

#[derive(Debug, PartialEq, Eq)]
pub struct StructureType {
    pub id: String,
    pub fields: Vec<(String, FieldType)>,
    /// Positions in an update's set of bits: one for the structure, and those of its fields.
    pub nodes: usize,
    /// How deep the structure nests, elements of arrays and choices of unions included. Values are walked recursively.
    depth: usize,
    /// Number of fields, with those of all types that the structure refers to.
    total: usize,
}

impl StructureType {
    pub fn position(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|(own, _)| own == name)
    }
}

impl FieldType {
    pub fn nodes(&self) -> usize {
        match self {
            FieldType::Structure(structure) => structure.nodes,
            _ => 1,
        }
    }

    fn structure(&self) -> Option<&StructureType> {
        match self {
            FieldType::Structure(of) | FieldType::Structures(of) | FieldType::Union(of) | FieldType::Unions(of) => {
                Some(of)
            }
            _ => None,
        }
    }

    fn total(&self) -> usize {
        self.structure().map_or(1, |structure| structure.total)
    }
}

/// The descriptions that a connection has numbered.
#[derive(Debug)]
pub struct TypeRegistry {
    numbered: BTreeMap<u16, FieldType>,
    /// Fields of the numbered descriptions.
    numbered_fields: usize,
    /// Fields that the current message may still describe.
    fields_left: usize,
}

impl Default for TypeRegistry {
    fn default() -> TypeRegistry {
        TypeRegistry { numbered: BTreeMap::new(), numbered_fields: 0, fields_left: FIELDS_MAX }
    }
}

impl TypeRegistry {
    /// The next message has its own fields.
    pub fn begin_message(&mut self) {
        self.fields_left = FIELDS_MAX;
    }

    /// Reads a description; `None` is null.
    ///
    /// # Errors
    /// If it is damaged, or larger than any detector's.
    pub fn read(&mut self, reader: &mut ByteReader<'_>) -> Result<Option<FieldType>, BadPva> {
        self.read_at(reader, 0)
    }

    fn read_at(&mut self, reader: &mut ByteReader<'_>, depth: usize) -> Result<Option<FieldType>, BadPva> {
        if depth > DEPTH_MAX {
            return bad(format!("a type nests deeper than {DEPTH_MAX}"));
        }
        let code = reader.u8()?;
        match code {
            NULL => Ok(None),
            BY_NUMBER => {
                let number = reader.u16()?;
                let known = self.numbered.get(&number).cloned();
                known.map(Some).ok_or_else(|| BadPva(format!("type number {number} is not defined")))
            }
            NUMBERED => {
                let number = reader.u16()?;
                let Some(read) = self.read_at(reader, depth + 1)? else { return bad("a numbered type is null") };
                self.number(number, read.clone())?;
                Ok(Some(read))
            }
            code => self.typed(code, reader, depth).map(Some),
        }
    }

    fn number(&mut self, number: u16, read: FieldType) -> Result<(), BadPva> {
        if self.numbered.len() >= NUMBERED_MAX && !self.numbered.contains_key(&number) {
            return bad(format!("the peer numbers more than {NUMBERED_MAX} types"));
        }
        self.numbered_fields += read.total();
        if let Some(before) = self.numbered.insert(number, read) {
            self.numbered_fields -= before.total();
        }
        match self.numbered_fields {
            0..=FIELDS_MAX => Ok(()),
            _ => bad(format!("the peer numbers types with more than {FIELDS_MAX} fields")),
        }
    }

    fn typed(&mut self, code: u8, reader: &mut ByteReader<'_>, depth: usize) -> Result<FieldType, BadPva> {
        // Bits 3 and 4: scalar, array, bounded array, array of a fixed length.
        const ARRAY: u8 = 0x18;
        match code {
            0x80 => return Ok(FieldType::Structure(self.fields(reader, depth)?)),
            0x81 => return Ok(FieldType::Union(self.fields(reader, depth)?)),
            0x82 => return Ok(FieldType::Any),
            0x83 => {
                reader.size()?;
                return Ok(FieldType::Text);
            }
            0x88 | 0x89 => {
                return match self.read_at(reader, depth + 1)? {
                    Some(FieldType::Structure(of)) if code == 0x88 => Ok(FieldType::Structures(of)),
                    Some(FieldType::Union(of)) if code == 0x89 => Ok(FieldType::Unions(of)),
                    _ => bad("an array of structures or unions has elements of another type"),
                };
            }
            0x8a => return Ok(FieldType::Anys),
            _ => {}
        }
        let length = match code & ARRAY {
            0x10 => {
                reader.size()?;
                None
            }
            0x18 => reader.size()?,
            _ => None,
        };
        let is_array = code & ARRAY != 0;
        match (PvNumber::of_code(code & !ARRAY), code & !ARRAY) {
            (Some(number), _) if is_array => Ok(FieldType::Numbers(number, length)),
            (Some(number), _) => Ok(FieldType::Number(number)),
            (None, 0x60) if is_array => Ok(FieldType::Texts(length)),
            (None, 0x60) => Ok(FieldType::Text),
            _ => bad(format!("type code 0x{code:02x} is unknown")),
        }
    }

    fn fields(&mut self, reader: &mut ByteReader<'_>, depth: usize) -> Result<Arc<StructureType>, BadPva> {
        let id = reader.text()?;
        let count = reader.count()?;
        let (mut fields, mut nodes, mut total, mut nests) = (Vec::new(), 1_usize, 1_usize, 1_usize);
        for _ in 0..count {
            self.fields_left = self
                .fields_left
                .checked_sub(1)
                .ok_or_else(|| BadPva(format!("a message describes over {FIELDS_MAX} fields")))?;
            let name = reader.text()?;
            let Some(kind) = self.read_at(reader, depth + 1)? else {
                return bad(format!("field `{name}` has no type"));
            };
            // Numbered types allow a short description of a type that has many fields, or nests deep.
            nodes += kind.nodes();
            total += kind.total();
            nests = nests.max(1 + kind.structure().map_or(0, |structure| structure.depth));
            if total > NODES_MAX {
                return bad(format!("a type has more than {NODES_MAX} fields"));
            }
            if nests > DEPTH_MAX {
                return bad(format!("a type nests deeper than {DEPTH_MAX}"));
            }
            fields.push((name, kind));
        }
        Ok(Arc::new(StructureType { id, fields, nodes, depth: nests, total }))
    }
}
