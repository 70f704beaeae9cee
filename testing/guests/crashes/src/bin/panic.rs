//! Panics.
#![no_main]

coracle_guest::main!();

#[coracle_guest::function]
fn go() {
    panic!("on purpose");
}
