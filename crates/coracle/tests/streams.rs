//! Standard streams and snapshots: input that lies in memory goes back with its guest.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Cursor;

use coracle::{Builder, Image, Input, Sandbox};
use coracle_artifacts::KEEPER;
use coracle_testing::{kvm_or_skip, patiently};

fn test(body: impl FnOnce() + Send + 'static) {
    patiently(|| {
        if kvm_or_skip().is_some() {
            body();
        }
    });
}

fn builder(input: Input) -> Builder {
    Sandbox::builder(&Image::from_path(KEEPER.path()).unwrap()).stdin(input)
}

fn read(sandbox: &mut Sandbox, most: u64) -> String {
    String::from_utf8(sandbox.call("read_input", most).unwrap()).unwrap()
}

#[test]
fn bytes_are_rewound_by_a_restore() {
    test(|| {
        let mut sandbox = builder(Input::bytes(*b"abcdef")).build().unwrap();
        assert_eq!(read(&mut sandbox, 2), "ab");
        let snapshot = sandbox.snapshot().unwrap();
        for _ in 0..3 {
            assert_eq!(read(&mut sandbox, 3), "cde");
            sandbox.restore(&snapshot).unwrap();
        }
        assert_eq!(read(&mut sandbox, 9), "cdef");
        assert_eq!(read(&mut sandbox, 9), "");
    });
}

#[test]
fn a_new_sandbox_reads_on_from_there_unless_it_gets_an_input_of_its_own() {
    test(|| {
        let mut sandbox = builder(Input::bytes(*b"abcdef")).build().unwrap();
        assert_eq!(read(&mut sandbox, 2), "ab");
        let snapshot = sandbox.snapshot().unwrap();
        let mut spawned = Sandbox::from_snapshot(&snapshot).unwrap();
        assert_eq!(read(&mut spawned, 2), "cd");
        let mut other = snapshot.builder().stdin(Input::bytes(*b"xyz")).build().unwrap();
        assert_eq!(read(&mut other, 2), "xy");
        // A foreign snapshot says nothing of where it is in its own bytes.
        other.restore(&snapshot).unwrap();
        assert_eq!(read(&mut other, 2), "z");
        assert_eq!(read(&mut sandbox, 9), "cdef");
    });
}

#[test]
fn what_came_from_outside_is_not_read_twice() {
    test(|| {
        let mut sandbox = builder(Input::reader(Cursor::new(*b"abcdef"))).build().unwrap();
        let snapshot = sandbox.snapshot().unwrap();
        assert_eq!(read(&mut sandbox, 2), "ab");
        sandbox.restore(&snapshot).unwrap();
        assert_eq!(read(&mut sandbox, 2), "cd");
        assert_eq!(read(&mut Sandbox::from_snapshot(&snapshot).unwrap(), 2), "");
    });
}
