//! Which program a guest came from: for crash reports.

use coracle_snapshot::Digest;

use crate::image::{Image, Symbol};

/// A program, or what is known of one that is not here.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// It is here.
    Image(Image),
    /// It is not: the guest comes from a snapshot that was loaded.
    Absent {
        /// The file's name.
        name: Option<String>,
        /// What is added to link addresses.
        load_bias: u64,
        /// Of the file.
        digest: Digest,
    },
}

impl Origin {
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Self::Image(image) => image.name(),
            Self::Absent { name, .. } => name.as_deref(),
        }
    }

    pub(crate) fn load_bias(&self) -> u64 {
        match self {
            Self::Image(image) => image.load_bias(),
            Self::Absent { load_bias, .. } => *load_bias,
        }
    }

    pub(crate) fn digest(&self) -> Digest {
        match self {
            Self::Image(image) => image.digest(),
            Self::Absent { digest, .. } => *digest,
        }
    }

    /// The function that an address in the guest lies in.
    pub(crate) fn symbol(&self, address: u64) -> Option<Symbol> {
        match self {
            Self::Image(image) => image.symbol(address.wrapping_sub(image.load_bias())),
            Self::Absent { .. } => None,
        }
    }
}
