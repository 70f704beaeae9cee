//! Never answers.
#![no_main]

coracle_guest::main!();

#[coracle_guest::function]
fn go() {
    loop {
        std::hint::spin_loop();
    }
}
