//! Wants more memory than it may have, and cannot go on without.
#![no_main]

coracle_guest::main!();

#[coracle_guest::function]
fn go() {
    let mut blocks = Vec::new();
    loop {
        blocks.push(vec![1_u8; 1 << 20]);
        std::hint::black_box(&blocks);
    }
}
