//! What Coracle's own tests share: skipping aloud, a watchdog, and a look at the memory that things take.
//!
//! A test that cannot run here says so on standard error, past the capture of the test harness, so that a green run
//! shows what it did not look at. With `CORACLE_REQUIRE_KVM=1` a missing KVM fails instead.

pub mod usage;

use std::io::Write as _;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use coracle_vm::kvm::{CpuTemplate, Kvm};

/// How long a test may take unless it says otherwise. Guests on a loaded machine are slow; hangs are for ever.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// KVM, or `None` after having said why not.
///
/// # Panics
/// Without KVM, if `CORACLE_REQUIRE_KVM` is `1`.
pub fn kvm_or_skip() -> Option<Kvm> {
    match Kvm::open(CpuTemplate::Host) {
        Ok(kvm) => Some(kvm),
        Err(error) => {
            assert!(
                std::env::var_os("CORACLE_REQUIRE_KVM").is_none_or(|value| value != "1"),
                "KVM is required: {error}"
            );
            skip(&format!("no KVM: {error}"));
            None
        }
    }
}

/// Says that the test of the current thread was skipped, and why, where a person sees it.
pub fn skip(why: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    // Not by a macro: the test harness would keep the text to itself.
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {why}");
}

/// Runs a test's body, and fails the test when it takes longer than [`PATIENCE`]. What it was doing goes on in a thread
/// of its own until the process ends, so that one stuck guest fails one test and not the whole run.
///
/// # Panics
/// When the body does, and when it takes too long.
#[track_caller]
pub fn patiently(body: impl FnOnce() + Send + 'static) {
    within(PATIENCE, body);
}

/// Like [`patiently`], with another limit.
///
/// # Panics
/// When the body does, and when it takes too long.
#[track_caller]
pub fn within(limit: Duration, body: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        body();
        let _ = done.send(());
    });
    let thread = match thread {
        Ok(thread) => thread,
        Err(error) => panic!("no thread for the test's body: {error}"),
    };
    loop {
        match wait.recv_timeout(limit) {
            // Building guests takes as long as it takes.
            Err(RecvTimeoutError::Timeout) if coracle_artifacts::is_building() => {}
            Err(RecvTimeoutError::Timeout) => panic!("stuck: the test took longer than {limit:?}"),
            // When it panicked, `join` says so.
            Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "stuck")]
    fn a_stuck_body_fails_its_test() {
        within(Duration::from_millis(20), || std::thread::sleep(Duration::from_secs(600)));
    }

    #[test]
    #[should_panic(expected = "its own words")]
    fn a_panic_keeps_its_words() {
        patiently(|| panic!("its own words"));
    }

    #[test]
    fn a_quick_body_passes() {
        patiently(|| {});
    }
}
