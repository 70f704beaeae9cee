//! `coracle inspect`: no hypervisor is needed.

mod support;

use coracle::fake::FakeGuest;
use serde_json::{Value, json};
use support::{coracle, elf, exit_with, file, guest, guest_file};

#[test]
fn a_guest_is_shown_with_its_functions() {
    let outcome = coracle(&["inspect", guest_file().to_str().unwrap()], "");
    assert_eq!((outcome.code, outcome.err.as_str()), (0, ""));
    for part in ["a Coracle guest", "by hand", "echo(text: string) -> string", "Memory map", "none"] {
        assert!(outcome.out.contains(part), "{part}: {}", outcome.out);
    }
}

#[test]
fn the_librarys_own_images_are_understood() {
    let image = FakeGuest::new().function("double", |n: u32| Ok::<_, String>(n * 2)).needs::<(), u64>("now").image();
    let path = file("fake", image.bytes());
    let outcome = coracle(&["inspect", "--json", path.to_str().unwrap()], "");
    let json: Value = serde_json::from_str(&outcome.out).unwrap();
    assert_eq!((&json["kind"], &json["sdk"], &json["runnable"]), (&json!("guest"), &json!("fake"), &json!(true)));
    assert_eq!(json["functions"][0]["name"], "double");
    assert_eq!(json["functions"][0]["result"], "u32");
    assert_eq!(json["host_functions"][0]["signature"], "now() -> u64");
    assert_eq!(json["segments"][0]["rights"], "r-x");
}

#[test]
fn an_ordinary_program_is_shown_without() {
    let path = file("ordinary", &elf(&exit_with(0), &[]));
    let path = path.to_str().unwrap();
    let outcome = coracle(&["inspect", path], "");
    assert!(outcome.out.contains("an ordinary Linux program") && !outcome.out.contains("Functions"), "{outcome:?}");
    let json: Value = serde_json::from_str(&coracle(&["inspect", "--json", path], "").out).unwrap();
    assert_eq!((&json["kind"], &json["functions"]), (&json!("program"), &Value::Null));
}

#[test]
fn a_guest_of_another_abi_is_shown_with_a_warning() {
    let path = file("another-abi", &guest(999));
    let path = path.to_str().unwrap();
    let outcome = coracle(&["inspect", path], "");
    assert_eq!(outcome.code, 0);
    assert!(outcome.out.contains("warning: ") && outcome.out.contains("ABI 999"), "{outcome:?}");
    let json: Value = serde_json::from_str(&coracle(&["inspect", "--json", path], "").out).unwrap();
    assert_eq!((&json["abi_version"], &json["runnable"]), (&json!(999), &json!(false)));
}
