//! SHA-256 digests, as OCI writes them.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use serde::de::{Deserializer, Error as _, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use crate::Error;

const PREFIX: &str = "sha256:";

/// A SHA-256 digest; as text `sha256:` and 64 lower-case hexadecimal digits.
///
/// ```
/// # use coracle_snapshot::Digest;
/// let digest = Digest::of(b"");
/// assert_eq!(digest.to_string(), "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
/// assert_eq!(digest.to_string().parse::<Digest>().unwrap(), digest);
/// assert!("sha256:../../etc/passwd".parse::<Digest>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The digest of all that `reader` gives.
    ///
    /// # Errors
    /// The reader's.
    pub fn of_reader(mut reader: impl Read) -> io::Result<Self> {
        let mut hasher = Hasher::default();
        let mut buffer = vec![0; 64 << 10];
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => return Ok(hasher.finish()),
                Ok(bytes) => hasher.update(&buffer[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The 64 hexadecimal digits alone: a file name.
    pub(crate) fn hex(&self) -> String {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digits = self.0.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
    }

    /// Of 64 lower-case hexadecimal digits; so what comes of it, used as a path, is the name of a file in a directory.
    pub(crate) fn from_hex(hex: &str) -> Option<Self> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let (pairs, []) = hex.as_bytes().as_chunks::<2>() else { return None };
        let pairs: &[[u8; 2]; 32] = pairs.try_into().ok()?;
        let mut bytes = [0; 32];
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        Some(Self(bytes))
    }

    fn parse(text: &str) -> Option<Self> {
        Self::from_hex(text.strip_prefix(PREFIX)?)
    }
}

/// A digest in the making.
#[derive(Clone, Default)]
pub(crate) struct Hasher(Sha256);

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = Error;

    /// # Errors
    /// [`Error::Reference`] for anything but `sha256:` and 64 lower-case digits.
    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(text).ok_or_else(|| Error::Reference {
            text: text.chars().take(80).collect(),
            why: "a digest is sha256: and 64 lower-case hexadecimal digits",
        })
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Digest;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a digest: sha256: and 64 lower-case hexadecimal digits")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Digest, E> {
                Digest::parse(text)
                    .ok_or_else(|| E::custom("a digest is not sha256: and 64 lower-case hexadecimal digits"))
            }
        }
        deserializer.deserialize_str(Text).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_canonical_form_is_a_digest() {
        let good = Digest::of(b"x").to_string();
        assert!(good.parse::<Digest>().is_ok());
        let upper = format!("sha256:{}", good[7..].to_uppercase());
        let traversal = format!("sha256:{:.<64}", "../");
        for bad in [&upper, &traversal, &good[..70], &format!("{good}0"), &good[7..], "sha512:", "", "sha256:\u{e9}"] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }
}
