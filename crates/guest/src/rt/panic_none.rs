//! Panics of programs without the standard library.

/// There is nothing to set: the handler is part of the program.
pub(super) fn install() {}

#[cfg(not(test))]
#[panic_handler]
fn handle(panic: &core::panic::PanicInfo<'_>) -> ! {
    super::panicked(panic.message(), panic.location());
}
