//! What many like things cost in memory, each.

use std::io;
use std::time::Duration;

/// Memory that each of many takes, in KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Of this process alone: its proportional set size.
    pub private_kib: i64,
    /// Of the machine, the kernel's share included: what is not available any more. Others who come and go blur it.
    pub machine_kib: i64,
}

impl Usage {
    /// What is used now.
    pub fn now() -> io::Result<Self> {
        Ok(Self {
            private_kib: field("/proc/self/smaps_rollup", "Pss:")?,
            machine_kib: -field("/proc/meminfo", "MemAvailable:")?,
        })
    }

    /// What each of `count` took since `before`.
    fn each(self, before: Self, count: usize) -> Self {
        let each = |now: i64, before: i64| (now - before) / i64::try_from(count).unwrap_or(i64::MAX);
        Self {
            private_kib: each(self.private_kib, before.private_kib),
            machine_kib: each(self.machine_kib, before.machine_kib),
        }
    }
}

/// Makes `count` things, lets each of them work, and says what each takes while all are alive: before it worked, and
/// afterwards. Means something in a process that does nothing else meanwhile.
///
/// # Errors
/// When the kernel does not tell.
pub fn of_each<T>(count: usize, mut make: impl FnMut() -> T, work: impl FnMut(&mut T)) -> io::Result<(Usage, Usage)> {
    let mut things = Vec::with_capacity(count);
    // The first has costs that the others find paid.
    drop(make());
    let start = settled()?;
    things.resize_with(count, &mut make);
    let made = Usage::now()?;
    things.iter_mut().for_each(work);
    let worked = Usage::now()?;
    Ok((made.each(start, count), worked.each(start, count)))
}

/// What is used when the kernel has given back what was dropped before, which it does in the background; or when that
/// cannot be told, since others keep the machine moving.
fn settled() -> io::Result<Usage> {
    let mut last = Usage::now()?;
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(200));
        let now = Usage::now()?;
        if (now.machine_kib - last.machine_kib).abs() < 2 << 10 {
            return Ok(now);
        }
        last = now;
    }
    Ok(last)
}

/// A number of one of the kernel's tables.
fn field(path: &str, name: &str) -> io::Result<i64> {
    let text = std::fs::read_to_string(path)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok());
    number.ok_or_else(|| io::Error::other(format!("no number {name} in {path}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_touched_is_counted() {
        let empty = || Vec::<u8>::with_capacity(256 << 10);
        let fill = |block: &mut Vec<u8>| block.resize(256 << 10, 1);
        let (made, worked) = of_each(64, empty, fill).unwrap();
        assert!(made.private_kib < 128, "{made:?}");
        assert!((250..400).contains(&worked.private_kib), "{worked:?}");
    }
}
