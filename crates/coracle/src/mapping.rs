//! Content that the embedder lends to guests: files and bytes, mapped without a copy.

use std::fmt;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use coracle_abi::mapping::{ENTRIES_MAX, Entry, NAME_MAX, TABLE_BYTES, TABLE_OFFSET};
use coracle_abi::{PAGE_BYTES, map};
use coracle_snapshot::Digest;
use coracle_vm::{Space, SpaceError, Span};

use crate::error::{Error, ErrorKind};

/// A file, or bytes, that any number of sandboxes can map ([`Builder::map`](crate::Builder::map), [`Sandbox::map`](crate::Sandbox::map)). It
/// exists once in the process, and is cheap to clone.
///
/// ```
/// use coracle::{Content, MapMode, Sandbox, fake::FakeGuest};
/// # let guest = FakeGuest::new().function("double", |n: u32| Ok::<_, String>(n * 2));
/// let words = Content::from_bytes(b"alpha\nbeta\n")?;
/// let mut sandbox = Sandbox::builder(&guest.image())
///     .backend(guest.backend())
///     .map("words", &words, MapMode::ReadOnly)
///     .build()?;
/// // The guest finds it by `coracle_guest::mapping("words")`.
/// assert_eq!(sandbox.mappings().next().map(|mapping| mapping.bytes()), Some(11));
/// sandbox.unmap("words")?;
/// # Ok::<(), coracle::Error>(())
/// ```
#[derive(Clone)]
pub struct Content(Arc<coracle_vm::Content>);

/// What a guest may do with content that is mapped into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MapMode {
    /// Read it.
    ReadOnly,
    /// Write to it, too. A page that it writes becomes its own, counts against its memory limit from then on, and is part of its snapshots.
    /// Nobody else sees what it wrote.
    CopyOnWrite,
}

/// Content in a sandbox.
#[derive(Clone, Debug)]
pub struct Mapping {
    name: String,
    address: u64,
    mode: MapMode,
    content: Content,
}

impl Content {
    /// A regular file, as it is now.
    ///
    /// It must not be changed or get shorter as long as sandboxes or snapshots have it. Replace it by renaming another one over it instead.
    /// What a guest sees of a file that is changed all the same is unspecified, and where it got shorter the guest is stopped; a sandbox
    /// that gets it by a restore or from a snapshot is refused then.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] when it does not open, is no regular file, or empty.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        coracle_vm::Content::open(path).map(Self::new).map_err(|error| {
            Error::new(ErrorKind::Config, format!("cannot map the file {}", path.display())).with_source(error)
        })
    }

    /// A copy of these bytes, the only one that is made.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] when there are none; [`ErrorKind::Host`] when the kernel gives no memory for them.
    pub fn from_bytes(bytes: impl AsRef<[u8]>) -> Result<Self, Error> {
        coracle_vm::Content::copy_of(bytes.as_ref()).map(Self::new).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => Error::new(ErrorKind::Config, "no bytes at all cannot be mapped"),
            _ => Error::new(ErrorKind::Host, "cannot keep a copy of the bytes to be mapped").with_source(error),
        })
    }

    fn new(content: coracle_vm::Content) -> Self {
        Self(Arc::new(content))
    }

    /// The digest of its bytes.
    pub(crate) fn sha256(&self) -> Result<Digest, Error> {
        let mut at = 0;
        let left = self.bytes();
        let reader = Reader { content: &self.0, at: &mut at };
        Digest::of_reader(reader.take(left))
            .map_err(|error| Error::new(ErrorKind::Host, "mapped content cannot be read any more").with_source(error))
    }

    pub(crate) fn lent(&self) -> Arc<coracle_vm::Content> {
        Arc::clone(&self.0)
    }

    /// Its length in bytes, at least 1. Zeros follow to the end of the last page.
    pub fn bytes(&self) -> u64 {
        self.0.bytes()
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Content").field("bytes", &self.bytes()).finish()
    }
}

/// Reads content from its start.
struct Reader<'c> {
    content: &'c coracle_vm::Content,
    at: &'c mut u64,
}

impl io::Read for Reader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.content.read(*self.at, out)?;
        *self.at += out.len() as u64;
        Ok(out.len())
    }
}

impl Mapping {
    pub(crate) fn new(name: String, address: u64, mode: MapMode, content: Content) -> Self {
        Self { name, address, mode, content }
    }

    /// By which the guest finds it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its first address in the guest.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> u64 {
        self.content.bytes()
    }

    /// What the guest may do with it.
    pub fn mode(&self) -> MapMode {
        self.mode
    }

    /// What is there, but for what the guest wrote.
    pub fn content(&self) -> &Content {
        &self.content
    }
}

/// What is to be mapped.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) name: String,
    pub(crate) content: Content,
    pub(crate) mode: MapMode,
    /// Chosen by the embedder.
    pub(crate) address: Option<u64>,
}

/// Maps one more. `mappings` are those that are there, and are as before after an error.
pub(crate) fn add(space: &mut Space, mappings: &mut Arc<Vec<Mapping>>, wish: Wish) -> Result<u64, Error> {
    let Wish { name, content, mode, address } = wish;
    let config = |message: String| Error::new(ErrorKind::Config, message);
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(config(format!("'{name}' cannot be a mapping's name: 1 to {NAME_MAX} bytes")));
    }
    if mappings.iter().any(|mapping| mapping.name == name) {
        return Err(config(format!("there is a mapping '{name}' already: unmap it, or choose another name")));
    }
    if mappings.len() == ENTRIES_MAX {
        return Err(Error::new(ErrorKind::Limit, format!("a sandbox has at most {ENTRIES_MAX} mappings")));
    }
    let span = match address {
        Some(address) => Span::new(address, content.bytes()).ok_or_else(|| {
            let bytes = content.bytes();
            config(format!("{bytes} bytes at {address:#x} are not pages that a guest can have: see docs/memory-map.md"))
        })?,
        None => space.find_gap(content.bytes(), map::MMAP_END).ok_or_else(|| no_room(&name))?,
    };
    match space.map_content(span, &content.0, mode == MapMode::CopyOnWrite) {
        Ok(()) => {}
        Err(SpaceError::Overlap) => {
            let (start, end) = (span.start(), span.end());
            return Err(config(format!("'{name}' does not fit at {start:#x}-{end:#x}: something is mapped there")));
        }
        Err(SpaceError::NoMemory | SpaceError::TooManyAreas) => return Err(no_room(&name)),
        Err(error) => return Err(error.into()),
    }
    Arc::make_mut(mappings).push(Mapping { name, address: span.start(), mode, content });
    write_table(space, mappings)?;
    Ok(span.start())
}

/// Takes one away.
pub(crate) fn remove(space: &mut Space, mappings: &mut Arc<Vec<Mapping>>, name: &str) -> Result<(), Error> {
    let place = mappings.iter().position(|mapping| mapping.name == name);
    let place = place.ok_or_else(|| Error::new(ErrorKind::Config, format!("there is no mapping '{name}'")))?;
    space.unmap_content(mappings[place].address)?;
    Arc::make_mut(mappings).remove(place);
    write_table(space, mappings)
}

/// Tells the guest.
fn write_table(space: &mut Space, mappings: &[Mapping]) -> Result<(), Error> {
    let mut table = Vec::with_capacity(TABLE_BYTES);
    table.extend((mappings.len() as u64).to_le_bytes());
    for Mapping { name, address, mode, content } in mappings {
        let is_writable = *mode == MapMode::CopyOnWrite;
        table.extend(Entry { address: *address, bytes: content.bytes(), is_writable, name }.encode());
    }
    debug_assert!(TABLE_OFFSET as usize + table.len() <= PAGE_BYTES as usize);
    match space.load(map::BOOT_PAGE + TABLE_OFFSET, &table) {
        // An ordinary program has no boot page, and knows the address that was chosen for it.
        Ok(()) | Err(SpaceError::NotMapped) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn no_room(name: &str) -> Error {
    Error::new(ErrorKind::Limit, format!("the guest's address space has no room for '{name}'"))
}
