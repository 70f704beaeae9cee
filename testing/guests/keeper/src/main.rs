//! What does a guest still know after it was restored? It keeps numbers, maps memory, fills registers.
#![no_main]

use std::arch::asm;
use std::cell::{Cell, RefCell};

use coracle_guest::function;

coracle_guest::main!();

thread_local! {
    static KEPT: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    static COUNT: Cell<u64> = const { Cell::new(0) };
    static HEAP: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

#[function]
fn keep(number: u64) {
    KEPT.with_borrow_mut(|kept| kept.push(number));
}

#[function]
fn kept() -> Vec<u64> {
    KEPT.with_borrow(Clone::clone)
}

/// Reads from standard input, past every buffer of its own.
#[function]
fn read_input(most: u64) -> Vec<u8> {
    let mut bytes = vec![0; most as usize];
    let read = system_call(0, [0, bytes.as_mut_ptr() as u64, most, 0, 0, 0]);
    bytes.truncate(read.max(0) as usize);
    bytes
}

/// What `AT_RANDOM` points to.
#[function]
fn at_random() -> Vec<u8> {
    const AT_RANDOM: u64 = 25;
    unsafe extern "C" {
        safe fn getauxval(key: u64) -> u64;
    }
    // SAFETY: the entry's meaning is that sixteen bytes are there.
    unsafe { std::slice::from_raw_parts(getauxval(AT_RANDOM) as *const u8, 16) }.to_vec()
}

/// Counts its calls.
#[function]
fn count() -> u64 {
    COUNT.with(|count| {
        count.set(count.get() + 1);
        count.get()
    })
}

/// Changes the first `bytes` bytes, a page at most, of each of `pages` pages of its heap. The pages are had from the first
/// call on that wants so many.
#[function]
fn dirty(pages: u32, bytes: u32) {
    const PAGE: usize = 4096;
    HEAP.with_borrow_mut(|heap| {
        // One page more, so that as many whole ones lie in it wherever it starts.
        let wanted = (pages as usize + 1) * PAGE;
        if heap.len() < wanted {
            *heap = vec![0; wanted];
            // No two pages alike: equal ones would be one page of a snapshot.
            for (number, page) in heap.chunks_exact_mut(PAGE).enumerate() {
                page.fill(number as u8);
                page[PAGE / 2..][..8].copy_from_slice(&number.to_le_bytes());
            }
        }
        let skip = heap.as_ptr().align_offset(PAGE);
        for page in heap[skip..].chunks_exact_mut(PAGE).take(pages as usize) {
            let changed = page[0].wrapping_add(1);
            page[..bytes as usize].fill(changed);
        }
    });
}

/// Never answers; what it does meanwhile is fault, by and by, on fresh memory.
#[function]
fn spin() {
    loop {
        let pages = map(256, 1);
        unmap(pages, 256);
    }
}

fn system_call(number: u64, arguments: [u64; 6]) -> i64 {
    // SAFETY: the callers below only change mappings that nobody else uses.
    unsafe { raw_call::system_call(number, arguments) }
}

/// Maps pages and fills them.
#[function]
fn map(pages: u64, byte: u8) -> u64 {
    let address = system_call(9, [0, pages << 12, 3, 0x22, u64::MAX, 0]);
    assert!(address > 0, "mmap: {address}");
    for page in 0..pages {
        poke(address as u64 + (page << 12), byte);
    }
    address as u64
}

/// Maps pages and adds up what they hold already.
#[function]
fn sum_of_fresh(pages: u64) -> u64 {
    let address = system_call(9, [0, pages << 12, 3, 0x22, u64::MAX, 0]);
    assert!(address > 0, "mmap: {address}");
    (0..pages << 12).map(|offset| u64::from(peek(address as u64 + offset))).sum()
}

#[function]
fn unmap(address: u64, pages: u64) {
    assert_eq!(system_call(11, [address, pages << 12, 0, 0, 0, 0]), 0);
}

/// Makes pages read-only.
#[function]
fn seal(address: u64, pages: u64) {
    assert_eq!(system_call(10, [address, pages << 12, 1, 0, 0, 0]), 0);
}

#[function]
fn peek(address: u64) -> u8 {
    // SAFETY: mapped by `map`; if it is not any more, this is the crash that the test waits for.
    unsafe { (address as *const u8).read_volatile() }
}

#[function]
fn poke(address: u64, byte: u8) {
    // SAFETY: as in `peek`.
    unsafe { (address as *mut u8).write_volatile(byte) };
}

#[function]
fn monotonic_ns() -> u64 {
    // The C library's clock, raw: seconds and nanoseconds.
    let mut time = [0_u64; 2];
    assert_eq!(system_call(228, [1, time.as_mut_ptr() as u64, 0, 0, 0, 0]), 0);
    time[0] * 1_000_000_000 + time[1]
}

/// Puts a number into every register that ring 3 has, then executes the last instructions with them.
macro_rules! fill_registers {
    ($number:expr, $($last:literal),+) => {
        // SAFETY: nothing is used afterwards: no end that is asked for comes back, or leaves a valid frame.
        unsafe {
            asm!(
                "movq xmm0, rax",
                "vpbroadcastq ymm0, xmm0",
                "vmovdqa ymm1, ymm0", "vmovdqa ymm2, ymm0", "vmovdqa ymm3, ymm0", "vmovdqa ymm4, ymm0",
                "vmovdqa ymm5, ymm0", "vmovdqa ymm6, ymm0", "vmovdqa ymm7, ymm0", "vmovdqa ymm8, ymm0",
                "vmovdqa ymm9, ymm0", "vmovdqa ymm10, ymm0", "vmovdqa ymm11, ymm0", "vmovdqa ymm12, ymm0",
                "vmovdqa ymm13, ymm0", "vmovdqa ymm14, ymm0", "vmovdqa ymm15, ymm0",
                "push rax", "fild qword ptr [rsp]", "fild qword ptr [rsp]", "fild qword ptr [rsp]",
                "mov dword ptr [rsp], 0x7f80", "ldmxcsr [rsp]", // Another rounding mode.
                "mov word ptr [rsp], 0x0f7f", "fldcw [rsp]",
                "mov cx, 0x23", "mov es, cx", "xor ecx, ecx", "mov ds, cx", "mov gs, cx",
                "mov rbx, rax", "mov rcx, rax", "mov rdx, rax", "mov rsi, rax", "mov rdi, rax", "mov rbp, rax",
                "mov r8, rax", "mov r9, rax", "mov r10, rax", "mov r11, rax", "mov r12, rax", "mov r13, rax",
                "mov r14, rax", "mov r15, rax",
                "std",
                $($last,)+
                "ud2",
                in("rax") $number,
                options(noreturn),
            )
        }
    };
}

/// Puts a number into every register, then leaves by a doorbell of its own.
#[function]
fn fill_registers(nonce: u64) {
    fill_registers!(nonce, "out 0xe9, al")
}

/// Puts a number into every register, the thread pointer too as far as it goes, then ends in another way.
#[function]
fn fill_registers_then(nonce: u64, ending: &str) {
    const SET_THREAD_POINTER: u64 = 0x1002;
    let (end, pointer) = (ending.as_bytes()[0], nonce & 0x3fff_ffff_fff8);
    // Nothing below uses a thread-local.
    assert_eq!(system_call(158, [SET_THREAD_POINTER, pointer, 0, 0, 0, 0]), 0);
    match end {
        b'n' => fill_registers!(nonce, "mov qword ptr ds:[0], rax"), // null pointer
        b'l' => fill_registers!(nonce, "2: jmp 2b"),                 // loop
        b's' => fill_registers!(nonce, "syscall"),                   // system call that there is not
        b'p' => fill_registers!(nonce, "hlt"),                       // privileged instruction
        _ => fill_registers!(nonce, "ud2"),                          // illegal instruction
    }
}

/// What the registers hold when a call comes: all vector registers, x87 and control words, segments. The general
/// registers are the runtime's own by then.
#[function]
fn registers() -> Vec<u64> {
    let mut vectors = [[0_u64; 4]; 16];
    let mut legacy = Aligned([0; 64]);
    let (mut segments, flags, thread_pointer): ([u16; 4], u64, u64);
    // SAFETY: stores to places of this function; nothing is changed.
    unsafe {
        asm!(
            "vmovdqu [{v}], ymm0", "vmovdqu [{v} + 32], ymm1", "vmovdqu [{v} + 64], ymm2", "vmovdqu [{v} + 96], ymm3",
            "vmovdqu [{v} + 128], ymm4", "vmovdqu [{v} + 160], ymm5", "vmovdqu [{v} + 192], ymm6",
            "vmovdqu [{v} + 224], ymm7", "vmovdqu [{v} + 256], ymm8", "vmovdqu [{v} + 288], ymm9",
            "vmovdqu [{v} + 320], ymm10", "vmovdqu [{v} + 352], ymm11", "vmovdqu [{v} + 384], ymm12",
            "vmovdqu [{v} + 416], ymm13", "vmovdqu [{v} + 448], ymm14", "vmovdqu [{v} + 480], ymm15",
            "fxsave64 [{l}]",
            v = in(reg) vectors.as_mut_ptr(),
            l = in(reg) legacy.0.as_mut_ptr(),
        )
    };
    segments = [0; 4];
    // SAFETY: reads selectors, flags, and the thread pointer, which points to itself.
    unsafe {
        asm!(
            "mov {a:x}, ds", "mov {b:x}, es", "mov {c:x}, fs", "mov {d:x}, gs", "pushfq", "pop {f}",
            "mov {t}, fs:[0]",
            a = out(reg) segments[0], b = out(reg) segments[1], c = out(reg) segments[2], d = out(reg) segments[3],
            f = out(reg) flags, t = out(reg) thread_pointer,
        )
    };
    // Upper halves only: the lower ones are scratch of code that ran since the doorbell.
    let mut all: Vec<u64> = vectors.iter().flat_map(|vector| vector[2..].iter().copied()).collect();
    // Control word, status and tag; the x87 registers; MXCSR. Not the addresses of the last instruction and operand.
    all.push(legacy.0[0] & 0xffff_ffff);
    all.push(legacy.0[3] & 0xffff_ffff);
    all.extend(&legacy.0[4..20]);
    all.extend(segments.map(u64::from));
    all.push(thread_pointer);
    all.push(flags & (1 << 10 | 1 << 18 | 1 << 21)); // DF, AC, ID
    all
}

/// `fxsave` wants 16 bytes of alignment.
#[repr(align(16))]
struct Aligned([u64; 64]);
