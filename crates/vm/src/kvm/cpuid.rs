//! What the guest sees of its processor: the host's supported features, masked to a template.
//!
//! Leaves and bits: Intel SDM volume 2, `CPUID`; AMD APM volume 3, appendix E; levels: x86-64 psABI, section 3.1.1.

use std::fmt;
use std::str::FromStr;

use kvm_bindings::{CpuId, kvm_cpuid_entry2};

use crate::error::Error;

/// Which processor a guest sees.
///
/// On a PVM host, where ring 3 runs natively, the `cpuid` instruction answers what the host's own processor does: there a
/// template is checked against the host, but hides nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CpuTemplate {
    /// All that the host's processor and this library support.
    #[default]
    Host,
    /// SSE4.2, POPCNT, CMPXCHG16B: every x86-64 server of the last fifteen years, and no vendor.
    X86_64V2,
    /// AVX2, BMI, FMA besides: since Haswell and Zen, and no vendor.
    X86_64V3,
}

impl CpuTemplate {
    const ALL: [(Self, &'static str); 3] =
        [(Self::Host, "host"), (Self::X86_64V2, "x86-64-v2"), (Self::X86_64V3, "x86-64-v3")];

    /// The names that [`FromStr`] takes.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Self::ALL.iter().map(|(_, name)| *name)
    }
}

impl fmt::Display for CpuTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL.iter().find(|(template, _)| template == self).map_or("", |(_, name)| name))
    }
}

impl FromStr for CpuTemplate {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(_, known)| *known == name).map(|(template, _)| *template);
        found.ok_or_else(|| {
            format!("unknown CPU template '{name}': use {}", Self::names().collect::<Vec<_>>().join(", "))
        })
    }
}

/// A register of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Register {
    Ebx,
    Ecx,
    Edx,
}
use Register::{Ebx, Ecx, Edx};

/// A feature bit: leaf (index 0), register, bit, the name that Linux has for it, the lowest template that has it.
struct Feature(u32, Register, u32, &'static str, Level);

/// Which templates have a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    /// All.
    V2,
    /// x86-64-v3 and the host's own.
    V3,
    /// The host's own alone.
    Host,
}

/// Every feature that a guest may have. What is not here is not there: a new processor cannot bring state that a
/// restore does not know.
#[rustfmt::skip]
const FEATURES: &[Feature] = &[
    Feature(1, Edx, 0, "fpu", Level::V2), Feature(1, Edx, 4, "tsc", Level::V2), Feature(1, Edx, 6, "pae", Level::V2),
    Feature(1, Edx, 8, "cx8", Level::V2), Feature(1, Edx, 11, "sep", Level::Host), Feature(1, Edx, 13, "pge", Level::Host),
    Feature(1, Edx, 15, "cmov", Level::V2), Feature(1, Edx, 19, "clflush", Level::Host),
    Feature(1, Edx, 23, "mmx", Level::V2), Feature(1, Edx, 24, "fxsr", Level::V2), Feature(1, Edx, 25, "sse", Level::V2),
    Feature(1, Edx, 26, "sse2", Level::V2),
    Feature(1, Ecx, 0, "pni", Level::V2), Feature(1, Ecx, 1, "pclmulqdq", Level::Host),
    Feature(1, Ecx, 9, "ssse3", Level::V2), Feature(1, Ecx, 12, "fma", Level::V3), Feature(1, Ecx, 13, "cx16", Level::V2),
    Feature(1, Ecx, 19, "sse4_1", Level::V2), Feature(1, Ecx, 20, "sse4_2", Level::V2),
    Feature(1, Ecx, 22, "movbe", Level::V3), Feature(1, Ecx, 23, "popcnt", Level::V2), Feature(1, Ecx, 25, "aes", Level::Host),
    Feature(1, Ecx, 26, "xsave", Level::V3), Feature(1, Ecx, 28, "avx", Level::V3), Feature(1, Ecx, 29, "f16c", Level::V3),
    Feature(1, Ecx, 30, "rdrand", Level::Host), Feature(1, Ecx, 31, "hypervisor", Level::Host),
    Feature(7, Ebx, 3, "bmi1", Level::V3), Feature(7, Ebx, 5, "avx2", Level::V3), Feature(7, Ebx, 8, "bmi2", Level::V3),
    Feature(7, Ebx, 9, "erms", Level::Host), Feature(7, Ebx, 18, "rdseed", Level::Host), Feature(7, Ebx, 19, "adx", Level::Host),
    Feature(7, Ebx, 23, "clflushopt", Level::Host), Feature(7, Ebx, 24, "clwb", Level::Host), Feature(7, Ebx, 29, "sha_ni", Level::Host),
    Feature(7, Ecx, 8, "gfni", Level::Host), Feature(7, Ecx, 9, "vaes", Level::Host), Feature(7, Ecx, 10, "vpclmulqdq", Level::Host),
    Feature(7, Edx, 4, "fsrm", Level::Host),
    Feature(0x8000_0001, Edx, 11, "syscall", Level::V2), Feature(0x8000_0001, Edx, 20, "nx", Level::V2),
    Feature(0x8000_0001, Edx, 29, "lm", Level::V2),
    Feature(0x8000_0001, Ecx, 0, "lahf_lm", Level::V2), Feature(0x8000_0001, Ecx, 5, "abm", Level::V3),
    Feature(0x8000_0001, Ecx, 6, "sse4a", Level::Host), Feature(0x8000_0001, Ecx, 8, "3dnowprefetch", Level::Host),
];

/// Leaves of feature bits: all bits that [`FEATURES`] does not name are cleared in them.
const MASKED: &[(u32, &[Register])] = &[(1, &[Ecx, Edx]), (7, &[Ebx, Ecx, Edx]), (0x8000_0001, &[Ecx, Edx])];

/// x87, SSE, AVX: the extended state a guest may have.
const XCR0: u64 = 7;
/// Bytes that XSAVE needs for it: legacy area, header, upper halves of the YMM registers.
const XSAVE_BYTES: u32 = 512 + 64 + 256;
const AVX: (u32, u32) = (1, 28); // ECX of leaf 1.

/// The leaves that a vendorless guest sees beside those of [`MASKED`].
const PORTABLE_LEAVES: &[u32] = &[0, 1, 7, 0xd, 0x8000_0000, 0x8000_0001, 0x8000_0008];

/// Leaves that a guest with the host's processor does not see: KVM's own, performance counters, SGX, the extended
/// topologies.
fn is_hidden(leaf: u32) -> bool {
    matches!(leaf, 0xa | 0xb | 0xf | 0x10 | 0x12 | 0x14 | 0x17..=0x1f | 0x23..) && leaf < 0x8000_0000
        || matches!(leaf, 0x8000_000a | 0x8000_001a..)
}

fn register(entry: &mut kvm_cpuid_entry2, register: Register) -> &mut u32 {
    match register {
        Ebx => &mut entry.ebx,
        Ecx => &mut entry.ecx,
        Edx => &mut entry.edx,
    }
}

fn has(supported: &CpuId, leaf: u32, of: Register, bit: u32) -> bool {
    let entry = supported.as_slice().iter().find(|entry| entry.function == leaf && entry.index == 0);
    entry.is_some_and(|entry| *register(&mut entry.clone(), of) & 1 << bit != 0)
}

fn in_template(level: Level, template: CpuTemplate) -> bool {
    match template {
        CpuTemplate::Host => true,
        CpuTemplate::X86_64V2 => level <= Level::V2,
        CpuTemplate::X86_64V3 => level <= Level::V3,
    }
}

/// Adds what the processor can do for ring 3 by itself.
///
/// A PVM host runs ring 3 natively, so that all of the processor's instructions work there, but its KVM names only those
/// that it would emulate too.
pub(super) fn with_native(supported: &CpuId) -> Result<CpuId, Error> {
    let mut table = supported.as_slice().to_vec();
    add_native(&mut table);
    CpuId::from_entries(&table).map_err(|_| no_table())
}

fn add_native(supported: &mut Vec<kvm_cpuid_entry2>) {
    let xsave = std::arch::is_x86_feature_detected!("avx"); // Which asks the host's kernel, too.
    for Feature(leaf, of, bit, ..) in FEATURES {
        let needs_xsave = BUILT_ON_AVX.contains(&(*leaf, *of, *bit));
        if native(*leaf, 0, *of) & 1 << bit != 0 && (xsave || !needs_xsave) {
            *register(entry_mut(supported, *leaf, 0), *of) |= 1 << bit;
        }
    }
    if xsave {
        // Sizes of the x87, SSE and AVX parts (Intel SDM volume 1, 13.2).
        let header = entry_mut(supported, 0xd, 0);
        (header.eax, header.ebx, header.ecx, header.edx) = (XCR0 as u32, XSAVE_BYTES, XSAVE_BYTES, 0);
        let avx = entry_mut(supported, 0xd, 2);
        (avx.eax, avx.ebx, avx.ecx, avx.edx) = (0x100, 0x240, 0, 0);
    }
}

/// The entry of a leaf, made if there is none.
fn entry_mut(table: &mut Vec<kvm_cpuid_entry2>, function: u32, index: u32) -> &mut kvm_cpuid_entry2 {
    let at = table.iter().position(|entry| (entry.function, entry.index) == (function, index));
    let at = at.unwrap_or_else(|| {
        let flags = if matches!(function, 7 | 0xd) { kvm_bindings::KVM_CPUID_FLAG_SIGNIFCANT_INDEX } else { 0 };
        table.push(kvm_cpuid_entry2 { function, index, flags, ..kvm_cpuid_entry2::default() });
        table.len() - 1
    });
    &mut table[at]
}

/// What the processor itself says.
fn native(leaf: u32, index: u32, of: Register) -> u32 {
    let highest = std::arch::x86_64::__cpuid(leaf & 0x8000_0000).eax;
    if leaf > highest {
        return 0;
    }
    let answer = std::arch::x86_64::__cpuid_count(leaf, index);
    match of {
        Ebx => answer.ebx,
        Ecx => answer.ecx,
        Edx => answer.edx,
    }
}

/// Which features of `template` the host does not support, by their Linux names.
pub(super) fn missing(supported: &CpuId, template: CpuTemplate) -> Vec<&'static str> {
    FEATURES
        .iter()
        .filter(|Feature(.., level)| in_template(*level, template) && *level != Level::Host)
        .filter(|Feature(leaf, of, bit, ..)| template != CpuTemplate::Host && !has(supported, *leaf, *of, *bit))
        .map(|Feature(_, _, _, name, _)| *name)
        .collect()
}

/// Which features a guest with this template has here, by their Linux names.
pub(super) fn features(supported: &CpuId, template: CpuTemplate) -> Vec<&'static str> {
    FEATURES
        .iter()
        .filter(|Feature(leaf, of, bit, _, level)| in_template(*level, template) && has(supported, *leaf, *of, *bit))
        .map(|Feature(_, _, _, name, _)| *name)
        .collect()
}

/// The table for a vCPU.
pub(super) fn apply(supported: &CpuId, template: CpuTemplate) -> Result<CpuId, Error> {
    let portable = template != CpuTemplate::Host;
    let avx = has(supported, AVX.0, Ecx, AVX.1) && in_template(Level::V3, template);
    let mut entries: Vec<kvm_cpuid_entry2> = supported
        .as_slice()
        .iter()
        .filter(|entry| if portable { PORTABLE_LEAVES.contains(&entry.function) } else { !is_hidden(entry.function) })
        .filter(|entry| entry.function != 0xd || avx && entry.index <= 2)
        .copied()
        .collect();
    for entry in &mut entries {
        let (leaf, index) = (entry.function, entry.index);
        for (_, registers) in MASKED.iter().filter(|(masked, _)| *masked == leaf) {
            for of in *registers {
                *register(entry, *of) &= mask(leaf, index, *of, template);
            }
        }
        match (leaf, index) {
            (0, _) if portable => {
                (entry.eax, entry.ebx, entry.edx, entry.ecx) = (0xd, word(b"Cora"), word(b"cleG"), word(b"uest"))
            }
            (1, _) => {
                entry.ebx = 1 << 16 | 8 << 8; // One logical processor, 64-byte lines, APIC id 0.
                if portable {
                    entry.eax = 0x600; // Family 6, nothing more.
                }
            }
            (7, 0) => entry.eax = 0, // No sub-leaves: their features are not in the list.
            (0xd, 0) => (entry.eax, entry.ecx, entry.edx) = (XCR0 as u32, XSAVE_BYTES, 0),
            // XSAVEOPT; no compaction, no supervisor state.
            (0xd, 1) => (entry.eax, entry.ebx, entry.ecx, entry.edx) = (entry.eax & 1, 0, 0, 0),
            (0x8000_0000, _) if portable => {
                (entry.eax, entry.ebx, entry.ecx, entry.edx) = (0x8000_0008, 0, 0, 0);
            }
            (0x8000_0008, _) => (entry.ebx, entry.ecx, entry.edx) = (0, 0, 0),
            _ => {}
        }
    }
    if !avx {
        clear_xsave(&mut entries);
    }
    CpuId::from_entries(&entries).map_err(|_| no_table())
}

fn no_table() -> Error {
    Error::refused("building the guest's CPUID table", std::io::ErrorKind::OutOfMemory)
}

/// The bits of a register that a template leaves.
fn mask(leaf: u32, index: u32, of: Register, template: CpuTemplate) -> u32 {
    if index != 0 {
        return 0;
    }
    FEATURES
        .iter()
        .filter(|feature| (feature.0, feature.1) == (leaf, of) && in_template(feature.4, template))
        .fold(0, |bits, feature| bits | 1 << feature.2)
}

/// XSAVE, AVX, F16C, FMA, AVX2, VAES, VPCLMULQDQ.
const BUILT_ON_AVX: [(u32, Register, u32); 7] =
    [(1, Ecx, 26), (1, Ecx, 28), (1, Ecx, 29), (1, Ecx, 12), (7, Ebx, 5), (7, Ecx, 9), (7, Ecx, 10)];

/// Without AVX there is no XSAVE for the guest, and nothing that builds on it.
fn clear_xsave(entries: &mut [kvm_cpuid_entry2]) {
    for entry in entries {
        for (leaf, of, bit) in BUILT_ON_AVX {
            if entry.function == leaf {
                *register(entry, of) &= !(1 << bit);
            }
        }
    }
}

/// Which extended state a guest with this table may use: 0 without XSAVE.
pub(super) fn xcr0(table: &CpuId) -> u64 {
    if has(table, AVX.0, Ecx, AVX.1) { XCR0 } else { 0 }
}

const fn word(text: &[u8; 4]) -> u32 {
    u32::from_le_bytes(*text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn everything() -> CpuId {
        let leaf = |function, index| kvm_cpuid_entry2 {
            function,
            index,
            eax: u32::MAX,
            ebx: u32::MAX,
            ecx: u32::MAX,
            edx: u32::MAX,
            ..kvm_cpuid_entry2::default()
        };
        let leaves =
            [(0, 0), (1, 0), (7, 0), (7, 1), (0xa, 0), (0xd, 0), (0xd, 1), (0xd, 2), (0xd, 9), (0x4000_0000, 0)];
        let extended = [(0x8000_0000, 0), (0x8000_0001, 0), (0x8000_0002, 0), (0x8000_0008, 0), (0x8000_001f, 0)];
        CpuId::from_entries(&leaves.into_iter().chain(extended).map(|(f, i)| leaf(f, i)).collect::<Vec<_>>()).unwrap()
    }

    fn bit(table: &CpuId, leaf: u32, of: Register, bit: u32) -> bool {
        has(table, leaf, of, bit)
    }

    #[test]
    fn names_and_templates_agree() {
        for name in CpuTemplate::names() {
            assert_eq!(name.parse::<CpuTemplate>().unwrap().to_string(), name);
        }
        assert!("x86-64-v9".parse::<CpuTemplate>().unwrap_err().contains("x86-64-v2"));
    }

    #[test]
    fn a_portable_guest_sees_no_vendor() {
        let table = apply(&everything(), CpuTemplate::X86_64V2).unwrap();
        let leaf = table.as_slice().iter().find(|entry| entry.function == 0).unwrap();
        assert_eq!(leaf.ebx, word(b"Cora"));
        assert!(table.as_slice().iter().all(|entry| PORTABLE_LEAVES.contains(&entry.function)));
    }

    #[test]
    fn no_guest_sees_what_needs_state_we_do_not_reset() {
        for template in [CpuTemplate::Host, CpuTemplate::X86_64V3] {
            let table = apply(&everything(), template).unwrap();
            assert!(!bit(&table, 7, Ebx, 16), "AVX-512");
            assert!(!bit(&table, 7, Edx, 24), "AMX");
            assert!(!bit(&table, 7, Ebx, 0), "FSGSBASE");
            assert!(!bit(&table, 7, Ecx, 3), "PKU");
            assert!(!bit(&table, 1, Ecx, 5), "VMX");
            assert!(table.as_slice().iter().all(|entry| entry.function != 0xd || entry.index <= 2));
            assert!(table.as_slice().iter().all(|entry| entry.function != 0x4000_0000), "KVM's own leaves");
            let state =
                |index| table.as_slice().iter().find(move |entry| (entry.function, entry.index) == (0xd, index));
            assert_eq!(state(0).map(|entry| (entry.eax, entry.ecx, entry.edx)), Some((7, 832, 0)));
            assert_eq!(state(1).map(|entry| (entry.eax, entry.ebx, entry.ecx, entry.edx)), Some((1, 0, 0, 0)));
        }
    }

    #[test]
    fn v2_has_no_avx_and_v3_has() {
        let (v2, v3) = (apply(&everything(), CpuTemplate::X86_64V2), apply(&everything(), CpuTemplate::X86_64V3));
        assert_eq!((xcr0(&v2.unwrap()), xcr0(&v3.unwrap())), (0, 7));
    }

    #[test]
    fn what_a_template_misses_is_named() {
        let mut poor = everything();
        for entry in poor.as_mut_slice().iter_mut().filter(|entry| entry.function == 7) {
            entry.ebx &= !(1 << 5);
        }
        assert_eq!(missing(&poor, CpuTemplate::X86_64V3), ["avx2"]);
        assert!(missing(&poor, CpuTemplate::X86_64V2).is_empty());
        assert!(missing(&CpuId::new(0).unwrap(), CpuTemplate::Host).is_empty());
    }
}
