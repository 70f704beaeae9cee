//! Programs assembled by hand, and the command run on them: nothing here needs a compiler.

#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use coracle_abi::note::{self, OWNER};
use coracle_abi::{ABI_VERSION, map, signature};

/// What one run of the command left.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs the command.
#[track_caller]
pub(crate) fn coracle(args: &[&str], input: &str) -> Outcome {
    let mut child = Command::new(env!("CARGO_BIN_EXE_coracle"))
        .args(args)
        .env_remove("CORACLE_LOG")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Who does not read it has closed it.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Outcome { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

/// Leaves a file for the command. Tests that ask for the same one at the same time never see a part of it.
pub(crate) fn file(name: &str, bytes: &[u8]) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let unfinished = path.with_extension(format!("{}-{count}", std::process::id()));
    fs::write(&unfinished, bytes).unwrap();
    fs::rename(&unfinished, &path).unwrap();
    path
}

const BASE: u64 = 0x40_0000;

/// The smallest static program: headers, notes and code in one executable segment.
pub(crate) fn elf(code: &[u8], notes: &[u8]) -> Vec<u8> {
    const HEADERS: u64 = 64 + 2 * 56;
    let notes_bytes = notes.len() as u64;
    let end = HEADERS + notes_bytes + code.len() as u64;
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
    for word in [BASE + HEADERS + notes_bytes, 64, 0] {
        file.extend(word.to_le_bytes()); // Entry, program headers, no section headers
    }
    file.extend([0, 0, 0, 0, 64, 0, 56, 0, 2, 0, 64, 0, 0, 0, 0, 0]);
    file.extend(program_header(1, 5, 0, end, 4096)); // LOAD, r-x
    file.extend(program_header(4, 4, HEADERS, notes_bytes, 4)); // NOTE
    file.extend(notes);
    file.extend(code);
    file
}

/// `mov edi, code; mov eax, EXIT; syscall`.
pub(crate) fn exit_with(code: u8) -> Vec<u8> {
    vec![0xbf, code, 0, 0, 0, 0xb8, 60, 0, 0, 0, 0x0f, 0x05]
}

/// `mov eax, number; syscall`.
pub(crate) fn system_call(number: u32) -> Vec<u8> {
    [&[0xb8][..], &number.to_le_bytes(), &[0x0f, 0x05]].concat()
}

/// Functions of [`guest`], in the order of their indices: the argument is answered, as a result or as an error's
/// text; an illegal instruction.
pub(crate) const FUNCTIONS: [&str; 3] = ["echo(string) -> string", "crash(string) -> string", "fail(string) -> string"];

/// A guest by hand, of this ABI or another, with [`FUNCTIONS`].
pub(crate) fn guest(abi_version: u32) -> Vec<u8> {
    let keys: Vec<u8> = FUNCTIONS.iter().flat_map(|text| signature::hash(text).to_le_bytes()).collect();
    let mut code = Vec::new();
    let mov_rax = |code: &mut Vec<u8>, value: u64| {
        code.extend([0x48, 0xb8]);
        code.extend(value.to_le_bytes());
    };
    let ring = |code: &mut Vec<u8>| {
        mov_rax(code, map::DOORBELL);
        code.extend([0xff, 0xd0]); // call rax
    };
    code.extend([0x48, 0xbb]); // mov rbx, BOOT_PAGE
    code.extend(map::BOOT_PAGE.to_le_bytes());
    code.extend([0x4c, 0x8b, 0x63, 24]); // mov r12, [rbx + 24]: the queues, calls first
    code.extend([0x4c, 0x8b, 0x6b, 40]); // mov r13, [rbx + 40]: where messages lie
    code.extend([0x49, 0xc7, 0x45, 0, 1, 0, 0, 0]); // mov qword [r13], READY
    for (index, key) in keys.chunks_exact(8).enumerate() {
        mov_rax(&mut code, u64::from_le_bytes(key.try_into().unwrap()));
        code.extend([0x49, 0x89, 0x45, 8 + 8 * index as u8]); // mov [r13 + 8 + 8 * index], rax
    }
    // The first descriptor of the messages' queue: r13, bytes, name 0, available.
    code.extend([0x4d, 0x89, 0xac, 0x24, 0, 4, 0, 0]); // mov [r12 + 1024], r13
    mov_rax(&mut code, 0x80 << 48 | (8 + keys.len() as u64));
    code.extend([0x49, 0x89, 0x84, 0x24, 8, 4, 0, 0]); // mov [r12 + 1032], rax
    code.extend([0x45, 0x31, 0xf6]); // xor r14d, r14d: calls so far
    ring(&mut code);
    let again = code.len();
    code.extend([0x45, 0x8d, 0x7e, 1]); // lea r15d, [r14 + 1]: messages so far
    code.extend([0x44, 0x89, 0xf0, 0x83, 0xe0, 63, 0xc1, 0xe0, 4, 0x4d, 0x8d, 0x04, 0x04]); // r8: the call's descriptor
    code.extend([0x44, 0x89, 0xf8, 0x83, 0xe0, 63, 0x41, 0x89, 0xc2, 0xc1, 0xe0, 4]); // r10d: the message's place
    code.extend([0x4d, 0x8d, 0x8c, 0x04, 0, 4, 0, 0]); // r9: its descriptor
    code.extend([0x49, 0x8b, 0x30, 0x41, 0x8b, 0x48, 8]); // mov rsi, [r8]; mov ecx, [r8 + 8]: the call
    code.extend([0x0f, 0xb7, 0x46, 2]); // movzx eax, word [rsi + 2]: index
    code.extend([0x83, 0xf8, 1, 0x75, 2, 0x0f, 0x0b]); // cmp eax, 1; jne over; ud2
    code.extend([0xd1, 0xe8, 0x83, 0xc0, 2]); // shr eax, 1; add eax, REPLY: index 2 gives ERROR
    code.extend([0x41, 0x89, 0x45, 0]); // mov [r13], eax
    code.extend([0x8b, 0x56, 4, 0x41, 0x89, 0x55, 4]); // correlation
    code.extend([0x41, 0x89, 0x49, 8, 0x41, 0x83, 0x69, 8, 8]); // bytes: as many as the call's, without a key
    code.extend([0x4d, 0x89, 0x29, 0x66, 0x45, 0x89, 0x51, 12]); // address and name
    code.extend([0x48, 0x83, 0xc6, 16, 0x83, 0xe9, 16, 0x49, 0x8d, 0x7d, 8, 0xf3, 0xa4]); // the payload: rep movsb
    code.extend([0xb8, 0x80, 0, 0, 0, 0x41, 0xf7, 0xc7, 64, 0, 0, 0, 0x74, 3, 0xc1, 0xe0, 8]); // 0x80, in each other lap
    code.extend([0x66, 0x41, 0x89, 0x41, 14]); // 0x8000: mov [r9 + 14], ax: available
    code.extend([0xb8, 0x80, 0x80, 0, 0, 0x41, 0xf7, 0xc6, 64, 0, 0, 0, 0x74, 2, 0x31, 0xc0]); // 0x8080, or 0
    code.extend([0x66, 0x41, 0x89, 0x40, 14, 0x45, 0x89, 0xfe]); // mov [r8 + 14], ax: used; mov r14d, r15d
    ring(&mut code);
    let back = again as i64 - (code.len() as i64 + 5);
    code.push(0xe9); // jmp again
    code.extend(i32::try_from(back).unwrap().to_le_bytes());
    elf(&code, &notes(abi_version))
}

fn notes(abi_version: u32) -> Vec<u8> {
    let mut notes = Vec::new();
    let mut push = |kind: u32, desc: &[u8]| {
        for word in [OWNER.len() as u32, desc.len() as u32, kind] {
            notes.extend(word.to_le_bytes());
        }
        notes.extend(OWNER);
        notes.extend(desc);
        notes.resize(notes.len().next_multiple_of(4), 0);
    };
    push(note::ABI, &[&abi_version.to_le_bytes()[..], b"by hand"].concat());
    for signature in FUNCTIONS {
        push(note::EXPORT, &[signature.as_bytes(), b"\0text"].concat());
    }
    notes
}

/// The guest of this ABI.
pub(crate) fn guest_file() -> PathBuf {
    file("guest", &guest(ABI_VERSION))
}
