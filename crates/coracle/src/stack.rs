//! A new program's stack: arguments, environment and auxiliary vector, as Linux lays them out (x86-64 psABI, 3.4.1).

use coracle_abi::port::AT_CORACLE;
use coracle_abi::{PAGE_BYTES, map};

use crate::error::{Error, ErrorKind};
use crate::image::Image;

const AT_NULL: u64 = 0;
const AT_PHDR: u64 = 3;
const AT_PHENT: u64 = 4;
const AT_PHNUM: u64 = 5;
const AT_PAGESZ: u64 = 6;
const AT_BASE: u64 = 7;
const AT_FLAGS: u64 = 8;
const AT_ENTRY: u64 = 9;
const AT_UID: u64 = 11;
const AT_EUID: u64 = 12;
const AT_GID: u64 = 13;
const AT_EGID: u64 = 14;
const AT_PLATFORM: u64 = 15;
const AT_HWCAP: u64 = 16;
const AT_CLKTCK: u64 = 17;
const AT_SECURE: u64 = 23;
const AT_RANDOM: u64 = 25;
const AT_EXECFN: u64 = 31;

/// What a program is started with.
pub(crate) struct Start<'a> {
    pub(crate) args: &'a [String],
    pub(crate) env: &'a [(String, String)],
    pub(crate) random: [u8; 16],
    pub(crate) is_guest: bool,
    /// Bytes of the stack that all this may take.
    pub(crate) limit: u64,
}

/// The bytes at the end of a stack, and the stack pointer to start with.
pub(crate) struct InitialStack {
    pub(crate) address: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) random: StackRandom,
}

/// The random bytes to which `AT_RANDOM` points.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackRandom {
    pub(crate) address: u64,
    pub(crate) bytes: [u8; 16],
}

impl InitialStack {
    /// For a stack that ends at `end`, a multiple of 16.
    pub(crate) fn new(end: u64, image: &Image, start: &Start<'_>) -> Result<Self, Error> {
        let mut strings = Strings { bytes: Vec::new() };
        let random = strings.add(&start.random);
        let platform = strings.add(b"x86_64\0");
        let mut args = Vec::new();
        for arg in start.args {
            args.push(strings.add_text("an argument", arg)?);
        }
        let mut env = Vec::new();
        for (name, value) in start.env {
            if name.is_empty() || name.contains('=') {
                return Err(Error::new(ErrorKind::Config, format!("'{name}' cannot be the name of a variable")));
            }
            env.push(strings.add_text("a variable", &format!("{name}={value}"))?);
        }
        let size = strings.bytes.len() as u64;
        let base = (end - size.next_multiple_of(16).min(end)) & !15;
        let at = |offset: usize| base + offset as u64;
        let bias = image.load_bias();
        let headers = image.program_headers();
        let user = 1000;
        let mut vector: Vec<(u64, u64)> = vec![
            (AT_PHENT, headers.entry_bytes.into()),
            (AT_PHNUM, headers.count.into()),
            (AT_PAGESZ, PAGE_BYTES),
            (AT_BASE, 0),
            (AT_FLAGS, 0),
            (AT_ENTRY, image.entry().wrapping_add(bias)),
            (AT_UID, user),
            (AT_EUID, user),
            (AT_GID, user),
            (AT_EGID, user),
            (AT_SECURE, 0),
            (AT_HWCAP, 0),
            (AT_CLKTCK, 100),
            (AT_PLATFORM, at(platform)),
            (AT_RANDOM, at(random)),
        ];
        vector.extend(headers.address.map(|address| (AT_PHDR, address.wrapping_add(bias))));
        vector.extend(args.first().map(|name| (AT_EXECFN, at(*name))));
        if start.is_guest {
            vector.push((AT_CORACLE, map::BOOT_PAGE));
        }
        vector.push((AT_NULL, 0));

        let mut words = vec![args.len() as u64];
        words.extend(args.iter().map(|offset| at(*offset)));
        words.push(0);
        words.extend(env.iter().map(|offset| at(*offset)));
        words.push(0);
        words.extend(vector.iter().flat_map(|(key, value)| [*key, *value]));
        let total = words.len() as u64 * 8 + (end - base);
        if total > start.limit {
            let message =
                format!("arguments and environment take {total} bytes, and the stack has room for {}", start.limit);
            return Err(Error::new(ErrorKind::Limit, message));
        }
        let address = (base - words.len() as u64 * 8) & !15;
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.resize((base - address) as usize, 0);
        bytes.extend(strings.bytes);
        let random = StackRandom { address: at(random), bytes: start.random };
        Ok(Self { address, bytes, random })
    }
}

struct Strings {
    bytes: Vec<u8>,
}

impl Strings {
    fn add(&mut self, bytes: &[u8]) -> usize {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        at
    }

    fn add_text(&mut self, what: &str, text: &str) -> Result<usize, Error> {
        if text.contains('\0') {
            return Err(Error::new(ErrorKind::Config, format!("{what} of the guest holds a zero byte: {text:?}")));
        }
        let at = self.add(text.as_bytes());
        self.bytes.push(0);
        Ok(at)
    }
}
