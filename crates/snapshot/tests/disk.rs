//! Snapshots in stores, and out of them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;

use common::{base, content, derive, directory, disk_bytes, page, published, store};
use coracle_snapshot::{Compression, Content, Error, LayerKind, PAGE_BYTES, Pages, Store};

const CONFIG: &[u8] = br#"{"made-by":"a test"}"#;

fn save(store: &Store, tag: &str, pages: &Pages) -> coracle_snapshot::Saved {
    store.save(tag, CONFIG, pages, Compression::None).unwrap()
}

#[test]
fn what_is_loaded_is_what_was_saved() {
    for compression in [Compression::None, Compression::Zstd] {
        let (directory, store) = store();
        let parent = base((0..100).chain([5000, 70_000]));
        // Changed, new, cleared; and cleared where nothing was.
        let child = derive(&parent, &[(3, 900), (200, 901), (70_000, 0), (300, 0), (50, 7), (51, 7), (52, 7)]);
        // Back to what it was, cleared again, new.
        let grandchild = derive(&child, &[(3, 4), (200, 0), (4, 902)]);
        for (tag, pages) in [("base", &parent), ("child", &child), ("grandchild", &grandchild)] {
            let saved = store.save(tag, CONFIG, pages, compression).unwrap();
            assert_eq!(saved.layers, pages.depth() + 1);
            assert_eq!(saved.pages_written, pages.own_pages());
        }
        assert_eq!(store.verify_all().unwrap().layers, 3);
        for store in [&store, &Store::open(directory.path()).unwrap()] {
            for (tag, pages) in [("base", &parent), ("child", &child), ("grandchild", &grandchild)] {
                for loaded in [store.load(tag).unwrap(), store.load_unverified(tag).unwrap()] {
                    assert_eq!(loaded.config, CONFIG);
                    assert_eq!(loaded.pages.own_numbers(), pages.own_numbers(), "{tag}");
                    assert_eq!(loaded.pages.depth(), pages.depth());
                    assert!(loaded.pages.numbers().eq(pages.numbers()));
                    assert!(content(&loaded.pages) == content(pages), "{tag}");
                    assert_eq!(store.load(&loaded.digest.to_string()).unwrap().digest, loaded.digest);
                    let file = loaded.run_form.file();
                    assert_eq!(loaded.run_form.bytes(), 70_001 * PAGE_BYTES as u64);
                    let mut found = [0; PAGE_BYTES];
                    for number in [0, 99, 100, 5000, 70_000] {
                        file.read_exact_at(&mut found, u64::from(number) * PAGE_BYTES as u64).unwrap();
                        assert!(found == *parent.page(number).unwrap().bytes(), "{number}");
                    }
                    assert!(content(loaded.run_form.pages()) == content(&parent));
                    loaded.run_form.check().unwrap();
                }
            }
        }
        assert_eq!(store.verify_all().unwrap().run_forms, 1);
    }
}

#[test]
fn the_empty_snapshot_is_one() {
    let (_directory, store) = store();
    let saved = save(&store, "empty", &Pages::empty());
    assert_eq!((saved.layers, saved.pages_written), (1, 0));
    let loaded = store.load("empty").unwrap();
    assert_eq!((loaded.run_form.bytes(), loaded.pages.numbers().count()), (0, 0));
    assert_eq!(loaded.pages.page(7).unwrap(), Content::Zero);
    let child = derive(&loaded.pages, &[(7, 1)]);
    assert_eq!(save(&store, "child", &child).layers, 1, "one page is no more as a base");
    store.verify_all().unwrap();
}

#[test]
fn the_same_snapshot_has_the_same_files() {
    let (one, first) = store();
    let (other, second) = store();
    let numbers = || (0..40).chain([1000]);
    for store in [&first, &second, &second] {
        for compression in [Compression::None, Compression::Zstd] {
            let parent = base(numbers());
            let tag = format!("{compression:?}");
            store.save(&tag, CONFIG, &parent, compression).unwrap();
            store.save(&format!("{tag}-child"), CONFIG, &derive(&parent, &[(3, 77), (5, 0)]), compression).unwrap();
        }
    }
    assert_eq!(published(one.path()), published(other.path()));
}

#[test]
fn a_derived_snapshot_writes_what_differs_from_the_nearest_relative() {
    let (directory, store) = store();
    let parent = base(0..1000);
    save(&store, "base", &parent);
    let far = derive(&parent, &(0..500).map(|number| (number, number + 5000)).collect::<Vec<_>>());
    assert_eq!(save(&store, "far", &far).pages_written, 500);
    // Never saved itself, between the two.
    let near = derive(&far, &[(600, 1)]);
    let nearer = derive(&near, &[(601, 1), (0, 9)]);
    let saved = save(&store, "near", &nearer);
    assert_eq!((saved.layers, saved.pages_written), (3, 3));
    // A sibling, by way of what was loaded; and twice the same.
    let loaded = Store::open(directory.path()).unwrap().load("near").unwrap();
    let sibling = derive(&loaded.pages, &[(602, 7)]);
    for _ in 0..2 {
        let saved = save(&store, "sibling", &sibling);
        assert_eq!(saved.layers, 4);
    }
    assert_eq!(save(&store, "again", &sibling).pages_written, 0);
    assert_eq!(save(&store, "again", &loaded.pages).digest, store.load("near").unwrap().digest);
    // Another store has nothing to build on.
    let (_other_directory, other) = common::store();
    assert_eq!(save(&other, "sibling", &sibling).layers, 1);
    assert!(content(&other.load("sibling").unwrap().pages) == content(&sibling));
    assert_eq!(store.diff("near", "sibling").unwrap(), [602]);
    assert_eq!(store.diff("base", "near").unwrap().len(), 502);
}

#[test]
fn chains_do_not_grow_for_ever() {
    let (_directory, store) = store();
    let mut pages = base(0..100);
    let mut most = 0;
    for generation in 0..40 {
        pages = derive(&pages, &[(generation * 2, 1000 + generation), (500 + generation, 1)]);
        let saved = save(&store, &format!("generation-{generation}"), &pages);
        most = most.max(saved.layers);
        assert!(saved.layers <= 8);
    }
    assert_eq!(most, 8);
    for generation in [0, 7, 8, 39] {
        let loaded = store.load(&format!("generation-{generation}")).unwrap();
        assert_eq!(loaded.pages.page(500 + generation).unwrap().bytes(), &page(1));
        assert_eq!(loaded.pages.page(501 + generation).unwrap(), Content::Zero);
    }
    assert!(content(&store.load("generation-39").unwrap().pages) == content(&pages));
    store.verify_all().unwrap();
}

#[test]
fn relatives_that_were_pruned_are_written_again() {
    let (_directory, store) = store();
    let parent = base(0..50);
    save(&store, "base", &parent);
    store.untag("base").unwrap();
    let pruned = store.prune().unwrap();
    assert_eq!((pruned.blobs, pruned.run_forms), (3, 0));
    let child = derive(&parent, &[(1, 9)]);
    assert_eq!(save(&store, "child", &child).layers, 1);
    assert!(content(&store.load("child").unwrap().pages) == content(&child));
}

#[test]
fn prune_removes_what_no_tag_leads_to_and_nothing_else() {
    let (directory, store) = store();
    let parent = base(0..50);
    save(&store, "base", &parent);
    save(&store, "child", &derive(&parent, &[(1, 9)]));
    save(&store, "unrelated", &base(100..120));
    let loaded = store.load("unrelated").unwrap();
    store.load("child").unwrap();
    std::fs::write(directory.path().join("coracle/tmp/left"), [1; 5000]).unwrap();
    std::fs::write(directory.path().join("blobs/sha256/not-ours"), b"x").unwrap();
    assert_eq!(store.prune().unwrap().temporaries, 1);
    assert_eq!(store.prune().unwrap(), Default::default());
    store.untag("base").unwrap();
    store.untag("unrelated").unwrap();
    let before = disk_bytes(directory.path());
    let pruned = store.prune().unwrap();
    // Two manifests, one layer; the config is still needed.
    assert_eq!((pruned.blobs, pruned.run_forms, pruned.temporaries), (3, 1, 0));
    assert_eq!(before - disk_bytes(directory.path()), pruned.bytes);
    store.verify_all().unwrap();
    assert_eq!(store.load("child").unwrap().pages.page(1).unwrap().bytes(), &page(9));
    assert!(matches!(store.load("unrelated"), Err(Error::NotFound { .. })));
    // Who had it loaded keeps it.
    assert!(content(&loaded.pages) == content(&base(100..120)));
    assert!(directory.path().join("blobs/sha256/not-ours").exists());
    // With a manifest that cannot be read, nobody knows what is needed.
    let manifest = store.load("child").unwrap().digest.to_string().replace("sha256:", "blobs/sha256/");
    std::fs::write(directory.path().join(manifest), b"{}").unwrap();
    let files = common::files(directory.path());
    assert!(matches!(store.prune(), Err(Error::Damaged { .. })));
    assert_eq!(common::files(directory.path()), files);
}

#[test]
fn tags_move_and_go() {
    let (_directory, store) = store();
    let first = save(&store, "latest", &base(0..3));
    let second = save(&store, "latest", &base(0..4));
    save(&store, "a", &base(0..4));
    let tags: Vec<_> = store.list().unwrap().into_iter().map(|entry| (entry.tag, entry.digest)).collect();
    assert_eq!(tags, [("a".to_owned(), second.digest), ("latest".to_owned(), second.digest)]);
    assert_eq!(store.list().unwrap()[0].bytes, Some(second.bytes));
    // By digest it is there until it is pruned.
    assert_eq!(store.load(&first.digest.to_string()).unwrap().pages.numbers().count(), 3);
    store.prune().unwrap();
    assert!(matches!(store.load(&first.digest.to_string()), Err(Error::NotFound { .. })));
    store.untag("latest").unwrap();
    assert!(matches!(store.untag("latest"), Err(Error::NotFound { .. })));
    for bad in ["", "../x", "a:b", "sha256:12", &"x".repeat(129)] {
        assert!(matches!(store.load(bad), Err(Error::Reference { .. })), "{bad}");
        assert!(store.save(bad, CONFIG, &Pages::empty(), Compression::None).is_err());
    }
}

#[test]
fn what_cannot_be_saved_is_refused_and_changes_nothing() {
    let (directory, store) = store();
    save(&store, "tag", &base(0..3));
    let before = published(directory.path());
    for config in [&b"[]"[..], b"", b"{", &[b' '; (1 << 20) + 1]] {
        let error = store.save("tag", config, &base(0..4), Compression::None).unwrap_err();
        assert!(matches!(error, Error::Unfit { .. }), "{error}");
    }
    let error = store.save("tag", CONFIG, &base([1 << 28]), Compression::None).unwrap_err();
    assert!(error.to_string().contains("1 TiB"), "{error}");
    assert_eq!(published(directory.path()), before);
    assert_eq!(save(&store, "tag", &base([(1 << 28) - 1])).pages_written, 1);
    assert_eq!(store.load("tag").unwrap().pages.page((1 << 28) - 1).unwrap().bytes(), &page(1 << 28));
    store.verify_all().unwrap();
}

#[test]
fn a_run_form_is_sparse_read_only_and_made_once() {
    let (directory, store) = store();
    save(&store, "base", &base((0..64).chain([1 << 20])));
    let run_forms = directory.path().join("coracle/run");
    let made = || -> Vec<_> {
        std::fs::read_dir(&run_forms).unwrap().map(|entry| entry.unwrap().metadata().unwrap()).collect()
    };
    let first = store.load("base").unwrap();
    let [metadata] = &made()[..] else { panic!() };
    assert_eq!(metadata.permissions().mode() & 0o777, 0o444);
    assert!(metadata.blocks() * 512 < 300_000, "{} blocks", metadata.blocks());
    drop(first);
    for _ in 0..3 {
        store.load("base").unwrap();
        assert_eq!(made()[0].ino(), metadata.ino());
    }
    // Two that are loaded at once are compared without reading anything.
    let (one, other) = (store.load("base").unwrap(), store.load("base").unwrap());
    one.pages.for_each_difference(&other.pages, |number| panic!("{number}"));
}

#[test]
fn a_run_form_that_was_changed_is_made_anew() {
    let changes: [fn(&File); 5] = [
        |file| file.write_all_at(&[9], 3).unwrap(),
        |file| file.set_len(100).unwrap(),
        |file| file.set_len(1 << 20).unwrap(),
        |file| file.set_len(0).unwrap(),
        |file| {
            // The trailer of another base, with the time put back.
            let modified = file.metadata().unwrap().modified().unwrap();
            let end = file.metadata().unwrap().len();
            file.write_all_at(&[9], end - 70).unwrap();
            file.set_modified(modified).unwrap();
        },
    ];
    for change in changes {
        let (directory, store) = store();
        save(&store, "base", &base(0..64));
        let used = store.load("base").unwrap();
        let path: PathBuf = common::files(&directory.path().join("coracle/run"))[0].clone();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let is_seen = file.metadata().unwrap().len();
        change(&file);
        drop(file);
        let seen = used.run_form.check().is_err();
        assert!(seen || path.metadata().unwrap().len() == is_seen);
        drop(used);
        let loaded = store.load("base").unwrap();
        assert!(content(&loaded.pages) == content(&base(0..64)));
        loaded.run_form.check().unwrap();
        store.verify_all().unwrap();
    }
}

#[test]
fn a_run_form_that_was_not_checked_is_no_good_for_who_checks() {
    let (directory, store) = store();
    save(&store, "base", &base(0..64));
    let blob = common::files(&directory.path().join("blobs/sha256"))
        .into_iter()
        .find(|file| file.metadata().unwrap().len() > 10_000)
        .unwrap();
    OpenOptions::new().write(true).open(&blob).unwrap().write_all_at(&[9], 5000).unwrap();
    let unverified = store.load_unverified("base").unwrap();
    assert_eq!(unverified.pages.page(1).unwrap().bytes()[5000 - 4096], 9);
    for _ in 0..2 {
        let error = store.load("base").unwrap_err();
        assert!(error.to_string().contains("digest"), "{error}");
    }
}

#[test]
fn damage_of_a_large_layer_is_found_when_the_page_is_read() {
    let (directory, store) = store();
    let parent = base(0..300);
    save(&store, "base", &parent);
    let child = derive(&parent, &(0..200).map(|number| (number, number + 9000)).collect::<Vec<_>>());
    save(&store, "child", &child);
    let layer = store.inspect("child").unwrap().layers[1].digest.to_string().replace("sha256:", "blobs/sha256/");
    let file = OpenOptions::new().write(true).open(directory.path().join(layer)).unwrap();
    file.write_all_at(&[9], 100 * 4096).unwrap();
    let loaded = store.load("child").unwrap();
    assert_eq!(loaded.pages.page(99).unwrap().bytes(), &page(9099));
    let error = loaded.pages.page(100).unwrap_err();
    assert!(error.to_string().contains("at byte 409600"), "{error}");
    assert!(loaded.pages.derive(&[100], |_, out| out.fill(1)).is_err());
    assert!(store.verify("child").is_err());
    store.verify("base").unwrap();
}

#[test]
fn an_inspection_tells_what_a_snapshot_consists_of() {
    let (_directory, store) = store();
    let parent = base((0..20).chain([30]));
    save(&store, "base", &parent);
    store.save("child", b"{}", &derive(&parent, &[(5, 0), (6, 0), (21, 1)]), Compression::Zstd).unwrap();
    let inspection = store.inspect("child").unwrap();
    assert_eq!(inspection.config, b"{}");
    let [below, above] = &inspection.layers[..] else { panic!() };
    assert_eq!((below.kind, above.kind), (LayerKind::Base, LayerKind::Derived));
    assert_eq!((below.pages.clone(), below.zeroed.len()), (vec![0..20, 30..31], 0));
    assert!(above.pages.iter().eq([&(21..22)]) && above.zeroed.iter().eq([&(5..7)]));
    assert!(!below.is_compressed && above.is_compressed);
}

#[test]
fn a_store_is_made_once_and_only_a_store_is_opened() {
    let directory = directory();
    let path = directory.path().join("a/b");
    assert!(matches!(Store::open(&path), Err(Error::NotAStore { .. })));
    let store = Store::create(&path).unwrap();
    save(&store, "tag", &base(0..3));
    assert_eq!(Store::create(&path).unwrap().list().unwrap().len(), 1);
    for other in [directory.path(), &path.join("index.json")] {
        assert!(matches!(Store::open(other), Err(Error::NotAStore { .. })));
    }
}

#[test]
fn a_snapshot_is_taken_in_blob_by_blob() {
    let (_one, from) = store();
    let (other, to) = store();
    let parent = base(0..100);
    save(&from, "base", &parent);
    save(&from, "child", &derive(&parent, &[(1, 9)]));
    let mut moved = 0;
    for tag in ["base", "child"] {
        let (digest, bytes, _) = from.manifest(tag).unwrap();
        let import = to.import().unwrap();
        let manifest = import.manifest(&bytes).unwrap();
        for blob in std::iter::once(manifest.config()).chain(manifest.layers()) {
            if !import.has(blob) {
                import.add(blob, from.open_blob(blob).unwrap()).unwrap();
                moved += 1;
            }
        }
        assert_eq!(import.finish(tag, &bytes).unwrap(), digest);
    }
    assert_eq!(moved, 3, "a config and two layers");
    assert!(content(&to.load("child").unwrap().pages) == content(&from.load("child").unwrap().pages));
    assert_eq!(to.list().unwrap(), from.list().unwrap());
    // What comes otherwise is not kept.
    let (_, bytes, manifest) = from.manifest("child").unwrap();
    let (empty_directory, empty) = store();
    let import = empty.import().unwrap();
    for bytes in [&[1; 100][..], &[], &vec![1; manifest.layers()[0].size as usize]] {
        assert!(matches!(import.add(&manifest.layers()[0], bytes), Err(Error::Damaged { .. })));
    }
    assert!(matches!(import.finish("child", &bytes), Err(Error::Damaged { .. })));
    assert_eq!(published(empty_directory.path()).len(), 2);
    to.verify_all().unwrap();
    drop(other);
}

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
const GOLDEN_STORES: [(&str, Compression); 2] = [("format-1", Compression::None), ("format-1-zstd", Compression::Zstd)];

/// A base and a child, in a new store.
fn golden(path: &std::path::Path, compression: Compression) -> [(&'static str, Pages); 2] {
    let parent = base([1, 2, 3, 40]);
    let child = derive(&parent, &[(2, 0), (3, 70), (41, 71)]);
    let store = Store::create(path).unwrap();
    store.save("base", CONFIG, &parent, compression).unwrap();
    store.save("child", CONFIG, &child, compression).unwrap();
    [("base", parent), ("child", child)]
}

/// Small stores of this format, made once: later versions load them, or refuse them by name.
#[test]
fn golden_stores_are_loaded() {
    for (name, compression) in GOLDEN_STORES {
        // A copy, since loading makes run forms.
        let copy = directory();
        let from = std::path::Path::new(GOLDEN).join(name);
        for file in common::files(&from) {
            let to = copy.path().join(file.strip_prefix(&from).unwrap());
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(&file, to).unwrap();
        }
        let again = directory();
        let store = Store::open(copy.path()).unwrap();
        assert_eq!(store.verify_all().unwrap().layers, 2, "{name}");
        for (tag, pages) in golden(again.path(), compression) {
            let loaded = store.load(tag).unwrap();
            assert!(content(&loaded.pages) == content(&pages), "{name} {tag}");
            assert_eq!(loaded.config, CONFIG);
        }
        // What is written today is the same, byte for byte. How zstd compresses may change with its version.
        if compression == Compression::None {
            assert!(published(again.path()) == published(&from), "{name}: other bytes are written than before");
        }
    }
}

/// For a new format: `cargo test -p coracle-snapshot --test disk -- --ignored golden_stores_are_written`.
#[test]
#[ignore = "writes into the sources"]
fn golden_stores_are_written() {
    for (name, compression) in GOLDEN_STORES {
        let path = std::path::Path::new(GOLDEN).join(name);
        assert!(!path.exists(), "{} is there already", path.display());
        golden(&path, compression);
        std::fs::remove_dir_all(path.join("coracle")).unwrap();
    }
}

/// Variants of one base, 20 pages each.
#[test]
fn a_variant_costs_its_pages() {
    const VARIANTS: u32 = 100;
    let (directory, store) = store();
    let parent = base(0..2048);
    save(&store, "base", &parent);
    let before = disk_bytes(directory.path());
    for variant in 0..VARIANTS {
        let changed: Vec<(u32, u32)> =
            (0..20).map(|index| (index * 101 + variant % 7, 10_000 + variant * 20 + index)).collect();
        let saved = save(&store, &format!("customer-{variant}"), &derive(&parent, &changed));
        assert_eq!((saved.layers, saved.pages_written), (2, 20));
    }
    let each = (disk_bytes(directory.path()) - before) / u64::from(VARIANTS);
    assert!(each <= 120 << 10, "{each} bytes");
    // All of them loaded at once keep one file open.
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    let loaded: Vec<_> = (0..VARIANTS).map(|variant| store.load(&format!("customer-{variant}")).unwrap()).collect();
    assert!(open() < before + 50, "{} files", open() - before);
    for (variant, loaded) in loaded.iter().enumerate() {
        assert_eq!(loaded.pages.page(variant as u32 % 7).unwrap().bytes(), &page(10_000 + variant as u32 * 20));
    }
}

/// 256 MiB of address space with 8 MiB of data.
#[test]
fn blobs_take_what_the_data_takes() {
    let (directory, store) = store();
    let pages = base((0..2048).map(|index| index * 32));
    let saved = save(&store, "sparse", &pages);
    let blobs = disk_bytes(&directory.path().join("blobs"));
    assert!(blobs <= 17 << 19, "{blobs} bytes"); // 8.5 MiB.
    assert!(saved.bytes <= 17 << 19);
    store.load("sparse").unwrap();
    let run_form = disk_bytes(&directory.path().join("coracle/run"));
    assert!(run_form <= 17 << 19, "{run_form} bytes: this file system has no holes");
}

#[test]
fn a_relative_is_remembered_for_each_store() {
    let parent = base(0..100);
    let stores: Vec<_> = (0..7).map(|_| store()).collect();
    for round in 0..5 {
        for (_, store) in &stores[..3] {
            save(store, "base", &parent);
            let saved = save(store, "child", &derive(&parent, &[(round, 900 + round)]));
            assert_eq!((saved.layers, saved.pages_written), (2, 1));
        }
    }
    // More stores than are remembered: what is forgotten is written again, and is as good.
    for (_, store) in stores.iter().cycle().take(14) {
        save(store, "base", &parent);
        save(store, "child", &derive(&parent, &[(1, 9)]));
        save(store, "sibling", &derive(&parent, &[(2, 9)]));
        store.verify_all().unwrap();
    }
}
