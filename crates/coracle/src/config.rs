//! What a sandbox may have.

use std::time::Duration;

use coracle_vm::kvm::CpuTemplate;

use crate::error::{Error, ErrorKind};

/// The settings of a sandbox. All have defaults.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The most memory that the guest may have, in bytes: everything it uses, page tables included. 1 MiB to 1 TiB,
    /// default 64 MiB. Costs nothing until it is used.
    pub memory_bytes: u64,
    /// Stack, in bytes. Default 2 MiB, as Rust's threads have, and at most an eighth of the memory. 16 KiB to 256 MiB.
    pub stack_bytes: Option<u64>,
    /// The heap of a guest made with the SDK, in bytes. Default half of the memory. Costs nothing until it is used.
    pub heap_bytes: Option<u64>,
    /// The largest payload, in bytes, in each direction: a call's arguments, a result. 4 KiB to 1 GiB, default 64 MiB. Costs
    /// address space; a large payload takes as much of the guest's memory as it has bytes, from when it is first sent.
    pub payload_bytes: u64,
    /// How long one entry may take: booting, a call, a whole program. Default: no limit.
    ///
    /// When the time is over, a signal interrupts the thread every millisecond until the entry has ended: a host function
    /// that is running then, or a stream's reader or writer, sees its system calls fail with `EINTR`.
    pub timeout: Option<Duration>,
    /// The processor that the guest sees.
    pub cpu: CpuTemplate,
    /// Count the guest's instructions ([`Stats::guest_instructions`](crate::Stats::guest_instructions)). Each costs an
    /// exit then: for measurements only.
    pub count_instructions: bool,
    /// The most detailed level of the guest's log records that is wanted. Default: what the `tracing` subscriber of the
    /// process takes when the sandbox is made.
    pub log_level: Option<tracing::Level>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            memory_bytes: 64 << 20,
            stack_bytes: None,
            heap_bytes: None,
            payload_bytes: 64 << 20,
            timeout: None,
            cpu: CpuTemplate::Host,
            count_instructions: false,
            log_level: None,
        }
    }
}

impl Config {
    /// Smallest [`Config::memory_bytes`].
    pub const MEMORY_MIN: u64 = 1 << 20;
    /// Largest [`Config::memory_bytes`].
    pub const MEMORY_MAX: u64 = 1 << 40;
    /// Smallest stack, in bytes.
    pub const STACK_MIN: u64 = 16 << 10;
    /// Largest stack, in bytes.
    pub const STACK_MAX: u64 = 256 << 20;
    /// Smallest [`Config::payload_bytes`].
    pub const PAYLOAD_MIN: u64 = 4 << 10;
    /// Largest [`Config::payload_bytes`].
    pub const PAYLOAD_MAX: u64 = 1 << 30;

    pub(crate) fn stack(&self) -> u64 {
        self.stack_bytes.unwrap_or((2 << 20).min(self.memory_bytes / 8))
    }

    pub(crate) fn heap(&self) -> u64 {
        self.heap_bytes.unwrap_or(self.memory_bytes / 2)
    }

    pub(crate) fn payload(&self) -> u64 {
        self.payload_bytes
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let within = |what: &str, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(Error::new(ErrorKind::Config, format!("{what} is {value}, but must be from {least} to {most}")))
        };
        within("memory_bytes", self.memory_bytes, Self::MEMORY_MIN, Self::MEMORY_MAX)?;
        within("stack_bytes", self.stack(), Self::STACK_MIN, Self::STACK_MAX)?;
        within("heap_bytes", self.heap(), 0, self.memory_bytes)?;
        within("payload_bytes", self.payload(), Self::PAYLOAD_MIN, Self::PAYLOAD_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(config: Config, setting: &str) {
        let error = config.check().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().starts_with(setting), "{error}");
    }

    #[test]
    fn defaults_follow_the_memory() {
        let small = Config { memory_bytes: Config::MEMORY_MIN, ..Config::default() };
        assert!(small.check().is_ok());
        assert_eq!(small.stack(), 128 << 10);
        assert_eq!(Config::default().stack(), 2 << 20);
        assert!(Config { memory_bytes: 16 << 30, ..Config::default() }.check().is_ok());
    }

    #[test]
    fn senseless_settings_are_named() {
        let config = Config::default;
        refused(Config { memory_bytes: 0, ..config() }, "memory_bytes");
        refused(Config { memory_bytes: u64::MAX, ..config() }, "memory_bytes");
        refused(Config { stack_bytes: Some(1), ..config() }, "stack_bytes");
        refused(Config { heap_bytes: Some(65 << 20), ..config() }, "heap_bytes");
        refused(Config { payload_bytes: 0, ..config() }, "payload_bytes");
    }
}
