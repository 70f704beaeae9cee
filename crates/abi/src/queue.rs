//! Where the queues lie through which host and guest send [messages](crate::message).
//!
//! Three packed virtqueues (VIRTIO 1.3, section 2.8) lie one after the other at the start of the region that
//! [`BootInfo::queues`](crate::boot::BootInfo) gives, with their event suppression structures and a few words besides.
//! Descriptors hold addresses of the guest's address space, and a message is one descriptor. All is zero when the
//! guest starts, which is how a queue is before its first use.
//!
//! | queue | driver | device | what it carries |
//! |---|---|---|---|
//! | calls | host | guest | calls, in the order in which they are to be served |
//! | replies | host | guest | what host functions answered |
//! | messages | guest | host | all that a guest has to say, in order |
//!
//! The two sides never run at once. Whenever the host enters the guest, it has used all that was available in
//! *messages*: a guest need not look. A guest returns a call's descriptor when it does not need the arguments any more,
//! before it next waits for a call; and a reply's before it waits for the next.

/// Where a queue lies, from the start of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Descriptors that it has.
    pub size: u16,
    /// Its descriptors, 16 bytes each.
    pub descriptors: u64,
    /// Where its driver says which notifications it wants: none are sent but by the doorbell.
    pub driver_event: u64,
    /// Where its device says so.
    pub device_event: u64,
}

/// Calls: host to guest.
pub const CALLS: Place = Place { size: 64, descriptors: 0, driver_event: 2176, device_event: 2180 };
/// Messages: guest to host.
pub const MESSAGES: Place = Place { size: 64, descriptors: 1024, driver_event: 2184, device_event: 2188 };
/// Replies of host functions: host to guest. One is enough, unless what decodes a reply calls the host in turn.
pub const REPLIES: Place = Place { size: 8, descriptors: 2048, driver_event: 2192, device_event: 2196 };

/// A `u32` of the guest's: log records that it dropped since the last exit. The host sets it back.
pub const DROPPED: u64 = 2200;
/// A `u64` of the guest's: bytes of the last allocation that its heap refused, 0 for none.
pub const REFUSED: u64 = 2208;

/// Bytes of the region. The guest's small messages lie behind it, in the same page.
pub const BYTES: u64 = 2304;

// Changing any of these breaks guests that already exist. Read docs/abi.md before touching one.
const _: () = {
    assert!(CALLS.descriptors + 16 * CALLS.size as u64 == MESSAGES.descriptors);
    assert!(MESSAGES.descriptors + 16 * MESSAGES.size as u64 == REPLIES.descriptors);
    assert!(REPLIES.descriptors + 16 * REPLIES.size as u64 == CALLS.driver_event);
    assert!(REPLIES.device_event + 4 == DROPPED && DROPPED + 8 == REFUSED && REFUSED + 8 <= BYTES);
};
