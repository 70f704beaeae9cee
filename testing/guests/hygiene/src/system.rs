//! Raw system calls, so that nothing of the C library's is in the way.

pub(crate) const PAGE: u64 = 4096;

const MMAP: u64 = 9;
const MPROTECT: u64 = 10;
const MUNMAP: u64 = 11;
const BRK: u64 = 12;
const RT_SIGACTION: u64 = 13;
const RT_SIGPROCMASK: u64 = 14;
const MREMAP: u64 = 25;
const MADVISE: u64 = 28;
const DUP2: u64 = 33;
const NANOSLEEP: u64 = 35;
const FCNTL: u64 = 72;
const SIGALTSTACK: u64 = 131;
const GETRANDOM: u64 = 318;

const EFAULT: i64 = -14;
const EEXIST: i64 = -17;

const MAP_PRIVATE_ANONYMOUS: u64 = 0x22;
const MAP_NORESERVE: u64 = 0x4000;
const MAP_FIXED_NOREPLACE: u64 = 0x10_0000;
const READ_WRITE: u64 = 3;

fn call(number: u64, arguments: [u64; 6]) -> i64 {
    // SAFETY: the callers below only change mappings that nobody else uses, and give pointers to what they own.
    unsafe { raw_call::system_call(number, arguments) }
}

/// Fresh memory. `None` if there is not so much.
pub(crate) fn map(bytes: u64) -> Option<u64> {
    let address = call(MMAP, [0, bytes, READ_WRITE, MAP_PRIVATE_ANONYMOUS, u64::MAX, 0]);
    (address > 0).then_some(address as u64)
}

pub(crate) fn unmap(address: u64, bytes: u64) {
    assert_eq!(call(MUNMAP, [address, bytes, 0, 0, 0, 0]), 0);
}

/// Leaves the right to read, or none.
pub(crate) fn restrict(address: u64, bytes: u64, readable: bool) {
    assert_eq!(call(MPROTECT, [address, bytes, readable.into(), 0, 0, 0]), 0);
}

/// Moves pages to where others are, which are gone then.
pub(crate) fn relocate(from: u64, to: u64, bytes: u64) {
    const MAY_MOVE_TO_FIXED: u64 = 3;
    assert_eq!(call(MREMAP, [from, bytes, bytes, MAY_MOVE_TO_FIXED, to, 0]), to as i64);
}

/// Forgets what the pages hold.
pub(crate) fn forget(address: u64, bytes: u64) {
    const DONTNEED: u64 = 4;
    assert_eq!(call(MADVISE, [address, bytes, DONTNEED, 0, 0, 0]), 0);
}

/// Whether nothing is mapped in the range: then something can be.
pub(crate) fn is_free(from: u64, to: u64) -> bool {
    let flags = MAP_PRIVATE_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    let address = call(MMAP, [from, to - from, 0, flags, u64::MAX, 0]);
    if address == EEXIST {
        return false;
    }
    assert_eq!(address, from as i64, "mapping up to {to:#x}");
    unmap(from, to - from);
    true
}

/// Whether the range lies in one mapping: then it can be given the size that it has.
pub(crate) fn is_one_mapping(address: u64, bytes: u64) -> bool {
    call(MREMAP, [address, bytes, bytes, 0, 0, 0]) == address as i64
}

/// Whether the 8 bytes may be read: as a signal set for an operation that there is not.
pub(crate) fn is_readable(address: u64) -> bool {
    call(RT_SIGPROCMASK, [9, address, 0, 8, 0, 0]) != EFAULT
}

/// Moves the break up. Returns where it was.
pub(crate) fn grow_break(bytes: u64) -> u64 {
    let old = call(BRK, [0; 6]) as u64;
    assert_eq!(call(BRK, [old + bytes, 0, 0, 0, 0, 0]) as u64, old + bytes);
    old
}

/// Puts the nonce wherever the host keeps anything for the guest, and lets it tell it: into `told`.
pub(crate) fn spread(nonce: [u64; 2], told: &mut [[u64; 4]; 64]) {
    let [a, b] = nonce;
    let action = [a, b, a, b];
    for (signal, told) in (1..).zip(told) {
        call(RT_SIGACTION, [signal, action.as_ptr() as u64, 0, 8, 0, 0]);
        call(RT_SIGACTION, [signal, 0, told.as_mut_ptr() as u64, 8, 0, 0]);
    }
    call(SIGALTSTACK, [action.as_ptr() as u64, 0, 0, 0, 0, 0]);
    call(RT_SIGPROCMASK, [2, action.as_ptr() as u64, 0, 8, 0, 0]);
    call(DUP2, [1, 7, 0, 0, 0, 0]);
    grow_break(PAGE);
}

pub(crate) fn answers() -> Vec<u64> {
    let mut actions = [[0_u64; 4]; 64];
    for (signal, action) in (1..).zip(&mut actions) {
        assert_eq!(call(RT_SIGACTION, [signal, 0, action.as_mut_ptr() as u64, 8, 0, 0]), 0);
    }
    let (mut stack, mut mask) = ([0_u64; 3], [0_u64; 1]);
    assert_eq!(call(SIGALTSTACK, [0, stack.as_mut_ptr() as u64, 0, 0, 0, 0]), 0);
    assert_eq!(call(RT_SIGPROCMASK, [0, 0, mask.as_mut_ptr() as u64, 8, 0, 0]), 0);
    const GET_FLAGS: u64 = 1;
    let descriptors = (0..16).map(|descriptor| call(FCNTL, [descriptor, GET_FLAGS, 0, 0, 0, 0]) as u64);
    let told = [actions.as_flattened(), &stack, &mask].concat();
    told.into_iter().chain(descriptors).chain([call(BRK, [0; 6]) as u64]).collect()
}

/// Stopped inside a system call.
pub(crate) fn sleep_for_ever() {
    let time = [1_u64 << 40, 0];
    call(NANOSLEEP, [time.as_ptr() as u64, 0, 0, 0, 0, 0]);
}

/// Fills it with random bytes of the host.
pub(crate) fn random(words: &mut [u64; 4]) {
    let bytes = size_of_val(words) as u64;
    assert_eq!(call(GETRANDOM, [words.as_mut_ptr() as u64, bytes, 0, 0, 0, 0]), bytes as i64);
}
