//! The functions that the compiler calls for copies, and that a C library has: for programs without one.
#![allow(unsafe_code)] // Assembly, and in tests its declarations.

#[cfg(not(test))]
core::arch::global_asm!(
    include_str!("memory_functions.s"),
    ".weak memcpy",
    ".set memcpy, coracle_memmove",
    ".weak memmove",
    ".set memmove, coracle_memmove",
    ".weak memset",
    ".set memset, coracle_memset",
    ".weak memcmp",
    ".set memcmp, coracle_memcmp",
    ".weak bcmp",
    ".set bcmp, coracle_memcmp",
    ".weak strlen",
    ".set strlen, coracle_strlen",
);

#[cfg(test)]
core::arch::global_asm!(include_str!("memory_functions.s"));

#[cfg(test)]
mod tests {
    use core::ffi::{c_int, c_void};

    unsafe extern "C" {
        fn coracle_memmove(to: *mut c_void, from: *const c_void, bytes: usize) -> *mut c_void;
        fn coracle_memset(to: *mut c_void, byte: c_int, bytes: usize) -> *mut c_void;
        fn coracle_memcmp(left: *const c_void, right: *const c_void, bytes: usize) -> c_int;
        fn coracle_strlen(text: *const c_void) -> usize;
    }

    const LENGTH: usize = 128;

    fn pattern() -> [u8; LENGTH] {
        core::array::from_fn(|n| (n * 37 + 11) as u8)
    }

    #[test]
    fn copies_are_whole_wherever_they_overlap() {
        for bytes in 0..70 {
            for to in [0, 1, 7, 8, 15, 16, 17, 30, 33, 50] {
                for from in [0, 1, 8, 16, 17, 31, 33, 50] {
                    let (mut got, mut want) = (pattern(), pattern());
                    want.copy_within(from..from + bytes, to);
                    let start: *mut u8 = got.as_mut_ptr();
                    // SAFETY: both ranges are inside the array.
                    let result = unsafe {
                        coracle_memmove(start.wrapping_add(to).cast(), start.wrapping_add(from).cast(), bytes)
                    };
                    assert_eq!(result, start.wrapping_add(to).cast());
                    assert_eq!(got, want, "{bytes} bytes from {from} to {to}");
                }
            }
        }
    }

    #[test]
    fn fills_are_exact() {
        for bytes in 0..70 {
            for to in 0..20 {
                let (mut got, mut want) = (pattern(), pattern());
                want[to..to + bytes].fill(0xa5);
                let start: *mut u8 = got.as_mut_ptr();
                // SAFETY: the range is inside the array.
                let result = unsafe { coracle_memset(start.wrapping_add(to).cast(), 0x1a5, bytes) };
                assert_eq!(result, start.wrapping_add(to).cast());
                assert_eq!(got, want, "{bytes} bytes to {to}");
            }
        }
    }

    #[test]
    fn comparisons_are_those_of_slices() {
        for bytes in 0..40 {
            for place in 0..bytes {
                for (left, right) in [(1u8, 2u8), (0x80, 0x7f), (255, 0), (0, 1)] {
                    let (mut a, mut b) = (pattern(), pattern());
                    (a[place], b[place]) = (left, right);
                    (a[place + 1], b[place + 1]) = (right, left); // What follows must not matter.
                    // SAFETY: both ranges are inside their arrays.
                    let result = unsafe { coracle_memcmp(a.as_ptr().cast(), b.as_ptr().cast(), bytes) };
                    assert_eq!(result.cmp(&0), left.cmp(&right), "{bytes} bytes, {place}");
                }
            }
            let (a, b) = (pattern(), pattern());
            // SAFETY: both ranges are inside their arrays.
            assert_eq!(unsafe { coracle_memcmp(a.as_ptr().cast(), b.as_ptr().cast(), bytes) }, 0);
        }
    }

    #[test]
    fn texts_end_at_their_zero() {
        for text in [c"", c"a", c"abcdefghi"] {
            // SAFETY: it ends with a zero byte.
            assert_eq!(unsafe { coracle_strlen(text.as_ptr().cast()) }, text.count_bytes());
        }
    }
}
