//! Stores with one fault each: every one is refused with its own message, in the order that docs/snapshot-format.md has,
//! and with little memory.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unsafe_code, reason = "to count what is allocated")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::forge::{
    self, CHUNK_PAGES, CHUNKS, Edit, Forge, KIND, PAGE_RUNS, PAGE_SIZE, PAGES, STORED, ZEROS, fifo, flip, link, replace,
};
use coracle_snapshot::{Digest, Error, PAGE_BYTES, Store};
use serde_json::{Value, json};

const ALLOCATED_MAX: usize = 64 << 20;

/// Counts bytes that are allocated now, and the most that ever were.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: both functions are the system's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        MOST.fetch_max(NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A fault, and a part of what is said of it.
struct Case {
    name: &'static str,
    edit: Edit,
    says: &'static str,
}

const fn case(name: &'static str, edit: Edit, says: &'static str) -> Case {
    Case { name, edit, says }
}

/// In the order in which faults are found. A number is a step of docs/snapshot-format.md.
fn cases() -> Vec<(u32, Vec<Case>)> {
    use Edit::{Base, Config, Derived, Files, Index, IndexText, Manifest, ManifestText};
    vec![
        (
            1,
            vec![
                case(
                    "no oci-layout",
                    Files(|p| fs::remove_file(p.root.join("oci-layout")).unwrap()),
                    "there is no file oci-layout",
                ),
                case(
                    "oci-layout is a link",
                    Files(|p| link(&p.root.join("oci-layout"))),
                    "oci-layout: is a symbolic link",
                ),
                case("oci-layout is a FIFO", Files(|p| fifo(&p.root.join("oci-layout"))), "oci-layout: is a FIFO"),
                case(
                    "oci-layout is a directory",
                    Files(|p| replace(&p.root.join("oci-layout"), |path| fs::create_dir(path).unwrap())),
                    "oci-layout: is a directory",
                ),
                case(
                    "oci-layout is long",
                    Files(|p| put(&p.root.join("oci-layout"), &[b' '; 5000])),
                    "5000 bytes, of at most 4096",
                ),
            ],
        ),
        (
            2,
            vec![
                case(
                    "oci-layout is no JSON",
                    Files(|p| put(&p.root.join("oci-layout"), b"hello")),
                    "oci-layout: expected value",
                ),
                case(
                    "oci-layout has more",
                    Files(|p| put(&p.root.join("oci-layout"), br#"{"imageLayoutVersion":"1.0.0","x":1}"#)),
                    "oci-layout: unknown field `x`",
                ),
                case(
                    "oci-layout is newer",
                    Files(|p| put(&p.root.join("oci-layout"), br#"{"imageLayoutVersion":"2.0.0"}"#)),
                    "version of the layout",
                ),
            ],
        ),
        (
            3,
            vec![
                case(
                    "no blobs",
                    Files(|p| fs::remove_dir_all(p.root.join("blobs")).unwrap()),
                    "there is no directory blobs/sha256",
                ),
                case("blobs is a link", Files(|p| link(&p.root.join("blobs"))), "blobs: is no directory"),
                case(
                    "blobs/sha256 is a file",
                    Files(|p| replace(&p.root.join("blobs/sha256"), |path| fs::write(path, b"").unwrap())),
                    "blobs/sha256: is no directory",
                ),
            ],
        ),
        (
            4,
            vec![
                case("coracle is a link", Files(|p| link(&p.root.join("coracle"))), "coracle: is no directory"),
                case("lock is a FIFO", Files(|p| fifo(&p.root.join("coracle/lock"))), "coracle/lock: is a FIFO"),
                case(
                    "lock is a link",
                    Files(|p| symlink("/etc/passwd", p.root.join("coracle/lock")).unwrap()),
                    "coracle/lock: is a symbolic link",
                ),
            ],
        ),
        (
            5,
            vec![
                case(
                    "no index",
                    Files(|p| fs::remove_file(p.root.join("index.json")).unwrap()),
                    "there is no file index.json",
                ),
                case("index is a link", Files(|p| link(&p.root.join("index.json"))), "index.json: is a symbolic link"),
                case("index is a FIFO", Files(|p| fifo(&p.root.join("index.json"))), "index.json: is a FIFO"),
                case(
                    "index is a socket",
                    Files(|p| {
                        replace(&p.root.join("index.json"), |path| {
                            drop(std::os::unix::net::UnixListener::bind(path).unwrap())
                        })
                    }),
                    "index.json: is a socket",
                ),
                case(
                    "index is large",
                    Files(|p| fs::File::create(p.root.join("index.json")).unwrap().set_len(9 << 20).unwrap()),
                    "of at most 8388608",
                ),
            ],
        ),
        (
            6,
            vec![
                case(
                    "index is no JSON",
                    IndexText(|text| text.replacen('{', "[", 1)),
                    "index.json: has a list of something else",
                ),
                case("index is cut", IndexText(|text| text[..100].to_owned()), "index.json: EOF"),
                case(
                    "index has more",
                    Index(|index| index["subject"] = json!({})),
                    "index.json: unknown field `subject`",
                ),
                case(
                    "index has a field twice",
                    IndexText(|text| text.replacen('{', "{\"schemaVersion\":2,", 1)),
                    "index.json: duplicate field `schemaVersion`",
                ),
                case(
                    "index lacks a field",
                    Index(|index| remove(index, "manifests")),
                    "index.json: missing field `manifests`",
                ),
                case(
                    "an entry has more",
                    Index(|index| index["manifests"][0]["platform"] = json!({})),
                    "index.json: unknown field `platform`",
                ),
                case(
                    "an entry has an unknown annotation",
                    Index(|index| index["manifests"][0]["annotations"]["x"] = json!("")),
                    "index.json: unknown field `x`",
                ),
                case(
                    "an entry's digest is a path",
                    Index(|index| {
                        index["manifests"][0]["digest"] = json!("sha256:../../../../../../../../../../etc/passwd")
                    }),
                    "index.json: a digest is not sha256:",
                ),
                case(
                    "an entry's size is negative",
                    Index(|index| index["manifests"][0]["size"] = json!(-1)),
                    "index.json: invalid value: integer `-1`",
                ),
            ],
        ),
        (
            7,
            vec![
                case(
                    "index has another schema",
                    Index(|index| index["schemaVersion"] = json!(1)),
                    "index.json: its schemaVersion",
                ),
                case(
                    "index has another type",
                    Index(|index| index["mediaType"] = json!("x/y")),
                    "index.json: its mediaType",
                ),
                case(
                    "an entry is an image",
                    Index(|index| index["manifests"][0]["mediaType"] = json!("x/y")),
                    "entry 0 is no manifest",
                ),
                case(
                    "an entry is no snapshot",
                    Index(|index| index["manifests"][0]["artifactType"] = json!("x/y")),
                    "entry 0 is no snapshot",
                ),
                case(
                    "an entry's manifest is large",
                    Index(|index| index["manifests"][0]["size"] = json!(70_000)),
                    "entry 0 has a manifest of more",
                ),
                case(
                    "a tag is a path",
                    Index(|index| {
                        index["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"] = json!("../tag")
                    }),
                    "entry 0 has a bad tag",
                ),
                case(
                    "a size is no number",
                    Index(|index| {
                        index["manifests"][0]["annotations"]["io.github.coracle-vm.snapshot.bytes"] = json!("+1")
                    }),
                    "entry 0 has a size",
                ),
                case(
                    "a tag is there twice",
                    Index(|index| {
                        let entry = index["manifests"][0].clone();
                        index["manifests"].as_array_mut().unwrap().push(entry);
                    }),
                    "is there twice",
                ),
            ],
        ),
        (
            8,
            vec![case(
                "no such tag",
                Index(|index| {
                    index["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"] = json!("other")
                }),
                "no snapshot \"tag\"",
            )],
        ),
        (
            9,
            vec![
                case("no manifest", Files(|p| fs::remove_file(&p.manifest).unwrap()), "MANIFEST: is missing"),
                case("manifest is a link", Files(|p| link(&p.manifest)), "MANIFEST: is a symbolic link"),
                case("manifest is a FIFO", Files(|p| fifo(&p.manifest)), "MANIFEST: is a FIFO"),
                case(
                    "manifest has another size",
                    Index(|index| index["manifests"][0]["size"] = json!(9)),
                    "not 9 as what names it says",
                ),
            ],
        ),
        (10, vec![case("manifest was changed", Files(|p| flip(&p.manifest, 0)), "MANIFEST: has another digest")]),
        (
            11,
            vec![
                case("manifest is no JSON", ManifestText(|text| text.replacen(':', ";", 1)), "MANIFEST: expected `:`"),
                case(
                    "manifest has more",
                    Manifest(|manifest| manifest["annotations"] = json!({})),
                    "MANIFEST: unknown field `annotations`",
                ),
                case(
                    "manifest lacks a field",
                    Manifest(|manifest| remove(manifest, "artifactType")),
                    "MANIFEST: missing field `artifactType`",
                ),
                case(
                    "a layer has no index",
                    Manifest(|manifest| remove(&mut manifest["layers"][0], "annotations")),
                    "MANIFEST: missing field `annotations`",
                ),
                case(
                    "a layer's digest is a path",
                    Manifest(|manifest| manifest["layers"][0]["digest"] = json!("sha256:../../index.json")),
                    "MANIFEST: a digest is not",
                ),
                case(
                    "a layer comes by a link",
                    Manifest(|manifest| manifest["layers"][0]["urls"] = json!("http://localhost")),
                    "MANIFEST: unknown field `urls`",
                ),
            ],
        ),
        (
            12,
            vec![
                case(
                    "manifest has another schema",
                    Manifest(|manifest| manifest["schemaVersion"] = json!(1)),
                    "the manifest's schemaVersion",
                ),
                case(
                    "manifest has another type",
                    Manifest(|manifest| manifest["mediaType"] = json!("x/y")),
                    "the manifest's mediaType",
                ),
                case(
                    "manifest is of an image",
                    Manifest(|manifest| manifest["artifactType"] = json!("x/y")),
                    "the manifest's artifactType",
                ),
                case(
                    "config has another type",
                    Manifest(|manifest| manifest["config"]["mediaType"] = json!("x/y")),
                    "the config's mediaType",
                ),
                case(
                    "config is large",
                    Manifest(|manifest| manifest["config"]["size"] = json!(2 << 20)),
                    "a config of more than",
                ),
                case("there is no layer", Manifest(|manifest| manifest["layers"] = json!([])), "no layer"),
                case(
                    "the chain is long",
                    Manifest(|manifest| {
                        let layer = manifest["layers"][1].clone();
                        manifest["layers"].as_array_mut().unwrap().resize(17, layer);
                    }),
                    "more than 16 layers",
                ),
                case(
                    "a layer has another type",
                    Manifest(|manifest| manifest["layers"][1]["mediaType"] = json!("x/y")),
                    "layer 1 has another mediaType",
                ),
                case(
                    "a layer is large",
                    Manifest(|manifest| manifest["layers"][0]["size"] = json!(1_u64 << 45)),
                    "layer 0 has more than",
                ),
            ],
        ),
        (
            13,
            vec![
                case("no config", Files(|p| fs::remove_file(&p.config).unwrap()), "CONFIG: is missing"),
                case("config is a link", Files(|p| link(&p.config)), "CONFIG: is a symbolic link"),
                case("config has another size", Files(|p| put(&p.config, b"{\"a\": 1}")), "CONFIG: has 8 bytes, not 7"),
                case("config was changed", Files(|p| flip(&p.config, 2)), "CONFIG: has another digest"),
            ],
        ),
        (
            14,
            vec![
                case("config is no object", Config(|config| *config = b"[]".to_vec()), "no JSON object"),
                case(
                    "config is no JSON",
                    Config(|config| *config = b"{\"a\"}".to_vec()),
                    "CONFIG: the config is no JSON: ",
                ),
                case(
                    "config is deep and cut",
                    Config(|config| *config = [b"{\"a\":".to_vec(), vec![b'['; 100_000]].concat()),
                    "EOF while parsing a list",
                ),
            ],
        ),
        (
            15,
            vec![
                case("no base", Files(|p| fs::remove_file(&p.base).unwrap()), "BASE: is missing"),
                case("base is a link", Files(|p| link(&p.base)), "BASE: is a symbolic link"),
                case("base is a FIFO", Files(|p| fifo(&p.base)), "BASE: is a FIFO"),
                case(
                    "base is cut",
                    Files(|p| fs::File::options().write(true).open(&p.base).unwrap().set_len(4096).unwrap()),
                    "BASE: has 4096 bytes, not",
                ),
            ],
        ),
        (
            16,
            vec![
                case(
                    "a layer is short",
                    Base(|layer| {
                        layer.data.clear();
                        layer.runs.clear();
                        layer.chunks.clear();
                        layer.footer = [0; 16];
                    }),
                    "at byte 0: is no layer",
                ),
                case(
                    "a layer is something else",
                    Base(|layer| layer.footer[0] ^= 1),
                    "BASE, at byte 86112: is no layer of a snapshot",
                ),
            ],
        ),
        (
            17,
            vec![case(
                "a layer is newer",
                Base(|layer| layer.footer[2] = 2),
                "BASE has format 2, this version knows 1",
            )],
        ),
        (
            18,
            vec![
                case(
                    "pages have another size",
                    Base(|layer| layer.footer[PAGE_SIZE] = 1 << 14),
                    "pages of another size",
                ),
                case(
                    "a derived layer is the base",
                    Base(|layer| layer.footer[KIND] = 1),
                    "BASE, at byte 86128: is a base where",
                ),
                case(
                    "a base is on the base",
                    Derived(|layer| layer.footer[KIND] = 0),
                    "DERIVED, at byte 12456: is a base where",
                ),
                case(
                    "chunks have another size",
                    Base(|layer| layer.footer[CHUNK_PAGES] = 32),
                    "chunks of another size",
                ),
                case(
                    "a reserved word is used",
                    Base(|layer| layer.footer[11] = 1),
                    "BASE, at byte 86156: has something in bytes that are reserved",
                ),
                case(
                    "a reserved end is used",
                    Derived(|layer| layer.footer[15] = 1),
                    "DERIVED, at byte 12484: has something in bytes that are reserved",
                ),
                case("chunks are miscounted", Base(|layer| layer.footer[CHUNKS] = 3), "more or fewer chunks"),
            ],
        ),
        (
            19,
            vec![
                case(
                    "the index is large",
                    Base(|layer| layer.footer[PAGE_RUNS] = u32::MAX),
                    "BASE, at byte 86136: the index has more than 16777216 bytes",
                ),
                case(
                    "the index of a layer is large",
                    Derived(|layer| layer.footer[PAGE_RUNS] = 2 << 20),
                    "DERIVED, at byte 12464: the index has more than 4194304 bytes",
                ),
            ],
        ),
        (
            20,
            vec![
                case(
                    "pages are longer than the file",
                    Base(|layer| layer.footer[STORED + 1] = u32::MAX),
                    "not as long as the file",
                ),
                case(
                    "the index is longer than the file",
                    Derived(|layer| layer.footer[PAGE_RUNS] = 5),
                    "DERIVED, at byte 12488: pages and index are not as long",
                ),
            ],
        ),
        (
            21,
            vec![
                case(
                    "the index was changed",
                    Files(|p| flip(&p.base, 86_032)),
                    "BASE, at byte 86016: the index has another digest",
                ),
                case(
                    "the manifest names another index",
                    Manifest(|manifest| {
                        manifest["layers"][1]["annotations"]["io.github.coracle-vm.snapshot.index-digest"] =
                            json!(Digest::of(b"x").to_string())
                    }),
                    "DERIVED, at byte 12288: the index has another digest",
                ),
            ],
        ),
        (
            22,
            vec![
                case(
                    "a run is empty",
                    Base(|layer| layer.runs[0][1] = 0),
                    "pages with content: a run of pages is empty",
                ),
                case(
                    "runs overlap",
                    Base(|layer| layer.runs[1][0] = 18),
                    "at byte 86024: pages with content: runs of pages overlap",
                ),
                case(
                    "runs descend",
                    Derived(|layer| layer.runs.reverse()),
                    "DERIVED, at byte 12296: pages with content: runs of pages overlap or do not ascend",
                ),
                case("runs touch", Base(|layer| layer.runs[1][0] = 19), "two runs of pages touch"),
                case(
                    "a page is above the limit",
                    Base(|layer| layer.runs[1] = [(1 << 28) - 1, 2]),
                    "at byte 86024: pages with content: a page number is above",
                ),
                case(
                    "a page number wraps",
                    Base(|layer| layer.runs[0] = [2, u32::MAX]),
                    "at byte 86016: pages with content: a page number is above",
                ),
                case(
                    "runs have too few pages",
                    Base(|layer| layer.runs[1][1] = 1),
                    "its runs have more or fewer pages than",
                ),
            ],
        ),
        (
            23,
            vec![
                case(
                    "a cleared run is empty",
                    Derived(|layer| layer.zeros[0][1] = 0),
                    "pages that became zero: a run of pages is empty",
                ),
                case(
                    "cleared runs overlap",
                    Derived(|layer| layer.zeros[1][0] = 2),
                    "pages that became zero: runs of pages overlap",
                ),
                case(
                    "a cleared page is above the limit",
                    Derived(|layer| layer.zeros[1][0] = 1 << 28),
                    "pages that became zero: a page number is above",
                ),
                case(
                    "cleared pages are miscounted",
                    Derived(|layer| layer.footer[ZEROS] = 9),
                    "pages that became zero than the footer says",
                ),
            ],
        ),
        (
            24,
            vec![
                case(
                    "a base clears pages",
                    Base(|layer| {
                        layer.zeros.push([25, 1]);
                        layer.footer[ZEROS] = 1;
                        layer.footer[9] = 1;
                    }),
                    "a base marks pages as zero",
                ),
                case(
                    "a page has content and is cleared",
                    Derived(|layer| layer.zeros[1] = [41, 2]),
                    "page 42 has content and is zero",
                ),
            ],
        ),
        (
            25,
            vec![
                case(
                    "a chunk is not as long as its pages",
                    Base(|layer| layer.chunks[1].1 -= 1),
                    "a chunk is not as long as its pages",
                ),
                case(
                    "a chunk is stored in a new way",
                    Base(|layer| layer.chunks[0].2 = 7),
                    "a way that this version does not know",
                ),
                case(
                    "a compressed chunk is empty",
                    Base(|layer| layer.store_first(&[], 1)),
                    "a compressed chunk is empty",
                ),
                case(
                    "a compressed chunk is long",
                    Base(|layer| layer.store_first(&[7; 70_000], 1)),
                    "is not shorter than its pages",
                ),
            ],
        ),
        (
            26,
            vec![case(
                "chunks are shorter than their pages in all",
                Base(|layer| {
                    layer.footer[PAGES] = 21;
                    layer.data.extend([1; 8]);
                    layer.footer[STORED] += 8;
                }),
                "chunks are not as long in all",
            )],
        ),
        (
            27,
            vec![
                case(
                    "a page was changed",
                    Files(|p| flip(&p.base, 100)),
                    "BASE, at byte 0: a chunk has another digest",
                ),
                case(
                    "a page of a layer was changed",
                    Files(|p| flip(&p.derived, 5000)),
                    "DERIVED, at byte 4096: a chunk has another digest",
                ),
                case(
                    "a compressed chunk is nonsense",
                    Base(|layer| layer.store_first(&[7; 300], 1)),
                    "is damaged, or holds more",
                ),
                case(
                    "a compressed chunk is a bomb",
                    Derived(|layer| layer.store_first(&zstd::encode_all(&vec![0; 16 << 20][..], 1).unwrap(), 1)),
                    "DERIVED, at byte 0: a compressed chunk is damaged, or holds more",
                ),
                case(
                    "a compressed chunk holds little",
                    Base(|layer| layer.store_first(&zstd::encode_all(&[1; PAGE_BYTES][..], 1).unwrap(), 1)),
                    "holds less than its pages",
                ),
            ],
        ),
        (
            28,
            vec![case(
                "a page of zeros is stored",
                Base(|layer| {
                    let zeros = vec![0; 16 * PAGE_BYTES];
                    layer.store_first(&zeros, 0);
                    layer.chunks[0].0 = sha256(&zeros);
                }),
                "a page that should have content is zero",
            )],
        ),
    ]
}

fn remove(object: &mut Value, field: &str) {
    object.as_object_mut().unwrap().remove(field);
}

/// Another file in place of one; writing into a FIFO would wait for a reader.
fn put(path: &Path, bytes: &[u8]) {
    replace(path, |path| fs::write(path, bytes).unwrap());
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    let text = Digest::of(bytes).to_string();
    std::array::from_fn(|at| u8::from_str_radix(&text[7 + 2 * at..9 + 2 * at], 16).unwrap())
}

fn load(root: &Path) -> Result<(), Error> {
    Store::open(root)?.load("tag").map(drop)
}

/// What loading gives, and the most bytes that are allocated meanwhile.
fn measured<T>(load: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let loaded = load();
    (loaded, MOST.load(Ordering::Relaxed) - before)
}

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is said of a store with these faults; digests are replaced by what they are of, and paths by nothing.
#[track_caller]
fn complaint(forge: &Forge, name: &str, edits: &[Edit]) -> String {
    let _alone = alone();
    let directory = common::directory();
    let names = forge.write(directory.path(), edits);
    let (loaded, allocated) = measured(|| load(directory.path()));
    let error = loaded.err().unwrap_or_else(|| panic!("{name}: is loaded"));
    assert!(allocated < ALLOCATED_MAX, "{name}: {allocated} bytes");
    names.iter().fold(error.to_string().replace(directory.path().to_str().unwrap(), ""), |text, (digest, name)| {
        text.replace(digest, name)
    })
}

#[test]
fn the_forge_makes_good_stores() {
    let _alone = alone();
    let directory = common::directory();
    Forge::new().write(directory.path(), &[]);
    load(directory.path()).unwrap();
    Store::open(directory.path()).unwrap().verify_all().unwrap();
}

#[test]
fn each_fault_has_its_own_message() {
    let forge = Forge::new();
    let mut said: HashMap<String, &str> = HashMap::new();
    for case in cases().into_iter().flat_map(|(_, cases)| cases) {
        let complaint = complaint(&forge, case.name, &[case.edit]);
        assert!(complaint.contains(case.says), "{}: {complaint}", case.name);
        if let Some(other) = said.insert(complaint.clone(), case.name) {
            panic!("{} and {other}: {complaint}", case.name);
        }
    }
    assert!(said.len() >= 60, "{}", said.len());
}

/// A store with the faults of two steps is refused for that of the first.
#[test]
fn checks_come_in_their_order() {
    let forge = Forge::new();
    let steps = cases();
    for (number, (step, _)) in steps.iter().enumerate() {
        assert_eq!(*step, number as u32 + 1);
    }
    for pair in steps.windows(2) {
        let [(step, earlier), (_, later)] = pair else { unreachable!() };
        // A file that is replaced by something else loses the later fault. Behind a link it stays.
        let is_replaced = [1, 5, 9, 13, 15].contains(step);
        let mut shown = 0;
        for earlier in earlier.iter().filter(|earlier| !is_replaced || earlier.name.ends_with("is a link")) {
            // From step 15 on, layers are checked one after the other: faults of both say nothing of the order of steps.
            let is_above = matches!(earlier.edit, Edit::Derived(_)) || earlier.says.starts_with("DERIVED");
            for later in later.iter().filter(|later| !is_above || matches!(later.edit, Edit::Derived(_))) {
                // Some edits cannot be done after others, since what they change is gone.
                let both = std::panic::catch_unwind(|| complaint(&forge, earlier.name, &[later.edit, earlier.edit]));
                let Ok(both) = both else { continue };
                assert!(both.contains(earlier.says), "{step}: {}, {}: {both}", earlier.name, later.name);
                shown += 1;
            }
        }
        assert!(shown > 0, "{step}");
    }
}

/// What is wrong with pages is found by who verifies, whatever was loaded before.
#[test]
fn faults_of_pages_are_found_by_verifying() {
    let _alone = alone();
    let forge = Forge::new();
    for case in cases().into_iter().filter(|(step, _)| *step >= 27).flat_map(|(_, cases)| cases) {
        let directory = common::directory();
        forge.write(directory.path(), &[case.edit]);
        let store = Store::open(directory.path()).unwrap();
        let _ = store.load_unverified("tag");
        assert!(store.verify("tag").is_err(), "{}", case.name);
    }
}

/// The largest indexes that are read, in files that are hardly larger. The base's is all runs, the other one's all chunks.
#[test]
fn the_largest_indexes_take_bounded_memory() {
    const BASE_PAGES: u32 = 1_597_440;
    const DERIVED_PAGES: u32 = 104_800;
    fn nonsense(layer: &mut forge::Layer, chunks: u32) {
        layer.chunks = vec![([1; 32], 1, 1); chunks as usize];
        layer.data = vec![1; chunks as usize];
        (layer.footer[CHUNKS], layer.footer[STORED]) = (chunks, chunks);
    }
    let base = Edit::Base(|layer| {
        nonsense(layer, BASE_PAGES / 16);
        layer.runs = (0..BASE_PAGES).map(|page| [2 * page, 1]).collect();
        (layer.footer[PAGES], layer.footer[PAGE_RUNS]) = (BASE_PAGES, BASE_PAGES);
    });
    let derived = Edit::Derived(|layer| {
        nonsense(layer, DERIVED_PAGES);
        (layer.runs, layer.zeros) = (vec![[0, DERIVED_PAGES]], Vec::new());
        (layer.footer[PAGES], layer.footer[PAGE_RUNS]) = (DERIVED_PAGES, 1);
        (layer.footer[ZEROS], layer.footer[9]) = (0, 0);
    });
    let _alone = alone();
    let mut all = 0;
    for edit in [base, derived] {
        let directory = common::directory();
        Forge::new().write(directory.path(), &[edit]);
        let (loaded, allocated) = measured(|| Store::open(directory.path()).unwrap().load("tag"));
        // That of the base is read as far as its first chunk. The other one is, for its pages are not looked at yet.
        match loaded {
            Ok(loaded) => assert!(loaded.pages.page(7).is_err()),
            Err(error) => assert!(error.to_string().contains("compressed chunk is damaged"), "{error}"),
        }
        all += allocated;
    }
    assert!(all < ALLOCATED_MAX, "{all} bytes");
    assert!(all > 20 << 20, "{all} bytes: these are not the largest");
}
