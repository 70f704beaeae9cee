//! What is measured: the same sandboxes for the criterion benchmarks and for the ratios.

use coracle::{Builder, Image, Sandbox, Snapshot, Store};
use coracle_artifacts::{CARRIER, ECHO, HELLO, KEEPER};

/// Guest heaps, as the field names them.
pub const HEAPS: [(&str, u64); 4] =
    [("default", 128 << 10), ("small", 8 << 20), ("medium", 64 << 20), ("large", 256 << 20)];

/// The guest with functions of all kinds.
///
/// # Panics
/// When it does not build.
#[expect(clippy::expect_used, reason = "a benchmark without its guest has nothing to do")]
pub fn echo_image() -> Image {
    Image::from_path(ECHO.path()).expect("the echo guest is an image")
}

/// The guest of the examples: few functions, the same SDK.
///
/// # Panics
/// When it does not build.
#[expect(clippy::expect_used, reason = "a benchmark without its guest has nothing to do")]
pub fn hello_image() -> Image {
    Image::from_path(HELLO.path()).expect("the hello guest is an image")
}

/// Offers what the guests of the benchmarks may call.
pub fn with_host_functions(builder: Builder) -> Builder {
    builder
        .host_fn("greet", |name: String| Ok::<_, String>(name))
        .host_fn("host_add", |(a, b): (i32, i32)| Ok::<_, String>(a.wrapping_add(b)))
        .host_fn("time_of_day", |(): ()| Ok::<_, String>("morning".to_owned()))
}

/// A sandbox that is ready, with a heap of this size.
///
/// # Panics
/// Without KVM.
#[expect(clippy::expect_used, reason = "a benchmark without its guest has nothing to do")]
pub fn sandbox(image: &Image, heap_bytes: u64) -> Sandbox {
    with_host_functions(Sandbox::builder(image)).heap_bytes(heap_bytes).build().expect("the guest boots")
}

/// A sandbox whose function `dirty` writes up to `pages` pages that it has already, and a snapshot to go back to.
///
/// # Panics
/// Without KVM.
#[expect(clippy::expect_used, reason = "a benchmark without its guest has nothing to do")]
pub fn dirtied(pages: u32) -> (Sandbox, Snapshot) {
    let image = Image::from_path(KEEPER.path()).expect("the keeper guest is an image");
    let mut sandbox = Sandbox::builder(&image).heap_bytes(32 << 20).build().expect("the guest boots");
    sandbox.call::<()>("dirty", (pages, 1_u32)).expect("dirty answers");
    let snapshot = sandbox.snapshot().expect("a ready guest can be frozen");
    (sandbox, snapshot)
}

/// A store with a snapshot, prepared so that it loads at once. The directory goes away with it.
pub struct Stored {
    _directory: tempfile::TempDir,
    /// Open.
    pub store: Store,
    /// What was saved.
    pub snapshot: Snapshot,
}

impl Stored {
    /// The tag.
    pub const TAG: &'static str = "echo";

    /// Of the echo guest with a heap of this size.
    ///
    /// # Panics
    /// Without KVM, or a place for files.
    #[expect(clippy::expect_used, reason = "a benchmark without its guest has nothing to do")]
    pub fn new(heap_bytes: u64) -> Self {
        let directory = tempfile::tempdir().expect("there is room for files");
        let snapshot = sandbox(&echo_image(), heap_bytes).snapshot().expect("a ready guest can be frozen");
        let store = Store::create(directory.path()).expect("a store can be made");
        snapshot.save(&store, Self::TAG).expect("a snapshot can be saved");
        Snapshot::load(&store, Self::TAG).expect("it can be loaded");
        Self { _directory: directory, store, snapshot }
    }
}

/// A sandbox of the guest that carries payloads, with memory for `payload_bytes` each way.
///
/// # Panics
/// Without KVM.
#[expect(clippy::expect_used, reason = "a benchmark without its guest has nothing to do")]
pub fn carrier(payload_bytes: u64) -> Sandbox {
    let image = Image::from_path(CARRIER.path()).expect("the carrier guest is an image");
    Sandbox::builder(&image)
        .host_fn("count", |_: u32| Ok::<_, String>(()))
        .host_fn("host_bytes", |count: u32| Ok::<_, String>(vec![7_u8; count as usize]))
        .host_fn("host_take", |bytes: Vec<u8>| Ok::<_, String>(bytes.len() as u64))
        .memory_bytes((64 << 20) + 2 * payload_bytes)
        .heap_bytes(32 << 20)
        .payload_bytes(payload_bytes)
        .build()
        .expect("the guest boots")
}
