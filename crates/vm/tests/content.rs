//! Content that the host lends: seen by guests without a copy, written by each for itself, gone at once when it is taken back.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::Arc;

use common::{CODE, Guest, STACK_END, call, guest};
use coracle_abi::{PAGE_BYTES, map};
use coracle_vm::exit::{self, Exit, Registers};
use coracle_vm::space::CONTENTS_MAX;
use coracle_vm::{Access, Content, Fault, Fill, Promise, Rights, SpaceError, Span};

const AT: u64 = 0x1000_0000;

/// Rings after each: `rbx = [rsi]`; `[rsi] = rdi`.
fn program() -> Vec<u8> {
    let load = [&[0x48, 0x8b, 0x1e][..], &call(map::DOORBELL)].concat();
    let store = [&[0x48, 0x89, 0x3e][..], &call(map::DOORBELL)].concat();
    [load, vec![0xcc; 64 - 15], store].concat()
}

const LOAD: u64 = CODE;
const STORE: u64 = CODE + 64;

fn content(bytes: &[u8]) -> Arc<Content> {
    Arc::new(Content::copy_of(bytes).unwrap())
}

fn span(content: &Content) -> Span {
    Span::new(AT, content.bytes()).unwrap()
}

/// Runs until the doorbell, and answers page faults as the library does. The exception that the guest may not cause, if any.
fn run(guest: &mut Guest, rip: u64, rsi: u64, rdi: u64) -> Result<u64, u64> {
    guest.vcpu.set_registers(&Registers { rip, rsi, rdi, rsp: STACK_END, ..Registers::default() });
    loop {
        match guest.run() {
            Exit::Doorbell => return Ok(guest.vcpu.registers().rbx),
            Exit::Exception(fault) if fault.vector == exit::PAGE_FAULT => {
                let registers = guest.vcpu.registers();
                if guest.space.fault(fault.address, Access::from_error_code(fault.error_code)).unwrap()
                    != Fault::Resolved
                {
                    return Err(fault.address);
                }
                guest.vcpu.set_registers(&registers);
            }
            other => panic!("{other:?}"),
        }
    }
}

fn load(guest: &mut Guest, at: u64) -> Result<u64, u64> {
    run(guest, LOAD, at, 0)
}

fn store(guest: &mut Guest, at: u64, value: u64) -> Result<u64, u64> {
    run(guest, STORE, at, value)
}

fn words(pages: u64) -> Vec<u8> {
    (0..pages * PAGE_BYTES / 8).flat_map(|n| (n * 3).to_le_bytes()).collect()
}

fn word(at: u64) -> u64 {
    at / 8 * 3
}

#[test]
fn a_guest_reads_it_and_may_not_write() {
    let Some(mut guest) = guest(&program()) else { return };
    let content = content(&words(100));
    let before = guest.space.frames_in_use();
    guest.space.map_content(span(&content), &content, false).unwrap();
    for at in [0, 8, 4096, 50 * 4096 + 16, 100 * 4096 - 8] {
        assert_eq!(load(&mut guest, AT + at), Ok(word(at)), "{at}");
    }
    assert_eq!(store(&mut guest, AT + 8, 1), Err(AT + 8));
    assert_eq!(load(&mut guest, AT + 8), Ok(word(8)));
    assert!(guest.space.frames_in_use() <= before + 3, "page tables only");
    // The host reads it as the guest does, and writes as little.
    let mut out = [0; 16];
    guest.space.read(AT + 4088, &mut out).unwrap();
    assert_eq!(out[8..], word(4096).to_le_bytes());
    assert!(matches!(guest.space.write(AT, &[1]), Err(SpaceError::NotMapped)));
    assert_eq!(load(&mut guest, AT + 100 * 4096), Err(AT + 100 * 4096));
}

#[test]
fn each_guest_writes_to_its_own_copy() {
    let (Some(mut one), Some(mut other)) = (guest(&program()), guest(&program())) else { return };
    let content = content(&words(8));
    for guest in [&mut one, &mut other] {
        guest.space.map_content(span(&content), &content, true).unwrap();
        assert_eq!(load(guest, AT + 4096), Ok(word(4096)));
    }
    store(&mut one, AT + 4096, 77).unwrap();
    assert_eq!(load(&mut one, AT + 4096), Ok(77));
    assert_eq!(load(&mut one, AT + 4104), Ok(word(4104)));
    assert_eq!(load(&mut other, AT + 4096), Ok(word(4096)));
    let mut page = [0; 8];
    content.read(4096, &mut page).unwrap();
    assert_eq!(u64::from_le_bytes(page), word(4096));
    // Also what the host writes for the guest, where the guest had read before.
    assert_eq!(load(&mut one, AT + 8), Ok(word(8)));
    one.space.write(AT + 8, &5_u64.to_le_bytes()).unwrap();
    assert_eq!(load(&mut one, AT + 8), Ok(5));
    assert_eq!(load(&mut other, AT + 8), Ok(word(8)));
}

#[test]
fn taking_it_back_takes_effect_at_once() {
    let Some(mut guest) = guest(&program()) else { return };
    let content = content(&words(4));
    for round in 0..50 {
        let before = guest.space.frames_in_use();
        guest.space.map_content(span(&content), &content, true).unwrap();
        assert_eq!(load(&mut guest, AT), Ok(0));
        store(&mut guest, AT + 4096, round).unwrap();
        guest.space.unmap_content(AT).unwrap();
        assert_eq!(load(&mut guest, AT), Err(AT), "round {round}");
        assert_eq!(load(&mut guest, AT + 4096), Err(AT + 4096), "round {round}");
        assert!(round == 0 || guest.space.frames_in_use() == before, "the copies are given back");
        // Something else is there next.
        let zeros = span(&content);
        guest.space.map(zeros, Rights::RW, Fill::Now, Promise::Committed).unwrap();
        assert_eq!(load(&mut guest, AT), Ok(0));
        assert_eq!(load(&mut guest, AT + 8), Ok(0));
        guest.space.unmap(zeros).unwrap();
    }
    assert!(matches!(guest.space.unmap_content(AT), Err(SpaceError::NotMapped)));
}

#[test]
fn what_does_not_fit_changes_nothing() {
    let Some(mut guest) = guest(&program()) else { return };
    let content = content(&words(4));
    let there = Span::new(AT + 4096, 4096).unwrap();
    guest.space.map(there, Rights::RW, Fill::Now, Promise::Committed).unwrap();
    assert!(matches!(guest.space.map_content(span(&content), &content, false), Err(SpaceError::Overlap)));
    assert!(matches!(guest.space.map_content(there, &content, false), Err(SpaceError::Overlap)));
    let smaller = Span::new(AT + (1 << 20), 4096).unwrap();
    assert!(matches!(guest.space.map_content(smaller, &content, false), Err(SpaceError::Overlap)));
    assert!(matches!(guest.space.unmap_content(AT + 4096), Err(SpaceError::NotMapped)));
    let place = |n: u64| Span::new(AT + (n + 1) * (1 << 20), 4 * 4096).unwrap();
    for n in 0..CONTENTS_MAX as u64 {
        guest.space.map_content(place(n), &content, false).unwrap();
    }
    let more = guest.space.map_content(place(1000), &content, false);
    assert!(matches!(more, Err(SpaceError::TooManyAreas)));
    for n in (0..CONTENTS_MAX as u64).step_by(7) {
        assert_eq!(load(&mut guest, place(n).start() + 4096), Ok(word(4096)));
    }
    // The guest cannot take it away from itself.
    assert!(matches!(guest.space.unmap(place(3)), Err(SpaceError::Sealed)));
    assert!(matches!(guest.space.protect(place(3), Rights::RW), Err(SpaceError::Sealed)));
}

#[test]
fn states_carry_it() {
    let Some(mut guest) = guest(&program()) else { return };
    let content = content(&words(4));
    let nothing = guest.space.state();
    let clean = |_: coracle_vm::paging::Frame| -> std::io::Result<Option<&'static coracle_vm::PageContent>> {
        panic!("nothing changed")
    };
    guest.space.memory_mut().forget_touched();
    guest.space.restore(&nothing, &[], clean).unwrap();
    guest.space.map_content(span(&content), &content, true).unwrap();
    assert_eq!(load(&mut guest, AT + 8), Ok(word(8)));
    // The pages of this state: what memory holds now.
    guest.space.collect_written().unwrap();
    let mapped = guest.space.state();
    let pages: Vec<_> = (0..4096_u64)
        .map(|page| {
            let mut bytes = [0; PAGE_BYTES as usize];
            guest.space.memory().read(page * PAGE_BYTES, &mut bytes).unwrap();
            bytes
        })
        .collect();
    guest.space.memory_mut().forget_touched();
    for round in 0..5 {
        store(&mut guest, AT + 8, 1000 + round).unwrap();
        assert_eq!(load(&mut guest, AT + 8), Ok(1000 + round));
        if round % 2 == 1 {
            guest.space.unmap_content(AT).unwrap();
        }
        guest.space.collect_written().unwrap();
        guest.space.restore(&mapped, &[], |frame| Ok(Some(&pages[frame.0 as usize]))).unwrap();
        assert_eq!(load(&mut guest, AT + 8), Ok(word(8)), "round {round}");
    }
}

#[test]
fn a_file_that_gets_shorter_is_the_guests_fault_only() {
    let Some(mut guest) = guest(&program()) else { return };
    let path = std::env::temp_dir().join(format!("coracle-content-{}", std::process::id()));
    std::fs::File::create(&path).unwrap().write_all(&words(4)).unwrap();
    let content = Arc::new(Content::open(&path).unwrap());
    guest.space.map_content(span(&content), &content, false).unwrap();
    assert_eq!(load(&mut guest, AT), Ok(0));
    OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
    assert!(!content.is_unchanged().unwrap());
    assert_eq!(load(&mut guest, AT + 8), Ok(word(8)));
    let mut out = [0; 8];
    assert!(guest.space.read(AT + 8192, &mut out).is_err());
    guest.vcpu.set_registers(&Registers { rip: LOAD, rsi: AT + 8192, rsp: STACK_END, ..Registers::default() });
    loop {
        match guest.run() {
            Exit::Exception(fault) => {
                let registers = guest.vcpu.registers();
                let answer = guest.space.fault(fault.address, Access::Read).unwrap();
                assert_eq!(answer, Fault::Resolved);
                guest.vcpu.set_registers(&registers);
            }
            Exit::Unexpected(_) => break,
            other => panic!("{other:?}"),
        }
    }
    std::fs::remove_file(&path).unwrap();
}
