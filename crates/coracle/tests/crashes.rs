//! Each way to crash has its own cause, and the host lives on.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use coracle::{Cause, ErrorKind, Image, Sandbox, Status};
use coracle_artifacts as guests;
use coracle_artifacts::RustGuest;
use coracle_testing::{kvm_or_skip, patiently};

/// A crash must be reported in this time. Far above what it takes, since the machine may be loaded.
const AT_ONCE: Duration = Duration::from_millis(10);

fn check(guest: RustGuest, want: &Cause) {
    let image = Image::from_path(guest.path()).unwrap();
    let mut fastest = Duration::MAX;
    for _ in 0..3 {
        let mut sandbox = Sandbox::builder(&image).build().unwrap();
        let start = Instant::now();
        let error = sandbox.call::<()>("go", ()).unwrap_err();
        fastest = fastest.min(start.elapsed());
        assert_eq!(error.kind(), ErrorKind::GuestStopped, "{guest:?}: {error}");
        let report = error.crash().unwrap();
        assert_eq!(&report.cause, want, "{guest:?}: {report}");
        assert_eq!(sandbox.status(), Status::Poisoned);
        assert_eq!(sandbox.call::<()>("go", ()).unwrap_err().kind(), ErrorKind::Unusable);
    }
    if *want != Cause::OutOfMemory {
        // That one fills its memory first.
        assert!(fastest < AT_ONCE, "{guest:?} took {fastest:?}");
    }
}

#[test]
fn every_crash_has_its_cause() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        for (guest, cause) in [
            (guests::NULL_POINTER, Cause::NullPointer),
            (guests::STACK_OVERFLOW, Cause::StackOverflow),
            (guests::WRITE_TO_READ_ONLY, Cause::WriteToReadOnly),
            (guests::WRITE_TO_CODE, Cause::WriteToReadOnly),
            (guests::EXECUTE_DATA, Cause::ExecuteOfData),
            (guests::UNMAPPED_MEMORY, Cause::UnmappedMemory),
            (guests::DIVISION_BY_ZERO, Cause::DivisionByZero),
            (guests::ILLEGAL_INSTRUCTION, Cause::IllegalInstruction),
            (guests::PRIVILEGED_INSTRUCTION, Cause::PrivilegedInstruction),
            (guests::FORBIDDEN_PORT, Cause::ForbiddenPort(Some(0x80))),
            (guests::OUT_OF_MEMORY, Cause::OutOfMemory),
            (guests::ABORT, Cause::Abort),
            (guests::EXIT_WITHOUT_ANSWER, Cause::ExitedWithoutAnswer(3)),
        ] {
            check(guest, &cause);
        }
        // And the next sandbox is as good as the first.
        let image = Image::from_path(guests::ECHO_NOSTD.path()).unwrap();
        let builder = Sandbox::builder(&image).host_fn("greet", |name: String| Ok::<_, String>(name));
        let mut sandbox = builder.build().unwrap();
        assert_eq!(sandbox.call::<i32>("add", (2, 2)).unwrap(), 4);
    });
}

#[test]
fn a_report_names_the_function() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        let image = Image::from_path(guests::NULL_POINTER.path()).unwrap();
        let error = Sandbox::builder(&image).build().unwrap().call::<()>("go", ()).unwrap_err();
        let report = error.crash().unwrap();
        assert_eq!((report.vector, report.address), (Some(14), Some(0)));
        assert!(report.place.as_ref().unwrap().function.contains("null_pointer"), "{report}");
        assert!(report.to_string().contains("rip") || report.to_string().contains("at 0x"), "{report}");
    });
}

#[test]
fn a_panic_has_message_and_location() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        let image = Image::from_path(guests::PANIC.path()).unwrap();
        let error = Sandbox::builder(&image).build().unwrap().call::<()>("go", ()).unwrap_err();
        match &error.crash().unwrap().cause {
            Cause::Panic { message, location } => {
                assert_eq!(message, "on purpose");
                assert!(location.contains("panic.rs:"), "{location}");
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_guest_that_never_answers_is_stopped() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        let image = Image::from_path(guests::ENDLESS_LOOP.path()).unwrap();
        let mut sandbox = Sandbox::builder(&image).timeout(Duration::from_millis(50)).build().unwrap();
        assert_eq!(sandbox.call::<()>("go", ()).unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!(sandbox.status(), Status::Poisoned);
    });
}
