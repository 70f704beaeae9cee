//! The messages that host and guest send each other through the [queues](crate::queue).
//!
//! A message is one descriptor's bytes: a [`Header`] of eight bytes, for [`Kind::Call`] and [`Kind::HostCall`] the
//! function's key (`u64`), then the payload to the end. Nothing of it says how long it is: the descriptor does.
//!
//! ## Log records
//! A record's payload is the `postcard` encoding of
//! `(level: u8, target: &str, message: &str, fields: [(&str, &str)])`, level 1 error … 5 trace. Here and in a panic's
//! payload a length may be written with more bytes than it needs: the guest leaves room for it before the text is there.

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Guest: initialised. Payload: the `u64` keys of its functions, in the order of their indices.
    Ready = 1,
    /// Guest: the function returned. Payload: its result.
    Reply = 2,
    /// Guest: the function returned an error, or could not be called. Payload: the message, UTF-8.
    Error = 3,
    /// Guest: it panicked, and must not be entered again. Payload: `postcard` of
    /// `(message: &str, file: &str, line: u32, column: u32)`.
    Panic = 4,
    /// Guest: calls the host function with this key. Payload: its arguments. With [`NOTIFY`] nobody waits for a reply.
    HostCall = 5,
    /// Guest: a log record, see [above](self#log-records).
    Log = 6,
    /// Host: calls the function with this index and key. Payload: its arguments.
    Call = 16,
    /// Host: the host function returned. Payload: its result.
    HostReply = 17,
    /// Host: the host function failed. Payload: the message, UTF-8.
    HostError = 18,
}

impl Kind {
    /// The kind with this number, if there is one.
    pub const fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Ready,
            2 => Self::Reply,
            3 => Self::Error,
            4 => Self::Panic,
            5 => Self::HostCall,
            6 => Self::Log,
            16 => Self::Call,
            17 => Self::HostReply,
            18 => Self::HostError,
            _ => return None,
        })
    }

    /// Bytes before the payload: a header, and a key where there is one.
    #[inline]
    pub const fn head_bytes(self) -> usize {
        match self {
            Self::Call | Self::HostCall => Header::BYTES + KEY_BYTES,
            _ => Header::BYTES,
        }
    }
}

/// Flag of a [`Kind::HostCall`]: the guest goes on without a reply, and does not learn of an error.
pub const NOTIFY: u8 = 1;

/// Bytes of the key that follows the header of a call in either direction: the hash of the whole signature
/// ([`crate::signature`]), little-endian.
pub const KEY_BYTES: usize = 8;

/// The most bytes before a payload.
pub const HEAD_MAX: usize = Header::BYTES + KEY_BYTES;

/// The first eight bytes of each message, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Header {
    /// A [`Kind`], as its number.
    pub kind: u8,
    /// [`NOTIFY`], or zero.
    pub flags: u8,
    /// For [`Kind::Call`]: which function. Else zero.
    pub index: u16,
    /// Set by the host in a call and repeated by both sides in all that belongs to it. Zero while booting.
    pub correlation: u32,
}

impl Header {
    /// Bytes of a header.
    pub const BYTES: usize = size_of::<Self>();

    /// A header of this kind with everything else zero.
    pub const fn new(kind: Kind) -> Self {
        Self { kind: kind as u8, flags: 0, index: 0, correlation: 0 }
    }

    /// As it lies in memory.
    #[inline]
    pub const fn encode(&self) -> [u8; Self::BYTES] {
        let low = self.kind as u64 | (self.flags as u64) << 8 | (self.index as u64) << 16;
        (low | (self.correlation as u64) << 32).to_le_bytes()
    }

    /// What these bytes claim. Any bytes are a header; `kind` may be no [`Kind`].
    #[inline]
    pub const fn decode(bytes: [u8; Self::BYTES]) -> Self {
        let word = u64::from_le_bytes(bytes);
        Self {
            kind: word as u8,
            flags: (word >> 8) as u8,
            index: (word >> 16) as u16,
            correlation: (word >> 32) as u32,
        }
    }
}

// Changing any of these breaks guests that already exist. Read docs/abi.md before touching one.
const _: () = {
    assert!(Header::BYTES == 8);
    assert!(core::mem::offset_of!(Header, flags) == 1);
    assert!(core::mem::offset_of!(Header, index) == 2);
    assert!(core::mem::offset_of!(Header, correlation) == 4);
    assert!(HEAD_MAX == 16 && NOTIFY == 1);
    assert!(Kind::Ready as u8 == 1 && Kind::Log as u8 == 6);
    assert!(Kind::Call as u8 == 16 && Kind::HostError as u8 == 18);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_its_encoding() {
        let header = Header { kind: 0x11, flags: 0x22, index: 0x3344, correlation: 0x5566_7788 };
        assert_eq!(header.encode(), [0x11, 0x22, 0x44, 0x33, 0x88, 0x77, 0x66, 0x55]);
        assert_eq!(Header::decode(header.encode()), header);
    }

    #[test]
    fn every_number_is_one_kind_or_none() {
        for number in 0..=255 {
            if let Some(kind) = Kind::from_u8(number) {
                assert_eq!(kind as u8, number);
                assert!(kind.head_bytes() <= HEAD_MAX);
            }
        }
        assert_eq!((0..=255).filter_map(Kind::from_u8).count(), 9);
    }
}
