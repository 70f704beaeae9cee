//! A guest that does not keep to the protocol, played by a script: no KVM needed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use coracle::fake::{FakeGuest, Segment, Step, Wire, message};
use coracle::{Cause, ErrorKind, Sandbox, Status};
use coracle_abi::message::{Header, Kind};
use coracle_abi::queue::{CALLS, MESSAGES};
use coracle_abi::{map, signature};
use coracle_testing::patiently;
use coracle_vm::Exit;

fn sandbox(guest: &FakeGuest) -> Sandbox {
    // A script that never answers is stopped, too.
    let builder = Sandbox::builder(&guest.image()).backend(guest.backend()).timeout(Duration::from_secs(10));
    builder.host_fn("twice", |n: u32| n.checked_mul(2).ok_or("too large")).build().unwrap()
}

/// A guest whose function `go` does this to the queues.
fn does(act: impl Fn(&mut Wire<'_, '_>) + Send + Sync + 'static) -> FakeGuest {
    let act = Arc::new(act);
    FakeGuest::new().script::<(), u32>("go", move |_| {
        let act = Arc::clone(&act);
        Step::Wire(Box::new(move |wire| act(wire)))
    })
}

/// Whatever it did: the sandbox is poisoned, and works again when it was restored.
#[track_caller]
fn violates(what: &str, act: impl Fn(&mut Wire<'_, '_>) + Send + Sync + 'static) {
    let mut sandbox = sandbox(&does(act).function("fine", |n: u32| Ok::<_, String>(n + 1)));
    let clean = sandbox.snapshot().unwrap();
    for n in 0..3 {
        let error = sandbox.call::<u32>("go", ()).unwrap_err();
        let cause = &error.crash().unwrap_or_else(|| panic!("{what}: {error}")).cause;
        assert!(matches!(cause, Cause::ProtocolViolation(_)), "{what}: {cause:?}");
        assert_eq!(sandbox.status(), Status::Poisoned, "{what}");
        assert_eq!(sandbox.call::<u32>("go", ()).unwrap_err().kind(), ErrorKind::Unusable, "{what}");
        sandbox.restore(&clean).unwrap();
        for _ in 0..70 {
            assert_eq!(sandbox.call::<u32>("fine", n).unwrap(), n + 1, "{what}");
        }
    }
}

/// Sends this message.
#[track_caller]
fn sends(header: Header, key: Option<u64>, payload: &'static [u8]) {
    violates(&format!("{header:?}"), move |wire| {
        assert!(wire.send(&message(Header { correlation: header.correlation, ..header }, key, payload)));
    });
}

/// A message that belongs to the call. Each call of `violates` is the first after a restore, but for those that come
/// before it: the script does not know its number, so it asks.
fn of_the_call(wire: &mut Wire<'_, '_>, kind: u8, payload: &[u8]) -> Vec<u8> {
    message(Header { kind, ..wire.current() }, None, payload)
}

#[test]
fn messages_of_no_kind_or_of_the_hosts_are_refused() {
    for kind in (0..=255).filter(|kind| !matches!(kind, 2 | 3 | 5 | 6)) {
        violates(&format!("kind {kind}"), move |wire| {
            let bytes = of_the_call(wire, kind, b"");
            assert!(wire.send(&bytes));
        });
    }
}

#[test]
fn a_message_of_another_call_is_refused() {
    for correlation in [0, u32::MAX] {
        sends(Header { correlation, ..Header::new(Kind::Reply) }, None, &[7]);
        sends(Header { correlation, ..Header::new(Kind::Panic) }, None, &[7]);
        sends(Header { correlation, ..Header::new(Kind::HostCall) }, Some(7), &[7]);
    }
}

#[test]
fn a_result_of_another_type_is_refused() {
    for payload in [&b""[..], &[1, 1], &[0xff; 6]] {
        violates("another type", move |wire| {
            let bytes = of_the_call(wire, Kind::Reply as u8, payload);
            assert!(wire.send(&bytes));
        });
    }
}

#[test]
fn a_message_that_is_too_short_is_refused() {
    for bytes in 0..16 {
        violates(&format!("{bytes} bytes of a host call"), move |wire| {
            let whole = message(Header { kind: Kind::HostCall as u8, ..wire.current() }, Some(0), b"");
            assert!(wire.send(&whole[..bytes]));
        });
    }
}

#[test]
fn a_second_answer_is_refused() {
    violates("two replies", |wire| {
        let bytes = of_the_call(wire, Kind::Reply as u8, &[7]);
        assert!(wire.send(&bytes) && wire.send(&bytes));
    });
}

#[test]
fn a_message_that_lies_elsewhere_or_is_too_long_is_refused() {
    let config = coracle::Config::default();
    let segments = [
        (0, 8),
        (0x10_0000, 64),
        (map::BOOT_PAGE, 64),
        (map::CONTROL_START - 4, 64),
        (map::TRANSPORT_END - 8, 16),
        (map::WINDOW_START, 1 << 20),
        (map::MMAP_END - 8, 16),
        (map::MMAP_END, 16),
        (u64::MAX - 7, 8),
        (u64::MAX, u32::MAX),
        (map::MMAP_END - config.payload_bytes, u32::MAX),
        (map::MMAP_END - config.payload_bytes, config.payload_bytes as u32 + 17),
    ];
    for (address, bytes) in segments {
        violates(&format!("{bytes} bytes at {address:#x}"), move |wire| {
            assert!(wire.offer(Segment::new(address, bytes)));
        });
    }
}

/// A descriptor of the messages' ring, as it lies there.
fn descriptor(address: u64, bytes: u32, id: u16, flags: u16) -> Vec<u8> {
    [&address.to_le_bytes()[..], &bytes.to_le_bytes(), &id.to_le_bytes(), &flags.to_le_bytes()].concat()
}

#[test]
fn descriptors_that_no_driver_writes_are_refused() {
    // A chain, one without end, a table, one to be written, one of nothing; and names that cannot be.
    let flags = [(0, 1), (0, 4), (0, 2), (0, 7), (64, 0), (u16::MAX, 0)];
    for (id, flags) in flags {
        violates(&format!("name {id}, flags {flags}"), move |wire| {
            let at = wire.outbound();
            let (place, available) = wire.next_message_place();
            wire.write_queues(MESSAGES.descriptors + 16 * u64::from(place), &descriptor(at, 8, id, available | flags));
        });
    }
    violates("the whole ring", |wire| {
        let at = wire.outbound();
        let (_, available) = wire.next_message_place();
        for place in 0..MESSAGES.size {
            wire.write_queues(MESSAGES.descriptors + 16 * u64::from(place), &descriptor(at, 8, place, available | 1));
        }
    });
}

#[test]
fn a_call_that_was_not_given_back_or_twice_is_refused() {
    violates("the calls' ring wiped", |wire| {
        let bytes = of_the_call(wire, Kind::Reply as u8, &[7]);
        assert!(wire.send(&bytes));
        wire.write_queues(CALLS.descriptors, &[0; 16 * 64]);
    });
    violates("names that were not given", |wire| {
        let bytes = of_the_call(wire, Kind::Reply as u8, &[7]);
        assert!(wire.send(&bytes));
        for place in 0..CALLS.size {
            wire.write_queues(CALLS.descriptors + 16 * u64::from(place), &descriptor(0, 0, 63, 0x8080));
        }
    });
}

#[test]
fn whatever_the_events_say_nothing_waits_for_them() {
    let guest = does(|wire| {
        wire.write_queues(CALLS.driver_event, &[0xff; 24]);
        let bytes = of_the_call(wire, Kind::Reply as u8, &[7]);
        assert!(wire.send(&bytes));
    });
    let mut sandbox = sandbox(&guest);
    for _ in 0..200 {
        assert_eq!(sandbox.call::<u32>("go", ()).unwrap(), 7);
    }
}

#[test]
fn replies_that_are_kept_are_an_error_in_the_end() {
    // It asks again and again and never takes what it gets.
    violates("replies kept", |wire| {
        let key = signature::hash("twice(u32) -> u32");
        for _ in 0..20 {
            let bytes = message(Header { kind: Kind::HostCall as u8, ..wire.current() }, Some(key), &[1]);
            assert!(wire.send(&bytes));
        }
    });
}

#[test]
fn an_error_is_text_whatever_its_bytes() {
    let mut sandbox = sandbox(&does(|wire| {
        let bytes = of_the_call(wire, Kind::Error as u8, &[b'n', 0xff, b'o', 0xfe]);
        assert!(wire.send(&bytes));
    }));
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
        let guest = FakeGuest::new().script::<(), u32>("go", |_| Step::Messages(Vec::new()));
        let builder = Sandbox::builder(&guest.image()).backend(guest.backend());
        let mut sandbox = builder.timeout(Duration::from_millis(50)).build().unwrap();
        assert_eq!(sandbox.call::<u32>("go", ()).unwrap_err().kind(), ErrorKind::TimedOut);
    });
}
