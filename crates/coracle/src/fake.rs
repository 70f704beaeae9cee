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

use std::fmt::Display;
use std::sync::Arc;

use coracle_abi::boot::BootInfo;
use coracle_abi::frame::{Header, Kind};
use coracle_abi::note::{self, AbiNote};
use coracle_abi::{ABI_VERSION, map, signature};
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
    /// Leave this frame, whatever it is, and ring.
    Frame(Header, Vec<u8>),
    /// Stop for this reason, without a frame.
    Exit(Exit),
}

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
        Fake::new(move || Player { guest: guest.clone(), waiting: None, generation: 0, correlation: 0 })
    }
}

/// Plays a guest's side of the protocol.
struct Player {
    guest: FakeGuest,
    waiting: Option<Then>,
    generation: u64, // In which `waiting` waits.
    correlation: u64,
}

impl Program for Player {
    fn run(&mut self, cpu: &mut FakeCpu<'_>) -> Exit {
        let place = |cpu: &FakeCpu<'_>, field: usize| {
            let mut word = [0; 8];
            cpu.read(map::BOOT_PAGE + field as u64, &mut word).then_some(u64::from_le_bytes(word))
        };
        let inbound = place(cpu, core::mem::offset_of!(BootInfo, inbound));
        let outbound = place(cpu, core::mem::offset_of!(BootInfo, outbound));
        let (Some(inbound), Some(outbound)) = (inbound, outbound) else { return Exit::Shutdown };
        // What it remembers is in its memory, so that restoring and spawning work: one byte at the start of the heap.
        let heap = place(cpu, core::mem::offset_of!(BootInfo, heap)).unwrap_or_default();
        let mut booted = [0];
        if !cpu.read(heap, &mut booted) {
            return Exit::Shutdown;
        }
        if booted == [0] {
            cpu.write(heap, &[1]);
            let keys = self.guest.functions.iter().flat_map(|(text, _)| signature::hash(text).to_le_bytes()).collect();
            return leave(cpu, outbound, Header::new(Kind::Ready), keys);
        }
        let generation = place(cpu, core::mem::offset_of!(BootInfo, generation)).unwrap_or_default();
        if std::mem::replace(&mut self.generation, generation) != generation {
            self.waiting = None; // It was restored meanwhile.
        }
        let mut header = [0; Header::BYTES];
        cpu.read(inbound, &mut header);
        let header = Header::decode(&header);
        let mut payload = vec![0; header.bytes as usize];
        cpu.read(inbound + Header::BYTES as u64, &mut payload);
        self.correlation = header.correlation;
        let step = match (self.waiting.take(), self.guest.functions.get(header.index as usize)) {
            (Some(then), _) => then(header.kind == Kind::HostReply as u8, &payload),
            (None, Some((text, body))) if header.key == signature::hash(text) => body(&payload),
            (None, _) => Step::Error("no such function".into()),
        };
        let with = |kind| Header { correlation: self.correlation, ..Header::new(kind) };
        match step {
            Step::Reply(payload) => leave(cpu, outbound, with(Kind::Reply), payload),
            Step::Error(text) => leave(cpu, outbound, with(Kind::Error), text.into_bytes()),
            Step::HostCall { key, arguments, then } => {
                self.waiting = Some(then);
                leave(cpu, outbound, Header { key, ..with(Kind::HostCall) }, arguments)
            }
            Step::Frame(header, payload) => {
                cpu.write(outbound, &header.encode());
                cpu.write(outbound + Header::BYTES as u64, &payload);
                Exit::Doorbell
            }
            Step::Exit(exit) => exit,
        }
    }
}

fn leave(cpu: &mut FakeCpu<'_>, outbound: u64, header: Header, payload: Vec<u8>) -> Exit {
    cpu.write(outbound, &Header { bytes: payload.len() as u32, ..header }.encode());
    cpu.write(outbound + Header::BYTES as u64, &payload);
    Exit::Doorbell
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
