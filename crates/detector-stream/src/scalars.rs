//! Scalars of frames: the head with their names, and the rows of the body.

use super::bad_message::{BadMessage, bad};
use super::read::MessageReader;
use varve_detector_dataset::dataset_spec::Scalar;

/// Same limit as for the columns of a dataset spec.
const NAMES_MAX: u16 = 1024;
/// Length that marks a missing text.
const NO_TEXT: u16 = u16::MAX;

/// Encoding of a value in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    Float,
    Integer,
    Unsigned,
    Text,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalarsHead {
    pub rows: u32,
    pub names: Vec<String>,
    /// One kind per name; kinds other than floats require [`super::KINDS_VERSION`].
    pub kinds: Vec<ValueKind>,
}

/// One row: a frame number and one value per name; `None` is a missing value.
pub type ScalarRow = (u64, Vec<Option<Scalar>>);

impl ValueKind {
    const ALL: [ValueKind; 4] = [ValueKind::Float, ValueKind::Integer, ValueKind::Unsigned, ValueKind::Text];

    fn code(self) -> u8 {
        ValueKind::ALL.iter().position(|known| *known == self).expect("all are there") as u8
    }

    fn of(value: &Scalar) -> ValueKind {
        match value {
            Scalar::Float(_) => ValueKind::Float,
            Scalar::Integer(_) => ValueKind::Integer,
            Scalar::Unsigned(_) => ValueKind::Unsigned,
            Scalar::Text(_) => ValueKind::Text,
        }
    }

    /// Appends a value of this kind.
    fn put(self, value: Option<&Scalar>, body: &mut Vec<u8>) {
        match (self, value) {
            (ValueKind::Float, Some(Scalar::Float(value))) => body.extend(value.to_le_bytes()),
            (ValueKind::Float, _) => body.extend(f64::NAN.to_le_bytes()),
            (ValueKind::Integer, Some(Scalar::Integer(value))) => body.extend(value.to_le_bytes()),
            (ValueKind::Integer, _) => body.extend(i64::MIN.to_le_bytes()),
            (ValueKind::Unsigned, Some(Scalar::Unsigned(value))) => body.extend(value.to_le_bytes()),
            (ValueKind::Unsigned, _) => body.extend(u64::MAX.to_le_bytes()),
            (ValueKind::Text, Some(Scalar::Text(text))) if text.len() < NO_TEXT.into() => {
                body.extend((text.len() as u16).to_le_bytes());
                body.extend(text.as_bytes());
            }
            (ValueKind::Text, _) => body.extend(NO_TEXT.to_le_bytes()),
        }
    }

    fn take(self, reader: &mut MessageReader<'_>) -> Result<Option<Scalar>, BadMessage> {
        Ok(match self {
            ValueKind::Float => Some(f64::from_bits(reader.u64()?)).filter(|value| !value.is_nan()).map(Scalar::Float),
            ValueKind::Integer => Some(reader.u64()? as i64).filter(|value| *value != i64::MIN).map(Scalar::Integer),
            ValueKind::Unsigned => Some(reader.u64()?).filter(|value| *value != u64::MAX).map(Scalar::Unsigned),
            ValueKind::Text => match reader.u16()? {
                NO_TEXT => None,
                bytes => Some(Scalar::Text(reader.text(bytes.into(), "a scalar's text")?)),
            },
        })
    }
}

impl ScalarsHead {
    /// Builds the head for rows with one value per name, where the values of each name have one kind.
    ///
    /// # Errors
    /// If a row has another number of values than there are names, or a value has another kind than earlier ones. The
    /// error says which.
    pub fn of(names: &[String], rows: &[ScalarRow]) -> Result<ScalarsHead, BadMessage> {
        let mut kinds = vec![None; names.len()];
        for (frame, values) in rows {
            if values.len() != names.len() {
                return bad(format!("frame {frame} has {} scalars for {} names", values.len(), names.len()));
            }
            for ((kind, value), name) in kinds.iter_mut().zip(values).zip(names) {
                let Some(value) = value else { continue };
                let own = ValueKind::of(value);
                if *kind.get_or_insert(own) != own {
                    return bad(format!("scalar `{name}` of frame {frame} is of another kind than before"));
                }
                if matches!(value, Scalar::Text(text) if text.len() >= NO_TEXT.into()) {
                    return bad(format!("scalar `{name}` of frame {frame} is a text of {NO_TEXT} bytes or more"));
                }
            }
        }
        let kinds = kinds.into_iter().map(|kind| kind.unwrap_or(ValueKind::Float)).collect();
        Ok(ScalarsHead { rows: rows.len() as u32, names: names.to_vec(), kinds })
    }

    /// Whether a service of version 1 understands it.
    pub fn is_plain(&self) -> bool {
        self.kinds.iter().all(|kind| *kind == ValueKind::Float)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut head = self.rows.to_le_bytes().to_vec();
        head.extend((self.names.len() as u16).to_le_bytes());
        for name in &self.names {
            head.push(name.len() as u8);
            head.extend(name.as_bytes());
        }
        if !self.is_plain() {
            head.extend(self.kinds.iter().map(|kind| kind.code()));
        }
        head
    }

    /// `kinds`: whether the kinds of values follow the names.
    pub(super) fn decode(reader: &mut MessageReader<'_>, kinds: bool) -> Result<ScalarsHead, BadMessage> {
        let (rows, count) = (reader.u32()?, reader.u16()?);
        if rows == 0 || !(1..=NAMES_MAX).contains(&count) {
            return bad(format!(
                "scalars of {rows} rows and {count} names; give at least 1 row, 1 to {NAMES_MAX} names"
            ));
        }
        let mut names = Vec::with_capacity(count.into());
        for _ in 0..count {
            let bytes = reader.u8()?.into();
            names.push(reader.text(bytes, "a scalar's name")?);
        }
        let kind = |code: &u8| match ValueKind::ALL.get(usize::from(*code)) {
            Some(kind) => Ok(*kind),
            None => bad(format!("a scalar is of kind {code}; there are 0 to {}", ValueKind::ALL.len() - 1)),
        };
        let kinds = match kinds {
            true => reader.bytes(count.into())?.iter().map(kind).collect::<Result<_, _>>()?,
            false => vec![ValueKind::Float; count.into()],
        };
        Ok(ScalarsHead { rows, names, kinds })
    }

    /// Checks that a body has exactly its rows.
    ///
    /// # Errors
    /// If it has not, or a text is invalid.
    pub fn check(&self, body: &[u8]) -> Result<(), BadMessage> {
        let mut reader = MessageReader(body);
        if self.kinds.contains(&ValueKind::Text) {
            (0..self.rows).try_for_each(|_| self.row(&mut reader).map(drop))?;
        } else {
            // Cannot overflow: the head's numbers have 32 and 16 bits.
            let wanted = u64::from(self.rows) * (8 + 8 * self.kinds.len() as u64);
            reader.bytes(usize::try_from(wanted).unwrap_or(usize::MAX))?;
        }
        match reader.0.len() {
            0 => Ok(()),
            rest => bad(format!("{rest} bytes follow the rows of scalars")),
        }
    }

    /// The rows of a checked body.
    pub fn rows<'b>(&'b self, body: &'b [u8]) -> impl Iterator<Item = ScalarRow> + 'b {
        let mut reader = MessageReader(body);
        (0..self.rows).map_while(move |_| self.row(&mut reader).ok())
    }

    fn row(&self, reader: &mut MessageReader<'_>) -> Result<ScalarRow, BadMessage> {
        let frame = reader.u64()?;
        let values = self.kinds.iter().map(|kind| kind.take(reader)).collect::<Result<Vec<_>, _>>()?;
        Ok((frame, values))
    }

    /// Encodes rows of these kinds.
    pub fn body(&self, rows: &[ScalarRow]) -> Vec<u8> {
        let mut body = Vec::new();
        for (frame, values) in rows {
            body.extend(frame.to_le_bytes());
            self.kinds.iter().zip(values).for_each(|(kind, value)| kind.put(value.as_ref(), &mut body));
        }
        body
    }
}
