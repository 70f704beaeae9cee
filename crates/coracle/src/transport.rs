//! Frames in shared memory: how the host leaves one for the guest, and reads what the guest left.
//!
//! Everything that is read here is the guest's claim. A header is copied out before it is looked at, lengths are cut to
//! the buffer before anything is allocated, and nothing is read twice.

use coracle_abi::frame::{Header, LOG_RECORDS};
use coracle_vm::{GuestMemory, Space, Span};

use crate::crash::Cause;
use crate::error::{Error, ErrorKind};
use crate::layout::GuestLayout;

/// A buffer's place in guest-physical memory. The pages are sealed: they stay where they are.
#[derive(Clone, Copy, Debug)]
struct Buffer {
    at: u64,
    bytes: u64,
}

/// The three buffers of one sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Transport {
    inbound: Buffer,
    outbound: Buffer,
    log: Buffer,
    spans: [Span; 3],
}

/// What the guest left in the outbound buffer: a header, and where its payload lies. The payload's length is checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub(crate) header: Header,
}

const HEADER: u64 = Header::BYTES as u64;

impl Transport {
    /// # Errors
    /// When the buffers are not mapped in one piece, which only a mistake of the host could cause.
    pub(crate) fn new(space: &Space, layout: &GuestLayout) -> Result<Self, Error> {
        Self::at([layout.inbound, layout.outbound, layout.log], |span| {
            let at = space.contiguous(span);
            at.ok_or_else(|| Error::new(ErrorKind::Host, "the transport area is not contiguous"))
        })
    }

    /// Buffers inbound, outbound and for the log, in the guest's address space; `find` says where each lies in guest-physical memory.
    ///
    /// # Errors
    /// Those of `find`.
    pub(crate) fn at(spans: [Span; 3], find: impl Fn(Span) -> Result<u64, Error>) -> Result<Self, Error> {
        let buffer = |span: Span| Ok::<_, Error>(Buffer { at: find(span)?, bytes: span.bytes() });
        let [inbound, outbound, log] = spans;
        Ok(Self { inbound: buffer(inbound)?, outbound: buffer(outbound)?, log: buffer(log)?, spans })
    }

    /// As given to [`Transport::at`].
    pub(crate) fn spans(&self) -> [Span; 3] {
        self.spans
    }

    /// The largest payload that fits at `offset` of the inbound buffer.
    pub(crate) fn room(&self, offset: u64) -> u64 {
        self.inbound.bytes.saturating_sub(offset).saturating_sub(HEADER)
    }

    /// Leaves a frame at `offset` of the inbound buffer.
    ///
    /// # Errors
    /// When the payload does not fit, [`ErrorKind::Limit`]; nothing is written then.
    pub(crate) fn send(
        &self,
        memory: &mut GuestMemory,
        offset: u64,
        mut header: Header,
        payload: &[u8],
    ) -> Result<(), Error> {
        let room = self.room(offset);
        if payload.len() as u64 > room || offset > self.inbound.bytes {
            return Err(too_large(payload.len() as u64, room));
        }
        header.bytes = payload.len() as u32;
        memory.write(self.inbound.at + offset, &header.encode()).map_err(outside)?;
        memory.write(self.inbound.at + offset + HEADER, payload).map_err(outside)
    }

    /// Reads the header that the guest left.
    ///
    /// # Errors
    /// When it claims more payload than the buffer holds.
    pub(crate) fn receive(&self, memory: &GuestMemory) -> Result<Received, Cause> {
        let mut bytes = [0; Header::BYTES];
        memory.read(self.outbound.at, &mut bytes).map_err(|_| LOST)?;
        let header = Header::decode(&bytes);
        if u64::from(header.bytes) > self.outbound.bytes - HEADER {
            return Err(Cause::ProtocolViolation("its frame claims to be longer than the outbound buffer"));
        }
        Ok(Received { header })
    }

    /// Copies the payload of a received frame to `out`, in place of what is there.
    pub(crate) fn payload(&self, memory: &GuestMemory, received: &Received, out: &mut Vec<u8>) -> Result<(), Cause> {
        out.clear();
        out.resize(received.header.bytes as usize, 0);
        memory.read(self.outbound.at + HEADER, out).map_err(|_| LOST)
    }

    /// Copies the log records that wait to `out`, in place of what is there, and empties the log. Returns how many the
    /// guest had to drop.
    pub(crate) fn take_log(&self, memory: &mut GuestMemory, out: &mut Vec<u8>) -> u32 {
        out.clear();
        let Ok(cursor) = memory.read_u64(self.log.at) else { return 0 };
        if cursor == 0 {
            return 0;
        }
        let (used, dropped) = (u64::from(cursor as u32), (cursor >> 32) as u32);
        out.resize(used.min(self.log.bytes - LOG_RECORDS as u64) as usize, 0);
        if memory.read(self.log.at + LOG_RECORDS as u64, out).is_err() || memory.write_u64(self.log.at, 0).is_err() {
            out.clear();
        }
        dropped
    }

    /// Bytes of the last allocation that the guest's heap refused since the last call of this; 0 for none.
    pub(crate) fn take_refused_allocation(&self, memory: &mut GuestMemory) -> u64 {
        let refused = memory.read_u64(self.log.at + 8).unwrap_or(0);
        if refused != 0 {
            // In sealed memory that was just read: writing it cannot fail.
            let _ = memory.write_u64(self.log.at + 8, 0);
        }
        refused
    }
}

const LOST: Cause = Cause::ProtocolViolation("the transport area is gone");

fn outside(_: coracle_vm::memory::OutOfRange) -> Error {
    Error::new(ErrorKind::Host, "the transport area lies outside guest memory")
}

pub(crate) fn too_large(bytes: u64, limit: u64) -> Error {
    let message = format!(
        "a payload of {bytes} bytes is above the limit of {limit}: raise payload_bytes, or send less at a time"
    );
    Error::new(ErrorKind::Limit, message)
}
