//! A guest that is ready to be called.
//!
//! One call is: write the request to shared memory, enter the guest, read the reply. Host calls, log records and system
//! calls in between are answered on the way. Whatever stops the guest part-way poisons the sandbox: it refuses calls
//! from then on, and says why.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

use coracle_abi::signature;
use coracle_snapshot::Pages;
use coracle_vm::Backend;
use coracle_vm::paging::Frame;
use postcard_schema::Schema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::builder::Builder;
use crate::config::Config;
use crate::error::{Error, ErrorKind};
use crate::host::{HostFunctions, types_text};
use crate::image::Image;
use crate::interface::{FunctionInfo, Interface};
use crate::machine::Machine;
use crate::mapping::{self, Content, MapMode, Mapping, Wish};
use crate::shells::Leased;
use crate::snapshot::{self, SharedBase, Snapshot, State};
use crate::stats::Stats;
use crate::transport::Transport;

/// One guest in its virtual machine. It runs only while a call is made, on the caller's thread.
///
/// ```
/// # use coracle::{Sandbox, fake::FakeGuest};
/// let guest = FakeGuest::new().function("double", |n: u32| Ok::<_, String>(n * 2));
/// let mut sandbox = Sandbox::builder(&guest.image()).backend(guest.backend()).build()?;
/// let answer: u32 = sandbox.call("double", 21u32)?;
/// assert_eq!(answer, 42);
/// # Ok::<(), coracle::Error>(())
/// ```
pub struct Sandbox {
    pub(crate) machine: Leased,
    pub(crate) transport: Transport,
    functions: Arc<HashMap<String, Exported>>,
    interface: Arc<Interface>,
    mappings: Arc<Vec<Mapping>>,
    pub(crate) config: Config,
    /// What memory holds, but for the pages that were written.
    reference: Pages,
    /// The file that memory was mapped over; or another, nearer to its state.
    base: Option<Arc<SharedBase>>,
    pub(crate) host_functions: HostFunctions,
    backend: Arc<dyn Backend>,
    pub(crate) status: Status,
    /// Of the call whose answer comes next; 0 while the guest starts.
    pub(crate) serving: u32,
    pub(crate) calls: u64,
    pub(crate) host_calls: u64,
    restores: u64,
    written_at_start: Option<u64>,
    // Kept from call to call, so that a warm call allocates nothing of its own.
    pub(crate) outgoing: Vec<u8>,
    pub(crate) incoming: Vec<u8>,
    pub(crate) log: Vec<u8>,
    also: Vec<u32>,
}

/// Whether a sandbox can be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// It can.
    Ready,
    /// The guest was stopped part-way: by a crash, a panic, an exit, a deadline. It can be restored or dropped.
    Poisoned,
    /// The hypervisor failed part-way. Only dropping it is allowed.
    Unrecoverable,
}

#[derive(Clone, Debug)]
pub(crate) struct Exported {
    pub(crate) info: FunctionInfo,
    pub(crate) index: u16,
}

/// A guest function whose name and types have been checked, so that calling it looks nothing up. For sandboxes of the
/// image that it was resolved in; in others a call is an error.
pub struct Function<A: ?Sized, R> {
    pub(crate) index: u16,
    pub(crate) key: u64,
    types: PhantomData<fn(&A) -> R>,
}

impl<A: ?Sized, R> Clone for Function<A, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A: ?Sized, R> Copy for Function<A, R> {}

impl<A: ?Sized, R> fmt::Debug for Function<A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function").field("index", &self.index).field("key", &self.key).finish()
    }
}

impl<A: Serialize + Schema + ?Sized, R: DeserializeOwned + Schema> Function<A, R> {
    /// Calls it.
    ///
    /// # Errors
    /// As [`Sandbox::call`].
    pub fn call(&self, sandbox: &mut Sandbox, args: &A) -> Result<R, Error> {
        sandbox.call_target(self.target(), args)
    }
}

impl Sandbox {
    /// Starts to describe a sandbox for `image`.
    pub fn builder(image: &Image) -> Builder {
        Builder::new(image)
    }

    /// Runs a freshly loaded guest until it is ready.
    pub(crate) fn boot(
        machine: Machine,
        transport: Transport,
        interface: Interface,
        mappings: Arc<Vec<Mapping>>,
        host_functions: HostFunctions,
        config: Config,
        backend: Arc<dyn Backend>,
    ) -> Result<Self, Error> {
        let mut sandbox = Self::new(machine, transport, Arc::new(interface), host_functions, config, backend);
        sandbox.mappings = mappings;
        sandbox.await_ready()?;
        sandbox.functions = Arc::new(sandbox.exported()?);
        sandbox.written_at_start = sandbox.machine.space.collect_written()?;
        Ok(sandbox)
    }

    /// Calls the guest function `name`.
    ///
    /// Arguments are one value: nothing is `()`, several are a tuple. Any serde type goes that also derives
    /// [`Schema`](crate::Schema); `&str` and `&[u8]` go where the guest takes a string or bytes.
    ///
    /// # Errors
    /// - [`ErrorKind::Signature`], [`ErrorKind::Limit`]: the call was not made, the sandbox is as before.
    /// - [`ErrorKind::GuestReturned`]: the function's own error. The sandbox is still good.
    /// - [`ErrorKind::GuestStopped`], [`ErrorKind::TimedOut`], [`ErrorKind::Host`]: it is not; see [`Sandbox::status`].
    /// - [`ErrorKind::Unusable`]: it was not before.
    pub fn call<R>(&mut self, name: &str, args: impl Serialize + Schema) -> Result<R, Error>
    where
        R: DeserializeOwned + Schema,
    {
        let target = self.resolve(name, &args, PhantomData::<R>)?;
        self.call_target(target, &args)
    }

    /// Checks a guest function's name and types once, for many calls.
    ///
    /// # Errors
    /// [`ErrorKind::Signature`] when there is no such function, or it has other types: both are shown.
    pub fn function<A, R>(&self, name: &str) -> Result<Function<A, R>, Error>
    where
        A: Schema + ?Sized,
        R: Schema,
    {
        let exported = self.functions.get(name).ok_or_else(|| self.no_function(name))?;
        if exported.info.types != const { signature::types_hash(A::SCHEMA, R::SCHEMA) } {
            let message = format!("the guest offers {}, the host calls {name}{}", exported.info, types_text::<A, R>());
            return Err(Error::new(ErrorKind::Signature, message));
        }
        Ok(Function { index: exported.index, key: exported.info.key, types: PhantomData })
    }

    /// The functions that the guest offers, in no particular order.
    pub fn functions(&self) -> impl Iterator<Item = &FunctionInfo> {
        self.functions.values().map(|exported| &exported.info)
    }

    /// Calls a guest function with arguments that are encoded already, for callers that know its types only at run time
    /// ([`crate::dynamic`]). Returns the encoded result.
    ///
    /// # Errors
    /// As [`Sandbox::call`]. Nobody checks the arguments but the guest.
    pub fn call_encoded(&mut self, name: &str, arguments: &[u8]) -> Result<Vec<u8>, Error> {
        let exported = self.functions.get(name).ok_or_else(|| self.no_function(name))?;
        let function = Function::<(), ()> { index: exported.index, key: exported.info.key, types: PhantomData };
        self.outgoing.clear();
        self.outgoing.extend_from_slice(arguments);
        self.exchange(function.target())?;
        Ok(std::mem::take(&mut self.incoming))
    }

    /// Freezes the state it is in.
    ///
    /// Costs what was written since the last snapshot that was taken here, or that it was restored to.
    ///
    /// # Errors
    /// [`ErrorKind::Unusable`] when it was stopped part-way; [`ErrorKind::GuestReturned`] when the guest waits elsewhere
    /// than in the doorbell's page; [`ErrorKind::Host`] when the hypervisor refuses. It is as before then.
    pub fn snapshot(&mut self) -> Result<Snapshot, Error> {
        self.check_ready()?;
        let registers = self.machine.vcpu.registers();
        if !self.machine.vcpu.is_parked() {
            let message = "the guest rang by itself, not through the doorbell's page: it cannot be frozen there";
            return Err(Error::new(ErrorKind::GuestReturned, message));
        }
        let Machine { space, linux, origin, stack, random, .. } = &mut *self.machine;
        if space.collect_written()?.is_none() {
            let message = "this kernel's KVM does not tell which pages a guest writes: use a newer kernel";
            return Err(Error::new(ErrorKind::Host, message));
        }
        self.also.clear();
        self.also.extend(space.memory().changed().map(|page| page.0));
        let memory = space.memory();
        let mut lost = false;
        let pages = self.reference.derive(&self.also, |page, out| {
            lost |= memory.read(Frame(page).address(), out).is_err();
        });
        let pages = pages.map_err(|error| {
            Error::new(ErrorKind::Host, "cannot read a page of the snapshot that this sandbox is from")
                .with_source(error)
        })?;
        debug_assert!(!lost, "a changed page lies outside of memory");
        self.reference = pages.clone();
        space.memory_mut().forget_touched();
        Ok(Snapshot(Arc::new(State {
            pages,
            space: space.state(),
            registers,
            linux: linux.state(),
            transport: Some(self.transport.clone()),
            functions: Arc::clone(&self.functions),
            interface: Arc::clone(&self.interface),
            mappings: Arc::clone(&self.mappings),
            origin: origin.clone(),
            stack: *stack,
            random: *random,
            config: self.config.clone(),
            host_functions: self.host_functions.clone(),
            backend: Arc::clone(&self.backend),
            hot: space.memory().hot().as_slice().to_vec(),
            own_base: OnceLock::new(),
            inherited_base: self.base.clone(),
            age: linux.age(),
        })))
    }

    /// Puts it back to a state in which it was, or in which another sandbox was with as much memory: also after a crash.
    /// What the guest did since is gone: memory, registers, mappings, signal table. Not undone is what reached the host.
    ///
    /// The guest has a new generation and fresh random bytes in its boot page; the monotonic clock goes on.
    ///
    /// # Errors
    /// [`ErrorKind::Config`], [`ErrorKind::Signature`] when the snapshot does not fit this sandbox, which is as before then.
    /// [`ErrorKind::Host`] when the host failed part-way: the sandbox is [`Status::Unrecoverable`].
    pub fn restore(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        if self.status == Status::Unrecoverable {
            return Err(Error::new(ErrorKind::Unusable, "the host failed in this sandbox: make a new one"));
        }
        snapshot.check_memory(self.config.memory_bytes)?;
        let (state, transport) = (&*snapshot.0, snapshot.transport()?);
        if !Arc::ptr_eq(&state.interface, &self.interface) {
            self.host_functions.check(&state.interface)?;
        }
        // Whatever happens from here on is either finished or fatal.
        self.status = Status::Unrecoverable;
        let shell = self.machine.shell.take(); // Nobody knows what a hypervisor that failed has of it.
        self.put_back(state, transport)?;
        self.machine.shell = shell;
        self.status = Status::Ready;
        self.restores += 1;
        Ok(())
    }

    /// At most how many pages a restore would copy, if that takes no more than copying: `None` when the guest was stopped
    /// part-way, or is based on another snapshot.
    pub(crate) fn pages_to_restore(&mut self, snapshot: &Snapshot) -> Option<usize> {
        if self.status != Status::Ready || !self.reference.same(&snapshot.0.pages) {
            return None;
        }
        self.machine.space.collect_written().ok()?;
        let memory = self.machine.space.memory();
        Some(memory.hot().len() + memory.touched().len())
    }

    fn put_back(&mut self, state: &State, transport: &Transport) -> Result<(), Error> {
        // That writes are told was found out when there was a snapshot to be taken; it holds for the whole process.
        self.machine.space.collect_written()?;
        let mut also = std::mem::take(&mut self.also);
        also.clear();
        self.reference.for_each_difference(&state.pages, |page| also.push(page));
        self.machine.space.restore(&state.space, &also, |page| state.content(page))?;
        self.also = also;
        self.machine.random = snapshot::renew(&mut self.machine.space, state.random)?;
        self.machine.vcpu.set_registers(&state.registers);
        self.machine.linux.restore(&state.linux, state.age);
        if !Arc::ptr_eq(&state.functions, &self.functions) {
            self.functions = Arc::clone(&state.functions);
            self.interface = Arc::clone(&state.interface);
            self.machine.origin = state.origin.clone();
            self.machine.stack = state.stack;
        }
        self.transport.clone_from(transport);
        self.mappings.clone_from(&state.mappings);
        if let Some(base) = state.own_base.get().or(state.inherited_base.as_ref()) {
            self.base = Some(Arc::clone(base));
        }
        self.reference = state.pages.clone();
        Ok(())
    }

    /// Lends content to the guest from now on, at an address of the host's choice, which it answers. See [`Builder::map`].
    ///
    /// # Errors
    /// [`ErrorKind::Config`] when the name is taken or none, [`ErrorKind::Limit`] for a 33rd mapping or without room, [`ErrorKind::Unusable`] when
    /// the guest was stopped part-way: nothing is changed then. [`ErrorKind::Host`] when the hypervisor refuses.
    pub fn map(&mut self, name: impl Into<String>, content: &Content, mode: MapMode) -> Result<u64, Error> {
        self.add_mapping(Wish { name: name.into(), content: content.clone(), mode, address: None })
    }

    /// As [`Sandbox::map`], at this address: a page's, clear of all else that the guest has.
    ///
    /// # Errors
    /// As [`Sandbox::map`], and [`ErrorKind::Config`] when it does not fit there.
    pub fn map_at(
        &mut self,
        name: impl Into<String>,
        content: &Content,
        mode: MapMode,
        address: u64,
    ) -> Result<(), Error> {
        self.add_mapping(Wish { name: name.into(), content: content.clone(), mode, address: Some(address) }).map(drop)
    }

    pub(crate) fn add_mapping(&mut self, wish: Wish) -> Result<u64, Error> {
        self.check_ready()?;
        let result = mapping::add(&mut self.machine.space, &mut self.mappings, wish);
        self.fatal_if_host(result)
    }

    /// Takes mapped content away, and what the guest wrote to it: its next access there is a crash.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] when there is no mapping of this name, [`ErrorKind::Unusable`] as [`Sandbox::map`], [`ErrorKind::Host`] when the
    /// hypervisor refuses: the sandbox is [`Status::Unrecoverable`] then.
    pub fn unmap(&mut self, name: &str) -> Result<(), Error> {
        self.check_ready()?;
        let result = mapping::remove(&mut self.machine.space, &mut self.mappings, name);
        self.fatal_if_host(result)
    }

    /// A hypervisor that failed part-way may have anything of the guest's memory.
    fn fatal_if_host<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        if result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Host) {
            self.status = Status::Unrecoverable;
            self.machine.shell = None;
        }
        result
    }

    /// What is mapped now.
    pub fn mappings(&self) -> impl Iterator<Item = &Mapping> {
        self.mappings.iter()
    }

    /// A new sandbox in the state that this one is in.
    ///
    /// # Errors
    /// As [`Sandbox::snapshot`] and [`Builder::build`].
    pub fn fork(&mut self) -> Result<Self, Error> {
        let fork = self.snapshot()?.builder().build()?;
        self.base.clone_from(&fork.base); // So that the next fork need not make another.
        Ok(fork)
    }

    /// A new sandbox in this state, with the host functions and settings of the one that it is from.
    ///
    /// # Errors
    /// As [`Builder::build`]; the guest does not run.
    pub fn from_snapshot(snapshot: &Snapshot) -> Result<Self, Error> {
        snapshot.builder().build()
    }

    /// Takes over a machine whose memory and registers are those of a snapshot.
    pub(crate) fn spawned(
        machine: Machine,
        base: Arc<SharedBase>,
        snapshot: &Snapshot,
        host_functions: HostFunctions,
        config: Config,
        backend: Arc<dyn Backend>,
    ) -> Result<Self, Error> {
        let state = &*snapshot.0;
        let (transport, interface) = (snapshot.transport()?.clone(), Arc::clone(&state.interface));
        Ok(Self {
            functions: Arc::clone(&state.functions),
            mappings: Arc::clone(&state.mappings),
            reference: state.pages.clone(),
            base: Some(base),
            ..Self::new(machine, transport, interface, host_functions, config, backend)
        })
    }

    /// Without functions, over memory of zeros.
    fn new(
        machine: Machine,
        transport: Transport,
        interface: Arc<Interface>,
        host_functions: HostFunctions,
        config: Config,
        backend: Arc<dyn Backend>,
    ) -> Self {
        Self {
            machine: Leased::new(machine),
            transport,
            functions: Arc::default(),
            interface,
            mappings: Arc::default(),
            config,
            reference: Pages::empty(),
            base: None,
            host_functions,
            backend,
            status: Status::Ready,
            serving: 0,
            calls: 0,
            host_calls: 0,
            restores: 0,
            written_at_start: None,
            outgoing: Vec::new(),
            incoming: Vec::new(),
            log: Vec::new(),
            also: Vec::new(),
        }
    }

    pub(crate) fn check_ready(&self) -> Result<(), Error> {
        if self.status == Status::Ready {
            return Ok(());
        }
        let message = "this sandbox was stopped during an earlier call: restore it, or make a new one";
        Err(Error::new(ErrorKind::Unusable, message))
    }

    /// Whether it can be called.
    pub fn status(&self) -> Status {
        self.status
    }

    /// What it has cost so far.
    pub fn stats(&self) -> Stats {
        Stats {
            calls: self.calls,
            host_calls: self.host_calls,
            restores: self.restores,
            pages_written_at_start: self.written_at_start,
            ..self.machine.stats()
        }
    }

    /// Joins what the image's notes say with the order in which the guest's table has its functions.
    fn exported(&mut self) -> Result<HashMap<String, Exported>, Error> {
        let interface = Arc::clone(&self.interface);
        let (keys, rest) = self.incoming.as_chunks::<8>();
        if !rest.is_empty() || keys.len() > signature::MAX_FUNCTIONS {
            return Err(self.violation("its table of functions is malformed"));
        }
        let indices: HashMap<u64, u16> = keys.iter().map(|key| u64::from_le_bytes(*key)).zip(0..).collect();
        let missing = interface.functions.iter().find(|function| !indices.contains_key(&function.key));
        if let Some(function) = missing {
            let message =
                format!("the image's notes promise {function}, but the guest does not have it: build it anew");
            return Err(Error::new(ErrorKind::Image, message));
        }
        let by_name = interface.by_name();
        Ok(by_name
            .into_iter()
            .filter_map(|(name, info)| {
                Some((name.to_owned(), Exported { info: info.clone(), index: *indices.get(&info.key)? }))
            })
            .collect())
    }

    fn no_function(&self, name: &str) -> Error {
        let mut names: Vec<&str> = self.functions.keys().map(String::as_str).collect();
        names.sort_unstable();
        let message = match names.as_slice() {
            [] => format!("the guest has no function '{name}', nor any other"),
            names => format!("the guest has no function '{name}'; it has {}", names.join(", ")),
        };
        Error::new(ErrorKind::Signature, message)
    }
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandbox").field("status", &self.status).field("stats", &self.stats()).finish_non_exhaustive()
    }
}
