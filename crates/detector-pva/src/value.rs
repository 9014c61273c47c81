//! Values of the described types. The first update of a subscription contains all fields, later ones only those that
//! changed.

use crate::bytes::{BitSet, ByteOrder, ByteReader};
use crate::field::{FieldType, PvNumber, StructureType, TypeRegistry};
use crate::{BadPva, bad};

/// A value that brings its type may contain another.
const DEPTH_MAX: usize = 16;
/// Number of values in one message besides elements of arrays; limits the memory that a message can take.
const VALUES_MAX: usize = 1 << 16;

#[derive(Clone, Debug, PartialEq)]
pub enum PvValue {
    /// Null, or not received yet.
    Absent,
    Boolean(bool),
    Integer(i64),
    Unsigned(u64),
    Float(f64),
    Text(String),
    /// Elements, little-endian.
    Numbers(PvNumber, Vec<u8>),
    /// The values of the fields, in their order.
    Structure(Vec<PvValue>),
    /// Elements of an array of texts, structures, unions or values that bring their types.
    Many(Vec<PvValue>),
}

impl PvValue {
    /// The initial value of a structure, before the first update.
    pub fn initial(structure: &StructureType) -> PvValue {
        let initial = |(_, kind): &(String, FieldType)| match kind {
            FieldType::Structure(inner) => PvValue::initial(inner),
            _ => PvValue::Absent,
        };
        PvValue::Structure(structure.fields.iter().map(initial).collect())
    }

    pub fn integer(&self) -> Option<i64> {
        match self {
            PvValue::Integer(value) => Some(*value),
            PvValue::Unsigned(value) => i64::try_from(*value).ok(),
            _ => None,
        }
    }
}

/// Reads the values of one message.
pub struct ValueReader<'r, 'b> {
    registry: &'r mut TypeRegistry,
    pub reader: ByteReader<'b>,
    values_left: usize,
}

impl<'r, 'b> ValueReader<'r, 'b> {
    pub fn new(registry: &'r mut TypeRegistry, reader: ByteReader<'b>) -> ValueReader<'r, 'b> {
        registry.begin_message();
        ValueReader { registry, reader, values_left: VALUES_MAX }
    }

    /// Applies an update: the set of changed fields, their values, and the set of fields that changed more than once.
    ///
    /// # Errors
    /// If the message does not fit the type. The value may then be half updated.
    pub fn update(&mut self, structure: &StructureType, value: &mut PvValue) -> Result<(), BadPva> {
        let changed = self.reader.bits()?;
        if changed.has(0) {
            *value = self.structure(structure, 0)?;
        } else {
            self.changed_fields(structure, value, &changed, &mut 1)?;
        }
        self.reader.bits().map(drop)
    }

    /// `at`: the position of the structure's first field in the set of bits.
    fn changed_fields(
        &mut self,
        structure: &StructureType,
        value: &mut PvValue,
        changed: &BitSet,
        at: &mut usize,
    ) -> Result<(), BadPva> {
        let PvValue::Structure(values) = value else { return bad("an update does not fit the value before it") };
        for ((_, kind), value) in structure.fields.iter().zip(values) {
            if changed.has(*at) {
                *value = self.value(kind, 0)?;
                *at += kind.nodes();
            } else {
                *at += 1;
                if let FieldType::Structure(inner) = kind {
                    self.changed_fields(inner, value, changed, at)?;
                }
            }
        }
        Ok(())
    }

    fn structure(&mut self, structure: &StructureType, depth: usize) -> Result<PvValue, BadPva> {
        let values: Result<Vec<_>, _> = structure.fields.iter().map(|(_, kind)| self.value(kind, depth + 1)).collect();
        Ok(PvValue::Structure(values?))
    }

    fn value(&mut self, kind: &FieldType, depth: usize) -> Result<PvValue, BadPva> {
        if depth > DEPTH_MAX {
            return bad(format!("a value nests deeper than {DEPTH_MAX}"));
        }
        self.values_left =
            self.values_left.checked_sub(1).ok_or_else(|| BadPva(format!("a message has over {VALUES_MAX} values")))?;
        match kind {
            FieldType::Number(number) => self.number(*number),
            FieldType::Text => Ok(PvValue::Text(self.reader.text()?)),
            FieldType::Numbers(number, length) => self.numbers(*number, *length),
            FieldType::Texts(length) => self.many(*length, |own| own.value(&FieldType::Text, depth + 1)),
            FieldType::Structure(structure) => self.structure(structure, depth),
            FieldType::Structures(structure) => self.many(None, |own| match own.reader.u8()? {
                0 => Ok(PvValue::Absent),
                _ => own.value(&FieldType::Structure(structure.clone()), depth + 1),
            }),
            FieldType::Union(choices) => self.choice(choices, depth),
            FieldType::Unions(choices) => self.many(None, |own| match own.reader.u8()? {
                0 => Ok(PvValue::Absent),
                _ => own.choice(choices, depth + 1),
            }),
            FieldType::Any => self.any(depth),
            FieldType::Anys => self.many(None, |own| match own.reader.u8()? {
                0 => Ok(PvValue::Absent),
                _ => own.any(depth + 1),
            }),
        }
    }

    fn choice(&mut self, choices: &StructureType, depth: usize) -> Result<PvValue, BadPva> {
        let Some(selected) = self.reader.size()? else { return Ok(PvValue::Absent) };
        match choices.fields.get(selected) {
            Some((_, kind)) => self.value(kind, depth + 1),
            None => bad(format!("a union has no choice {selected}")),
        }
    }

    fn any(&mut self, depth: usize) -> Result<PvValue, BadPva> {
        match self.registry.read(&mut self.reader)? {
            Some(kind) => self.value(&kind, depth + 1),
            None => Ok(PvValue::Absent),
        }
    }

    fn many(
        &mut self,
        length: Option<usize>,
        mut element: impl FnMut(&mut Self) -> Result<PvValue, BadPva>,
    ) -> Result<PvValue, BadPva> {
        let count = length.map_or_else(|| self.reader.count(), Ok)?;
        let mut values = Vec::new();
        for _ in 0..count {
            self.values_left = self
                .values_left
                .checked_sub(1)
                .ok_or_else(|| BadPva(format!("a message has over {VALUES_MAX} values")))?;
            values.push(element(self)?);
        }
        Ok(PvValue::Many(values))
    }

    fn number(&mut self, number: PvNumber) -> Result<PvValue, BadPva> {
        let reader = &mut self.reader;
        Ok(match number {
            PvNumber::Boolean => PvValue::Boolean(reader.u8()? != 0),
            PvNumber::Byte => PvValue::Integer(reader.i8()?.into()),
            PvNumber::Short => PvValue::Integer(reader.i16()?.into()),
            PvNumber::Int => PvValue::Integer(reader.i32()?.into()),
            PvNumber::Long => PvValue::Integer(reader.i64()?),
            PvNumber::UByte => PvValue::Unsigned(reader.u8()?.into()),
            PvNumber::UShort => PvValue::Unsigned(reader.u16()?.into()),
            PvNumber::UInt => PvValue::Unsigned(reader.u32()?.into()),
            PvNumber::ULong => PvValue::Unsigned(reader.u64()?),
            PvNumber::Float => PvValue::Float(reader.f32()?.into()),
            PvNumber::Double => PvValue::Float(reader.f64()?),
        })
    }

    fn numbers(&mut self, number: PvNumber, length: Option<usize>) -> Result<PvValue, BadPva> {
        let count = length.map_or_else(|| self.reader.count(), Ok)?;
        let bytes =
            count.checked_mul(number.bytes()).ok_or_else(|| BadPva(format!("an array has {count} elements")))?;
        let mut elements = self.reader.take(bytes)?.to_vec();
        if self.reader.order() == ByteOrder::Big && number.bytes() > 1 {
            elements.chunks_exact_mut(number.bytes()).for_each(<[u8]>::reverse);
        }
        Ok(PvValue::Numbers(number, elements))
    }
}
