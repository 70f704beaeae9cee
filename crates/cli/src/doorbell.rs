//! What one exit costs here: a guest of three instructions rings the doorbell, the host does nothing and enters again.
//!
//! This is the least that a call can cost: a call is one such round trip, and the work on both sides.

use std::time::{Duration, Instant};

use coracle::{Kvm, Registers, Rights};
use coracle_abi::{PageBytes, map};
use coracle_vm::{Backend as _, Exit, Fill, GuestMemory, Parts, Promise, Space, Span};

/// Round trips that are measured.
const ROUNDS: usize = 2000;
/// Round trips before them, which are not.
const WARM_UP: usize = 200;

const PAGE: u64 = coracle_abi::PAGE_BYTES;
const CODE: u64 = 0x40_0000;
const STACK: u64 = 0x50_0000;

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoundTrip {
    pub(crate) median: Duration,
    pub(crate) least: Duration,
}

impl RoundTrip {
    pub(crate) const ROUNDS: usize = ROUNDS;

    fn of(mut times: Vec<Duration>) -> Option<Self> {
        times.sort_unstable();
        Some(Self { median: *times.get(times.len() / 2)?, least: *times.first()? })
    }
}

/// Measures it.
///
/// # Errors
/// What the hypervisor refused, as a sentence.
pub(crate) fn measure(kvm: &Kvm) -> Result<RoundTrip, String> {
    let text = |error: coracle_vm::Error| error.to_string();
    let space_text = |error: coracle_vm::SpaceError| error.to_string();
    let memory = PageBytes::from_pages(256).ok_or("too many pages")?;
    let memory = GuestMemory::reserve(memory).map_err(|error| error.to_string())?;
    let parts = Parts { root: Space::ROOT, exception_stack: Space::EXCEPTION_STACK };
    let (vm, mut vcpu) = kvm.create(&parts).map_err(text)?;
    let mut space = Space::new(memory, vm, &kvm.control_pages()).map_err(space_text)?;
    for (address, rights) in [(CODE, Rights::RX), (STACK, Rights::RW)] {
        let page = Span::new(address, PAGE).ok_or("a page that is none")?;
        space.map(page, rights, Fill::Now, Promise::Committed).map_err(space_text)?;
    }
    space.load(CODE, &ring_for_ever()).map_err(space_text)?;
    vcpu.set_registers(&Registers { rip: CODE, rsp: STACK + PAGE, ..Registers::default() });
    let mut times = Vec::with_capacity(ROUNDS);
    while times.len() < WARM_UP + ROUNDS {
        let start = Instant::now();
        match vcpu.run(space.memory_mut()).map_err(text)? {
            Exit::Doorbell => times.push(start.elapsed()),
            Exit::Interrupted => {}
            other => return Err(format!("the guest stopped in an unexpected way: {other:?}")),
        }
    }
    RoundTrip::of(times.split_off(WARM_UP)).ok_or_else(|| "nothing was measured".to_owned())
}

/// `again: mov rax, DOORBELL; call rax; jmp again`.
fn ring_for_ever() -> Vec<u8> {
    let mut code = vec![0x48, 0xb8];
    code.extend(map::DOORBELL.to_le_bytes());
    code.extend([0xff, 0xd0, 0xeb, 0xf2]);
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_jump_goes_to_the_start() {
        let code = ring_for_ever();
        assert_eq!(code.len() as i64 + i64::from(code[code.len() - 1] as i8), 0);
    }

    #[test]
    fn the_median_is_in_the_middle() {
        let ms = Duration::from_millis;
        assert_eq!(RoundTrip::of(vec![ms(9), ms(1), ms(2)]), Some(RoundTrip { median: ms(2), least: ms(1) }));
        assert_eq!(RoundTrip::of(Vec::new()), None);
    }

    #[test]
    fn round_trips_are_measured() {
        let Some(kvm) = coracle_testing::kvm_or_skip() else { return };
        let round_trip = measure(&kvm).unwrap();
        assert!(round_trip.least <= round_trip.median && !round_trip.least.is_zero());
    }
}
