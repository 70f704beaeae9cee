//! Can a system call with a bad pointer hurt the host? Every call that takes one, with every kind of bad pointer and
//! length. Each must be answered; then the guest must still be whole.

fn system_call(number: u64, arguments: [u64; 6]) -> i64 {
    // SAFETY: what the kernel may write to is either nothing (a bad pointer) or the scratch page, which nobody reads.
    unsafe { raw_call::system_call(number, arguments) }
}

/// Number, and which arguments are pointers.
const CALLS: &[(u64, &[usize])] = &[
    (0, &[1]),      // read
    (1, &[1]),      // write
    (2, &[0]),      // open
    (4, &[0, 1]),   // stat
    (5, &[1]),      // fstat
    (7, &[0]),      // poll
    (13, &[1, 2]),  // rt_sigaction
    (14, &[1, 2]),  // rt_sigprocmask
    (16, &[2]),     // ioctl
    (19, &[1]),     // readv
    (20, &[1]),     // writev
    (35, &[0]),     // nanosleep
    (63, &[0]),     // uname
    (79, &[0]),     // getcwd
    (89, &[0, 1]),  // readlink
    (96, &[0]),     // gettimeofday
    (97, &[1]),     // getrlimit
    (131, &[0, 1]), // sigaltstack
    (201, &[0]),    // time
    (202, &[0, 3]), // futex
    (204, &[2]),    // sched_getaffinity
    (228, &[1]),    // clock_gettime
    (229, &[1]),    // clock_getres
    (230, &[2, 3]), // clock_nanosleep
    (257, &[1]),    // openat
    (262, &[1, 2]), // newfstatat
    (271, &[0, 2]), // ppoll
    (302, &[2, 3]), // prlimit64
    (318, &[0]),    // getrandom
];

/// Calls that only take addresses as ranges to change: never with the program's own pages.
const RANGES: &[u64] = &[10, 11, 25, 28]; // mprotect, munmap, mremap, madvise

fn main() {
    let scratch = vec![0_u8; 4096].leak().as_mut_ptr() as u64;
    let stub = 0x7fff_bfff_0000;
    let pointers = [
        0,
        8,
        0xfff,
        0x1_0000,
        main as *const () as u64, // code: readable, not writable
        stub,
        stub + 0x3000,
        stub + 0x8000,
        stub + 0x9000,
        0x7fff_ffff_efff,
        0x7fff_ffff_fff8,
        0x8000_0000_0000,
        0xffff_8000_0000_0000,
        u64::MAX - 4095,
        u64::MAX,
    ];
    let lengths = [0, 1, 8, 4096, 1 << 20, 1 << 31, 1 << 32, 1 << 47, i64::MAX as u64, u64::MAX - 4095, u64::MAX];
    let mut made = 0_u64;
    for (number, positions) in CALLS {
        for pointer in pointers {
            for length in lengths {
                for descriptor in [0, 1, 77] {
                    // Never to write what a bad pointer turns out to be able to read, nor to wait for ever.
                    let writes = matches!(number, 1 | 20) && descriptor == 1;
                    let waits = *number == 271 && pointer == 0;
                    if writes || waits {
                        continue;
                    }
                    let mut arguments = [descriptor, length, length, length, length, length];
                    for position in *positions {
                        arguments[*position] = pointer;
                    }
                    system_call(*number, arguments);
                    // One bad pointer among good ones.
                    for position in positions.iter().skip(1) {
                        arguments[*position] = scratch;
                        system_call(*number, arguments);
                    }
                    made += 1;
                }
            }
        }
    }
    for number in RANGES {
        for pointer in pointers.into_iter().filter(|pointer| *pointer == 0 || *pointer >= stub) {
            for length in lengths {
                for protection in [0, 1, 3, 7, u64::MAX] {
                    system_call(*number, [pointer, length, protection, 1, 0, 0]);
                    made += 1;
                }
            }
        }
    }
    // Every number there is, with nonsense.
    for number in (0..600)
        .chain([1 << 20, 1 << 31, 1 << 62, u64::MAX])
        .filter(|number| !matches!(number, 60 | 231 | 9..=12 | 25 | 271))
    {
        system_call(number, [0; 6]);
        system_call(number, [u64::MAX; 6]);
        made += 2;
    }
    println!("survived {made}");
}
