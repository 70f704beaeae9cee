//! Asking for notifications, and learning whether the other side wants one (VIRTIO 1.3, sections 2.8.10, 2.8.14).
//!
//! A side that goes to sleep says first what shall wake it, and then looks at the ring again; a side that has put
//! something into the ring looks then at what the other asked for. With a full fence between the two steps on both
//! sides, at least one of them sees the other's, and no wake-up is lost.

use core::fmt;

use crate::memory::{Memory, OutOfBounds};
use crate::ring::Place;

const ENABLE: u16 = 0;
const DISABLE: u16 = 1;
const AT_PLACE: u16 = 2;
const WRAP: u16 = 1 << 15;
const FLAGS_AT: u64 = 2;

/// What the other side wrote where it says which notifications it wants is none of the things it may write.
/// Notify it: that is never wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadEvent {
    /// The flags have a reserved value.
    Flags(u16),
    /// The place is outside the ring.
    Place(u16),
    /// The structure is not in memory any more.
    Memory(OutOfBounds),
}

impl fmt::Display for BadEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flags(flags) => write!(f, "the event flags {flags:#x} are reserved"),
            Self::Place(index) => write!(f, "the event place {index} is outside the ring"),
            Self::Memory(_) => f.write_str("the event structure cannot be read"),
        }
    }
}

impl core::error::Error for BadEvent {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Memory(error) => Some(error),
            _ => None,
        }
    }
}

/// One side's two event structures, and what it put into the ring since it last thought of notifying.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    ours: u64,
    theirs: u64,
    size: u16,
    /// Where the first descriptor lies that the other side was not told of.
    since: Place,
    /// How many there are; saturating.
    count: u32,
}

impl Events {
    pub(crate) fn new(ours: u64, theirs: u64, size: u16, since: Place) -> Self {
        Self { ours, theirs, size, since, count: 0 }
    }

    /// Notes that `count` more descriptors went into the ring.
    #[inline]
    pub(crate) fn put(&mut self, count: u16) {
        self.count = self.count.saturating_add(u32::from(count));
    }

    /// Asks for no notification. The other side may still send one.
    pub(crate) fn mute(&self, memory: &impl Memory) -> Result<(), OutOfBounds> {
        memory.store_u16_release(self.ours + FLAGS_AT, DISABLE)
    }

    /// Asks for a notification with each change of the ring. The caller must look at the ring after this.
    pub(crate) fn listen(&self, memory: &impl Memory) -> Result<(), OutOfBounds> {
        memory.store_u16_release(self.ours + FLAGS_AT, ENABLE)?;
        memory.fence();
        Ok(())
    }

    /// Asks for one notification, when the other side passes `place`. The caller must look at the ring after this.
    pub(crate) fn listen_at(&self, memory: &impl Memory, place: Place) -> Result<(), OutOfBounds> {
        memory.store_u16_release(self.ours, place.index | if place.wrap { WRAP } else { 0 })?;
        memory.store_u16_release(self.ours + FLAGS_AT, AT_PLACE)?;
        memory.fence();
        Ok(())
    }

    /// Whether the other side wants to hear of what was put into the ring, up to `now`, since this was last asked.
    pub(crate) fn wanted(&mut self, memory: &impl Memory, now: Place) -> Result<bool, BadEvent> {
        let (since, count) = (self.since, self.count);
        (self.since, self.count) = (now, 0);
        if count == 0 {
            return Ok(false);
        }
        memory.fence();
        // Each word is read once. Flags first: whoever writes a place writes it before the flags that make it count.
        match memory.load_u16_acquire(self.theirs + FLAGS_AT).map_err(BadEvent::Memory)? {
            ENABLE => Ok(true),
            DISABLE => Ok(false),
            AT_PLACE => {
                let word = memory.load_u16_acquire(self.theirs).map_err(BadEvent::Memory)?;
                let place = Place { index: word & !WRAP, wrap: word & WRAP != 0 };
                if place.index >= self.size {
                    return Err(BadEvent::Place(place.index));
                }
                Ok(passed(since, count, place, self.size))
            }
            flags => Err(BadEvent::Flags(flags)),
        }
    }
}

/// Whether `place` is among the `count` descriptors from `since`.
fn passed(since: Place, count: u32, place: Place, size: u16) -> bool {
    let two_laps = 2 * u32::from(size);
    let ahead = (place.in_two_laps(size) + two_laps - since.in_two_laps(size)) % two_laps;
    ahead < count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_passed_by_exactly_the_descriptors_around_it() {
        for size in [1, 2, 3, 8] {
            let two_laps = 2 * size;
            let at = |number: u16| Place { index: number % size, wrap: number % two_laps < size };
            for (since, count, place) in (0..two_laps).flat_map(|since| {
                (0..=size).flat_map(move |count| (0..two_laps).map(move |place| (since, count, place)))
            }) {
                let want = (since..since + count).any(|number| number % two_laps == place);
                assert_eq!(passed(at(since), count.into(), at(place), size), want, "{size} {since} {count} {place}");
            }
        }
    }

    #[test]
    fn more_than_two_laps_pass_every_place() {
        assert!((0..4).all(|index| passed(Place::START, u32::MAX, Place { index, wrap: false }, 4)));
    }
}
