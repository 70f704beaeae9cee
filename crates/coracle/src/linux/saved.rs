//! What the host knows of a program besides its memory, as plain data for files.

use coracle_abi::map;
use serde::{Deserialize, Serialize};

use super::files::{Descriptors, Stream};
use super::memory::Heap;
use super::process::Process;
use super::{LinuxState, files, process};

/// [`LinuxState`], without input that was not read yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedLinux {
    /// Start, limit and end of the program break.
    pub(crate) program_break: [u64; 3],
    /// Number and stream of each open descriptor.
    pub(crate) descriptors: Vec<(u8, Stream)>,
    /// What `RLIMIT_STACK` is.
    pub(crate) stack_bytes: u64,
    /// Index (the signal's number less one) and `struct kernel_sigaction` of each signal that has one.
    pub(crate) signal_actions: Vec<(u8, [u64; 4])>,
    /// Of blocked signals.
    pub(crate) signal_mask: u64,
    /// `stack_t`.
    pub(crate) alternate_stack: [u64; 3],
    /// Whether the guest was refused memory once.
    pub(crate) refused_memory: bool,
}

impl LinuxState {
    pub(crate) fn saved(&self) -> SavedLinux {
        let Self { memory, files, process, refused_memory, input: _ } = self;
        let Process { stack_bytes, actions, mask, alternate_stack } = process;
        let numbered = |(n, action): (usize, &[u64; 4])| (*action != [0; 4]).then_some((n as u8, *action));
        let open = |(n, stream): (usize, &Option<Stream>)| stream.map(|stream| (n as u8, stream));
        SavedLinux {
            program_break: memory.parts(),
            descriptors: files.0.iter().enumerate().filter_map(open).collect(),
            stack_bytes: *stack_bytes,
            signal_actions: actions.iter().enumerate().filter_map(numbered).collect(),
            signal_mask: *mask,
            alternate_stack: *alternate_stack,
            refused_memory: *refused_memory,
        }
    }
}

impl SavedLinux {
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn check(&self) -> Result<LinuxState, &'static str> {
        let [start, limit, end] = self.program_break;
        if !(start <= end && end <= limit && limit <= map::HIGHEST) {
            return Err("the program break lies nowhere");
        }
        let mut table = [None; files::DESCRIPTORS_MAX];
        for (n, stream) in &self.descriptors {
            *table.get_mut(usize::from(*n)).ok_or("a descriptor's number is too high")? = Some(*stream);
        }
        let mut actions = [[0; 4]; process::SIGNALS];
        for (n, action) in &self.signal_actions {
            *actions.get_mut(usize::from(*n)).ok_or("a signal's number is too high")? = *action;
        }
        Ok(LinuxState {
            memory: Heap::from_parts(self.program_break),
            files: Descriptors(table),
            process: Process {
                stack_bytes: self.stack_bytes,
                actions,
                mask: self.signal_mask,
                alternate_stack: self.alternate_stack,
            },
            refused_memory: self.refused_memory,
            input: None,
        })
    }
}
