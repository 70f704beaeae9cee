//! What an image says of itself in its ELF notes: ABI version, functions, and the host functions it needs.
//!
//! Known from the file alone, before anything runs. The image is not trusted, so that every part is checked; what it
//! says is only used to tell a caller's mistake from a guest's.

use std::collections::HashMap;
use std::fmt;

use coracle_abi::note::{self, AbiNote, FunctionNote};
use coracle_abi::{ABI_VERSION, signature};

use crate::dynamic::Signature;
use crate::error::{Error, ErrorKind};
use crate::image::Image;

/// A function's name and types, as the image's notes give them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionInfo {
    /// `name(ARGUMENTS) -> RESULT`, see [`coracle_abi::signature`].
    pub signature: String,
    /// The name.
    pub name: String,
    /// Names of the parameters, joined by commas; may be empty.
    pub parameters: String,
    pub(crate) key: u64,
    pub(crate) types: u64,
}

impl fmt::Display for FunctionInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.signature)
    }
}

impl FunctionInfo {
    /// The types: what follows the name.
    pub fn types(&self) -> &str {
        &self.signature[self.name.len()..]
    }

    /// The signature taken apart, for callers that know it only at run time.
    ///
    /// # Errors
    /// [`ErrorKind::Image`] when its types are not of the grammar: the image is damaged.
    pub fn typed(&self) -> Result<Signature, Error> {
        let desc = format!("{}\0{}", self.signature, self.parameters);
        let damaged = |why: &dyn fmt::Display| {
            Error::new(ErrorKind::Image, format!("the image's note about '{}' is damaged: {why}", self.name))
        };
        let note = FunctionNote::parse(desc.as_bytes()).map_err(|error| damaged(&error))?;
        Signature::from_note(&note).map_err(|error| damaged(&error))
    }

    pub(crate) fn parse(desc: &[u8]) -> Result<Self, String> {
        let note = FunctionNote::parse(desc).map_err(|error| error.to_string())?;
        Ok(Self {
            signature: note.signature.to_owned(),
            name: note.name.to_owned(),
            parameters: note.parameters.to_owned(),
            key: note.key(),
            types: note.types_hash(),
        })
    }
}

/// What a guest made with the SDK offers and needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// The ABI version it was built for.
    pub abi_version: u32,
    /// What built it, as in `coracle-guest 0.1.0`. The image's own words.
    pub sdk: String,
    /// Functions that the host can call, by name.
    pub functions: Vec<FunctionInfo>,
    /// Host functions that it needs, by name.
    pub host_functions: Vec<FunctionInfo>,
}

impl Interface {
    /// Reads the notes of an image. `None` if it has none: an ordinary Linux program.
    ///
    /// # Errors
    /// [`ErrorKind::Image`] when the notes are damaged, contradict each other or are too many. A foreign ABI version is
    /// no error here ([`Interface::check_version`]): one can look at such an image, but not run it.
    pub fn of(image: &Image) -> Result<Option<Self>, Error> {
        let damaged =
            |what: String| Error::new(ErrorKind::Image, format!("the image's Coracle notes are damaged: {what}"));
        let mut interface = Self::default();
        let mut found = false;
        let mut versioned = false;
        for (kind, desc) in image.notes() {
            found = true;
            match kind {
                note::ABI => {
                    let abi = AbiNote::parse(desc).map_err(|error| damaged(error.to_string()))?;
                    if versioned && abi.version != interface.abi_version {
                        return Err(damaged("two ABI versions".into()));
                    }
                    (interface.abi_version, interface.sdk, versioned) = (abi.version, abi.sdk.to_owned(), true);
                }
                note::EXPORT => interface.functions.push(FunctionInfo::parse(desc).map_err(damaged)?),
                note::REQUIRE => interface.host_functions.push(FunctionInfo::parse(desc).map_err(damaged)?),
                _ => {} // A later version's, told by the ABI version if it matters.
            }
        }
        if !found {
            return Ok(None);
        }
        if !versioned {
            return Err(damaged("there is none with the ABI version".into()));
        }
        for functions in [&mut interface.functions, &mut interface.host_functions] {
            if functions.len() > signature::MAX_FUNCTIONS {
                return Err(damaged(format!("more than {} functions", signature::MAX_FUNCTIONS)));
            }
            functions.sort_by(|a, b| a.signature.cmp(&b.signature));
            functions.dedup_by(|a, b| a.signature == b.signature);
            if let Some(pair) = functions.windows(2).find(|pair| pair[0].name == pair[1].name) {
                return Err(damaged(format!("both {} and {}", pair[0], pair[1])));
            }
        }
        Ok(Some(interface))
    }

    /// Whether this host can run such a guest.
    ///
    /// # Errors
    /// [`ErrorKind::Image`] with both versions.
    pub fn check_version(&self) -> Result<(), Error> {
        if self.abi_version == ABI_VERSION {
            return Ok(());
        }
        let message = format!(
            "the guest was built for Coracle ABI {} (by {}), this host speaks ABI {ABI_VERSION}: build the guest with \
             the SDK of this host's version",
            self.abi_version,
            if self.sdk.is_empty() { "an unknown SDK" } else { &self.sdk },
        );
        Err(Error::new(ErrorKind::Image, message))
    }

    /// The functions by name.
    pub(crate) fn by_name(&self) -> HashMap<&str, &FunctionInfo> {
        self.functions.iter().map(|function| (function.name.as_str(), function)).collect()
    }
}
