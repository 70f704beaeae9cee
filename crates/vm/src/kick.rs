//! Stopping a running vCPU from another thread, by a signal that does nothing but interrupt.
#![allow(unsafe_code)] // One of the crate's four unsafe files: installing a signal handler and sending the signal.

use std::io;
use std::sync::OnceLock;

/// A thread of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThreadId(libc::pid_t);

/// The thread that asks.
pub fn current_thread() -> ThreadId {
    ThreadId(rustix::thread::gettid().as_raw_nonzero().get())
}

/// The signal that interrupts. Real-time signals from this number on are free for programs to use; the first few are
/// common choices, so that this takes a later one.
fn signal() -> libc::c_int {
    libc::SIGRTMIN() + 7
}

/// Sees to it that the signal interrupts instead of ending the process.
///
/// # Errors
/// The kernel's.
pub(crate) fn prepare() -> io::Result<()> {
    static PREPARED: OnceLock<Result<(), i32>> = OnceLock::new();
    extern "C" fn interrupt(_: libc::c_int) {}
    let outcome = PREPARED.get_or_init(|| {
        // SAFETY: `sigaction` is plain data for which all zeros is a valid value: no handler, no flags, empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // Without SA_RESTART, so that a system call of the host that waits for the guest's sake returns too.
        action.sa_sigaction = interrupt as *const () as libc::sighandler_t;
        // SAFETY: `action` is initialised, its handler does nothing and so is async-signal-safe; no old action is asked.
        let result = unsafe { libc::sigaction(signal(), &raw const action, std::ptr::null_mut()) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error().raw_os_error().unwrap_or(0)) }
    });
    outcome.map_err(io::Error::from_raw_os_error)
}

/// Interrupts what `thread` waits for in the kernel. A thread that has ended is left alone.
pub(crate) fn interrupt(thread: ThreadId) {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: `tgkill` takes three numbers and touches no memory. The signal's handler does nothing (`prepare` ran when
    // the vCPU was made), so that whichever thread of this process gets it only has a system call interrupted.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread.0, signal()) };
}
