//! Exits when an answer is due.
#![no_main]

coracle_guest::main!();

#[coracle_guest::function]
fn go() {
    std::process::exit(3);
}
