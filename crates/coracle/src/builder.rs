//! Describing a sandbox, step by step.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use coracle_vm::Backend;
use coracle_vm::kvm::{CpuTemplate, Kvm};
use postcard_schema::Schema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::config::Config;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind};
use crate::host::HostFunctions;
use crate::image::Image;
use crate::interface::Interface;
use crate::linux::{SystemCall, Tracer};
use crate::log;
use crate::machine::{Machine, Program, Stop};
use crate::mapping::{self, Content, MapMode, Mapping, Wish};
use crate::sandbox::Sandbox;
use crate::shells::Leased;
use crate::snapshot::Snapshot;
use crate::stats::Stats;
use crate::stream::{Input, Output, Streams};
use crate::transport::Transport;

/// How an ordinary program ended that ended itself.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Ended {
    /// Its exit code, 0 to 255.
    pub code: i32,
    /// What it cost.
    pub stats: Stats,
}

/// A sandbox in the making: from [`Sandbox::builder`]. [`Builder::build`] makes one to call functions in;
/// [`Builder::run`] runs an ordinary program to its end.
#[must_use = "a builder does nothing until build or run is called"]
pub struct Builder {
    /// What is to be loaded, if not a snapshot.
    image: Option<Image>,
    snapshot: Option<Snapshot>,
    config: Config,
    backend: Option<Arc<dyn Backend>>,
    args: Vec<String>,
    env: Vec<(String, String)>,
    init_data: Vec<u8>,
    streams: Streams,
    tracer: Option<Tracer>,
    host_functions: HostFunctions,
    mappings: Vec<Wish>,
}

impl Builder {
    pub(crate) fn new(image: &Image) -> Self {
        let args = vec![image.name().unwrap_or("guest").to_owned()];
        Self { image: Some(image.clone()), args, ..Self::empty() }
    }

    fn empty() -> Self {
        Self {
            image: None,
            snapshot: None,
            config: Config::default(),
            backend: None,
            args: Vec::new(),
            env: Vec::new(),
            init_data: Vec::new(),
            streams: Streams::default(),
            tracer: None,
            host_functions: HostFunctions::default(),
            mappings: Vec::new(),
        }
    }

    pub(crate) fn from_snapshot(snapshot: &Snapshot) -> Self {
        let state = &*snapshot.0;
        Self {
            snapshot: Some(snapshot.clone()),
            config: state.config.clone(),
            backend: Some(Arc::clone(&state.backend)),
            host_functions: state.host_functions.clone(),
            streams: Streams { input: Input::from_rest(state.linux.input()), ..Streams::default() },
            ..Self::empty()
        }
    }

    /// All settings at once, in place of those made before.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// The most memory the guest may have, see [`Config::memory_bytes`].
    pub fn memory_bytes(mut self, bytes: u64) -> Self {
        self.config.memory_bytes = bytes;
        self
    }

    /// The guest's heap, see [`Config::heap_bytes`]. Raises the memory limit to twice that, if it is lower.
    pub fn heap_bytes(mut self, bytes: u64) -> Self {
        self.config.heap_bytes = Some(bytes);
        self.config.memory_bytes = self.config.memory_bytes.max(bytes.saturating_mul(2));
        self
    }

    /// The largest payload, see [`Config::payload_bytes`].
    pub fn payload_bytes(mut self, bytes: u64) -> Self {
        self.config.payload_bytes = bytes;
        self
    }

    /// How long booting, each call, or the whole program may take.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.config.timeout = Some(timeout);
        self
    }

    /// The processor the guest sees.
    pub fn cpu(mut self, template: CpuTemplate) -> Self {
        self.config.cpu = template;
        self
    }

    /// Another hypervisor than KVM: `coracle::fake` has one for tests.
    pub fn backend(mut self, backend: impl Backend + 'static) -> Self {
        self.backend = Some(Arc::new(backend));
        self
    }

    /// The program's arguments, after its name.
    pub fn args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.truncate(1);
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// The program's environment, in place of what was given before. Nothing of the host's is inherited.
    pub fn env<N: Into<String>, V: Into<String>>(mut self, env: impl IntoIterator<Item = (N, V)>) -> Self {
        self.env = env.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        self
    }

    /// Bytes that the guest reads in place, by the SDK's `init_data()`.
    pub fn init_data(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.init_data = bytes.into();
        self
    }

    /// Lends content to the guest, at an address of the host's choice. The SDK's `mapping(name)` finds it. Nothing is copied until the
    /// guest writes; pages that it does not touch cost nothing.
    pub fn map(mut self, name: impl Into<String>, content: &Content, mode: MapMode) -> Self {
        self.mappings.push(Wish { name: name.into(), content: content.clone(), mode, address: None });
        self
    }

    /// As [`Builder::map`], at this address: a page's, clear of all else that the guest has. For programs that know no names.
    pub fn map_at(mut self, name: impl Into<String>, content: &Content, mode: MapMode, address: u64) -> Self {
        self.mappings.push(Wish { name: name.into(), content: content.clone(), mode, address: Some(address) });
        self
    }

    /// Standard input. Default: empty.
    pub fn stdin(mut self, input: Input) -> Self {
        self.streams.input = input;
        self
    }

    /// Standard output. Default: nowhere.
    pub fn stdout(mut self, output: Output) -> Self {
        self.streams.output = output;
        self
    }

    /// Standard error. Default: nowhere.
    pub fn stderr(mut self, output: Output) -> Self {
        self.streams.error = output;
        self
    }

    /// Called after each system call.
    pub fn trace_system_calls(mut self, tracer: impl FnMut(&SystemCall) + Send + 'static) -> Self {
        self.tracer = Some(Box::new(tracer));
        self
    }

    /// Offers a function to the guest. Its argument is one value: `()` for none, a tuple for several. An `Err`, and a
    /// panic, becomes an error in the guest.
    ///
    /// A sandbox has one thread at a time, but the function may be shared by many sandboxes: hence `Fn`, `Send`, `Sync`. It cannot
    /// call back into the sandbox that calls it, which is borrowed until the call ends; another one it can.
    ///
    /// A guest that declared it with `notify` does not wait for it: an error is logged, as a warning, and nobody else hears of it.
    pub fn host_fn<A, R, E>(
        mut self,
        name: impl Into<String>,
        function: impl Fn(A) -> Result<R, E> + Send + Sync + 'static,
    ) -> Self
    where
        A: DeserializeOwned + Schema,
        R: Serialize + Schema,
        E: Display,
    {
        self.host_functions.add(name.into(), function);
        self
    }

    /// As [`Builder::host_fn`], with a function whose types are known only at run time: as text, such as an image gives
    /// it in [`FunctionInfo::signature`](crate::FunctionInfo::signature). It gets its arguments encoded and answers with
    /// the encoded result; [`crate::dynamic`] converts both. Nobody else checks them but the guest.
    ///
    /// # Errors
    /// [`ErrorKind::Signature`] when the text is not a signature.
    pub fn host_fn_dynamic(
        mut self,
        signature: &str,
        function: impl Fn(&[u8]) -> Result<Vec<u8>, String> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        self.host_functions.add_dynamic(signature, function)?;
        Ok(self)
    }

    /// Loads the guest and runs it until it is ready to be called.
    ///
    /// # Errors
    /// - [`ErrorKind::Host`] when there is no hypervisor, or it refuses.
    /// - [`ErrorKind::Config`], [`ErrorKind::Image`], [`ErrorKind::Signature`], [`ErrorKind::Limit`] when the settings,
    ///   the image, the host functions or the memory do not fit.
    /// - [`ErrorKind::GuestStopped`], [`ErrorKind::TimedOut`] when the guest did not get ready.
    pub fn build(mut self) -> Result<Sandbox, Error> {
        if let Some(snapshot) = self.snapshot.clone() {
            return self.spawn(&snapshot);
        }
        let Some(interface) = Interface::of(self.image()?)? else {
            let message = "the image is an ordinary program, not a Coracle guest: build it with the coracle-guest SDK to \
                           call its functions, or run it whole";
            return Err(Error::new(ErrorKind::Image, message));
        };
        interface.check_version()?;
        self.host_functions.check(&interface)?;
        let backend = self.chosen_backend()?;
        let (host_functions, config) = (self.host_functions.clone(), self.config.clone());
        let wishes = std::mem::take(&mut self.mappings);
        let (mut machine, layout) = self.load(&*backend, true)?;
        let mut mappings = Arc::default();
        wishes.into_iter().try_for_each(|wish| mapping::add(&mut machine.space, &mut mappings, wish).map(drop))?;
        let Some(layout) = layout else { return Err(Error::new(ErrorKind::Host, "a guest without a transport area")) };
        let transport = Transport::new(&mut machine.space, &layout)?;
        Sandbox::boot(machine, transport, interface, mappings, host_functions, config, backend)
    }

    /// Loads the image as an ordinary Linux program and freezes it before its first instruction, arguments, environment and lent content
    /// included. [`Snapshot::builder`] and [`Builder::run`] run it, as often as wanted, also after it was saved and loaded elsewhere.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn freeze(mut self) -> Result<Snapshot, Error> {
        let (backend, config) = (self.chosen_backend()?, self.config.clone());
        let wishes = std::mem::take(&mut self.mappings);
        let mut machine = Leased::new(self.load(&*backend, false)?.0);
        let mut mappings = Arc::default();
        wishes.into_iter().try_for_each(|wish| mapping::add(&mut machine.space, &mut mappings, wish).map(drop))?;
        Snapshot::of_program(&mut machine, mappings, config, backend)
    }

    /// Runs the image as an ordinary Linux program, to its end; or a snapshot that [`Builder::freeze`] made.
    ///
    /// # Errors
    /// As [`Builder::build`]; [`ErrorKind::GuestStopped`] when the program crashed or ended itself by a signal.
    pub fn run(mut self) -> Result<Ended, Error> {
        let timeout = self.config.timeout;
        let backend = self.chosen_backend()?;
        let wishes = std::mem::take(&mut self.mappings);
        let (machine, mut mappings) = match self.snapshot.take() {
            Some(snapshot) => self.spawn_program(&snapshot, &*backend)?,
            None => (self.load(&*backend, false)?.0, Arc::default()),
        };
        let mut machine = Leased::new(machine);
        wishes.into_iter().try_for_each(|wish| mapping::add(&mut machine.space, &mut mappings, wish).map(drop))?;
        let deadline = match timeout {
            Some(timeout) => Deadline::after(timeout, machine.vcpu.kicker()),
            None => Deadline::never(),
        };
        let stop = machine.run(&deadline).inspect_err(|_| machine.shell = None)?;
        match stop {
            Stop::Exited(code) => Ok(Ended { code, stats: machine.stats() }),
            Stop::Crashed(report) => Err(Error::crashed(*report)),
            Stop::TimedOut => {
                let message =
                    format!("the program did not end within {:?}: it was stopped", timeout.unwrap_or_default());
                Err(Error::new(ErrorKind::TimedOut, message))
            }
            Stop::Doorbell => {
                let cause = crate::crash::Cause::ProtocolViolation("an ordinary program rang the doorbell");
                Err(Error::crashed(machine.report(None, Some(cause))))
            }
        }
    }

    fn spawn(self, snapshot: &Snapshot) -> Result<Sandbox, Error> {
        snapshot.transport()?;
        self.host_functions.check(&snapshot.0.interface)?;
        let backend = self.chosen_backend()?;
        let (machine, base) = Machine::spawn(&self.config, &*backend, snapshot, self.streams, self.tracer)?;
        let mut sandbox = Sandbox::spawned(machine, base, snapshot, self.host_functions, self.config, backend)?;
        self.mappings.into_iter().try_for_each(|wish| sandbox.add_mapping(wish).map(drop))?;
        Ok(sandbox)
    }

    fn spawn_program(self, snapshot: &Snapshot, backend: &dyn Backend) -> Result<(Machine, Arc<Vec<Mapping>>), Error> {
        let refused = |message| Err(Error::new(ErrorKind::Config, message));
        if snapshot.0.transport.is_some() {
            return refused(
                "the snapshot is of a guest whose functions are called: build it, it cannot be run as a program",
            );
        }
        if !self.args.is_empty() || !self.env.is_empty() {
            return refused("arguments and environment are part of the snapshot: give them before it is frozen");
        }
        let (machine, _) = Machine::spawn(&self.config, backend, snapshot, self.streams, self.tracer)?;
        Ok((machine, Arc::clone(&snapshot.0.mappings)))
    }

    fn image(&self) -> Result<&Image, Error> {
        let message = "what is described is a snapshot, which was loaded already";
        self.image.as_ref().ok_or_else(|| Error::new(ErrorKind::Config, message))
    }

    fn chosen_backend(&self) -> Result<Arc<dyn Backend>, Error> {
        match &self.backend {
            Some(backend) => Ok(Arc::clone(backend)),
            None => Ok(Arc::new(Kvm::open(self.config.cpu)?)),
        }
    }

    fn load(
        self,
        backend: &dyn Backend,
        is_guest: bool,
    ) -> Result<(Machine, Option<crate::layout::GuestLayout>), Error> {
        let image = self.image()?.clone();
        Machine::load(Program {
            config: &self.config,
            backend,
            image: &image,
            is_guest,
            args: &self.args,
            env: &self.env,
            init_data: &self.init_data,
            log_level: log::number(self.config.log_level),
            streams: self.streams,
            tracer: self.tracer,
        })
    }
}
