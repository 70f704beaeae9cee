//! A loaded program and the loop that runs it until it hands over.
//!
//! The loop knows exits, system calls and page faults, and nothing of calls, logs or statistics. Who wants to watch the
//! guest wraps the [`Vcpu`] instead (see `instructions.rs`).

use std::sync::Arc;

use coracle_abi::boot::{self, BootInfo, Region};
use coracle_abi::{ABI_VERSION, PAGE_BYTES, PageBytes, map, queue};
use coracle_vm::paging::Level;
use coracle_vm::{
    Access, Backend, ControlPage, Exception, Exit, Fault, Fill, Promise, Registers, Rights, Shell, Space, Span, Vcpu,
    Vm, exit,
};

use crate::config::Config;
use crate::crash::{Cause, CrashReport, Place, Scene};
use crate::deadline::Deadline;
use crate::entropy;
use crate::error::{Error, ErrorKind};
use crate::image::Image;
use crate::instructions::Counting;
use crate::layout::{GuestLayout, Layout};
use crate::linux::{Linux, Outcome, Tracer};
use crate::origin::Origin;
use crate::shells;
use crate::snapshot::{self, SharedBase, Snapshot};
use crate::stack::{InitialStack, StackRandom, Start};
use crate::stats::Stats;
use crate::stream::Streams;

/// Why the guest is not running.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It rang the doorbell.
    Doorbell,
    /// It ended itself with this code.
    Exited(i32),
    /// It cannot go on.
    Crashed(Box<CrashReport>),
    /// The deadline has passed.
    TimedOut,
}

/// All that one program is made from.
pub(crate) struct Program<'a> {
    pub(crate) config: &'a Config,
    pub(crate) backend: &'a dyn Backend,
    pub(crate) image: &'a Image,
    pub(crate) is_guest: bool,
    pub(crate) args: &'a [String],
    pub(crate) env: &'a [(String, String)],
    pub(crate) init_data: &'a [u8],
    pub(crate) log_level: u32,
    pub(crate) streams: Streams,
    pub(crate) tracer: Option<Tracer>,
}

/// A virtual machine with a program in it.
pub(crate) struct Machine {
    pub(crate) space: Space,
    pub(crate) vcpu: Box<dyn Vcpu>,
    pub(crate) linux: Linux,
    pub(crate) origin: Origin,
    pub(crate) stack: Span,
    pub(crate) random: StackRandom,
    /// Under which key its shell is used again, if it is.
    pub(crate) shell: Option<shells::Key>,
    before: [u64; 2], // What the shell had cost before this guest.
}

/// Pages besides the image that every program touches before its first exit: control pages, page tables, stack.
const EARLY_PAGES: u64 = 32;

impl Machine {
    /// Makes a virtual machine and loads the program, ready to be entered. For a guest made with the SDK also says where
    /// its transport area lies.
    pub(crate) fn load(program: Program<'_>) -> Result<(Self, Option<GuestLayout>), Error> {
        let Program { config, backend, image, .. } = program;
        config.check()?;
        let layout = Layout::new(config, image, program.is_guest, program.init_data.len() as u64)?;
        let (Shell { memory, vm, vcpu }, shell) = shell(config, backend)?;
        let before = costs(&*vm, &*vcpu);
        let mut space = Space::new(memory, vm, &backend.control_pages())?;
        for (span, rights) in &layout.image {
            space.map(*span, *rights, Fill::Now, Promise::Committed)?;
        }
        // In one go what is written here and at once: what the file holds, not what the image claims besides.
        let file_pages: u64 = image.segments().iter().map(|segment| segment.file.len() as u64 / PAGE_BYTES + 2).sum();
        let early = (file_pages + EARLY_PAGES).min(space.memory().bytes() / PAGE_BYTES);
        space.memory_mut().populate(0..early * PAGE_BYTES);
        for segment in image.segments() {
            space.load(segment.address.wrapping_add(image.load_bias()), &image.bytes()[segment.file.clone()])?;
        }
        space.map(layout.stack, Rights::RW, Fill::Down, Promise::Committed)?;
        let mut random = [0; 16];
        entropy::fill(&mut random).map_err(no_entropy)?;
        let start = Start {
            args: program.args,
            env: program.env,
            random,
            is_guest: program.is_guest,
            limit: layout.stack.bytes() / 4,
        };
        let initial = InitialStack::new(layout.stack.end(), image, &start)?;
        space.write(initial.address, &initial.bytes)?;
        // It begins as if it came back from the doorbell: that page's code leaves nothing in the registers.
        let entry = image.entry().wrapping_add(image.load_bias());
        let top = initial.address - 8;
        space.write(top, &entry.to_le_bytes())?;
        if let Some(guest) = &layout.guest {
            map_guest(&mut space, guest, program.init_data, program.log_level)?;
        }
        let mut vcpu = if config.count_instructions { Counting::wrap(vcpu) } else { vcpu };
        vcpu.set_registers(&Registers { rip: map::DOORBELL_RETURN, rsp: top, ..Registers::default() });
        let heap = &layout.program_break;
        let linux = Linux::new(heap.start, heap.end, layout.stack.bytes(), program.streams, program.tracer);
        let (origin, stack, random) = (Origin::Image(image.clone()), layout.stack, initial.random);
        let machine = Self { space, vcpu, linux, origin, stack, random, shell, before };
        Ok((machine, layout.guest))
    }

    /// Makes a virtual machine in a snapshot's state.
    pub(crate) fn spawn(
        config: &Config,
        backend: &dyn Backend,
        snapshot: &Snapshot,
        streams: Streams,
        tracer: Option<Tracer>,
    ) -> Result<(Self, Arc<SharedBase>), Error> {
        config.check()?;
        snapshot.check_memory(config.memory_bytes)?;
        let state = &*snapshot.0;
        let (base, differences) = state.base()?;
        let (Shell { mut memory, vm, vcpu }, shell) = shell(config, backend)?;
        let before = costs(&*vm, &*vcpu);
        memory.map_base(&base.file).map_err(|error| {
            Error::new(ErrorKind::Host, "cannot map the snapshot's pages into a new sandbox").with_source(error)
        })?;
        // What it will write is copied now, which costs less than a fault for each page.
        let copied = [&state.hot[..], &differences].concat();
        let mut space = Space::from_state(memory, vm, &state.space, &copied, |page| state.content(page))?;
        let random = snapshot::renew(&mut space, state.random)?;
        let mut vcpu = if config.count_instructions { Counting::wrap(vcpu) } else { vcpu };
        vcpu.set_registers(&state.registers);
        let mut linux = Linux::new(0, 0, state.stack.bytes(), streams, tracer);
        linux.restore(&state.linux, state.age);
        let (origin, stack) = (state.origin.clone(), state.stack);
        let machine = Self { space, vcpu, linux, origin, stack, random, shell, before };
        Ok((machine, base))
    }

    /// Enters the guest until it hands over or stops.
    ///
    /// # Errors
    /// The hypervisor's; the guest cannot be entered again then.
    pub(crate) fn run(&mut self, deadline: &Deadline) -> Result<Stop, Error> {
        loop {
            match self.vcpu.run(self.space.memory_mut())? {
                Exit::Doorbell => return Ok(Stop::Doorbell),
                Exit::Syscall => {
                    if let Some(stop) = self.system_call(deadline)? {
                        return Ok(stop);
                    }
                }
                Exit::Exception(exception) => {
                    if !self.resolved(&exception)? {
                        return Ok(Stop::Crashed(Box::new(self.report(Some(&exception), None))));
                    }
                }
                Exit::Interrupted => {}
                Exit::LogFull => self.space.empty_log()?,
                Exit::Shutdown => return Ok(Stop::Crashed(Box::new(self.report(None, Some(Cause::Shutdown))))),
                Exit::Unexpected(reason) => {
                    return Ok(Stop::Crashed(Box::new(self.report(None, Some(Cause::Hypervisor(reason))))));
                }
            }
            if deadline.is_over() {
                return Ok(Stop::TimedOut);
            }
        }
    }

    /// What the machine has cost so far.
    pub(crate) fn stats(&self) -> Stats {
        let Self { space, vcpu, linux, .. } = self;
        let [entries, hypervisor_calls] = costs(space.vm(), &**vcpu);
        Stats {
            entries: entries - self.before[0],
            hypervisor_calls: hypervisor_calls - self.before[1],
            system_calls: linux.calls(),
            unknown_system_calls: linux.unknown().iter().map(|(number, count)| (*number, *count)).collect(),
            pages_in_use: space.frames_in_use(),
            hot_pages: space.memory().hot().len() as u64,
            guest_instructions: vcpu.instructions(),
            ..Stats::default()
        }
    }

    fn system_call(&mut self, deadline: &Deadline) -> Result<Option<Stop>, Error> {
        let registers = self.vcpu.registers();
        let cause = match self.linux.serve(&registers, &mut self.space, deadline)? {
            Outcome::Return(value) => {
                self.vcpu.finish_syscall(value);
                return Ok(None);
            }
            Outcome::SetFsBase(fs_base) => {
                self.vcpu.set_registers(&Registers { rax: 0, fs_base, ..registers });
                return Ok(None);
            }
            Outcome::Exit(code) => return Ok(Some(Stop::Exited(code))),
            Outcome::TimedOut => return Ok(Some(Stop::TimedOut)),
            Outcome::Deadlock => Cause::Deadlock,
            Outcome::Signal(SIGABRT) if self.linux.refused_memory() => Cause::OutOfMemory,
            Outcome::Signal(SIGABRT) => Cause::Abort,
            Outcome::Signal(number) => Cause::Signal(number),
        };
        Ok(Some(Stop::Crashed(Box::new(self.report(None, Some(cause))))))
    }

    /// Whether the guest may try again.
    fn resolved(&mut self, exception: &Exception) -> Result<bool, Error> {
        if exception.vector != exit::PAGE_FAULT {
            return Ok(false);
        }
        let registers = self.vcpu.registers();
        match self.space.fault(exception.address, Access::from_error_code(exception.error_code))? {
            Fault::Resolved => {
                self.vcpu.set_registers(&registers);
                Ok(true)
            }
            Fault::Denied | Fault::OutOfMemory => Ok(false),
        }
    }

    /// What is known of the guest's end: by an exception, or for the given cause.
    pub(crate) fn report(&mut self, exception: Option<&Exception>, cause: Option<Cause>) -> CrashReport {
        let registers = self.vcpu.registers();
        let page_fault = exception.filter(|exception| exception.vector == exit::PAGE_FAULT);
        let cause = match (cause, exception) {
            (Some(cause), _) => cause,
            (None, Some(exception)) => self.cause_of(exception, registers.rip),
            (None, None) => Cause::Shutdown,
        };
        let symbol = self.origin.symbol(registers.rip);
        CrashReport {
            cause,
            vector: exception.map(|exception| exception.vector),
            address: page_fault.map(|fault| fault.address),
            access: page_fault.map(|fault| Access::from_error_code(fault.error_code)),
            registers,
            place: symbol.map(|symbol| Place { function: symbol.name, offset: symbol.offset }),
        }
    }

    fn cause_of(&mut self, exception: &Exception, rip: u64) -> Cause {
        let access = Access::from_error_code(exception.error_code);
        let rights = self.space.area_at(exception.address).map(|area| area.rights);
        let is_page_fault = exception.vector == exit::PAGE_FAULT;
        if is_page_fault && rights.is_some_and(|rights| access.rights().within(rights)) {
            return Cause::OutOfMemory; // The guest may use the page, and there is none to give.
        }
        let mut code = [0; 15];
        let length = (0..code.len()).rev().map(|n| n + 1).find(|n| self.space.read(rip, &mut code[..*n]).is_ok());
        let code = &code[..length.unwrap_or(0)];
        Cause::of(&Scene { exception: *exception, code, stack: self.stack, rights })
    }
}

const SIGABRT: i32 = 6;

/// A virtual machine with no guest in it, and under which key it may be used again.
fn shell(config: &Config, backend: &dyn Backend) -> Result<(Shell, Option<shells::Key>), Error> {
    let memory = PageBytes::round_up(config.memory_bytes).unwrap_or_default();
    let (shell, key) = shells::take(backend, memory)?;
    // A counting processor is wrapped for good.
    Ok((shell, key.filter(|_| !config.count_instructions)))
}

/// Entries, and other hypervisor calls.
fn costs(vm: &dyn Vm, vcpu: &dyn Vcpu) -> [u64; 2] {
    [vcpu.entries(), vm.hypervisor_calls() + vcpu.hypervisor_calls()]
}

/// Maps what only a guest made with the SDK has.
fn map_guest(space: &mut Space, layout: &GuestLayout, init_data: &[u8], log_level: u32) -> Result<(), Error> {
    space.map_sealed(layout.transport, Rights::RW, Fill::Now)?;
    for span in layout.large.into_iter().flatten() {
        space.map(span, Rights::RW, Fill::Up, Promise::Uncommitted)?;
    }
    if let Some(heap) = layout.heap {
        space.map(heap, Rights::RW, Fill::Up, Promise::Committed)?;
        // The allocator's first pages, so that its first use is no exit.
        space.fault(heap.start(), Access::Write)?;
        // And its last one, where allocators mark the end.
        space.fault(heap.end() - PAGE_BYTES, Access::Write)?;
    }
    if let Some(span) = layout.init_data {
        space.map_sealed(span, Rights::R, Fill::Now)?;
        space.load(span.start(), init_data)?;
    }
    let region = |span: Span| Region { address: span.start(), bytes: span.bytes() };
    let init_region = |span: Span| Region { address: span.start(), bytes: init_data.len() as u64 };
    let mut entropy = [0; 32];
    entropy::fill(&mut entropy).map_err(no_entropy)?;
    let (start, [outbound, log, inbound]) = (layout.transport.start(), layout.parts);
    let info = BootInfo {
        magic: boot::MAGIC,
        abi_version: ABI_VERSION,
        reserved: 0,
        doorbell: map::DOORBELL,
        queues: Region { address: start, bytes: queue::BYTES },
        outbound: Region { address: start + queue::BYTES, bytes: outbound - queue::BYTES },
        outbound_large: layout.large.map(|[outbound, _]| region(outbound)).unwrap_or_default(),
        log: Region { address: start + outbound, bytes: log },
        inbound: Region { address: start + outbound + log, bytes: inbound },
        payload_bytes: layout.payload,
        heap: layout.heap.map(region).unwrap_or_default(),
        init_data: layout.init_data.map(init_region).unwrap_or_default(),
        generation: 1,
        entropy,
        log_level,
        reserved_end: 0,
    };
    let page =
        ControlPage { address: map::BOOT_PAGE, content: info.encode().into(), rights: Rights::R, level: Level::User };
    Ok(space.map_control(&page)?)
}

fn no_entropy(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Host, "the host's kernel gives no random bytes for the guest").with_source(error)
}
