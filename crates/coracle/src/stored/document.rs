//! What a stored snapshot says of itself beside its pages: a JSON document. `docs/snapshot-format.md` has its fields.
//!
//! It may come from anybody. Here it only gets its shape: unknown fields, and values of other types, are refused. What the values mean,
//! and whether they can be true, is checked where they are used.

use coracle_snapshot::Digest;
use coracle_vm::{Registers, SavedSpace};
use serde::{Deserialize, Serialize};

use crate::linux::SavedLinux;
use crate::transport::SavedTransport;

/// The version of this document.
pub(super) const FORMAT: u32 = 1;
/// The only architecture.
pub(super) const ARCHITECTURE: &str = "x86_64";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Document {
    pub(crate) format: u32,
    pub(crate) abi: u32,
    pub(crate) architecture: String,
    pub(crate) cpu: Cpu,
    pub(crate) limits: Limits,
    pub(crate) program: Program,
    /// What built the guest; its own words.
    pub(crate) sdk: String,
    pub(crate) functions: Vec<Exported>,
    pub(crate) host_functions: Vec<Function>,
    pub(crate) registers: Registers,
    pub(crate) space: SavedSpace,
    pub(crate) linux: SavedLinux,
    /// Where calls go through. A program that was not started has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) transport: Option<SavedTransport>,
    /// Address and bytes.
    pub(crate) stack: [u64; 2],
    /// What `AT_RANDOM` points to.
    pub(crate) random: Random,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) mappings: Vec<Mapping>,
    /// Pages that the guest had written and will write again: runs of first and count, ascending.
    pub(crate) written: Vec<(u32, u32)>,
    /// What the monotonic clock showed, in nanoseconds.
    pub(crate) age_ns: u64,
}

/// What of the processor a guest counts on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cpu {
    /// The template's name.
    pub(crate) template: String,
    /// By Linux's names.
    pub(crate) features: Vec<String>,
}

/// Settings that the guest's state depends on, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limits {
    pub(crate) memory: u64,
    pub(crate) stack: u64,
    pub(crate) heap: u64,
    pub(crate) payload: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Program {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    pub(crate) load_bias: u64,
    pub(crate) digest: Digest,
}

/// A function that the guest needs of its host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Function {
    pub(crate) signature: String,
    pub(crate) parameters: String,
}

/// A function of the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Exported {
    pub(crate) index: u16,
    pub(crate) signature: String,
    pub(crate) parameters: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Random {
    pub(crate) address: u64,
    pub(crate) bytes: [u8; 16],
}

/// Content that was lent to the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mapping {
    pub(crate) name: String,
    pub(crate) address: u64,
    pub(crate) copy_on_write: bool,
    pub(crate) bytes: u64,
    /// Of the content.
    pub(crate) digest: Digest,
    /// Its first frame, behind guest memory.
    pub(crate) first_frame: u32,
}
