//! A guest that does not keep to the protocol, played by a script: no KVM needed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use coracle::fake::{FakeGuest, Step};
use coracle::{Cause, ErrorKind, Sandbox, Status};
use coracle_abi::frame::{Header, Kind};
use coracle_abi::signature;
use coracle_testing::patiently;
use coracle_vm::Exit;

fn sandbox(guest: &FakeGuest) -> Sandbox {
    // A script that never answers is stopped, too.
    let builder = Sandbox::builder(&guest.image()).backend(guest.backend()).timeout(Duration::from_secs(10));
    builder.host_fn("twice", |n: u32| n.checked_mul(2).ok_or("too large")).build().unwrap()
}

/// A guest whose function `go` leaves this frame.
fn leaves(header: Header, payload: &'static [u8]) -> FakeGuest {
    FakeGuest::new().script::<(), u32>("go", move |_| Step::Frame(header, payload.to_vec()))
}

#[track_caller]
fn violates(header: Header, payload: &'static [u8]) {
    let mut sandbox = sandbox(&leaves(header, payload));
    let error = sandbox.call::<u32>("go", ()).unwrap_err();
    let cause = &error.crash().unwrap().cause;
    assert!(matches!(cause, Cause::ProtocolViolation(_)), "{header:?}: {cause:?}");
    assert_eq!(sandbox.status(), Status::Poisoned);
    assert_eq!(sandbox.call::<u32>("go", ()).unwrap_err().kind(), ErrorKind::Unusable);
}

/// A frame that belongs to the first call.
fn first(kind: Kind) -> Header {
    Header { correlation: 1, ..Header::new(kind) }
}

#[test]
fn frames_of_no_kind_or_of_the_hosts_are_refused() {
    for kind in (0..=255).filter(|kind| !matches!(kind, 2 | 3 | 5 | 6)) {
        violates(Header { kind, ..first(Kind::Reply) }, b"");
    }
}

#[test]
fn a_frame_of_another_call_is_refused() {
    for correlation in [0, 2, u64::MAX] {
        violates(Header { correlation, bytes: 1, ..Header::new(Kind::Reply) }, &[7]);
    }
}

#[test]
fn a_frame_that_claims_too_much_is_refused() {
    for bytes in [0x4_0001, 0x10_0000, u32::MAX] {
        violates(Header { bytes, ..first(Kind::Reply) }, b"");
    }
}

#[test]
fn a_result_of_another_type_is_refused() {
    violates(Header { bytes: 0, ..first(Kind::Reply) }, b"");
    violates(Header { bytes: 2, ..first(Kind::Reply) }, &[1, 1]);
    violates(Header { bytes: 6, ..first(Kind::Reply) }, &[0xff; 6]);
}

#[test]
fn a_reply_wanted_elsewhere_is_refused() {
    // The buffer is 256 KiB and a header, in whole pages: 0x4_1000 bytes.
    for reply_at in [1, 7, 0x4_0fe0, 0x4_0ff8, 0x4_1000, 0xffff_fff8, u32::MAX] {
        violates(Header { reply_at, ..first(Kind::HostCall) }, b"");
    }
}

#[test]
fn an_error_is_text_whatever_its_bytes() {
    let mut sandbox = sandbox(&leaves(Header { bytes: 4, ..first(Kind::Error) }, &[b'n', 0xff, b'o', 0xfe]));
    let error = sandbox.call::<u32>("go", ()).unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::GuestReturned, "n\u{fffd}o\u{fffd}"));
}

#[test]
fn host_calls_are_answered_in_turn() {
    let key = signature::hash("twice(u32) -> u32");
    let guest = FakeGuest::new().script::<u32, u32>("go", move |arguments| Step::HostCall {
        key,
        arguments: arguments.to_vec(),
        then: Box::new(|good, payload| {
            if good {
                Step::Reply(payload.to_vec())
            } else {
                Step::Error(String::from_utf8_lossy(payload).into_owned())
            }
        }),
    });
    let mut sandbox = sandbox(&guest);
    assert_eq!(sandbox.call::<u32>("go", 21_u32).unwrap(), 42);
    let error = sandbox.call::<u32>("go", u32::MAX).unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::GuestReturned, "too large"));
    assert_eq!(sandbox.stats().host_calls, 2);
}

#[test]
fn a_host_call_to_nobody_is_an_error_in_the_guest() {
    let guest = FakeGuest::new().script::<(), u32>("go", |_| Step::HostCall {
        key: 0xdead,
        arguments: Vec::new(),
        then: Box::new(|good, _| Step::Error(if good { "good".into() } else { "refused".into() })),
    });
    assert_eq!(sandbox(&guest).call::<u32>("go", ()).unwrap_err().to_string(), "refused");
}

#[test]
fn every_exit_that_is_no_answer_stops_the_guest() {
    for exit in [Exit::Shutdown, Exit::Unexpected(17), Exit::Unexpected(u32::MAX)] {
        let guest = FakeGuest::new().script::<(), u32>("go", move |_| Step::Exit(exit));
        let mut sandbox = sandbox(&guest);
        let error = sandbox.call::<u32>("go", ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::GuestStopped);
        assert_eq!(sandbox.status(), Status::Poisoned);
    }
}

#[test]
fn a_guest_that_only_flushes_is_stopped_by_the_deadline() {
    patiently(|| {
        let guest = leaves(first(Kind::Flush), b"");
        let builder = Sandbox::builder(&guest.image()).backend(guest.backend());
        let mut sandbox = builder.timeout(Duration::from_millis(50)).build().unwrap();
        assert_eq!(sandbox.call::<u32>("go", ()).unwrap_err().kind(), ErrorKind::TimedOut);
    });
}
