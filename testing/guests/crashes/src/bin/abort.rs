//! Aborts.
#![no_main]

coracle_guest::main!();

#[coracle_guest::function]
fn go() {
    std::process::abort();
}
