//! The nonce, everywhere. Each place that can be read afterwards is noted, so that a test can see that its search finds it.

use std::cell::Cell;
use std::ffi::c_char;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use coracle_abi::boot::{BootInfo, Region};
use coracle_abi::map::BOOT_PAGE;

use crate::system::{self, PAGE};

/// Where the nonce was left: what that is, its address, its size.
pub(crate) type Place = (String, u64, u64);

const WORDS: usize = 1024;

static ZERO: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
static FILLED: [AtomicU64; WORDS] = [const { AtomicU64::new(1) }; WORDS];

thread_local! {
    static OWN: [Cell<u64>; WORDS] = const { [const { Cell::new(0) }; WORDS] };
}

/// The nonce that a text starts with.
pub(crate) fn words(text: &str) -> [u64; 2] {
    let (words, _) = text.as_bytes().as_chunks::<8>();
    [u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])]
}

/// Writes the nonce from `address` on, over and over. Half a nonce is left out at the end.
pub(crate) fn fill(address: u64, bytes: u64, nonce: [u64; 2]) {
    let start = address.next_multiple_of(8);
    for (n, at) in (start..).step_by(8).take_while(|at| at + 8 <= address + bytes).enumerate() {
        // SAFETY: the callers give what they own, or want the crash.
        unsafe { (at as *mut u64).write_volatile(nonce[n % 2]) };
    }
}

/// Writes the nonce byte by byte, so that it lies at any place.
fn fill_bytes(start: *mut u8, bytes: usize, nonce: [u64; 2]) {
    let text = nonce.map(u64::to_le_bytes);
    for (n, byte) in text.as_flattened().iter().cycle().take(bytes).enumerate() {
        // SAFETY: the callers give what they own.
        unsafe { start.add(n).write_volatile(*byte) };
    }
}

/// Fills the stack below the caller's frame, so many frames deep.
#[inline(never)]
pub(crate) fn sink(depth: u64, nonce: [u64; 2]) {
    let mut frame = [0_u64; 512];
    fill(frame.as_mut_ptr() as u64, size_of_val(&frame) as u64, nonce);
    if depth > 0 {
        sink(depth - 1, nonce);
    }
    black_box(&frame);
}

/// Fills all memory that there is, and then wants more.
pub(crate) fn exhaust(nonce: [u64; 2]) {
    loop {
        let block = vec![nonce; 1 << 13];
        black_box(&block);
        std::mem::forget(block);
    }
}

pub(crate) fn everywhere(nonce: [u64; 2], text: &str) -> Vec<Place> {
    let mut places: Vec<Place> = Vec::new();
    let mut note = |what: &str, address: u64, bytes: u64| places.push((what.to_owned(), address, bytes));
    let mut fill_and_note = |what: &str, address: u64, bytes: u64| {
        fill(address, bytes, nonce);
        note(what, address, bytes);
    };

    fill_and_note("zero statics", ZERO.as_ptr() as u64, size_of_val(&ZERO) as u64);
    fill_and_note("other statics", FILLED.as_ptr() as u64, size_of_val(&FILLED) as u64);
    OWN.with(|own| fill_and_note("thread-locals", own.as_ptr() as u64, size_of_val(own) as u64));
    black_box((ZERO[0].load(Ordering::Relaxed), FILLED[0].load(Ordering::Relaxed)));

    // As much is given at once as is asked for here; of the larger ones, what is touched.
    let map = |pages: u64| system::map(pages * PAGE).expect("there is memory");
    for (what, pages) in [("small mapping", 3), ("large mapping", 100)] {
        fill_and_note(what, map(pages), pages * PAGE);
        let unmapped = map(pages);
        fill(unmapped, pages * PAGE, nonce);
        system::unmap(unmapped, pages * PAGE);
        let forgotten = map(pages);
        fill(forgotten, pages * PAGE, nonce);
        system::forget(forgotten, pages * PAGE);
        let hidden = map(pages);
        fill(hidden, pages * PAGE, nonce);
        system::restrict(hidden, pages * PAGE, false);
    }
    let sealed = map(4);
    fill_and_note("read-only mapping", sealed, 4 * PAGE);
    system::restrict(sealed, 4 * PAGE, true);
    let (moved, place) = (map(4), map(4));
    fill(moved, 4 * PAGE, nonce);
    fill(place, 4 * PAGE, nonce);
    system::relocate(moved, place, 4 * PAGE);
    note("moved mapping", place, 4 * PAGE);
    fill(system::grow_break(200 * PAGE), 200 * PAGE, nonce);
    note("below the break", system::grow_break(0) - 200 * PAGE, 200 * PAGE);

    let kept: &[[u64; 2]] = vec![nonce; WORDS].leak();
    note("heap, kept", kept.as_ptr() as u64, size_of_val(kept) as u64);
    let freed = vec![nonce; 8 * WORDS];
    note("heap, freed", freed.as_ptr() as u64, (freed.len() * 16) as u64);
    drop(black_box(freed));

    // Where argument and environment strings lie, and where the text that is given back lies afterwards.
    for argument in coracle_guest::args().skip(1) {
        fill_bytes(argument.as_ptr().cast_mut(), argument.len(), nonce);
        note("arguments", argument.as_ptr() as u64, argument.len() as u64);
    }
    for (start, bytes) in environment() {
        fill_bytes(start, bytes, nonce);
        note("environment", start as u64, bytes as u64);
    }
    note("inbound buffer, arguments", text.as_ptr() as u64, text.len() as u64);
    // SAFETY: the host maps it for every guest of the SDK.
    let boot = unsafe { (BOOT_PAGE as *const BootInfo).read() };
    // Behind what later frames overwrite; the log's first words say what is in it.
    let behind = |region: Region| (region.address + region.bytes / 2, region.bytes / 2);
    for (what, region) in [("inbound messages", boot.inbound), ("outbound messages", boot.outbound), ("log", boot.log)]
    {
        let (address, bytes) = behind(region);
        fill(address, bytes, nonce);
        note(what, address, bytes);
    }

    static mut TOLD: [[u64; 4]; 64] = [[0; 4]; 64];
    let told = &raw mut TOLD;
    // SAFETY: there is one thread, and no other reference.
    let told = unsafe { &mut *told };
    system::spread(nonce, told);
    note("what the host told", told.as_ptr() as u64, size_of_val(told) as u64);

    let here = 0_u8;
    sink(30, nonce);
    let top = &raw const here as u64;
    note("stack", top - 30 * 512 * 8, 28 * 512 * 8);
    places
}

/// The environment's strings.
fn environment() -> Vec<(*mut u8, usize)> {
    unsafe extern "C" {
        static mut environ: *const *mut c_char;
    }
    // SAFETY: the C library's, set when it started.
    let mut next = unsafe { environ };
    let mut found = Vec::new();
    loop {
        // SAFETY: an entry, or the null pointer at the end.
        let string = unsafe { next.read() };
        if string.is_null() {
            return found;
        }
        // SAFETY: entries end with a zero byte, which stays.
        found.push((string.cast(), unsafe { std::ffi::CStr::from_ptr(string) }.count_bytes()));
        // SAFETY: not behind the null pointer.
        next = unsafe { next.add(1) };
    }
}
