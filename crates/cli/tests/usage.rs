//! What the command says of itself, and of mistakes: no hypervisor is needed.

mod support;

use support::{coracle, elf, file, guest_file};

#[track_caller]
fn refused(args: &[&str], code: i32, says: &str) {
    let outcome = coracle(args, "");
    assert_eq!(outcome.code, code, "{outcome:?}");
    assert!(outcome.err.starts_with("coracle: ") && outcome.err.contains(says), "{outcome:?}");
    assert_eq!(outcome.out, "", "nothing but results goes to standard output");
}

#[test]
fn help_has_examples_and_exit_codes() {
    let help = coracle(&["help"], "");
    assert_eq!(help.code, 0);
    for part in ["Examples:", "Exit codes:", "125", "run ", "call ", "inspect ", "doctor "] {
        assert!(help.out.contains(part), "{part}");
    }
    assert!(coracle(&["--version"], "").out.starts_with("coracle 0."));
    for command in ["run", "call", "inspect"] {
        assert!(coracle(&[command, "--help"], "").out.contains("Examples:"), "{command}");
    }
}

#[test]
fn wrong_usage_is_the_commands_own_error() {
    assert_eq!(coracle(&[], "").code, 125);
    refused(&["fly"], 125, "unrecognized subcommand");
    refused(&["run"], 125, "PROGRAM");
    refused(&["run", "--memory", "lots", "x"], 125, "64M");
    refused(&["run", "--timeout", "10", "x"], 125, "500ms");
    refused(&["run", "--cpu", "z80", "x"], 125, "x86-64-v2");
    refused(&["run", "--env", "NAME", "x"], 125, "NAME=VALUE");
    refused(&["call", "--host", "name", "x", "f"], 125, "NAME=JSON");
    refused(&["--log", "loud", "doctor"], 125, "loud");
}

#[test]
fn a_file_that_is_not_there_is_told_from_one_that_cannot_run() {
    let script = file("script", b"#!/bin/sh\n");
    let script = script.to_str().unwrap();
    for command in [&["run"][..], &["inspect"]] {
        refused(&[command, &["/nonexistent/program"]].concat(), 127, "because: No such file");
        refused(&[command, &[script]].concat(), 126, "script");
        refused(&[command, &["/"]].concat(), 126, "not a regular file");
    }
    refused(&["call", "/nonexistent/program", "f"], 127, "/nonexistent/program");
    refused(&["call", script, "f"], 126, "script");
}

#[test]
fn an_ordinary_program_has_nothing_to_call() {
    let program = file("program", &elf(&support::exit_with(0), &[]));
    refused(&["call", program.to_str().unwrap(), "f"], 126, "not a Coracle guest");
}

#[test]
fn a_call_that_does_not_fit_is_refused_before_anything_runs() {
    let guest = guest_file();
    let guest = guest.to_str().unwrap();
    refused(&["call", guest, "sing", "x"], 125, "it has crash, echo, fail");
    refused(&["call", guest, "echo"], 125, "echo takes 1 argument, not 0: echo(text: string) -> string");
    refused(&["call", guest, "echo", "a", "b"], 125, "not 2");
    refused(&["call", "--host", "print=null", guest, "echo", "a"], 125, "needs no host function 'print'");
    refused(&["call", "--init-data", "/nonexistent/data", guest, "echo", "a"], 125, "because: No such file");
    let other = file("other-abi", &support::guest(999));
    refused(&["call", other.to_str().unwrap(), "echo", "a"], 126, "ABI 999");
}

#[test]
fn json_errors_are_json() {
    let guest = guest_file();
    let outcome = coracle(&["call", "--json", guest.to_str().unwrap(), "sing"], "");
    assert_eq!(outcome.code, 125);
    let json: serde_json::Value = serde_json::from_str(&outcome.out).unwrap();
    assert_eq!(json["error"]["exit_code"], 125);
}
