//! A guest written in Rust closures, on a backend without a hypervisor: for tests of programs that embed Coracle, where
//! there is no `/dev/kvm`. It speaks the same protocol as a real guest, and isolates nothing.
//!
//! ```
//! use coracle::{ErrorKind, Sandbox, fake::FakeGuest};
//!
//! let guest = FakeGuest::new()
//!     .function("divide", |(a, b): (u32, u32)| a.checked_div(b).ok_or("division by zero"));
//! let mut sandbox = Sandbox::builder(&guest.image()).backend(guest.backend()).build()?;
//! assert_eq!(sandbox.call::<u32>("divide", (7u32, 2u32))?, 3);
//! let error = sandbox.call::<u32>("divide", (7u32, 0u32)).unwrap_err();
//! assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::GuestReturned, "division by zero"));
//! # Ok::<(), coracle::Error>(())
//! ```

use std::cell::RefCell;
use std::fmt::Display;
use std::sync::Arc;

use coracle_abi::boot::BootInfo;
use coracle_abi::message::{HEAD_MAX, Header, Kind};
use coracle_abi::note::{self, AbiNote};
use coracle_abi::queue::{self, Place};
use coracle_abi::{ABI_VERSION, map, signature};
use coracle_virtq::lockstep::{Offers, Takes};
pub use coracle_virtq::memory::Segment;
use coracle_virtq::memory::{Memory, OutOfBounds};
use coracle_virtq::ring::Layout;
use coracle_vm::Exit;
pub use coracle_vm::fake::{Fake, FakeCpu, Program};
use postcard_schema::Schema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::host::types_text;
use crate::image::Image;

/// What a scripted function answers.
pub enum Step {
    /// The encoded result.
    Reply(Vec<u8>),
    /// An error's text.
    Error(String),
    /// Call the host function with this key first, and go on with what it answers: whether it succeeded, and the
    /// payload.
    HostCall {
        /// Its key, [`coracle_abi::signature::key_from`].
        key: u64,
        /// Its encoded arguments.
        arguments: Vec<u8>,
        /// What follows.
        then: Then,
    },
    /// Send these messages, whatever they are, and ring.
    Messages(Vec<Vec<u8>>),
    /// Do anything to the queues, and ring.
    Wire(Act),
    /// Stop for this reason, without a message.
    Exit(Exit),
}

/// What a step does to the queues.
pub type Act = Box<dyn FnOnce(&mut Wire<'_, '_>) + Send>;

/// What follows a host call: whether it succeeded, and its payload, to the next step.
pub type Then = Box<dyn FnOnce(bool, &[u8]) -> Step + Send>;

type Body = Arc<dyn Fn(&[u8]) -> Step + Send + Sync>;

/// A scripted guest: functions, and the image that describes them.
#[derive(Clone, Default)]
pub struct FakeGuest {
    functions: Vec<(String, Body)>, // By signature.
    needs: Vec<String>,
}

impl FakeGuest {
    /// A guest without functions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a function that answers at once.
    #[must_use]
    pub fn function<A, R, E>(self, name: &str, body: impl Fn(A) -> Result<R, E> + Send + Sync + 'static) -> Self
    where
        A: DeserializeOwned + Schema,
        R: Serialize + Schema,
        E: Display,
    {
        self.script::<A, R>(name, move |arguments| match postcard::from_bytes(arguments) {
            Ok(arguments) => match body(arguments) {
                Ok(result) => {
                    postcard::to_stdvec(&result).map_or_else(|error| Step::Error(error.to_string()), Step::Reply)
                }
                Err(error) => Step::Error(error.to_string()),
            },
            Err(error) => Step::Error(error.to_string()),
        })
    }

    /// Adds a function that answers step by step, also wrongly.
    #[must_use]
    pub fn script<A: Schema, R: Schema>(
        mut self,
        name: &str,
        body: impl Fn(&[u8]) -> Step + Send + Sync + 'static,
    ) -> Self {
        self.functions.push((format!("{name}{}", types_text::<A, R>()), Arc::new(body)));
        self
    }

    /// Says that the guest needs a host function.
    #[must_use]
    pub fn needs<A: Schema, R: Schema>(mut self, name: &str) -> Self {
        self.needs.push(format!("{name}{}", types_text::<A, R>()));
        self
    }

    /// An image whose notes describe the functions. Its code is never run.
    ///
    /// # Panics
    /// If a function's name is not a valid one.
    pub fn image(&self) -> Image {
        let mut notes = Vec::new();
        let sdk = "fake";
        push_note(&mut notes, note::ABI, &[&ABI_VERSION.to_le_bytes(), sdk.as_bytes()].concat());
        debug_assert!(AbiNote::parse(&[&ABI_VERSION.to_le_bytes(), sdk.as_bytes()].concat()).is_ok());
        for (kind, signatures) in [
            (note::EXPORT, self.functions.iter().map(|(signature, _)| signature).collect::<Vec<_>>()),
            (note::REQUIRE, self.needs.iter().collect()),
        ] {
            for signature in signatures {
                push_note(&mut notes, kind, &[signature.as_bytes(), &[0]].concat());
            }
        }
        match Image::from_bytes(elf(&notes)) {
            Ok(image) => image,
            Err(error) => panic!("a scripted guest's image is refused: {error}"),
        }
    }

    /// The backend that plays this guest.
    pub fn backend(&self) -> Fake {
        let guest = self.clone();
        Fake::new(move || Player { guest: guest.clone(), waiting: None, generation: 0 })
    }
}

/// Plays a guest's side of the protocol.
struct Player {
    guest: FakeGuest,
    waiting: Option<Then>,
    generation: u64, // In which `waiting` waits.
}

/// A scripted guest's way to its host: the queues' other side, over the memory that a script sees.
///
/// What it knows is in that memory, at the start of the heap, so that restoring and spawning work.
pub struct Wire<'c, 'm> {
    cpu: RefCell<&'c mut FakeCpu<'m>>,
    queues: u64,
    outbound: u64,
    outbound_bytes: u64,
    heap: u64,
    correlation: u32,
    state: WireState,
}

#[derive(Clone, Copy)]
struct WireState {
    calls: Takes,
    replies: Takes,
    messages: Offers,
    used: u64, // Bytes of messages since the last exit.
}

impl<'c, 'm> Wire<'c, 'm> {
    /// Finds it by the boot page. `None` if there is none, or no heap to remember things in.
    pub fn open(cpu: &'c mut FakeCpu<'m>) -> Option<Self> {
        let word = |address: u64| {
            let mut word = [0; 8];
            cpu.read(address, &mut word).then_some(u64::from_le_bytes(word))
        };
        let place = |field: usize| word(map::BOOT_PAGE + field as u64);
        let queues = place(core::mem::offset_of!(BootInfo, queues))?;
        let outbound = place(core::mem::offset_of!(BootInfo, outbound))?;
        let outbound_bytes = place(core::mem::offset_of!(BootInfo, outbound) + 8)?;
        let heap = place(core::mem::offset_of!(BootInfo, heap))?;
        let [calls, replies, messages] = [word(heap)?, word(heap + 8)?, word(heap + 16)?];
        let state = if calls == 0 {
            WireState { calls: Takes::START, replies: Takes::START, messages: Offers::START, used: 0 }
        } else {
            // The host has used all that was there.
            let mut messages = Offers::unpack(messages as u32);
            messages.used_all();
            WireState { calls: Takes::unpack(calls as u32), replies: Takes::unpack(replies as u32), messages, used: 0 }
        };
        Some(Self { cpu: RefCell::new(cpu), queues, outbound, outbound_bytes, heap, correlation: 0, state })
    }

    /// Whether the guest has not run before.
    pub fn is_new(&self) -> bool {
        let mut word = [0; 8];
        self.cpu.borrow().read(self.heap, &mut word) && word == [0; 8]
    }

    /// The next message in one of the host's queues, which is given back at once: nothing changes before the next exit.
    fn next(&mut self, place: Place, of: fn(&mut WireState) -> &mut Takes) -> Option<Vec<u8>> {
        let layout = self.layout(place)?;
        let mut takes = *of(&mut self.state);
        let taken = takes.take(self, &layout).ok()??;
        // A guest that wrote over its own queues finds nonsense.
        let mut bytes = vec![0; (taken.segment.bytes as usize).min(NONSENSE_BYTES)];
        Memory::read(self, taken.segment.address, &mut bytes).ok()?;
        takes.give_back(self, &layout, taken.id).ok()?;
        *of(&mut self.state) = takes;
        self.correlation = bytes.first_chunk().map_or(0, |head| Header::decode(*head).correlation);
        Some(bytes)
    }

    /// The next call, in the host's bytes.
    pub fn next_call(&mut self) -> Option<Vec<u8>> {
        self.next(queue::CALLS, |state| &mut state.calls)
    }

    /// The next reply of a host function, in the host's bytes.
    pub fn next_reply(&mut self) -> Option<Vec<u8>> {
        self.next(queue::REPLIES, |state| &mut state.replies)
    }

    /// Sends a message, whatever its bytes. `false` if there is no room: scripts have what is there from the start.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        let address = self.outbound + self.state.used;
        let fits = self.outbound_bytes.checked_sub(self.state.used).is_some_and(|room| bytes.len() as u64 <= room);
        if !fits || Memory::write(self, address, bytes).is_err() {
            return false;
        }
        self.state.used += (bytes.len() as u64).next_multiple_of(8);
        self.offer(Segment::new(address, bytes.len() as u32))
    }

    /// Offers a message, wherever it may lie.
    pub fn offer(&mut self, segment: Segment) -> bool {
        let Some(layout) = self.layout(queue::MESSAGES) else { return false };
        let mut messages = self.state.messages;
        let good = messages.offer(self, &layout, segment).is_ok();
        self.state.messages = messages;
        good
    }

    /// A header for what belongs to the call that was taken last.
    pub fn current(&self) -> Header {
        Header { kind: 0, flags: 0, index: 0, correlation: self.correlation }
    }

    /// Where messages lie.
    pub fn outbound(&self) -> u64 {
        self.outbound
    }

    /// Where in its ring the next message's descriptor goes, and with which flags it is available.
    pub fn next_message_place(&self) -> (u16, u16) {
        let place = self.state.messages.pack() as u16;
        (place & !(1 << 15), if place >> 15 == 1 { 1 << 7 } else { 1 << 15 })
    }

    /// Writes over the queues.
    pub fn write_queues(&mut self, offset: u64, bytes: &[u8]) {
        // It fails only behind the region, where there is nothing to write over.
        let _ = Memory::write(self, self.queues + offset, bytes);
    }

    fn layout(&self, place: Place) -> Option<Layout> {
        let at = |offset: u64| self.queues.wrapping_add(offset);
        Layout::new(place.size, at(place.descriptors), at(place.driver_event), at(place.device_event)).ok()
    }

    /// Remembers what it knows, and rings.
    pub fn ring(self) -> Exit {
        self.remember();
        Exit::Doorbell
    }

    /// Remembers what it knows: for exits of other kinds.
    pub fn remember(self) {
        let Self { cpu, heap, state, .. } = self;
        // Bit 32 says that there is something to remember.
        let words =
            [u64::from(state.calls.pack()) | 1 << 32, state.replies.pack().into(), state.messages.pack().into()];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        cpu.into_inner().write(heap, &bytes);
    }
}

impl Memory for Wire<'_, '_> {
    fn check(&self, _: u64, _: u64) -> Result<(), OutOfBounds> {
        Ok(()) // Each access is.
    }

    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        let bytes = out.len() as u64;
        self.cpu.borrow().read(address, out).then_some(()).ok_or(OutOfBounds { address, bytes })
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        let failed = OutOfBounds { address, bytes: bytes.len() as u64 };
        self.cpu.borrow_mut().write(address, bytes).then_some(()).ok_or(failed)
    }

    fn load_u16_acquire(&self, address: u64) -> Result<u16, OutOfBounds> {
        let mut bytes = [0; 2];
        Memory::read(self, address, &mut bytes)?;
        Ok(u16::from_le_bytes(bytes))
    }

    fn store_u16_release(&self, address: u64, value: u16) -> Result<(), OutOfBounds> {
        Memory::write(self, address, &value.to_le_bytes())
    }
}

/// More than any message of the host's has.
const NONSENSE_BYTES: usize = (1 << 30) + HEAD_MAX;

const TOO_LARGE: &str = "a scripted guest has no room for an answer of this size";

/// A message, from its parts.
pub fn message(header: Header, key: Option<u64>, payload: &[u8]) -> Vec<u8> {
    let key = key.map(u64::to_le_bytes);
    [&header.encode()[..], key.as_ref().map_or(&[], |key| &key[..]), payload].concat()
}

impl Program for Player {
    fn run(&mut self, cpu: &mut FakeCpu<'_>) -> Exit {
        let mut generation = [0; 8];
        cpu.read(map::BOOT_PAGE + core::mem::offset_of!(BootInfo, generation) as u64, &mut generation);
        let generation = u64::from_le_bytes(generation);
        if std::mem::replace(&mut self.generation, generation) != generation {
            self.waiting = None; // It was restored meanwhile.
        }
        let Some(mut wire) = Wire::open(cpu) else { return Exit::Shutdown };
        if wire.is_new() {
            let keys = self.guest.functions.iter().flat_map(|(text, _)| signature::hash(text).to_le_bytes());
            wire.send(&message(Header::new(Kind::Ready), None, &keys.collect::<Vec<u8>>()));
            return wire.ring();
        }
        // Calls one after the other, until a step hands over.
        loop {
            let waited = self.waiting.is_some();
            let Some(bytes) = (if waited { wire.next_reply() } else { wire.next_call() }) else { return wire.ring() };
            let Some((head, rest)) = bytes.split_first_chunk() else { return Exit::Shutdown };
            let header = Header::decode(*head);
            let step = match self.waiting.take() {
                Some(then) => then(header.kind == Kind::HostReply as u8, rest),
                None => {
                    let Some((key, arguments)) = rest.split_first_chunk() else { return Exit::Shutdown };
                    let function = self.guest.functions.get(usize::from(header.index));
                    match function.filter(|(text, _)| signature::hash(text).to_le_bytes() == *key) {
                        Some((_, body)) => body(arguments),
                        None => Step::Error("no such function".into()),
                    }
                }
            };
            let with = |kind| Header { correlation: header.correlation, ..Header::new(kind) };
            let sent = match step {
                Step::Reply(payload) => {
                    wire.send(&message(with(Kind::Reply), None, &payload))
                        || wire.send(&message(with(Kind::Error), None, TOO_LARGE.as_bytes()))
                }
                Step::Error(text) => wire.send(&message(with(Kind::Error), None, text.as_bytes())),
                Step::HostCall { key, arguments, then } => {
                    self.waiting = Some(then);
                    wire.send(&message(with(Kind::HostCall), Some(key), &arguments));
                    return wire.ring();
                }
                Step::Messages(messages) => {
                    messages.iter().all(|bytes| wire.send(bytes));
                    return wire.ring();
                }
                Step::Wire(act) => {
                    act(&mut wire);
                    return wire.ring();
                }
                Step::Exit(exit) => return exit,
            };
            if !sent {
                return Exit::Shutdown;
            }
        }
    }
}

fn push_note(notes: &mut Vec<u8>, kind: u32, desc: &[u8]) {
    for word in [note::OWNER.len() as u32, desc.len() as u32, kind] {
        notes.extend(word.to_le_bytes());
    }
    notes.extend(note::OWNER);
    notes.extend(desc);
    notes.resize(notes.len().next_multiple_of(4), 0);
}

/// The smallest image that can carry notes: one executable page, and the notes in it.
fn elf(notes: &[u8]) -> Vec<u8> {
    const HEADERS: u64 = 64 + 2 * 56;
    const BASE: u64 = 0x40_0000;
    let end = HEADERS + notes.len() as u64;
    let program_header = |kind: u32, flags: u32, offset: u64, bytes: u64, align: u64| {
        let mut header = Vec::new();
        header.extend(kind.to_le_bytes());
        header.extend(flags.to_le_bytes());
        for word in [offset, BASE + offset, BASE + offset, bytes, bytes, align] {
            header.extend(word.to_le_bytes());
        }
        header
    };
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    file.extend([2, 0, 62, 0, 1, 0, 0, 0]); // EXEC, x86-64, version 1
    for word in [BASE, 64, 0] {
        file.extend(word.to_le_bytes()); // Entry, program headers, no section headers
    }
    file.extend([0, 0, 0, 0, 64, 0, 56, 0, 2, 0, 64, 0, 0, 0, 0, 0]);
    file.extend(program_header(1, 5, 0, end, 4096)); // LOAD, r-x
    file.extend(program_header(4, 4, HEADERS, notes.len() as u64, 4)); // NOTE
    file.extend(notes);
    file
}
