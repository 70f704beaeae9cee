//! Snapshots on disk: what is loaded is what was saved, and nothing that a file says is believed unchecked.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use coracle::store::{Compression, Content as PageBytes, Pages};
use coracle::{
    Builder, Content, CpuTemplate, Error, ErrorKind, Image, Kvm, MapMode, Output, Sandbox, Snapshot, Status, Store,
};
use coracle_abi::map;
use coracle_artifacts::{BORROWER, ECHO, ECHO_NOSTD, KEEPER, RustGuest, STD_PROGRAM};
use coracle_testing::{kvm_or_skip, within};
use serde_json::{Value, json};

/// A directory that goes away with the test.
struct Place(tempfile::TempDir, Store);

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::create(directory.path().join("store")).unwrap();
        Self(directory, store)
    }

    fn store(&self) -> &Store {
        &self.1
    }

    /// A handle that remembers nothing of what was saved.
    fn again(&self) -> Store {
        Store::open(self.0.path().join("store")).unwrap()
    }
}

fn test(body: impl FnOnce(&Place) + Send + 'static) {
    within(Duration::from_secs(180), move || {
        if kvm_or_skip().is_some() {
            body(&Place::new());
        }
    });
}

fn with_host(builder: Builder) -> Builder {
    builder
        .timeout(Duration::from_secs(20))
        .host_fn("greet", |name: String| Ok::<_, String>(format!("hello {name}")))
        .host_fn("host_add", |(a, b): (i32, i32)| Ok::<_, String>(a.wrapping_add(b)))
}

fn builder(guest: RustGuest) -> Builder {
    with_host(Sandbox::builder(&Image::from_path(guest.path()).unwrap()))
}

fn kept(sandbox: &mut Sandbox) -> Vec<u64> {
    sandbox.call("kept", ()).unwrap()
}

fn keep(sandbox: &mut Sandbox, number: u64) {
    sandbox.call::<()>("keep", number).unwrap();
}

/// Saves what a snapshot says of itself with a change, under the tag `edited`.
fn edit(place: &Place, change: impl FnOnce(&mut Value)) {
    let loaded = place.store().load("good").unwrap();
    let mut document: Value = serde_json::from_slice(&loaded.config).unwrap();
    change(&mut document);
    let config = serde_json::to_vec(&document).unwrap();
    place.store().save("edited", &config, &loaded.pages, Compression::None).unwrap();
}

fn load_edited(place: &Place) -> Result<Snapshot, Error> {
    Snapshot::load(place.store(), "edited")
}

#[test]
fn what_is_loaded_is_what_was_saved() {
    test(|place| {
        for guest in [KEEPER, ECHO, ECHO_NOSTD] {
            let mut sandbox = builder(guest).build().unwrap();
            if guest == KEEPER {
                keep(&mut sandbox, 7);
            }
            let snapshot = sandbox.snapshot().unwrap();
            let saved = snapshot.save(place.store(), "guest").unwrap();
            for loaded in [
                Snapshot::load(&place.again(), "guest").unwrap(),
                Snapshot::load(place.store(), &saved.digest.to_string()).unwrap(),
                Snapshot::loader(&place.again()).load_unverified("guest").unwrap(),
            ] {
                let mut spawned = with_host(loaded.builder()).build().unwrap();
                if guest == KEEPER {
                    assert_eq!(kept(&mut spawned), [7]);
                    keep(&mut spawned, 8);
                    spawned.restore(&loaded).unwrap();
                    assert_eq!(kept(&mut spawned), [7]);
                    // Into the sandbox that it came from, and back.
                    keep(&mut sandbox, 9);
                    sandbox.restore(&loaded).unwrap();
                    assert_eq!(kept(&mut sandbox), [7]);
                    sandbox.restore(&snapshot).unwrap();
                    assert_eq!(kept(&mut sandbox), [7]);
                } else {
                    assert_eq!(spawned.call::<String>("call_host", "you").unwrap(), "hello you");
                    assert_eq!(spawned.call::<i32>("add", (2, 3)).unwrap(), 5);
                }
                // Saved again it is the same.
                assert_eq!(loaded.save(place.store(), "again").unwrap().digest, saved.digest);
            }
        }
        place.store().verify_all().unwrap();
    });
}

#[test]
fn variants_cost_what_differs_and_know_their_base() {
    test(|place| {
        let mut sandbox = builder(KEEPER).build().unwrap();
        let base = sandbox.snapshot().unwrap();
        let whole = base.save(place.store(), "base").unwrap();
        let mut variants = Vec::new();
        for n in 0..5_u64 {
            // From the sandbox, from a copy of it, and from what was loaded.
            let mut variant = match n % 3 {
                0 => sandbox.fork().unwrap(),
                1 => with_host(base.builder()).build().unwrap(),
                _ => with_host(Snapshot::load(&place.again(), "base").unwrap().builder()).build().unwrap(),
            };
            (0..=n).for_each(|number| keep(&mut variant, number));
            let tag = format!("variant-{n}");
            let saved = variant.snapshot().unwrap().save(place.store(), &tag).unwrap();
            assert!(saved.pages_written < 30, "{saved:?}");
            assert!(saved.own_bytes < 120 << 10 && saved.own_bytes < whole.bytes / 2, "{saved:?}");
            variants.push(tag);
        }
        for (n, tag) in (0..).zip(&variants) {
            let mut loaded = with_host(Snapshot::load(&place.again(), tag).unwrap().builder()).build().unwrap();
            assert_eq!(kept(&mut loaded), (0..=n).collect::<Vec<u64>>());
            // Generations upon generations.
            keep(&mut loaded, 100);
            loaded.snapshot().unwrap().save(place.store(), "deeper").unwrap();
            let deeper = Snapshot::load(&place.again(), "deeper").unwrap();
            assert_eq!(kept(&mut with_host(deeper.builder()).build().unwrap()).last(), Some(&100));
        }
    });
}

#[test]
fn what_a_guest_needs_of_its_host_is_said() {
    test(|place| {
        builder(ECHO).build().unwrap().snapshot().unwrap().save(place.store(), "echo").unwrap();
        let loaded = Snapshot::load(place.store(), "echo").unwrap();
        let error = loaded.builder().build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Signature);
        assert!(error.to_string().contains("greet"), "{error}");
        let mut good = with_host(loaded.builder()).build().unwrap();
        assert_eq!(good.call::<String>("echo", "x").unwrap(), "x");
    });
}

#[test]
fn crash_reports_name_functions_when_the_program_is_given() {
    test(|place| {
        let image = Image::from_path(KEEPER.path()).unwrap();
        builder(KEEPER).build().unwrap().snapshot().unwrap().save(place.store(), "keeper").unwrap();
        let crash = |snapshot: Snapshot| {
            let mut sandbox = with_host(snapshot.builder()).build().unwrap();
            let error = sandbox.call::<u8>("peek", 8_u64).unwrap_err();
            assert_eq!(sandbox.status(), Status::Poisoned);
            sandbox.restore(&snapshot).unwrap();
            assert!(kept(&mut sandbox).is_empty());
            error.crash().unwrap().place.is_some()
        };
        assert!(!crash(Snapshot::load(place.store(), "keeper").unwrap()));
        assert!(crash(Snapshot::loader(place.store()).image(&image).load("keeper").unwrap()));
        let other = Image::from_path(ECHO.path()).unwrap();
        let error = Snapshot::loader(place.store()).image(&other).load("keeper").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
    });
}

#[test]
fn mapped_content_comes_back_by_its_digest() {
    test(|place| {
        let (one, other) = (Content::from_bytes([1; 20_000]).unwrap(), Content::from_bytes([2; 20_000]).unwrap());
        let mut sandbox = builder(BORROWER).map("data", &one, MapMode::CopyOnWrite).build().unwrap();
        assert!(sandbox.call::<bool>("fill", ("data", 5000_u64, 10_u64, 9_u8)).unwrap());
        let sum = |sandbox: &mut Sandbox| sandbox.call::<Option<u64>>("sum", "data").unwrap().unwrap();
        let want = 20_000 + 8 * 10;
        assert_eq!(sum(&mut sandbox), want);
        sandbox.snapshot().unwrap().save(place.store(), "data").unwrap();
        let error = Snapshot::load(place.store(), "data").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("'data'"), "{error}");
        let wrong = Snapshot::loader(place.store()).content(&other).load("data").unwrap_err();
        assert_eq!(wrong.kind(), ErrorKind::Config);
        let same = Content::from_bytes([1; 20_000]).unwrap();
        let loaded = Snapshot::loader(place.store()).content(&other).content(&same).load("data").unwrap();
        let mut spawned = with_host(loaded.builder()).build().unwrap();
        assert_eq!(sum(&mut spawned), want);
        assert!(spawned.call::<bool>("fill", ("data", 0_u64, 10_u64, 3_u8)).unwrap());
        assert_eq!(sum(&mut spawned), want + 20);
        spawned.restore(&loaded).unwrap();
        assert_eq!(sum(&mut spawned), want);
    });
}

#[test]
fn a_portable_snapshot_names_no_vendor_and_the_features_that_it_needs() {
    test(|place| {
        let Ok(kvm) = Kvm::open(CpuTemplate::X86_64V2) else { return };
        builder(ECHO)
            .backend(kvm)
            .cpu(CpuTemplate::X86_64V2)
            .build()
            .unwrap()
            .snapshot()
            .unwrap()
            .save(place.store(), "good")
            .unwrap();
        let loaded = place.store().load("good").unwrap();
        let text = String::from_utf8(loaded.config.clone()).unwrap();
        let vendor = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let vendor = vendor.lines().find_map(|line| line.strip_prefix("vendor_id\t: ")).unwrap().to_owned();
        assert!(!text.contains(&vendor) && !text.contains("model name"));
        let document: Value = serde_json::from_slice(&loaded.config).unwrap();
        assert_eq!(document["cpu"]["template"], "x86-64-v2");
        let features: Vec<&str> =
            document["cpu"]["features"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert!(features.contains(&"sse4_2") && !features.contains(&"avx"), "{features:?}");
        let mut spawned = with_host(Snapshot::load(place.store(), "good").unwrap().builder()).build().unwrap();
        assert_eq!(spawned.call::<String>("echo", "x").unwrap(), "x");
        edit(place, |document| {
            document["cpu"]["features"].as_array_mut().unwrap().extend([json!("avx9000"), json!("tdx_guest")])
        });
        let error = load_edited(place).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Store);
        assert!(error.to_string().contains("avx9000, tdx_guest"), "{error}");
    });
}

/// Every field, taken away, made another type, and made another value.
#[test]
fn no_document_that_was_changed_hurts() {
    test(|place| {
        let content = Content::from_bytes([1; 20_000]).unwrap();
        let mut sandbox = builder(BORROWER).map("data", &content, MapMode::ReadOnly).build().unwrap();
        sandbox.snapshot().unwrap().save(place.store(), "good").unwrap();
        let loaded = place.store().load("good").unwrap();
        let document: Value = serde_json::from_slice(&loaded.config).unwrap();
        let mut paths = Vec::new();
        collect(&document, &mut String::new(), &mut paths);
        assert!(paths.len() > 60, "{paths:?}");
        let (mut refused, mut taken) = (0, 0);
        for path in &paths {
            let old = document.pointer(path).unwrap();
            let mut replacements = vec![Value::Null, json!("nonsense"), json!([]), json!({}), json!(-1), json!(1.5)];
            if let Some(number) = old.as_u64() {
                let other =
                    [0, 1, number ^ 1, number.wrapping_add(4096), number << 1, 1 << 47, u64::from(u32::MAX), u64::MAX];
                replacements.extend(other.map(Value::from));
            }
            if let Some(list) = old.as_array() {
                replacements.push([&list[..], &list[..]].concat().into());
                replacements.push(list.get(1..).unwrap_or_default().into());
            }
            if old.is_boolean() {
                replacements.push(json!(!old.as_bool().unwrap()));
            }
            for new in replacements.into_iter().filter(|new| new != old) {
                edit(place, |document| *document.pointer_mut(path).unwrap() = new.clone());
                match Snapshot::loader(place.store()).content(&content).load("edited") {
                    Err(error) => {
                        assert!(
                            matches!(error.kind(), ErrorKind::Store | ErrorKind::Config),
                            "{path} = {new}: {error:?}"
                        );
                        refused += 1;
                    }
                    // What only concerns the guest itself may be anything: it lives with it, or is stopped.
                    Ok(snapshot) => {
                        taken += 1;
                        if let Ok(mut spawned) = snapshot.builder().timeout(Duration::from_millis(50)).build() {
                            let _ = spawned.call::<Option<u64>>("sum", "data");
                            let _ = spawned.snapshot();
                        }
                    }
                }
            }
        }
        assert!(refused > 500 && taken > 10, "{refused} refused, {taken} taken");
        assert_eq!(sandbox.call::<Option<u64>>("sum", "data").unwrap(), Some(20_000), "the host lives on");
    });
}

/// Pointers to all values, but of long lists of like things only the first and the last.
fn collect(value: &Value, path: &mut String, paths: &mut Vec<String>) {
    let mut visit = |name: &str, value: &Value| {
        let length = path.len();
        path.push('/');
        path.push_str(name);
        paths.push(path.clone());
        collect(value, path, paths);
        path.truncate(length);
    };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| visit(name, value)),
        Value::Array(values) => {
            for (n, value) in values.iter().enumerate().filter(|(n, _)| *n < 1 || n + 1 == values.len()) {
                visit(&n.to_string(), value);
            }
        }
        _ => {}
    }
}

/// The page tables of a stored snapshot are checked, and the host's own pages are this host's.
#[test]
fn no_page_that_was_changed_gives_a_guest_more() {
    test(|place| {
        let mut sandbox = builder(ECHO).build().unwrap();
        sandbox.snapshot().unwrap().save(place.store(), "good").unwrap();
        let loaded = place.store().load("good").unwrap();
        let save = |change: &dyn Fn(u32, &mut [u8; 4096])| {
            let numbers: Vec<u32> = loaded.pages.numbers().collect();
            let pages: Pages = loaded
                .pages
                .derive(&numbers, |number, out| {
                    let content: PageBytes<'_> = loaded.pages.page(number).unwrap();
                    out.copy_from_slice(content.bytes());
                    change(number, out);
                })
                .unwrap();
            place.store().save("edited", &loaded.config, &pages, Compression::None).unwrap();
        };
        // The root page table lies in frame 0. An entry for the upper half; one that is writable where it was not.
        save(&|number, page| page[4088] |= u8::from(number == 0));
        let error = load_edited(place).unwrap_err();
        assert!(error.to_string().contains("address space"), "{error}");
        save(&|number, page| {
            if number == 0 {
                let entry = page.as_chunks_mut::<8>().0.iter_mut().find(|entry| **entry != [0; 8]).unwrap();
                entry[1] ^= 0x10; // Another table.
            }
        });
        assert_eq!(load_edited(place).unwrap_err().kind(), ErrorKind::Store);
        // The doorbell's page, and the ring-0 stub: other code there is not what runs.
        let is_code = |page: &[u8; 4096]| page[0] == 0xe6 && (page[1] == 0xe9 || page[1] == 0xea);
        let found = std::cell::Cell::new(0);
        save(&|_, page| {
            if is_code(page) {
                found.set(found.get() + 1);
                page.fill(0xcc);
            }
        });
        assert_eq!(found.get(), 3, "gates, system-call entry, doorbell");
        let mut spawned = with_host(load_edited(place).unwrap().builder()).build().unwrap();
        assert_eq!(spawned.call::<String>("call_host", "you").unwrap(), "hello you");
        // A guest that does not wait in the doorbell's page would have the registers of the machine's last guest.
        edit(place, |document| document["registers"]["rip"] = json!(map::DOORBELL_RETURN + 2));
        assert!(load_edited(place).unwrap_err().to_string().contains("doorbell"));
    });
}

#[test]
fn a_program_is_frozen_before_it_starts_and_run_from_there() {
    test(|place| {
        let image = Image::from_path(STD_PROGRAM.path()).unwrap();
        let frozen = Sandbox::builder(&image).args(["args", "one", "two"]).env([("NAME", "value")]).freeze().unwrap();
        frozen.save(place.store(), "program").unwrap();
        let loaded = Snapshot::load(&place.again(), "program").unwrap();
        let direct = {
            let (stdout, captured) = Output::capture(10_000);
            let builder = Sandbox::builder(&image).args(["args", "one", "two"]).env([("NAME", "value")]);
            assert_eq!(builder.stdout(stdout).run().unwrap().code, 0);
            captured.text()
        };
        assert!(direct.contains("two"), "{direct}");
        for snapshot in [&frozen, &loaded, &frozen] {
            let (stdout, captured) = Output::capture(10_000);
            assert_eq!(snapshot.builder().stdout(stdout).run().unwrap().code, 0);
            assert_eq!(captured.text(), direct);
        }
        let kind = |result: Result<Sandbox, Error>| result.unwrap_err().kind();
        assert_eq!(kind(loaded.builder().build()), ErrorKind::Config);
        assert_eq!(loaded.builder().args(["other"]).run().unwrap_err().kind(), ErrorKind::Config);
        let mut guest = builder(ECHO).build().unwrap();
        assert_eq!(guest.restore(&frozen).unwrap_err().kind(), ErrorKind::Config);
        assert_eq!(guest.call::<String>("echo", "x").unwrap(), "x");
        let error = guest.snapshot().unwrap().builder().run().unwrap_err();
        assert!(error.to_string().contains("functions"), "{error}");
    });
}

#[test]
fn every_missing_or_damaged_thing_has_its_error() {
    test(|place| {
        let error = Snapshot::load(place.store(), "nothing").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Store);
        assert!(error.to_string().contains("nothing"), "{error}");
        let pages = Pages::base([(1, [1; 4096])]);
        place.store().save("foreign", b"{\"format\": 1}", &pages, Compression::None).unwrap();
        let error = Snapshot::load(place.store(), "foreign").unwrap_err();
        assert!(error.to_string().contains("document"), "{error}");
        builder(ECHO).build().unwrap().snapshot().unwrap().save(place.store(), "good").unwrap();
        for (field, value, said) in [
            ("format", json!(2), "format 2"),
            ("abi", json!(77), "ABI 77"),
            ("architecture", json!("aarch64"), "aarch64"),
            ("surplus", json!(1), "document"),
        ] {
            edit(place, |document| document[field] = value);
            let error = load_edited(place).unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
        }
    });
}

#[test]
fn compressed_pages_are_the_same_pages() {
    test(|place| {
        let mut sandbox = builder(KEEPER).build().unwrap();
        keep(&mut sandbox, 5);
        let snapshot = sandbox.snapshot().unwrap();
        let plain = snapshot.save(place.store(), "plain").unwrap();
        let other = Place::new();
        let small = snapshot.save_compressed(other.store(), "small").unwrap();
        assert!(small.bytes < plain.bytes / 2, "{small:?} {plain:?}");
        let loaded = Snapshot::load(&other.again(), "small").unwrap();
        assert_eq!(kept(&mut with_host(loaded.builder()).build().unwrap()), [5]);
    });
}
