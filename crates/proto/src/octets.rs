//! Byte strings for `#[serde(with)]`. By default serde handles a `Vec<u8>` as a list of numbers, one at a time. The
//! encoding is the same for both: the number of bytes, then the bytes.

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

pub fn serialize<S: Serializer>(octets: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(octets)
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    struct Octets;

    impl Visitor<'_> for Octets {
        type Value = Vec<u8>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("bytes")
        }

        fn visit_bytes<E: Error>(self, octets: &[u8]) -> Result<Vec<u8>, E> {
            Ok(octets.to_vec())
        }
    }

    deserializer.deserialize_bytes(Octets)
}

pub mod option {
    use super::*;

    #[derive(Serialize)]
    struct Borrowed<'a>(#[serde(with = "super")] &'a [u8]);

    #[derive(Deserialize)]
    struct Owned(#[serde(with = "super")] Vec<u8>);

    pub fn serialize<S: Serializer>(octets: &Option<Vec<u8>>, serializer: S) -> Result<S::Ok, S::Error> {
        octets.as_deref().map(Borrowed).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<u8>>, D::Error> {
        Ok(Option::<Owned>::deserialize(deserializer)?.map(|octets| octets.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Whole {
        #[serde(with = "super")]
        name: Vec<u8>,
        #[serde(with = "super::option")]
        data: Option<Vec<u8>>,
    }

    #[derive(Serialize)]
    struct OneByOne {
        name: Vec<u8>,
        data: Option<Vec<u8>>,
    }

    /// Promise: a byte string has the same encoding as a list of its bytes.
    #[test]
    fn octets_encode_like_byte_vectors() {
        for (name, data) in [(vec![], None), (vec![0; 300], Some(vec![])), (b"name".to_vec(), Some(vec![200; 5]))] {
            let whole = Whole { name: name.clone(), data: data.clone() };
            let bytes = postcard::to_stdvec(&whole).unwrap();
            assert_eq!(bytes, postcard::to_stdvec(&OneByOne { name, data }).unwrap());
            assert_eq!(postcard::from_bytes::<Whole>(&bytes).unwrap(), whole);
        }
    }
}
