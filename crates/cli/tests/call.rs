//! `coracle call`, on a guest assembled by hand.

mod support;

use coracle_testing::kvm_or_skip;
use serde_json::Value;
use support::{Outcome, coracle, guest_file};

/// Calls a function of the guest; flags may be among the arguments.
#[track_caller]
fn call(args: &[&str]) -> Outcome {
    let guest = guest_file();
    let guest = guest.to_string_lossy();
    coracle(&[&["call", &*guest], args].concat(), "")
}

#[test]
fn the_result_is_json_on_standard_output() {
    let Some(_) = kvm_or_skip() else { return };
    for (argument, want) in [("world", "\"world\"\n"), ("\"a\\nb\"", "\"a\\nb\"\n"), ("42", "\"42\"\n"), ("", "\"\"\n")]
    {
        let outcome = call(&["echo", argument]);
        assert_eq!((outcome.code, outcome.out.as_str(), outcome.err.as_str()), (0, want, ""), "{argument}");
    }
}

#[test]
fn no_result_drives_the_terminal() {
    let Some(_) = kvm_or_skip() else { return };
    assert_eq!(call(&["echo", "\u{9b}2J\u{1b}"]).out, "\"\\u009b2J\\u001b\"\n");
}

#[test]
fn flags_may_follow_and_stats_come_with_json() {
    let Some(_) = kvm_or_skip() else { return };
    let outcome = call(&["echo", "-5", "--json", "--memory", "16M", "--timeout", "1m"]);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    let json: Value = serde_json::from_str(&outcome.out).unwrap();
    assert_eq!(json["result"], "-5");
    assert_eq!(json["stats"]["entries"], 2, "one to get ready, one call");
}

#[test]
fn a_functions_own_error_is_told_from_a_crash() {
    let Some(_) = kvm_or_skip() else { return };
    let failed = call(&["fail", "a\u{1b}[2J"]);
    assert_eq!((failed.code, failed.out.as_str()), (1, ""));
    assert!(failed.err.starts_with("coracle: ") && failed.err.contains("a\\u{1b}[2J"), "{failed:?}");
    let crashed = call(&["crash", "a"]);
    assert_eq!(crashed.code, 132);
    assert!(crashed.err.starts_with("coracle: guest crashed: illegal instruction"), "{crashed:?}");
}
