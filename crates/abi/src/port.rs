//! The doorbell: how a guest hands over to its host.

/// The one I/O port that ring 3 may write. A guest does not write it by itself: it calls the doorbell page
/// ([`crate::boot::BootInfo::doorbell`]), so that a binary does not depend on the backend.
pub const DOORBELL_PORT: u16 = 0xe9;

/// The port that the ring-0 exception gates write. Closed to ring 3 by the I/O permission bitmap.
pub const EXCEPTION_PORT: u16 = 0xea;

/// Auxiliary-vector entry whose value is the address of the [boot page](crate::boot). A program that does not
/// find it does not run under Coracle. The value spells `CORA`, far above the entries that Linux uses.
pub const AT_CORACLE: u64 = 0x434f_5241;

// Changing any of these breaks guests that already exist. Read docs/abi.md before touching one.
const _: () = {
    assert!(DOORBELL_PORT == 0xe9);
    assert!(EXCEPTION_PORT == 0xea);
    assert!(AT_CORACLE == 0x434f_5241);
};
