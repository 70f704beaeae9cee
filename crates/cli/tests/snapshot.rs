//! `coracle snapshot`, and `coracle call --from`, on a guest assembled by hand. Each command is a process of its own.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use coracle::Store;
use coracle::store::{Compression, Pages};
use coracle_testing::kvm_or_skip;
use serde_json::Value;
use support::{Outcome, coracle, guest_file};

/// A directory that goes away with the test.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("store-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[track_caller]
fn good(args: &[&str]) -> String {
    let Outcome { code, out, err } = coracle(args, "");
    assert_eq!((code, err.as_str()), (0, ""), "{args:?}: {out}");
    out
}

#[track_caller]
fn snapshot(args: &[&str]) -> String {
    good(&[&["snapshot"], args].concat())
}

#[track_caller]
fn json(args: &[&str]) -> Value {
    serde_json::from_str(&snapshot(&[args, &["--json"]].concat())).unwrap()
}

#[track_caller]
fn refused(args: &[&str], code: i32, says: &str) {
    let outcome = coracle(args, "");
    assert_eq!(outcome.code, code, "{args:?}: {outcome:?}");
    assert!(outcome.err.starts_with("coracle: ") && outcome.err.contains(says), "{args:?}: {outcome:?}");
    assert_eq!(outcome.out, "", "nothing but results goes to standard output");
}

/// Saves the guest. `None` where there is no KVM.
fn saved(place: &Place) -> Option<String> {
    kvm_or_skip()?;
    let name = place.path("store:base");
    snapshot(&["save", guest_file().to_str().unwrap(), &name, "--memory", "16M"]);
    Some(name)
}

/// A store with a snapshot that has this document, made without a hypervisor.
fn forged(place: &Place, document: &str) -> String {
    let store = Store::create(place.path("store")).unwrap();
    store.save("forged", document.as_bytes(), &Pages::base([(0, [1; 4096])]), Compression::None).unwrap();
    place.path("store:forged")
}

const DOCUMENT: &str = r#"{"format":1,"abi":1,"sdk":"by \u001b[2Jhand","program":{"name":"a\u001b[31mb"},
    "functions":[{"index":0,"signature":"f(u8) -> u8","parameters":"n"}],
    "host_functions":[{"signature":"now() -> u64","parameters":""}],
    "mappings":[{"name":"words","address":4096,"copy_on_write":false,"bytes":11,"digest":"sha256:1","first_frame":9}],
    "space":{"next_frame":4}}"#;

#[test]
fn a_guest_is_kept_varied_compared_and_removed() {
    let place = Place::new("life");
    let Some(base) = saved(&place) else { return };
    let (store, variant) = (place.path("store"), place.path("store:variant"));

    let list = snapshot(&["list", &store]);
    assert!(list.starts_with("tag ") && list.contains("\nbase ") && list.contains("sha256:"), "{list}");
    let shown = snapshot(&["inspect", &base]);
    for part in [
        "a snapshot of guest",
        "by hand",
        "echo(text: string) -> string",
        "16 MiB, of it 8 MiB heap",
        "base",
        "█  own",
        "·",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(shown.lines().all(|line| line.starts_with("  features") || line.chars().count() <= 200), "{shown}");

    assert_eq!(good(&["call", "--from", &base, "echo", "world"]), "\"world\"\n");
    assert_eq!(good(&["call", "--from", &base, "--unverified", "--timeout", "1m", "echo", "-5"]), "\"-5\"\n");

    let long = "x".repeat(9000);
    let call = format!("echo \"{long}\"");
    let made = json(&["save", "--from", &base, &variant, "--call", &call, "--call", "echo {\"a\": 1}"]);
    assert_eq!((&made["results"][0], &made["results"][1]), (&long.into(), &"{\"a\": 1}".into()));
    assert_eq!(made["layers"], 2, "{made}");
    assert!(made["pages_written"].as_u64().unwrap() < 40, "{made}");
    assert!(made["shared_bytes"].as_u64() > Some(0), "{made}");

    let differs = json(&["diff", &base, &variant]);
    assert!(differs["pages"].as_u64() > Some(1), "{differs}");
    let places: Vec<&str> =
        differs["runs"].as_array().unwrap().iter().map(|run| run["place"].as_str().unwrap()).collect();
    assert!(places.iter().any(|place| place.starts_with("transport")), "{places:?}");
    assert_eq!(snapshot(&["diff", &base, &base]), "no page differs\n");
    let shown = json(&["inspect", &variant]);
    assert_eq!(shown["pages"]["own"], shown["layers"][1]["pages"], "{shown}");
    assert_eq!(shown["layers"][0]["tags"], 2);
    assert!(shown["pages"]["shared"].as_u64() > Some(0));

    let verified = json(&["verify", &store]);
    assert_eq!((&verified["good"], &verified["snapshots"], &verified["layers"]), (&true.into(), &2.into(), &2.into()));
    assert!(snapshot(&["verify", &variant]).starts_with("good: 1 snapshot, 2 layers, 1 prepared base, "));

    let digest = format!("{store}@{}", made["digest"].as_str().unwrap());
    assert_eq!(good(&["call", "--from", &digest, "echo", "a"]), "\"a\"\n");
    assert_eq!(snapshot(&["untag", &variant]), format!("untagged {variant}\n"));
    let pruned = json(&["prune", &store]);
    assert_eq!((&pruned["blobs"], &pruned["run_forms"]), (&3.into(), &0.into()), "{pruned}");
    refused(&["call", "--from", &digest, "echo", "a"], 127, "no snapshot");
    assert_eq!(good(&["call", "--from", &base, "echo", "still"]), "\"still\"\n");
    assert!(snapshot(&["prune", &store]).starts_with("removed 0 blobs, 0 prepared bases, 0 unfinished files: "));
}

#[test]
fn a_snapshot_is_copied_to_another_store_as_it_is() {
    let place = Place::new("copy");
    let Some(base) = saved(&place) else { return };
    let same = json(&["save", "--from", &base, &place.path("store:same")]);
    assert_eq!(same["pages_written"], 0);
    assert_eq!(same["digest"], json(&["list", &place.path("store")])["snapshots"][0]["digest"]);
    let other = place.path("a:b/other:packed");
    snapshot(&["save", "--compress", "--from", &base, &other]);
    assert_eq!(json(&["inspect", &other])["layers"][0]["compressed"], true);
    assert_eq!(good(&["call", "--from", &other, "echo", "a"]), "\"a\"\n");
    refused(&["snapshot", "diff", &base, &other], 125, "are in two stores");
    assert!(snapshot(&["verify", &place.path("a:b/other")]).starts_with("good: 1 snapshot"));
}

#[test]
fn a_call_that_fails_saves_nothing() {
    let place = Place::new("fails");
    let Some(_) = kvm_or_skip() else { return };
    let (guest, name) = (guest_file(), place.path("store:base"));
    let save = |call| ["snapshot", "save", guest.to_str().unwrap(), &name, "--call", call].map(str::to_owned);
    for (call, code) in [("fail a\u{1b}[2J", 1), ("crash a", 132)] {
        let args = save(call);
        refused(&args.each_ref().map(String::as_str), code, "nothing was saved, for the call of");
    }
    assert!(!Path::new(&place.path("store")).exists());
}

#[test]
fn calls_from_a_snapshot_fail_as_others_do() {
    let place = Place::new("calls");
    let Some(base) = saved(&place) else { return };
    refused(&["call", "--from", &base, "fail", "a\u{1b}[2J"], 1, "a\\u{1b}[2J");
    refused(&["call", "--from", &base, "crash", "a"], 132, "guest crashed: illegal instruction");
    let outcome = coracle(&["call", "--json", "--from", &base, "fail", "x"], "");
    assert_eq!(serde_json::from_str::<Value>(&outcome.out).unwrap()["error"]["exit_code"], 1);
}

#[test]
fn a_damaged_store_is_not_good() {
    let place = Place::new("damaged");
    let Some(base) = saved(&place) else { return };
    let blobs = place.0.join("store/blobs/sha256");
    let largest = fs::read_dir(blobs).unwrap().max_by_key(|entry| entry.as_ref().unwrap().metadata().unwrap().len());
    let path = largest.unwrap().unwrap().path();
    let mut bytes = fs::read(&path).unwrap();
    bytes[100] ^= 1;
    fs::remove_file(&path).unwrap();
    fs::write(&path, bytes).unwrap();
    refused(&["snapshot", "verify", &base], 126, "blobs/sha256/");
    refused(&["call", "--from", &base, "echo", "a"], 126, "blobs/sha256/");
    let outcome = coracle(&["snapshot", "verify", "--json", &place.path("store")], "");
    assert_eq!(outcome.code, 126);
    assert_eq!(serde_json::from_str::<Value>(&outcome.out).unwrap()["error"]["exit_code"], 126);
}

#[test]
fn names_that_are_none_say_why() {
    refused(&["snapshot", "inspect", "store"], 125, "write STORE:TAG");
    refused(&["snapshot", "inspect", "/a:b/store"], 125, "last colon belongs to the path");
    refused(&["snapshot", "untag", "store:"], 125, "nothing behind its last colon");
    refused(&["call", "--from", "store", "f"], 125, "write STORE:TAG");
    refused(&["snapshot", "save", "--from", "s:t", "x"], 125, "'x' is no place to save to");
    refused(&["snapshot", "save", "--from", "s:t", "x", "s:u"], 125, "takes the place of the guest");
    refused(&["snapshot", "save", "--from", "s:t"], 125, "Give STORE:TAG");
    refused(&["snapshot", "save", "guest"], 125, "STORE:TAG");
    let digest = format!("s@{}", coracle::Digest::of(b""));
    refused(&["snapshot", "save", "guest", &digest], 125, "give a tag");
    refused(&["snapshot", "untag", &digest], 125, "has no tag");
}

#[test]
fn what_is_not_there_is_told_from_what_is_wrong() {
    let place = Place::new("missing");
    let (missing, empty) = (place.path("missing"), place.path("store"));
    Store::create(&empty).unwrap();
    for command in [&["list"][..], &["prune"], &["verify"]] {
        refused(&[&["snapshot"], command, &[&missing]].concat(), 127, "this is no store of snapshots");
    }
    let (lost, absent) = (format!("{missing}:t"), format!("{empty}:t"));
    for command in
        [&["snapshot", "inspect"][..], &["snapshot", "untag"], &["snapshot", "verify"], &["call", "f", "--from"]]
    {
        refused(&[command, &[&lost]].concat(), 127, "this is no store of snapshots");
        refused(&[command, &[&absent]].concat(), 127, "no snapshot");
    }
    assert_eq!(snapshot(&["list", &empty]), "no snapshots\n");
    assert!(snapshot(&["verify", &empty]).starts_with("good: 0 snapshots"));
    refused(&["snapshot", "save", "/nonexistent/guest", &absent], 127, "/nonexistent/guest");
    let outcome = coracle(&["snapshot", "--json", "list", &missing], "");
    assert_eq!(outcome.code, 127);
    assert_eq!(serde_json::from_str::<Value>(&outcome.out).unwrap()["error"]["exit_code"], 127);
}

#[test]
fn what_cannot_be_set_for_a_snapshot_is_refused() {
    refused(&["call", "--from", "s:t", "--memory", "1M", "f"], 125, "cannot be used with");
    refused(&["call", "--from", "s:t", "--init-data", "x", "f"], 125, "cannot be used with");
    refused(&["call", "--unverified", "guest", "f"], 125, "--from");
    refused(&["call", "--from", "s:t"], 125, "which function");
    refused(&["run", "--from", "s:t", "--memory", "1M"], 125, "cannot be used with");
    refused(&["run", "--from", "s:t"], 127, "no store of snapshots");
}

#[test]
fn a_call_that_does_not_fit_is_refused_before_anything_runs() {
    let place = Place::new("misfit");
    let guest = guest_file();
    let save = |call: &str| {
        let name = place.path("store:t");
        let args = ["snapshot", "save", guest.to_str().unwrap(), &name, "--call", call].map(str::to_owned);
        coracle(&args.each_ref().map(String::as_str), "")
    };
    for (call, says) in
        [("sing x", "it has crash, echo, fail"), ("echo", "takes 1 argument, not 0"), (" ", "function's name")]
    {
        let outcome = save(call);
        assert!(outcome.code == 125 && outcome.err.contains(says), "{outcome:?}");
    }
    let forged = forged(&place, DOCUMENT);
    refused(&["call", "--from", &forged, "g"], 125, "it has f");
    refused(&["call", "--from", &forged, "f"], 125, "f takes 1 argument, not 0: f(n: u8) -> u8");
    refused(&["call", "--from", &forged, "f", "1"], 125, "needs host functions: now() -> u64");
}

#[test]
fn a_snapshots_words_are_shown_escaped() {
    let place = Place::new("words");
    let name = forged(&place, DOCUMENT);
    let shown = snapshot(&["inspect", &name]);
    for part in
        ["a\\u{1b}[31mb", "by \\u{1b}[2Jhand", "f(n: u8) -> u8", "now() -> u64", "words  0x1000  11 bytes, read-only"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains('\u{1b}'));
    assert!(shown.contains("█···\n"), "{shown}");
    let svg = place.path("map.svg");
    snapshot(&["inspect", &name, "--svg", &svg]);
    let svg = fs::read_to_string(svg).unwrap();
    assert!(svg.starts_with("<svg ") && svg.contains("a\\u{1b}[31mb") && !svg.contains('\u{1b}'), "{svg}");
    let json = json(&["inspect", &name]);
    assert_eq!((&json["pages"]["own"], &json["pages"]["zero"]), (&1.into(), &3.into()));
    refused(&["snapshot", "inspect", &name, "--svg", "/nonexistent/x.svg"], 125, "cannot write the picture");
}

#[test]
fn a_document_that_is_none_of_ours_is_no_snapshot() {
    let place = Place::new("foreign");
    let name = forged(&place, "{\"format\":1}");
    refused(&["snapshot", "inspect", &name], 126, "document");
    refused(&["call", "--from", &name, "f"], 126, "document");
}

#[test]
fn help_says_how_to_name_a_snapshot() {
    let help = good(&["help", "snapshot"]);
    for part in [
        "STORE:TAG",
        "STORE@sha256:DIGEST",
        "Examples:",
        "save ",
        "list ",
        "inspect ",
        "verify ",
        "diff ",
        "untag ",
        "prune ",
    ] {
        assert!(help.contains(part), "{part}: {help}");
    }
    assert!(good(&["snapshot", "save", "--help"]).contains("Examples:"));
    assert_eq!(coracle(&["snapshot"], "").code, 125);
}

#[test]
fn a_program_is_frozen_and_run_from_there() {
    if kvm_or_skip().is_none() {
        return;
    }
    let place = Place::new("freeze");
    let target = place.path("store:program");
    let program = coracle_artifacts::STD_PROGRAM.path();
    let program = program.to_str().unwrap();
    let frozen = snapshot(&["freeze", program, &target, "--", "args", "one", "two words"]);
    assert!(frozen.starts_with("sha256:"), "{frozen}");
    for _ in 0..2 {
        assert_eq!(good(&["run", "--from", &target]), "one|two words\n");
    }
    refused(&["call", "--from", &target, "f"], 125, "");
    let guest = place.path("store:guest");
    snapshot(&["save", guest_file().to_str().unwrap(), &guest]);
    refused(&["run", "--from", &guest], 125, "use 'coracle call --from");
    let upper = place.path("store:upper");
    snapshot(&["freeze", program, &upper, "--", "upper"]);
    assert_eq!(coracle(&["run", "--from", &upper], "some words\n").out, "SOME WORDS\n");
}

#[test]
fn snapshots_travel_through_a_registry_or_it_is_said_why_not() {
    let place = Place::new("registry");
    let store = Store::create(place.path("store")).unwrap();
    store.save("one", b"{}", &Pages::base([(1, [1; 4096])]), Compression::None).unwrap();
    let here = place.path("store:one");
    for (args, code, says) in [
        (&["snapshot", "push", &here, "nonsense"][..], 125, "REGISTRY/NAME:TAG"),
        (&["snapshot", "push", "--plain-http", &here, "127.0.0.1:1/name:tag"], 125, "cannot be reached"),
        (
            &["snapshot", "pull", "--plain-http", "127.0.0.1:1/name:tag", &place.path("other:tag")],
            125,
            "cannot be reached",
        ),
        (&["snapshot", "push", "--plain-http", &place.path("nothing:one"), "127.0.0.1:1/name:tag"], 127, "nothing"),
    ] {
        refused(args, code, says);
    }
}
