//! `coracle run`, on programs of a few instructions.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::Path;

use coracle_testing::{kvm_or_skip, skip};
use support::{Outcome, coracle, elf, exit_with, file, system_call};

/// Runs a program that consists of this code.
#[track_caller]
fn run(name: &str, flags: &[&str], code: &[u8]) -> Outcome {
    let path = file(name, &elf(code, &[]));
    coracle(&[&["run"], flags, &[path.to_str().unwrap()]].concat(), "")
}

#[test]
fn the_exit_code_is_the_programs() {
    let Some(_) = kvm_or_skip() else { return };
    for code in [0, 7, 255] {
        let outcome = run(&format!("exit-{code}"), &[], &exit_with(code));
        assert_eq!((outcome.code, outcome.err.as_str()), (code.into(), ""));
    }
}

#[test]
fn a_crash_is_a_signal_and_a_report() {
    let Some(_) = kvm_or_skip() else { return };
    let cases: [(&str, &[u8], i32, &str); 3] = [
        ("null", &[0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0], 139, "null pointer (reading 0x0)"), // mov rax, [0]
        ("illegal", &[0x0f, 0x0b], 132, "illegal instruction"),                             // ud2
        ("divide", &[0x31, 0xc9, 0xf7, 0xf1], 136, "division by zero"),                     // xor ecx, ecx; div ecx
    ];
    for (name, code, want, says) in cases {
        let outcome = run(name, &[], code);
        assert_eq!(outcome.code, want, "{outcome:?}");
        assert!(outcome.err.starts_with("coracle: guest crashed: ") && outcome.err.contains(says), "{outcome:?}");
    }
}

#[test]
fn an_endless_program_is_stopped() {
    let Some(_) = kvm_or_skip() else { return };
    let outcome = run("endless", &["--timeout", "100ms"], &[0xeb, 0xfe]);
    assert_eq!(outcome.code, 124, "{outcome:?}");
    assert!(outcome.err.contains("100ms"), "{outcome:?}");
}

#[test]
fn a_senseless_limit_is_our_own_error() {
    let outcome = run("limited", &["--memory", "1K"], &exit_with(0));
    assert_eq!(outcome.code, 125, "{outcome:?}");
}

#[test]
fn system_calls_are_shown_and_counted() {
    let Some(_) = kvm_or_skip() else { return };
    let code = [system_call(39), system_call(9999), system_call(9999), exit_with(0)].concat();
    let outcome = run("calls", &["--trace-syscalls", "--stats"], &code);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    let lines: Vec<&str> = outcome.err.lines().collect();
    assert_eq!(lines[0], "getpid() = 1");
    assert!(lines[1].starts_with("syscall_9999(") && lines[1].ends_with(") = -38 ENOSYS"), "{lines:?}");
    assert_eq!(lines[3], "exit(0x0) = ?");
    assert_eq!(lines[4], "coracle: system calls without an answer (ENOSYS): syscall_9999 2");
    assert!(lines[5].ends_with("4 system calls: syscall_9999 2, getpid, exit"), "{lines:?}");
}

#[test]
fn streams_and_arguments_are_the_programs() {
    const BUSYBOX: &str = "/bin/busybox";
    let Some(_) = kvm_or_skip() else { return };
    if !Path::new(BUSYBOX).exists() || coracle::Image::from_path(BUSYBOX).is_err() {
        return skip("no static /bin/busybox here");
    }
    let outcome = coracle(&["run", BUSYBOX, "sha256sum", "-"], "hello\n");
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert_eq!(outcome.out, "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03  -\n");
    let outcome = coracle(&["run", BUSYBOX, "echo", "--memory", "-x"], "");
    assert_eq!((outcome.code, outcome.out.as_str()), (0, "--memory -x\n"));
    let outcome = coracle(&["run", "--env", "BOAT=coracle", BUSYBOX, "env"], "");
    assert_eq!((outcome.code, outcome.out.as_str()), (0, "BOAT=coracle\n"));
}
