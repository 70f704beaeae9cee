//! Clocks, sleeping, random bytes.
//!
//! The real-time clock is the host's. The monotonic clocks, and those of CPU time, count from the sandbox's creation, so
//! that a guest does not learn how long its host has been up.

use std::time::{Duration, Instant, SystemTime};

use coracle_vm::{Access, Space};

use super::{Answer, DONE, Errno, Failure, Linux, Outcome, fetch, fetch_u64, store};
use crate::deadline::Deadline;

const CLOCK_REALTIME: u64 = 0;
const CLOCK_REALTIME_COARSE: u64 = 5;
const CLOCK_MAX: u64 = 7;
const TIMER_ABSTIME: u64 = 1;

/// Most random bytes that one call gives.
const RANDOM_MAX: u64 = 64 << 10;
/// GRND_NONBLOCK, GRND_RANDOM, GRND_INSECURE: the host's source never blocks and is always good.
const RANDOM_FLAGS: u64 = 7;

const FUTEX_WAIT: u64 = 0;
const FUTEX_WAKE: u64 = 1;
const FUTEX_WAIT_BITSET: u64 = 9;
const FUTEX_WAKE_BITSET: u64 = 10;
const FUTEX_PRIVATE: u64 = 128;
const FUTEX_CLOCK_REALTIME: u64 = 256;

/// When the sandbox came to be.
#[derive(Debug)]
pub(super) struct Clock {
    created: Instant,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self { created: Instant::now() }
    }

    /// What the monotonic clock shows.
    pub(super) fn age(&self) -> Duration {
        self.created.elapsed()
    }

    /// Sets the monotonic clock, forwards only.
    pub(super) fn advance_to(&mut self, age: Duration) {
        if self.age() < age {
            self.created = Instant::now().checked_sub(age).unwrap_or(self.created);
        }
    }

    fn now(&self, clock: u64) -> Result<Duration, Errno> {
        match clock {
            CLOCK_REALTIME | CLOCK_REALTIME_COARSE => Ok(real_time()),
            0..=CLOCK_MAX => Ok(self.created.elapsed()),
            _ => Err(Errno::EINVAL),
        }
    }

    pub(super) fn get(&self, space: &mut Space, clock: u64, out: u64) -> Answer {
        let now = self.now(clock)?;
        store(space, out, &[now.as_secs(), u64::from(now.subsec_nanos())])?;
        DONE
    }

    pub(super) fn sleep(&self, space: &mut Space, deadline: &Deadline, request: u64) -> Answer {
        let wait = fetch_duration(space, request)?;
        if deadline.sleep(Some(wait)) { DONE } else { Ok(Outcome::TimedOut) }
    }

    pub(super) fn sleep_on(
        &self,
        space: &mut Space,
        deadline: &Deadline,
        clock: u64,
        flags: u64,
        request: u64,
    ) -> Answer {
        let now = self.now(clock)?;
        let request = fetch_duration(space, request)?;
        let wait = if flags & TIMER_ABSTIME != 0 { request.saturating_sub(now) } else { request };
        if deadline.sleep(Some(wait)) { DONE } else { Ok(Outcome::TimedOut) }
    }
}

fn real_time() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

pub(super) fn resolution(space: &mut Space, clock: u64, out: u64) -> Answer {
    if clock > CLOCK_MAX {
        return Err(Errno::EINVAL.into());
    }
    if out != 0 {
        store(space, out, &[0, 1])?;
    }
    DONE
}

pub(super) fn time_of_day(space: &mut Space, out: u64) -> Answer {
    if out != 0 {
        let now = real_time();
        store(space, out, &[now.as_secs(), u64::from(now.subsec_micros())])?;
    }
    DONE
}

pub(super) fn seconds(space: &mut Space, out: u64) -> Answer {
    let now = real_time().as_secs();
    if out != 0 {
        store(space, out, &[now])?;
    }
    Ok(Outcome::Return(now as i64))
}

pub(super) fn random(space: &mut Space, at: u64, bytes: u64, flags: u64) -> Answer {
    if flags & !RANDOM_FLAGS != 0 {
        return Err(Errno::EINVAL.into());
    }
    let wanted = bytes.min(RANDOM_MAX);
    let reach = space.reach(at, wanted, Access::Write)?;
    if reach == 0 && wanted > 0 {
        return Err(Errno::EFAULT.into());
    }
    let mut chunk = [0; 256];
    let mut done = 0;
    while done < reach {
        let piece = &mut chunk[..(reach - done).min(256) as usize];
        crate::entropy::fill(piece).map_err(|_| Errno::EIO)?;
        space.write(at + done, piece)?;
        done += piece.len() as u64;
    }
    Ok(Outcome::Return(done as i64))
}

/// A `struct timespec`.
pub(super) fn fetch_duration(space: &mut Space, at: u64) -> Result<Duration, Failure> {
    let seconds = fetch_u64(space, at)? as i64;
    let nanoseconds = fetch_u64(space, at.checked_add(8).ok_or(Errno::EFAULT)?)?;
    let seconds = u64::try_from(seconds).map_err(|_| Errno::EINVAL)?;
    match u32::try_from(nanoseconds) {
        Ok(nanoseconds) if nanoseconds < 1_000_000_000 => Ok(Duration::new(seconds, nanoseconds)),
        _ => Err(Errno::EINVAL.into()),
    }
}

impl Linux {
    /// `futex` for a program with one thread: nobody else can wake it, and it has nobody to wake.
    pub(super) fn futex(
        &mut self,
        space: &mut Space,
        deadline: &Deadline,
        at: u64,
        operation: u64,
        value: u64,
        timeout: u64,
    ) -> Answer {
        let flags = operation & (FUTEX_PRIVATE | FUTEX_CLOCK_REALTIME);
        match operation & !flags {
            FUTEX_WAKE | FUTEX_WAKE_BITSET => DONE,
            wait @ (FUTEX_WAIT | FUTEX_WAIT_BITSET) => {
                if !at.is_multiple_of(4) {
                    return Err(Errno::EINVAL.into());
                }
                if u32::from_le_bytes(fetch(space, at)?) != value as u32 {
                    return Err(Errno::EAGAIN.into());
                }
                if timeout == 0 {
                    return Ok(Outcome::Deadlock);
                }
                let mut left = fetch_duration(space, timeout)?;
                if wait == FUTEX_WAIT_BITSET {
                    // Absolute.
                    let now = self.clock.now(if flags & FUTEX_CLOCK_REALTIME != 0 { CLOCK_REALTIME } else { 1 })?;
                    left = left.saturating_sub(now);
                }
                if deadline.sleep(Some(left)) { Err(Errno::ETIMEDOUT.into()) } else { Ok(Outcome::TimedOut) }
            }
            _ => Err(Errno::ENOSYS.into()),
        }
    }
}
