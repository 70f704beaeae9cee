//! The runtime: from the program's first instruction to its last.
//!
//! All unsafe code of this crate is below here. Each file has one reason for it:
//!
//! | file | what it does |
//! |---|---|
//! | `start_std.rs`, `start_none.rs` | how the program gets from its entry point to [`run`] |
//! | `memory_functions.rs` | what the compiler expects of a C library, where there is none |
//! | `boot.rs` | the boot page and the program's arguments |
//! | `mapping.rs` | what the host lends by name |
//! | `window.rs` | copies in and out of shared memory |
//! | `encode.rs` | texts in shared memory (no unsafe code) |
//! | `link.rs` | messages: calls, host calls, panics |
//! | `records.rs` | log records (no unsafe code) |
//! | `doorbell.rs` | handing over to the host |
//! | `heap.rs`, `fallback_*.rs` | the global allocator |
//! | `panic_std.rs`, `panic_none.rs` | who hears of a panic (no unsafe code) |
//! | `system.rs` | three system calls |

pub(crate) mod boot;
mod doorbell;
pub(crate) mod encode;
#[cfg(feature = "heap")]
#[cfg_attr(feature = "std", path = "fallback_std.rs")]
#[cfg_attr(not(feature = "std"), path = "fallback_none.rs")]
mod fallback;
#[cfg_attr(not(feature = "heap"), path = "heap_none.rs")]
mod heap;
mod link;
mod mapping;
#[cfg(any(test, not(feature = "std")))]
mod memory_functions;
#[cfg_attr(feature = "std", path = "panic_std.rs")]
#[cfg_attr(not(feature = "std"), path = "panic_none.rs")]
mod panic;
#[cfg_attr(not(any(feature = "log", feature = "tracing")), allow(dead_code, reason = "nothing logs"))]
mod records;
#[cfg_attr(feature = "std", path = "start_std.rs")]
#[cfg_attr(not(feature = "std"), path = "start_none.rs")]
mod start;
pub(crate) mod system;
pub(crate) mod window;

use core::fmt::Display;
use core::panic::Location;

pub use mapping::{Mapping, mapping};
pub use start::start;

use crate::function::FUNCTIONS;
use boot::Boot;
use link::{Link, State};

static STATE: State = State::new();

/// Exit code of a program that was started outside of a sandbox.
const NO_SANDBOX: i32 = 2;

const HOW_TO_RUN: &str = "this is a Coracle guest: it has functions to be called, and does nothing by itself.\n\
                          Run it with `coracle call PROGRAM FUNCTION [ARGUMENTS]`, or load it with the coracle library.\n";

/// What a program's own `init` may return.
pub trait InitResult {
    /// The error, if it is one.
    fn error(self) -> Option<impl Display>;
}

impl InitResult for () {
    fn error(self) -> Option<impl Display> {
        None::<&str>
    }
}

impl<E: Display> InitResult for Result<(), E> {
    fn error(self) -> Option<impl Display> {
        self.err()
    }
}

/// The way to the host, if there is one.
pub(crate) fn link() -> Option<Link<'static, impl Fn()>> {
    Boot::get().map(link_of)
}

fn link_of(boot: Boot) -> Link<'static, impl Fn()> {
    Link {
        queues: boot.queues(),
        outbound: boot.outbound(),
        large: boot.outbound_large(),
        log: boot.log(),
        payload_bytes: boot.info().payload_bytes as usize,
        state: &STATE,
        ring: move || doorbell::ring(boot),
    }
}

/// The program's whole life, once the boot page has been looked for.
fn run<I: InitResult>(boot: Option<Boot>, init: impl FnOnce() -> I) -> ! {
    let Some(boot) = boot else {
        system::complain(HOW_TO_RUN);
        system::exit(NO_SANDBOX);
    };
    panic::install();
    crate::logging::install();
    if let Some(error) = init().error() {
        let link = link_of(boot);
        link.error(error);
        link.ring();
        system::exit(1); // The host does not enter again.
    }
    heap::seal();
    let link = link_of(boot);
    link.ready(&FUNCTIONS);
    loop {
        link.ring();
        heap::forget_refusal(boot);
        while link.serve(&FUNCTIONS) {}
    }
}

/// Tells the host of a panic, which is the program's end.
fn panicked(message: impl Display, location: Option<&Location<'_>>) -> ! {
    if let Some(boot) = Boot::get() {
        // `alloc` panics when memory is refused, where the standard library aborts. That is what the host tells best.
        let of_alloc = location.is_some_and(|location| location.file().ends_with("alloc/src/alloc.rs"));
        if of_alloc && heap::was_refused(boot) {
            system::abort();
        }
        link_of(boot).panic(message, location);
    }
    system::exit(101); // The host does not enter again.
}
