//! The state of a sandbox between two calls, frozen.
//!
//! A snapshot is a value: immutable, cheap to clone, shared between threads. Taking one costs what the guest wrote since
//! the last; putting a sandbox back costs what it wrote since. The guest waits inside the doorbell's page when it is taken,
//! and that page gives it fresh vector and x87 registers when it goes on: so a snapshot holds memory, general registers and
//! what the host knows of the guest, and nothing of the processor's make.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use coracle_abi::boot::BootInfo;
use coracle_abi::map;
use coracle_snapshot::{Content, Pages, RunForm};
use coracle_vm::paging::Frame;
use coracle_vm::{Backend, Base, PageContent, Registers, Space, SpaceError, SpaceState, Span};

use crate::builder::Builder;
use crate::config::Config;
use crate::entropy;
use crate::error::{Error, ErrorKind};
use crate::host::HostFunctions;
use crate::interface::Interface;
use crate::linux::LinuxState;
use crate::machine::Machine;
use crate::mapping::Mapping;
use crate::origin::Origin;
use crate::sandbox::Exported;
use crate::stack::StackRandom;
use crate::transport::Transport;

/// A sandbox's state, frozen between two calls: from [`Sandbox::snapshot`](crate::Sandbox::snapshot).
///
/// ```
/// # use coracle::{Sandbox, fake::FakeGuest};
/// # let guest = FakeGuest::new().function("double", |n: u32| Ok::<_, String>(n * 2));
/// let mut sandbox = Sandbox::builder(&guest.image()).backend(guest.backend()).build()?;
/// let clean = sandbox.snapshot()?;
/// sandbox.call::<u32>("double", 21u32)?;
/// sandbox.restore(&clean)?; // As if that call had never been.
/// # Ok::<(), coracle::Error>(())
/// ```
#[derive(Clone)]
pub struct Snapshot(pub(crate) Arc<State>);

/// What a snapshot holds.
pub(crate) struct State {
    pub(crate) pages: Pages,
    pub(crate) space: SpaceState,
    pub(crate) registers: Registers,
    pub(crate) linux: LinuxState,
    /// `None` for a program that was never started.
    pub(crate) transport: Option<Transport>,
    pub(crate) functions: Arc<HashMap<String, Exported>>,
    pub(crate) interface: Arc<Interface>,
    pub(crate) mappings: Arc<Vec<Mapping>>,
    pub(crate) origin: Origin,
    pub(crate) stack: Span,
    pub(crate) random: StackRandom,
    pub(crate) config: Config,
    pub(crate) host_functions: HostFunctions,
    pub(crate) backend: Arc<dyn Backend>,
    /// Pages that the guest had written, and will write again.
    pub(crate) hot: Vec<u32>,
    /// A file with this state's pages, made when a sandbox is spawned and there is none that is nearly as good.
    pub(crate) own_base: OnceLock<Arc<SharedBase>>,
    /// The file that the sandbox was mapped over.
    pub(crate) inherited_base: Option<Arc<SharedBase>>,
    /// What the sandbox's monotonic clock showed.
    pub(crate) age: Duration,
}

/// Pages that are copied into a new sandbox before a file of its own is made for a state.
const COPIED_MAX: usize = 512;

/// The pages of some state, as a file that sandboxes of it and of states near it share.
pub(crate) struct SharedBase {
    pub(crate) file: Base,
    pages: Pages,
    /// If the file is a store's: to look whether it is still what it was.
    run_form: Option<RunForm>,
}

impl SharedBase {
    fn new(state: &State) -> Result<Self, Error> {
        let numbers: Vec<u32> = state.pages.numbers().collect();
        let file = Base::new(&numbers, |page| state.content(page)).map_err(|error| {
            Error::new(ErrorKind::Host, "cannot make a file in memory for the snapshot's pages").with_source(error)
        })?;
        Ok(Self { file, pages: state.pages.clone(), run_form: None })
    }

    /// The file of a base in a store.
    pub(crate) fn of_run_form(run_form: RunForm) -> Result<Self, Error> {
        let cannot =
            |error| Error::new(ErrorKind::Host, "cannot use the file of the snapshot's base").with_source(error);
        let file = run_form.file().try_clone().map_err(cannot)?;
        let file = Base::from_file(file, run_form.bytes()).map_err(cannot)?;
        Ok(Self { file, pages: run_form.pages().clone(), run_form: Some(run_form) })
    }

    fn check(&self) -> Result<(), Error> {
        self.run_form.as_ref().map_or(Ok(()), |run_form| Ok(run_form.check()?))
    }
}

impl Snapshot {
    /// A program that has been loaded, and not entered yet.
    pub(crate) fn of_program(
        machine: &mut Machine,
        mappings: Arc<Vec<Mapping>>,
        config: Config,
        backend: Arc<dyn Backend>,
    ) -> Result<Self, Error> {
        let Machine { space, linux, origin, stack, random, vcpu, .. } = machine;
        let mut pages: Vec<u32> = space.memory().changed().map(|page| page.0).collect();
        pages.sort_unstable();
        let memory = space.memory();
        let pages = Pages::empty().derive(&pages, |page, out| {
            // A page that was just written lies in memory.
            let _ = memory.read(Frame(page).address(), out);
        })?;
        Ok(Self(Arc::new(State {
            pages,
            registers: vcpu.registers(),
            linux: linux.state(),
            transport: None,
            functions: Arc::default(),
            interface: Arc::default(),
            mappings,
            origin: origin.clone(),
            stack: *stack,
            random: *random,
            config,
            host_functions: HostFunctions::default(),
            backend,
            hot: Vec::new(),
            own_base: OnceLock::new(),
            inherited_base: None,
            age: linux.age(),
            space: space.state(),
        })))
    }

    /// The transport of a guest with functions.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a program, which has none.
    pub(crate) fn transport(&self) -> Result<&Transport, Error> {
        let message = "the snapshot is of a program that was not started: run it, it has no functions to be called";
        self.0.transport.as_ref().ok_or_else(|| Error::new(ErrorKind::Config, message))
    }

    /// Describes new sandboxes that start in this state: with the host functions and settings of the sandbox that it is
    /// from, which may be replaced. Streams are empty, but for an [`Input::bytes`](crate::Input::bytes), which is read on. Memory
    /// and processor cannot change.
    pub fn builder(&self) -> Builder {
        Builder::from_snapshot(self)
    }

    /// Whether it is of a guest with functions to be called; else of a program that was not started, to be run
    /// ([`Builder::freeze`]).
    pub fn has_functions(&self) -> bool {
        self.0.transport.is_some()
    }

    /// Pages that are not zero.
    pub fn pages(&self) -> usize {
        self.0.pages.numbers().count()
    }

    /// Pages in which it differs from the snapshot that its sandbox was based on.
    pub fn own_pages(&self) -> usize {
        self.0.pages.own_pages()
    }

    /// Snapshots between this one and the empty state.
    pub fn depth(&self) -> usize {
        self.0.pages.depth()
    }

    /// Whether a sandbox with this much memory can be put to this state.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] with both sizes.
    pub(crate) fn check_memory(&self, bytes: u64) -> Result<(), Error> {
        let own = self.0.config.memory_bytes;
        if own == bytes {
            return Ok(());
        }
        let message = format!(
            "the snapshot is of a sandbox with {own} bytes of memory, this one has {bytes}: make them with the same \
             memory_bytes"
        );
        Err(Error::new(ErrorKind::Config, message))
    }
}

impl State {
    /// A file that new sandboxes map, and the pages, ascending, in which it is not this state.
    pub(crate) fn base(&self) -> Result<(Arc<SharedBase>, Vec<u32>), Error> {
        let mut differences = Vec::new();
        if self.own_base.get().is_none()
            && let Some(base) = &self.inherited_base
        {
            base.pages.for_each_difference(&self.pages, |page| differences.push(page));
            if differences.len() <= COPIED_MAX {
                base.check()?;
                return Ok((Arc::clone(base), differences));
            }
        }
        let base = match self.own_base.get() {
            Some(base) => Arc::clone(base),
            None => {
                let base = Arc::new(SharedBase::new(self)?);
                // If another thread was faster, its is as good.
                Arc::clone(self.own_base.get_or_init(|| base))
            }
        };
        Ok((base, Vec::new()))
    }

    /// The content of a page, `None` for zeros.
    pub(crate) fn content(&self, page: Frame) -> io::Result<Option<&PageContent>> {
        content_of(&self.pages, page)
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot")
            .field("program", &self.0.origin.name())
            .field("own_pages", &self.own_pages())
            .field("depth", &self.depth())
            .finish_non_exhaustive()
    }
}

/// The content of a page, `None` for zeros.
pub(crate) fn content_of(pages: &Pages, page: Frame) -> io::Result<Option<&PageContent>> {
    Ok(match pages.page(page.0)? {
        Content::Zero => None,
        Content::Bytes(bytes) => Some(bytes),
    })
}

/// Puts a new generation number and fresh random bytes into the boot page, and behind `AT_RANDOM` unless the guest has put something
/// else there: no two lives of a guest have the same. Which bytes are there now.
pub(crate) fn renew(space: &mut Space, mut stack: StackRandom) -> Result<StackRandom, Error> {
    // From 1 on: the first generation of a sandbox that was booted is 1, too, and no other one's.
    static GENERATIONS: AtomicU64 = AtomicU64::new(2);
    const AT: usize = core::mem::offset_of!(BootInfo, generation);
    const _: () = assert!(core::mem::offset_of!(BootInfo, entropy) == AT + 8);
    let mut bytes = [0; 8 + 32 + 16];
    let (generation, random) = bytes.split_at_mut(8);
    generation.copy_from_slice(&GENERATIONS.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    entropy::fill(random).map_err(|error| {
        Error::new(ErrorKind::Host, "the host's kernel gives no random bytes for the guest").with_source(error)
    })?;
    let (of_boot_page, of_stack) = bytes.split_at(8 + 32);
    match space.load(map::BOOT_PAGE + AT as u64, of_boot_page) {
        // A guest that is no SDK guest has none.
        Ok(()) | Err(SpaceError::NotMapped) => {}
        Err(error) => return Err(error.into()),
    }
    let mut there = [0; 16];
    if space.peek(stack.address, &mut there).is_ok() && there == stack.bytes {
        space.load(stack.address, of_stack)?;
        stack.bytes.copy_from_slice(of_stack);
    }
    Ok(stack)
}
