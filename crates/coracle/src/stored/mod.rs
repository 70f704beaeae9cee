//! Snapshots on disk: what of a sandbox's state goes into a store beside its pages, and what must hold before it comes back.
//!
//! The store ([`coracle_snapshot`]) keeps pages and one JSON document for each snapshot ([`document`]). Nothing that is read is believed
//! before it was checked, in this order: the store's own files and digests; the document's shape; its versions and the processor's
//! features; limits, areas and every page table ([`coracle_vm::SavedSpace::check`]); the host's own pages, which are replaced where they
//! are not this host's; everything else. So a snapshot from anybody gives its guest no more than any guest has.

mod document;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use coracle_abi::{ABI_VERSION, PAGE_BYTES, PageBytes, map, signature};
use coracle_snapshot::{Compression, Pages, Saved, Store};
use coracle_vm::kvm::{CpuTemplate, Kvm};
use coracle_vm::paging::{Frame, Level};
use coracle_vm::{Backend, ControlPlace, PageContent, Rights, SavedError, SpaceState, Span};

use self::document::{ARCHITECTURE, Cpu, Document, FORMAT, Limits, Program, Random};
use crate::config::Config;
use crate::error::{Error, ErrorKind};
use crate::host::HostFunctions;
use crate::image::Image;
use crate::interface::{FunctionInfo, Interface};
use crate::mapping::{Content, MapMode, Mapping};
use crate::origin::Origin;
use crate::sandbox::Exported;
use crate::snapshot::{SharedBase, Snapshot, State, content_of};
use crate::stack::StackRandom;
use crate::transport::Transport;

/// The longest age that is believed: a century.
const AGE_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl Snapshot {
    /// Saves it to a store under a tag, in place of what had the tag. When it returns, the snapshot is on the disk; its digest names it for
    /// ever. What a relative in the store has already is not written again.
    ///
    /// Host functions are not part of it, only what the guest needs of them; nor are streams, or content that is mapped: of that its digest.
    ///
    /// # Errors
    /// [`ErrorKind::Store`] when the tag is none, or the store cannot be written.
    pub fn save(&self, store: &Store, tag: &str) -> Result<Saved, Error> {
        self.save_as(store, tag, Compression::None)
    }

    /// As [`Snapshot::save`], with compressed pages: smaller to move, slower to load for the first time.
    ///
    /// # Errors
    /// As [`Snapshot::save`].
    pub fn save_compressed(&self, store: &Store, tag: &str) -> Result<Saved, Error> {
        self.save_as(store, tag, Compression::Zstd)
    }

    fn save_as(&self, store: &Store, tag: &str, compression: Compression) -> Result<Saved, Error> {
        let config = serde_json::to_vec(&self.0.document()?)
            .map_err(|error| Error::new(ErrorKind::Store, "the state cannot be written").with_source(error))?;
        Ok(store.save(tag, &config, &self.0.pages, compression)?)
    }

    /// Loads the snapshot with this tag or digest, for KVM. Costs the same whatever the size of its memory: pages are read, or mapped, when
    /// they are used. The first load from a store prepares its base, which takes as long as reading it.
    ///
    /// New sandboxes of it need the guest's host functions: [`Snapshot::builder`]. Crash reports name no functions, unless the program is
    /// given by [`Loader::image`].
    ///
    /// # Errors
    /// [`ErrorKind::Store`] when it is not there, damaged, of another version, or for a processor with features that this one lacks: which.
    /// [`ErrorKind::Host`] without a hypervisor.
    pub fn load(store: &Store, reference: &str) -> Result<Self, Error> {
        Self::loader(store).load(reference)
    }

    /// Starts to load a snapshot, with more to say.
    pub fn loader(store: &Store) -> Loader<'_> {
        Loader { store, backend: None, contents: Vec::new(), image: None }
    }
}

/// How to load a snapshot: from [`Snapshot::loader`].
#[must_use = "a loader does nothing until load is called"]
pub struct Loader<'s> {
    store: &'s Store,
    backend: Option<Arc<dyn Backend>>,
    contents: Vec<Content>,
    image: Option<Image>,
}

impl Loader<'_> {
    /// Another hypervisor than KVM, or other settings of it.
    pub fn backend(mut self, backend: impl Backend + 'static) -> Self {
        self.backend = Some(Arc::new(backend));
        self
    }

    /// Content that the snapshot has mapped, told apart by its digest. What it has not is not used.
    pub fn content(mut self, content: &Content) -> Self {
        self.contents.push(content.clone());
        self
    }

    /// The program that the guest came from, so that crash reports name functions.
    pub fn image(mut self, image: &Image) -> Self {
        self.image = Some(image.clone());
        self
    }

    /// Loads it, see [`Snapshot::load`].
    ///
    /// # Errors
    /// As [`Snapshot::load`], and [`ErrorKind::Config`] when content is missing that the snapshot has mapped, or the image is another one.
    pub fn load(self, reference: &str) -> Result<Snapshot, Error> {
        let loaded = self.store.load(reference)?;
        self.assemble(loaded)
    }

    /// Loads it without comparing pages with their digests: for a store that nobody else can write to. Everything else is checked.
    ///
    /// # Errors
    /// As [`Loader::load`].
    pub fn load_unverified(self, reference: &str) -> Result<Snapshot, Error> {
        let loaded = self.store.load_unverified(reference)?;
        self.assemble(loaded)
    }

    fn assemble(self, loaded: coracle_snapshot::Loaded) -> Result<Snapshot, Error> {
        let document: Document = serde_json::from_slice(&loaded.config)
            .map_err(|error| damaged("its document is not one of this format").with_source(error))?;
        check_versions(&document)?;
        let (template, backend) = processor(&document.cpu, self.backend)?;
        let config = config(&document.limits, template)?;
        let (mappings, lent) = mappings(&document, &self.contents)?;
        let pages = loaded.pages;
        let control = backend.control_pages();
        let mut places: Vec<ControlPlace> = control
            .iter()
            .map(|page| ControlPlace { address: page.address, rights: page.rights, level: page.level })
            .collect();
        if document.transport.is_some() {
            places.push(ControlPlace { address: map::BOOT_PAGE, rights: Rights::R, level: Level::User });
        }
        let limit = PageBytes::round_up(config.memory_bytes).unwrap_or_default().pages();
        let space =
            document.space.check(limit, lent, &places, |frame| content_of(&pages, frame)).map_err(
                |error| match error {
                    SavedError::Content(error) => damaged("a page table cannot be read").with_source(error),
                    error => damaged(format!("its address space is not one that a guest can have: {error}")),
                },
            )?;
        let pages = with_own_control_pages(&pages, &space, &*backend)?;
        if document.registers.rip != map::DOORBELL_RETURN {
            return Err(damaged("its guest does not wait in the doorbell's page"));
        }
        let place = |[start, bytes]: [u64; 2]| {
            let span = Span::new(start, bytes).filter(|span| span.bytes() == bytes);
            span.ok_or_else(|| damaged("its stack lies nowhere"))
        };
        let find = |span| {
            if !space.is_host_buffer(span) {
                return Err(damaged("its transport area is not the host's own"));
            }
            contiguous(&space, &pages, span)
        };
        let transport = document.transport.as_ref().map(|saved| Transport::from_saved(saved, find)).transpose()?;
        let (functions, interface) = interface(&document)?;
        let origin = origin(document.program, self.image)?;
        let linux = document.linux.check().map_err(damaged)?;
        let age = Duration::from_nanos(document.age_ns);
        if age > AGE_MAX {
            return Err(damaged("its clock shows more than a century"));
        }
        let base = Arc::new(SharedBase::of_run_form(loaded.run_form)?);
        Ok(Snapshot(Arc::new(State {
            hot: written(&document.written, document.space.next_frame)?,
            pages,
            space,
            registers: document.registers,
            linux,
            transport,
            functions: Arc::new(functions),
            interface: Arc::new(interface),
            mappings: Arc::new(mappings),
            origin,
            stack: place(document.stack)?,
            random: StackRandom { address: document.random.address, bytes: document.random.bytes },
            config,
            host_functions: HostFunctions::default(),
            backend,
            own_base: OnceLock::new(),
            inherited_base: Some(base),
            age,
        })))
    }
}

impl fmt::Debug for Loader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader").field("store", self.store).finish_non_exhaustive()
    }
}

fn damaged(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Store, format!("the snapshot cannot be used: {}", what.into()))
}

impl From<coracle_snapshot::Error> for Error {
    fn from(error: coracle_snapshot::Error) -> Self {
        Self::new(ErrorKind::Store, error.to_string()).with_source(error)
    }
}

impl State {
    /// Everything but pages.
    fn document(&self) -> Result<Document, Error> {
        let function = |info: &FunctionInfo| (info.signature.clone(), info.parameters.clone());
        let mut functions: Vec<document::Exported> = self
            .functions
            .values()
            .map(|Exported { info, index }| {
                let (signature, parameters) = function(info);
                document::Exported { index: *index, signature, parameters }
            })
            .collect();
        functions.sort_unstable_by_key(|function| function.index);
        let host_functions = self.interface.host_functions.iter().map(|info| {
            let (signature, parameters) = function(info);
            document::Function { signature, parameters }
        });
        let mut mappings = Vec::new();
        for mapping in self.mappings.iter() {
            mappings.push(document::Mapping {
                name: mapping.name().to_owned(),
                address: mapping.address(),
                copy_on_write: mapping.mode() == MapMode::CopyOnWrite,
                bytes: mapping.bytes(),
                digest: mapping.content().sha256()?,
                first_frame: self.space.lent_at(mapping.address()).map_or(0, |first| first.0),
            });
        }
        let transport = match &self.transport {
            Some(transport) => Some(transport.saved().ok_or_else(|| {
                Error::new(ErrorKind::Store, "the guest keeps a message, so that its state cannot be written")
            })?),
            None => None,
        };
        let mut written = self.hot.clone();
        written.sort_unstable();
        Ok(Document {
            format: FORMAT,
            abi: ABI_VERSION,
            architecture: ARCHITECTURE.to_owned(),
            cpu: Cpu {
                template: self.config.cpu.to_string(),
                features: self.backend.cpu_features().into_iter().map(str::to_owned).collect(),
            },
            limits: Limits {
                memory: self.config.memory_bytes,
                stack: self.config.stack(),
                heap: self.config.heap(),
                payload: self.config.payload(),
            },
            program: Program {
                name: self.origin.name().map(str::to_owned),
                load_bias: self.origin.load_bias(),
                digest: self.origin.digest(),
            },
            sdk: self.interface.sdk.clone(),
            functions,
            host_functions: host_functions.collect(),
            registers: self.registers,
            space: self.space.saved(),
            linux: self.linux.saved(),
            transport,
            stack: [self.stack.start(), self.stack.bytes()],
            random: Random { address: self.random.address, bytes: self.random.bytes },
            mappings,
            written: runs(&written),
            age_ns: u64::try_from(self.age.as_nanos()).unwrap_or(u64::MAX),
        })
    }
}

fn check_versions(document: &Document) -> Result<(), Error> {
    let Document { format, abi, architecture, .. } = document;
    if *format != FORMAT {
        return Err(damaged(format!("its document has format {format}, this version reads {FORMAT}")));
    }
    if *abi != ABI_VERSION {
        let message =
            format!("it is of a guest of Coracle ABI {abi}, this host speaks ABI {ABI_VERSION}: make it anew");
        return Err(damaged(message));
    }
    if architecture != ARCHITECTURE {
        return Err(damaged(format!("it is of a guest for {architecture:?}, this host is {ARCHITECTURE}")));
    }
    Ok(())
}

/// The template, and a backend that has all that the guest counts on.
fn processor(cpu: &Cpu, backend: Option<Arc<dyn Backend>>) -> Result<(CpuTemplate, Arc<dyn Backend>), Error> {
    let template: CpuTemplate = cpu.template.parse().map_err(|error: String| damaged(error))?;
    let lacks = |backend: &dyn Backend| {
        let missing = backend.lacks(&cpu.features);
        if missing.is_empty() {
            return Ok(());
        }
        let message = format!(
            "its guest counts on features that this host's processor lacks: {}. Snapshots that move are made with a smaller CPU template",
            missing.join(", ")
        );
        Err(damaged(message))
    };
    let backend = match backend {
        Some(backend) => {
            lacks(&*backend)?;
            backend
        }
        None => {
            lacks(&Kvm::open(CpuTemplate::Host)?)?;
            Arc::new(Kvm::open(template)?)
        }
    };
    Ok((template, backend))
}

fn config(limits: &Limits, cpu: CpuTemplate) -> Result<Config, Error> {
    let config = Config {
        memory_bytes: limits.memory,
        stack_bytes: Some(limits.stack),
        heap_bytes: Some(limits.heap),
        payload_bytes: limits.payload,
        cpu,
        ..Config::default()
    };
    config.check().map_err(|error| damaged(error.to_string()))?;
    Ok(config)
}

type Lent = Vec<(Frame, Arc<coracle_vm::Content>)>;

/// Content that the caller gave, where the snapshot had it.
fn mappings(document: &Document, contents: &[Content]) -> Result<(Vec<Mapping>, Lent), Error> {
    let (mut mappings, mut lent) = (Vec::new(), Vec::new());
    for wanted in &document.mappings {
        let document::Mapping { name, address, copy_on_write, bytes, digest, first_frame } = wanted;
        let mut found = None;
        for content in contents.iter().filter(|content| content.bytes() == *bytes) {
            if content.sha256()? == *digest {
                found = Some(content);
            }
        }
        let content = found.ok_or_else(|| {
            let message = format!("the snapshot has content mapped as '{name}', {digest}: give it by Loader::content");
            Error::new(ErrorKind::Config, message)
        })?;
        let area = document.space.areas.iter().find(|area| area.start == *address);
        let rights = if *copy_on_write { Rights::RW } else { Rights::R }.to_string();
        if area.is_none_or(|area| area.lent != Some(*first_frame) || area.rights != rights) {
            return Err(damaged(format!("its content '{name}' is not mapped where it says")));
        }
        let mode = if *copy_on_write { MapMode::CopyOnWrite } else { MapMode::ReadOnly };
        lent.push((Frame(*first_frame), content.lent()));
        mappings.push(Mapping::new(name.clone(), *address, mode, content.clone()));
    }
    let names: HashSet<&str> = mappings.iter().map(Mapping::name).collect();
    if names.len() != mappings.len() || mappings.len() > coracle_abi::mapping::ENTRIES_MAX {
        return Err(damaged("its mappings have names twice, or are too many"));
    }
    Ok((mappings, lent))
}

/// The same pages, with the host's own as this host makes them.
fn with_own_control_pages(pages: &Pages, space: &SpaceState, backend: &dyn Backend) -> Result<Pages, Error> {
    let mut replaced: HashMap<u32, PageContent> = HashMap::new();
    for page in backend.control_pages().into_iter().filter(|page| page.address != map::EXCEPTION_STACK) {
        let frame = space.frame_of(page.address, |frame| content_of(pages, frame)).map_err(unreadable)?;
        let frame = frame.ok_or_else(|| damaged("some of the host's own pages are not mapped"))?;
        let mut content = [0; PAGE_BYTES as usize];
        content[..page.content.len()].copy_from_slice(&page.content);
        replaced.insert(frame.0, content);
    }
    let numbers: Vec<u32> = replaced.keys().copied().collect();
    // Pages that are as they should be are left out: usually all.
    Ok(pages.derive(&numbers, |number, out| *out = replaced[&number])?)
}

fn unreadable(error: io::Error) -> Error {
    damaged("a page cannot be read").with_source(error)
}

/// Where the pages of `span` lie, if they follow each other.
fn contiguous(space: &SpaceState, pages: &Pages, span: Span) -> Result<u64, Error> {
    let frame = |page: u64| {
        let frame =
            space.frame_of(span.start() + page * PAGE_BYTES, |frame| content_of(pages, frame)).map_err(unreadable)?;
        frame.ok_or_else(|| damaged("its transport area is not there"))
    };
    let first = frame(0)?;
    for page in 1..span.pages() {
        if u64::from(frame(page)?.0) != u64::from(first.0) + page {
            return Err(damaged("its transport area is not contiguous"));
        }
    }
    Ok(first.address())
}

fn interface(document: &Document) -> Result<(HashMap<String, Exported>, Interface), Error> {
    let Document { functions, host_functions, sdk, abi, .. } = document;
    if functions.len().max(host_functions.len()) > signature::MAX_FUNCTIONS {
        return Err(damaged(format!("it has more than {} functions", signature::MAX_FUNCTIONS)));
    }
    let info = |signature: &str, parameters: &str| {
        FunctionInfo::parse(format!("{signature}\0{parameters}").as_bytes())
            .map_err(|why| damaged(format!("{signature:?} is no function: {why}")))
    };
    let mut exported = HashMap::new();
    let mut interface = Interface { abi_version: *abi, sdk: sdk.clone(), ..Interface::default() };
    for function in functions {
        let info = info(&function.signature, &function.parameters)?;
        interface.functions.push(info.clone());
        let index = function.index;
        if exported.insert(info.name.clone(), Exported { info, index }).is_some() {
            return Err(damaged("it has a function twice"));
        }
    }
    for function in host_functions {
        interface.host_functions.push(info(&function.signature, &function.parameters)?);
    }
    interface.functions.sort_by(|a, b| a.signature.cmp(&b.signature));
    Ok((exported, interface))
}

fn origin(program: Program, image: Option<Image>) -> Result<Origin, Error> {
    let Program { name, load_bias, digest } = program;
    let Some(image) = image else { return Ok(Origin::Absent { name, load_bias, digest }) };
    if image.digest() != digest || image.load_bias() != load_bias {
        let message = format!("the snapshot's guest came from another program than the given image: {digest}");
        return Err(Error::new(ErrorKind::Config, message));
    }
    Ok(Origin::Image(image))
}

/// Ascending numbers as runs of first and count.
fn runs(numbers: &[u32]) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((first, count)) if *first + *count == *number => *count += 1,
            _ => runs.push((*number, 1)),
        }
    }
    runs
}

/// What [`runs`] made, of numbers below `end`.
fn written(runs: &[(u32, u32)], end: u32) -> Result<Vec<u32>, Error> {
    let mut numbers = Vec::new();
    let mut reached = 0;
    for (first, count) in runs {
        let last = first.checked_add(*count).filter(|last| *first >= reached && *last <= end && *count > 0);
        reached = last.ok_or_else(|| damaged("pages that its guest wrote are not in use"))?;
        numbers.extend(*first..reached);
    }
    Ok(numbers)
}
