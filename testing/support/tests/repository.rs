//! Rules of the repository that no compiler checks.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Files below these directories whose names end so, as paths from the root.
fn files(directories: &[&str], ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting: Vec<PathBuf> = directories.iter().map(|directory| root().join(directory)).collect();
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                waiting.push(path);
            } else if name.ends_with(ending) {
                found.push(path.strip_prefix(root()).unwrap().to_owned());
            }
        }
    }
    found
}

/// The project's own crates that this one depends on, tests apart.
fn own_dependencies(krate: &str) -> BTreeSet<String> {
    let manifest = read(format!("crates/{krate}/Cargo.toml"));
    let manifest = manifest.split("[dev-dependencies]").next().unwrap();
    let dependencies = manifest.split("[dependencies]").nth(1).unwrap_or_default();
    let names = dependencies.lines().filter_map(|line| line.split_once('=').map(|(name, _)| name.trim()));
    names.filter(|name| name.starts_with("coracle")).map(str::to_owned).collect()
}

#[test]
fn crates_know_only_those_below_them() {
    for (krate, below) in [
        ("abi", &[][..]),
        ("virtq", &[]),
        ("vm", &["coracle-abi"]),
        ("snapshot", &[]),
        ("registry", &["coracle-snapshot"]),
        ("coracle", &["coracle-abi", "coracle-snapshot", "coracle-virtq", "coracle-vm"]),
        ("guest-macros", &[]),
        ("guest", &["coracle-abi", "coracle-guest-macros", "coracle-virtq"]),
        ("cli", &["coracle", "coracle-abi", "coracle-registry", "coracle-vm"]),
    ] {
        let below: BTreeSet<String> = below.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(own_dependencies(krate), below, "crates/{krate}");
    }
}

#[test]
fn unsafe_code_is_where_architecture_md_says() {
    for path in files(&["crates"], ".rs") {
        let allowed = ["memory.rs", "content.rs", "kick.rs", "kvm/machine.rs", "kvm/ring.rs"]
            .map(|file| format!("crates/vm/src/{file}"));
        let name = path.to_str().unwrap();
        let of_virtq = ["copy.rs", "copy_portable.rs", "pointer.rs"].map(|file| format!("crates/virtq/src/{file}"));
        let is_allowed = allowed.iter().chain(&of_virtq).any(|allowed| allowed == name);
        // Tests may play a hostile peer, or a processor.
        if is_allowed || name.starts_with("crates/guest/src/rt/") || name.contains("/tests/") {
            continue;
        }
        let text = read(&path);
        assert!(!text.contains("allow(unsafe_code)") && !text.contains("expect(unsafe_code)"), "{name}");
    }
}

#[test]
fn every_dependency_has_its_reason() {
    let own = |name: &str| name.starts_with("coracle");
    for path in files(&["crates", "testing", "fuzz", "xtask"], "Cargo.toml") {
        let text = read(&path);
        let mut inside = false;
        let mut commented = false;
        for line in text.lines() {
            if line.starts_with('[') {
                inside = line.contains("dependencies");
            } else if line.starts_with('#') {
                commented = true;
                continue;
            } else if let (true, Some((name, _))) = (inside, line.split_once('='))
                && !line.starts_with(' ')
            {
                let reason = commented || own(name.trim()) || path.starts_with("testing/guests");
                assert!(reason, "{}: {name}", path.display());
                continue; // One comment may stand above several.
            }
            commented = false;
        }
    }
}

#[test]
fn each_test_that_the_documents_name_exists() {
    let sources: String =
        files(&["crates", "testing"], ".rs").iter().filter(|path| !path.ends_with("repository.rs")).map(read).collect();
    for document in ["SPEC.md", "SECURITY.md", "docs/testing.md"] {
        let text = read(document);
        // Words in backquotes that look like a test's name: several words, joined.
        let words = text.split('`').skip(1).step_by(2).filter(|word| {
            word.matches('_').count() >= 2
                && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        });
        for word in words {
            assert!(sources.contains(&format!("fn {word}(")), "{document} names {word}");
        }
    }
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut documents = files(&["docs"], ".md");
    documents.extend(["README.md", "ARCHITECTURE.md", "SECURITY.md", "SPEC.md", "CHANGELOG.md"].map(PathBuf::from));
    for document in documents {
        let text = read(&document);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let directory = document.parent().unwrap();
            assert!(root().join(directory).join(target).exists(), "{}: {link}", document.display());
        }
    }
}

#[test]
fn the_readme_shows_the_program_and_the_guest_that_are_run() {
    let readme = read("README.md");
    let guest = read("examples/hello-guest/src/main.rs");
    for line in guest.lines().filter(|line| !line.trim_start().starts_with("//")) {
        assert!(readme.contains(line), "{line}");
    }
    for command in ["cargo run --release --example hello", "cargo test --workspace"] {
        assert!(readme.contains(command), "{command}");
    }
}
