//! Bytes that are copied whole on their way, not one by one.

use alloc::vec::Vec;
use core::fmt;
use core::ops::{Deref, DerefMut};

use postcard_schema::Schema;
use postcard_schema::schema::NamedType;
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::ser::{Serialize, Serializer};

/// A `Vec<u8>` that is copied whole when it is sent and when it arrives. To the other side it is the same type: `serde` treats a
/// `Vec<u8>`, and a `&[u8]` that is sent, as a sequence of numbers, which takes several times as long. Arguments that are `&[u8]` are
/// read in place and need no such type.
///
/// ```
/// # fn main() {}
/// use coracle_guest::Bytes;
///
/// #[coracle_guest::function]
/// fn zeros(count: u32) -> Bytes {
///     vec![0; count as usize].into()
/// }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bytes(Vec<u8>);

impl Bytes {
    /// The bytes as they are.
    pub fn into_vec(self) -> Vec<u8> {
        self.0
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl From<Bytes> for Vec<u8> {
    fn from(bytes: Bytes) -> Self {
        bytes.0
    }
}

impl Deref for Bytes {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.0
    }
}

impl DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }
}

impl Schema for Bytes {
    const SCHEMA: &'static NamedType = <Vec<u8> as Schema>::SCHEMA;
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Whole;
        impl Visitor<'_> for Whole {
            type Value = Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes(bytes.to_vec()))
            }

            fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Bytes, E> {
                Ok(Bytes(bytes))
            }
        }
        deserializer.deserialize_bytes(Whole)
    }
}
