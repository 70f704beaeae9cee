//! The messages that host and guest leave for each other in the transport area.
//!
//! The area has three parts, whose places the [boot page](crate::boot) gives: an *inbound* buffer that only the
//! host writes, an *outbound* buffer that only the guest writes, and a *log* buffer. A frame is a [`Header`]
//! followed by its payload. The guest leaves one frame at the start of the outbound buffer and rings the doorbell;
//! the host answers with one frame in the inbound buffer: a call at its start, a host call's reply where the guest
//! asked for it (`reply_at`), so that the arguments of the call it is serving stay in place.
//!
//! The log buffer starts with two `u32`: bytes of records in use after these eight, and the number of records
//! dropped since the last exit; and at 8 a `u64`: bytes of the last allocation that the guest's heap refused, 0 for
//! none. Records follow from offset 16: `u32` payload bytes, then the payload
//! ([`LogRecord`](self#log-records)). The host empties the buffer at each doorbell.
//!
//! ## Log records
//! A record's payload is the `postcard` encoding of
//! `(level: u8, target: &str, message: &str, fields: [(&str, &str)])`, level 1 error … 5 trace. Here and in a panic's
//! payload a length may be written with more bytes than it needs: the guest leaves room for it before the text is there.

/// What a frame is.
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
    /// Guest: calls the host function `key`. Payload: its arguments.
    HostCall = 5,
    /// Guest: nothing but a full log buffer. The host answers with nothing.
    Flush = 6,
    /// Host: calls the function `index`. Payload: its arguments.
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
            6 => Self::Flush,
            16 => Self::Call,
            17 => Self::HostReply,
            18 => Self::HostError,
            _ => return None,
        })
    }
}

/// The 32 bytes before each payload, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Header {
    /// A [`Kind`], as its number.
    pub kind: u8,
    /// Zero.
    pub reserved: [u8; 3],
    /// For [`Kind::Call`]: which function. Else zero.
    pub index: u32,
    /// For [`Kind::Call`]: the function's key, which the guest compares with its own. For [`Kind::HostCall`]: the
    /// host function's key. Else zero. A key is the hash of the whole signature ([`crate::signature`]).
    pub key: u64,
    /// Set by the host in a call and repeated by the guest in all that belongs to it. Zero while booting.
    pub correlation: u64,
    /// Bytes of payload.
    pub bytes: u32,
    /// For [`Kind::HostCall`]: offset in the inbound buffer at which the guest wants the reply's header, a multiple
    /// of 8. Else zero.
    pub reply_at: u32,
}

impl Header {
    /// Bytes of a header.
    pub const BYTES: usize = size_of::<Self>();

    /// A header of this kind with everything else zero.
    pub const fn new(kind: Kind) -> Self {
        Self { kind: kind as u8, reserved: [0; 3], index: 0, key: 0, correlation: 0, bytes: 0, reply_at: 0 }
    }

    /// As it lies in memory.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[0] = self.kind;
        out[4..8].copy_from_slice(&self.index.to_le_bytes());
        out[8..16].copy_from_slice(&self.key.to_le_bytes());
        out[16..24].copy_from_slice(&self.correlation.to_le_bytes());
        out[24..28].copy_from_slice(&self.bytes.to_le_bytes());
        out[28..32].copy_from_slice(&self.reply_at.to_le_bytes());
        out
    }

    /// What these bytes claim. Any bytes are a header; `kind` may be no [`Kind`].
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Self {
        let four = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        let eight =
            |at: usize| u64::from(u32::from_le_bytes(four(at))) | u64::from(u32::from_le_bytes(four(at + 4))) << 32;
        Self {
            kind: bytes[0],
            reserved: [bytes[1], bytes[2], bytes[3]],
            index: u32::from_le_bytes(four(4)),
            key: eight(8),
            correlation: eight(16),
            bytes: u32::from_le_bytes(four(24)),
            reply_at: u32::from_le_bytes(four(28)),
        }
    }
}

/// Offset of the first record in the log buffer.
pub const LOG_RECORDS: usize = 16;

// Changing any of these breaks guests that already exist. Read docs/abi.md before touching one.
const _: () = {
    assert!(Header::BYTES == 32);
    assert!(core::mem::offset_of!(Header, key) == 8);
    assert!(core::mem::offset_of!(Header, correlation) == 16);
    assert!(core::mem::offset_of!(Header, bytes) == 24);
    assert!(core::mem::offset_of!(Header, reply_at) == 28);
    assert!(Kind::Ready as u8 == 1 && Kind::Flush as u8 == 6);
    assert!(Kind::Call as u8 == 16 && Kind::HostError as u8 == 18);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_its_encoding() {
        let header = Header {
            kind: Kind::HostCall as u8,
            reserved: [0; 3],
            index: 0x0102_0304,
            key: 0x1112_1314_1516_1718,
            correlation: 0x2122_2324_2526_2728,
            bytes: 0x3132_3334,
            reply_at: 0x4142_4344,
        };
        assert_eq!(Header::decode(&header.encode()), header);
    }

    #[test]
    fn every_number_is_one_kind_or_none() {
        for number in 0..=255 {
            if let Some(kind) = Kind::from_u8(number) {
                assert_eq!(kind as u8, number);
            }
        }
        assert_eq!((0..=255).filter_map(Kind::from_u8).count(), 9);
    }
}
