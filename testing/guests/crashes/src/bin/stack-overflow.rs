//! Recurses without end.
#![no_main]

coracle_guest::main!();

#[coracle_guest::function]
fn go() {
    std::hint::black_box(deeper(&[0; 128]));
}

#[inline(never)]
#[expect(unconditional_recursion, reason = "this is the crash")]
fn deeper(above: &[u64; 128]) -> u64 {
    let mine = std::hint::black_box([above[0] + 1; 128]);
    deeper(&mine) + mine[1]
}
