//! Reads where nothing is mapped.
#![no_main]

coracle_guest::main!();

#[coracle_guest::function]
fn go() {
    let nowhere = std::hint::black_box(0x1234_5678_9000_usize as *const u64);
    // SAFETY: none: this is the crash.
    let value = unsafe { nowhere.read_volatile() };
    std::hint::black_box(value);
}
