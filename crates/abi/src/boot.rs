//! The boot page: one read-only page in which the host tells a guest about its sandbox.
//!
//! Its address is the value of the auxiliary-vector entry [`AT_CORACLE`](crate::port::AT_CORACLE). All fields are
//! little-endian. A guest of this ABI version finds all of them; later versions may only append.

/// First eight bytes of the boot page.
pub const MAGIC: [u8; 8] = *b"CORACLE\0";

/// What the boot page says.
///
/// | offset | field |
/// |---|---|
/// | 0 | magic `CORACLE\0` |
/// | 8 | ABI version, `u32`; 12: zero |
/// | 16 | doorbell |
/// | 24, 32 | queues: address, bytes |
/// | 40, 48 | where the guest's messages lie: address, bytes |
/// | 56, 64 | where large ones lie (0, 0 if all fit above) |
/// | 72, 80 | where log records lie |
/// | 88, 96 | where the host's messages lie, but for large ones |
/// | 104 | the most bytes of a payload, `u64` |
/// | 112, 120 | heap: address, bytes |
/// | 128, 136 | initial data: address, bytes (0, 0 without) |
/// | 144 | generation, `u64` |
/// | 152 | 32 fresh random bytes |
/// | 184 | highest log level that is wanted: 0 none, 1 error … 5 trace, `u32`; 188: zero |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct BootInfo {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`ABI_VERSION`](crate::ABI_VERSION).
    pub abi_version: u32,
    /// Zero.
    pub reserved: u32,
    /// Address of the doorbell: `extern "C" fn()`. It returns when the host has answered, with shared memory changed. It
    /// may change every register that a C function may, and leaves all vector and x87 registers and their control words
    /// as they are when a program starts.
    pub doorbell: u64,
    /// The [queues](crate::queue), page-aligned.
    pub queues: Region,
    /// Where the guest puts its messages. Its memory is there from the start.
    pub outbound: Region,
    /// Where it puts those that are too large for that. Its memory comes when it is touched.
    pub outbound_large: Region,
    /// Where it puts log records: a message may be half made when one is logged.
    pub log: Region,
    /// Where the host puts its messages, but for large ones. For guests that want to know: descriptors say where each is.
    pub inbound: Region,
    /// The most bytes of a payload, in either direction. Neither side sends more.
    pub payload_bytes: u64,
    /// Memory for the guest's allocator: zero, writable, given by the page when touched.
    pub heap: Region,
    /// What the host gave by `init_data`, read-only.
    pub init_data: Region,
    /// Differs after every boot, restore and spawn.
    pub generation: u64,
    /// Fresh random bytes, other ones for each generation.
    pub entropy: [u8; 32],
    /// Records above this level are not wanted: 0 none, 1 error, 2 warn, 3 info, 4 debug, 5 trace.
    pub log_level: u32,
    /// Zero.
    pub reserved_end: u32,
}

/// A part of the guest's address space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Region {
    /// Its first address, a multiple of 16.
    pub address: u64,
    /// Its size in bytes; 0 if there is none.
    pub bytes: u64,
}

impl BootInfo {
    /// Bytes of the encoded form.
    pub const BYTES: usize = size_of::<Self>();

    /// The page's first bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..8].copy_from_slice(&self.magic);
        out[8..12].copy_from_slice(&self.abi_version.to_le_bytes());
        let words = [
            self.doorbell,
            self.queues.address,
            self.queues.bytes,
            self.outbound.address,
            self.outbound.bytes,
            self.outbound_large.address,
            self.outbound_large.bytes,
            self.log.address,
            self.log.bytes,
            self.inbound.address,
            self.inbound.bytes,
            self.payload_bytes,
            self.heap.address,
            self.heap.bytes,
            self.init_data.address,
            self.init_data.bytes,
            self.generation,
        ];
        for (word, at) in words.iter().zip(out[16..152].chunks_exact_mut(8)) {
            at.copy_from_slice(&word.to_le_bytes());
        }
        out[152..184].copy_from_slice(&self.entropy);
        out[184..188].copy_from_slice(&self.log_level.to_le_bytes());
        out
    }
}

// Guests read this struct in place. Read docs/abi.md before touching it.
const _: () = {
    assert!(BootInfo::BYTES == 192);
    assert!(core::mem::offset_of!(BootInfo, doorbell) == 16);
    assert!(core::mem::offset_of!(BootInfo, queues) == 24);
    assert!(core::mem::offset_of!(BootInfo, outbound) == 40);
    assert!(core::mem::offset_of!(BootInfo, outbound_large) == 56);
    assert!(core::mem::offset_of!(BootInfo, log) == 72);
    assert!(core::mem::offset_of!(BootInfo, inbound) == 88);
    assert!(core::mem::offset_of!(BootInfo, payload_bytes) == 104);
    assert!(core::mem::offset_of!(BootInfo, heap) == 112);
    assert!(core::mem::offset_of!(BootInfo, init_data) == 128);
    assert!(core::mem::offset_of!(BootInfo, generation) == 144);
    assert!(core::mem::offset_of!(BootInfo, entropy) == 152);
    assert!(core::mem::offset_of!(BootInfo, log_level) == 184);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_is_where_the_table_says() {
        let region = |n: u64| Region { address: n, bytes: n + 1 };
        let info = BootInfo {
            magic: MAGIC,
            abi_version: 7,
            reserved: 0,
            doorbell: 0x10,
            queues: region(0x20),
            outbound: region(0x30),
            outbound_large: region(0x40),
            log: region(0x50),
            inbound: region(0x60),
            payload_bytes: 0x70,
            heap: region(0x80),
            init_data: region(0x90),
            generation: 0xa0,
            entropy: [9; 32],
            log_level: 3,
            reserved_end: 0,
        };
        let bytes = info.encode();
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!(&bytes[..8], b"CORACLE\0");
        assert_eq!(word(8), 7);
        assert_eq!(word(16), 0x10);
        for (at, n) in [(24, 0x20), (40, 0x30), (56, 0x40), (72, 0x50), (88, 0x60), (112, 0x80), (128, 0x90)] {
            assert_eq!((word(at), word(at + 8)), (n, n + 1));
        }
        assert_eq!(word(104), 0x70);
        assert_eq!(word(144), 0xa0);
        assert_eq!(bytes[152..184], [9; 32]);
        assert_eq!(word(184), 3);
    }
}
