//! Bytes that are copied whole on their way, not one by one.

use std::fmt;
use std::ops::{Deref, DerefMut};

use postcard_schema::Schema;
use postcard_schema::schema::NamedType;
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::ser::{Serialize, Serializer};

/// A `Vec<u8>` that is copied whole when it is sent and when it arrives. To the other side it is the same type: `serde` treats a
/// `Vec<u8>`, and a `&[u8]`, as a sequence of numbers, which takes several times as long. Worth it from some KiB on.
///
/// ```
/// # use coracle::{Bytes, Sandbox, fake::FakeGuest};
/// # let guest = FakeGuest::new().function("reverse", |mut bytes: Vec<u8>| { bytes.reverse(); Ok::<_, String>(bytes) });
/// # let mut sandbox = Sandbox::builder(&guest.image()).backend(guest.backend()).build()?;
/// let reversed: Bytes = sandbox.call("reverse", Bytes::from(vec![1, 2, 3]))?;
/// assert_eq!(*reversed, [3, 2, 1]);
/// # Ok::<(), coracle::Error>(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_the_wire_it_is_a_vector() {
        for count in [0, 1, 127, 128, 70_000] {
            let vector: Vec<u8> = (0..=255).cycle().take(count).collect();
            let wire = postcard::to_stdvec(&vector).unwrap();
            assert_eq!(postcard::to_stdvec(&Bytes::from(vector.clone())).unwrap(), wire);
            assert_eq!(postcard::from_bytes::<Bytes>(&wire).unwrap().into_vec(), vector);
            assert!(count == 0 || postcard::from_bytes::<Bytes>(&wire[..count]).is_err());
        }
        let text = |schema| coracle_abi::signature::types_hash(schema, <() as Schema>::SCHEMA);
        assert_eq!(text(Bytes::SCHEMA), text(<[u8]>::SCHEMA));
    }
}
