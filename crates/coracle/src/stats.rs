//! What a sandbox has cost so far: counts, which mean the same on every machine.

/// Counts since the sandbox was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Entries into the guest: on KVM, `KVM_RUN`s.
    pub entries: u64,
    /// All other hypervisor calls: on KVM, ioctls. None is made by a warm call.
    pub hypervisor_calls: u64,
    /// Calls made into the guest.
    pub calls: u64,
    /// Calls that the guest made to the host.
    pub host_calls: u64,
    /// Times it was put back to a snapshot.
    pub restores: u64,
    /// System calls that the guest made.
    pub system_calls: u64,
    /// Those that Coracle does not answer: number and count.
    pub unknown_system_calls: Vec<(u64, u64)>,
    /// Pages of guest memory in use: mapped pages that have a place, page tables, the host's own.
    pub pages_in_use: u64,
    /// Pages that are copied back at each restore: those that the guest wrote, until the list is shortened.
    pub hot_pages: u64,
    /// Pages that the guest had written when it first was ready. `None` if the backend does not know.
    pub pages_written_at_start: Option<u64>,
    /// Instructions that the guest executed, if [`Config::count_instructions`](crate::Config::count_instructions) is set.
    pub guest_instructions: Option<u64>,
}
