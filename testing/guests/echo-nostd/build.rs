//! Tells the linker where this program starts: not in a C library.

fn main() {
    println!("cargo::rustc-link-arg-bins=-Wl,-e,coracle_start");
}
