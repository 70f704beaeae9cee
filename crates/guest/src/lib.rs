//! Write guests for Coracle: functions that a host calls inside a micro-VM.
//!
//! A guest is an ordinary static Linux program. It marks functions with [`function`] and has a [`main!`] instead of a
//! `main`:
//!
//! ```no_run
//! #![no_main]
//!
//! /// A function of the host.
//! #[coracle_guest::host]
//! fn time_of_day() -> String;
//!
//! #[coracle_guest::function]
//! fn greet(name: &str) -> String {
//!     format!("Good {}, {name}!", time_of_day())
//! }
//!
//! coracle_guest::main!();
//! ```
//!
//! Build it with `cargo build --release --target x86_64-unknown-linux-musl`, load it with the `coracle` library or
//! `coracle call`. Nothing else is needed: no linker script, no special target, no registration.
//!
//! # Types
//! Arguments and results are any type that derives serde's traits and [`Schema`]:
//!
//! ```
//! # fn main() {}
//! use coracle_guest::serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize, coracle_guest::Schema)]
//! #[serde(crate = "coracle_guest::serde")]
//! #[postcard(crate = coracle_guest::postcard_schema)]
//! struct Point {
//!     x: i32,
//!     y: i32,
//! }
//!
//! #[coracle_guest::function]
//! fn mirrored(point: Point) -> Point {
//!     Point { x: point.y, y: point.x }
//! }
//! ```
//!
//! `&str` and `&[u8]` are read where the host left them. A function that returns a `Result` gives its error's text to
//! the host.
//!
//! # What a guest can use
//! The whole standard library, as far as the host answers the system calls behind it: memory, clocks, random bytes, the
//! standard streams; no files, no network, no threads. [`init_data`] is what the host gave this sandbox, and
//! [`mapping`] finds what it lends by name.
//! [`args`] are the program's arguments; the environment is where it always is.
//!
//! A panic ends the sandbox and is reported with its message and place. It never unwinds.
//!
//! # Features
//! | feature | default | what it does |
//! |---|---|---|
//! | `std` | yes | the program uses the standard library |
//! | `heap` | yes | the sandbox's heap is the program's global allocator |
//! | `log` | yes | records of the `log` crate reach the host |
//! | `tracing` | no | events of the `tracing` crate reach the host |
//!
//! # Without the standard library
//! A `#![no_std]` guest depends on this crate with `default-features = false, features = ["heap"]`, builds with
//! `panic = "abort"`, and tells the linker in its `build.rs` to start here rather than in a C library:
//!
//! ```no_run
//! println!("cargo::rustc-link-arg-bins=-Wl,-e,coracle_start");
//! ```
//!
//! This crate then has the panic handler and the functions for copying memory that the compiler calls. Without the
//! feature `heap` the program brings a global allocator of its own.
#![cfg_attr(not(any(feature = "std", test)), no_std)]

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!(
    "guests are x86-64 Linux programs: build with --target x86_64-unknown-linux-musl, or with x86_64-unknown-linux-gnu \
     and -C target-feature=+crt-static"
);

#[doc(hidden)] // For what the macros expand to, by way of `__private`.
pub extern crate alloc;

mod bytes;
mod function;
#[cfg(feature = "std")]
mod hash;
mod host;
mod logging;
mod rt;

pub use bytes::Bytes;
/// Lets the host call this function, by its name or by the one in `#[function(name = "...")]`.
///
/// Parameters are owned values, or references: `&str` and `&[u8]` point to what the host left, `&T` to a value that is
/// made for the call. At most six. The result is copied to the host; a `Result` is taken apart, and the `Display` of
/// its error is what the host gets. The host knows the signature before it runs the program: from a note that is made
/// here.
///
/// A result's `Serialize` cannot call the host, which answers with an error: it is about to get the result.
///
/// ```
/// # fn main() {}
/// #[coracle_guest::function]
/// fn longest(words: Vec<&str>) -> Option<String> {
///     words.into_iter().max_by_key(|word| word.len()).map(str::to_owned)
/// }
///
/// #[coracle_guest::function(name = "math.divide")]
/// fn divide(a: i64, b: i64) -> Result<i64, &'static str> {
///     a.checked_div(b).ok_or("division by zero")
/// }
/// ```
pub use coracle_guest_macros::function;
/// Declares a function of the host, which the program then calls like any other.
///
/// The host that loads the program must offer it under this name with these types, or it is refused. If it returns
/// `Result<T, HostError>`, or a `Result` whose error is made `From` a [`HostError`], the host's error is given to the
/// caller; else the program panics with it.
///
/// With `#[host(notify)]` the program goes on at once: the host gets the call with all else that it is sent, when the call
/// that is being served ends or waits for a reply. Such a function returns nothing, and the program does not learn whether
/// it failed. An argument's `Serialize` cannot call the host in turn, which answers with an error.
///
/// ```no_run
/// use coracle_guest::HostError;
///
/// #[coracle_guest::host]
/// fn time_of_day() -> String;
///
/// #[coracle_guest::host(name = "fs.read")]
/// fn read(path: &str) -> Result<Vec<u8>, HostError>;
///
/// let settings = read("settings").unwrap_or_default();
/// ```
pub use coracle_guest_macros::host;
#[cfg(feature = "std")]
pub use hash::RandomState;
pub use host::HostError;
pub use postcard_schema::{self, Schema};
pub use rt::{Mapping, mapping};
pub use serde;

use rt::boot::Boot;

/// What the host gave this sandbox by `init_data`, in place. Empty if it gave nothing.
///
/// ```no_run
/// let settings = std::str::from_utf8(coracle_guest::init_data()).expect("the host gives text");
/// ```
pub fn init_data() -> &'static [u8] {
    Boot::get().map_or(&[], Boot::init_data)
}

/// A number that differs after every boot, restore and spawn of this sandbox: what was derived from random bytes under
/// another one must be made anew. 0 outside of a sandbox.
pub fn generation() -> u64 {
    Boot::get().map_or(0, |boot| boot.info().generation)
}

/// The program's arguments, its name first.
///
/// `std::env::args` has them with some C libraries only, since the standard library's start does not run.
pub fn args() -> impl Iterator<Item = &'static str> {
    rt::boot::arguments()
}

/// Fills `out` with random bytes.
///
/// They come from the host, by the system call `getrandom`: fresh each time, also in sandboxes that are copies of each
/// other. Each call is an exit; whoever needs many small numbers seeds a generator, and does so again when
/// [`generation`] changes.
///
/// # Panics
/// If the host has none to give.
pub fn fill_random(out: &mut [u8]) {
    rt::system::random(out).expect("the host gives random bytes");
}

/// Makes the program a guest, in place of `fn main`. The program is `#![no_main]`.
///
/// `main!(init)` calls the function `init` first. It may take its time, call the host and read [`init_data`]; what it
/// leaves in statics is there for all calls, and in every copy of the sandbox. If it returns an `Err`, the sandbox is
/// not made, and its maker gets the error's text.
///
/// ```no_run
/// #![no_main]
///
/// use std::sync::OnceLock;
///
/// static GREETING: OnceLock<&str> = OnceLock::new();
///
/// fn init() -> Result<(), std::str::Utf8Error> {
///     let greeting = std::str::from_utf8(coracle_guest::init_data())?;
///     GREETING.get_or_init(|| greeting);
///     Ok(())
/// }
///
/// coracle_guest::main!(init);
/// ```
#[cfg(feature = "std")]
#[macro_export]
macro_rules! main {
    () => {
        $crate::main!(|| ());
    };
    ($init:expr) => {
        const _: () = {
            $crate::__abi_note!();

            #[unsafe(no_mangle)]
            extern "C" fn main(
                _: ::core::ffi::c_int,
                arguments: *const *const ::core::ffi::c_char,
            ) -> ::core::ffi::c_int {
                // SAFETY: called by the C library's start, with what it got.
                unsafe { $crate::__private::start(arguments, $init) }
            }
        };
    };
}

/// Makes the program a guest, in place of `fn main`. The program is `#![no_main]`.
///
/// `main!(init)` calls the function `init` first. It may take its time, call the host and read [`init_data`]; what it
/// leaves in statics is there for all calls, and in every copy of the sandbox. If it returns an `Err`, the sandbox is
/// not made, and its maker gets the error's text.
#[cfg(not(feature = "std"))]
#[macro_export]
macro_rules! main {
    () => {
        $crate::main!(|| ());
    };
    ($init:expr) => {
        const _: () = {
            $crate::__abi_note!();

            #[unsafe(no_mangle)]
            unsafe extern "C" fn coracle_main(stack: *const ::core::primitive::usize) -> ! {
                // SAFETY: called by the entry point, with the initial stack pointer.
                unsafe { $crate::__private::start(stack, $init) }
            }
        };
    };
}

/// The note with the ABI version. In the program itself, so that the linker keeps it.
#[doc(hidden)]
#[macro_export]
macro_rules! __abi_note {
    () => {
        #[used]
        #[unsafe(link_section = ".note.coracle")]
        static CORACLE_ABI: $crate::__private::abi::note::Note<
            { $crate::__private::abi::note::abi_bytes($crate::__private::SDK) },
        > = $crate::__private::abi::note::Note::abi($crate::__private::abi::ABI_VERSION, $crate::__private::SDK);
    };
}

/// What the macros expand to uses this, and nobody else should.
#[doc(hidden)]
pub mod __private {
    pub use crate::function::{FUNCTIONS, Failure, Function, Invoke, Output, decode};
    pub use crate::host::{host_call, host_notify};
    pub use crate::rt::start;
    pub use {alloc, coracle_abi as abi, linkme, postcard_schema};

    /// Name and version of this crate, for the ABI note.
    pub const SDK: &str = concat!("coracle-guest ", env!("CARGO_PKG_VERSION"));
}
