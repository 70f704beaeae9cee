//! Bytes to and from several segments of shared memory: each byte is copied once.

use core::fmt;

use crate::memory::{Memory, OutOfBounds, Segment};

/// Bytes that segments have in all.
pub fn bytes_of(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.bytes)).sum()
}

/// Writes `parts`, one after the other, from the start of `segments`. Returns how many bytes that are.
///
/// # Errors
/// When the segments have too little room, in which case nothing is written, or are not in memory.
pub fn scatter<M: Memory>(memory: &M, segments: &[Segment], parts: &[&[u8]]) -> Result<u64, CopyError> {
    let total = parts.iter().map(|part| part.len() as u64).sum();
    let room = bytes_of(segments);
    if total > room {
        return Err(CopyError::TooShort { wanted: total, room });
    }
    let mut segments = segments.iter();
    let mut open = Segment::default();
    for &part in parts {
        let mut part = part;
        while !part.is_empty() {
            if open.bytes == 0 {
                // There is one: `total` is at most `room`. Without one, nothing is left to write to.
                let Some(&next) = segments.next() else { return Err(CopyError::TooShort { wanted: total, room }) };
                open = next;
                continue;
            }
            let (now, later) = part.split_at(part.len().min(open.bytes as usize));
            memory.write(open.address, now).map_err(CopyError::Memory)?;
            open = Segment::new(open.address.wrapping_add(now.len() as u64), open.bytes - now.len() as u32);
            part = later;
        }
    }
    Ok(total)
}

/// Fills `out` with what `segments` hold from byte `skip` on.
///
/// # Errors
/// When they end before `out` is full, in which case nothing is read, or are not in memory.
pub fn gather<M: Memory>(memory: &M, segments: &[Segment], skip: u64, out: &mut [u8]) -> Result<(), CopyError> {
    let (wanted, room) = (skip.saturating_add(out.len() as u64), bytes_of(segments));
    if wanted > room {
        return Err(CopyError::TooShort { wanted, room });
    }
    let mut skip = skip;
    let mut out = out;
    for segment in segments {
        let bytes = u64::from(segment.bytes);
        if skip >= bytes {
            skip -= bytes;
            continue;
        }
        let now = out.len().min((bytes - skip) as usize);
        let (head, rest) = out.split_at_mut(now);
        memory.read(segment.address.wrapping_add(skip), head).map_err(CopyError::Memory)?;
        out = rest;
        skip = 0;
        if out.is_empty() {
            break;
        }
    }
    Ok(())
}

/// Why bytes were not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyError {
    /// The segments end too early.
    TooShort {
        /// How many bytes they would need.
        wanted: u64,
        /// How many they have.
        room: u64,
    },
    /// A segment is not in memory.
    Memory(OutOfBounds),
}

impl fmt::Display for CopyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort { wanted, room } => write!(f, "{wanted} bytes wanted where there are {room}"),
            Self::Memory(_) => f.write_str("a segment cannot be reached"),
        }
    }
}

impl core::error::Error for CopyError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::TooShort { .. } => None,
            Self::Memory(error) => Some(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;
    use crate::pointer::Owned;

    #[test]
    fn bytes_cross_the_borders_of_parts_and_segments() {
        let memory = Owned::new(0, 64);
        let memory = memory.view();
        let segments = [Segment::new(40, 3), Segment::new(7, 0), Segment::new(8, 4), Segment::new(20, 5)];
        let bytes: Vec<u8> = (1..=12).collect();
        for cut in 0..=bytes.len() {
            let (first, second) = bytes.split_at(cut);
            assert_eq!(scatter(&memory, &segments, &[first, &[], second]), Ok(12));
            for skip in 0..=bytes.len() {
                let mut out = vec![0; bytes.len() - skip];
                gather(&memory, &segments, skip as u64, &mut out).unwrap();
                assert_eq!(out, bytes[skip..]);
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_not_begun() {
        let memory = Owned::new(0, 64);
        let memory = memory.view();
        let segments = [Segment::new(0, 4)];
        let short = CopyError::TooShort { wanted: 5, room: 4 };
        assert_eq!(scatter(&memory, &segments, &[&[1; 3], &[1; 2]]), Err(short));
        let mut out = [9; 5];
        assert_eq!(gather(&memory, &segments, 0, &mut out), Err(short));
        assert_eq!(
            gather(&memory, &segments, u64::MAX, &mut out),
            Err(CopyError::TooShort { wanted: u64::MAX, room: 4 })
        );
        gather(&memory, &segments, 0, &mut out[..4]).unwrap();
        assert_eq!(out, [0, 0, 0, 0, 9]);
    }
}
