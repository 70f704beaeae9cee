//! A virtual machine whose guest writes n pages each time it is entered, and ways to put its memory back.
//!
//! What a library would add to each is missing, so that the ways alone are compared. The guest is a few bytes of code on
//! the library's own backend and address space.

use std::io;

use coracle_abi::{PAGE_BYTES, PageBytes};
use coracle_vm::exit::{Exit, Registers};
use coracle_vm::kvm::{CpuTemplate, Kvm};
use coracle_vm::paging::Frame;
use coracle_vm::{Backend, Fill, GuestMemory, PageContent, Parts, Promise, Rights, Space, SpaceState, Span, Vcpu};

const CODE: u64 = 0x40_0000;
const HEAP: u64 = 0x80_0000;
/// Heap, tables and control pages of the largest guest, and as much again.
const MEMORY: u64 = 64 << 20;

/// How much of each page the guest writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Write {
    /// One byte.
    Byte,
    /// 2,048 bytes.
    HalfPage,
}

impl Write {
    /// Its name in tables and files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Byte => "byte",
            Self::HalfPage => "half_page",
        }
    }

    /// Bytes written in each page.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::Byte => 1,
            Self::HalfPage => 2048,
        }
    }
}

/// How memory is put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Pages are copied back and stay writable: what [`Space::restore`] does.
    CopyBack,
    /// Pages are given back to the kernel, which gives new ones when the guest writes: zeros, so that the state to go back
    /// to is one of zeros. One call for each run of neighbours.
    Drop,
    /// Pages are compared, copied back if they differ, and write-protected: what a restore does that cools.
    Cool,
}

/// A guest that waits at the doorbell, and the content that its heap shall have.
pub struct Guest {
    space: Space,
    vcpu: Box<dyn Vcpu>,
    state: SpaceState,
    content: Vec<Option<Box<PageContent>>>, // By frame.
    heap: Vec<Frame>,
    list: Vec<u32>, // Kept from restore to restore.
    way: Way,
}

impl Guest {
    /// A guest with a heap of `pages` pages, all of which it writes at each entry if there is a `write`.
    ///
    /// # Panics
    /// Without KVM, and when it refuses.
    #[expect(clippy::unwrap_used, reason = "a benchmark without KVM has nothing to do")]
    pub fn new(pages: u32, write: Option<Write>, way: Way) -> Self {
        let kvm = Kvm::open(CpuTemplate::Host).unwrap();
        let memory = GuestMemory::reserve(PageBytes::round_up(MEMORY).unwrap()).unwrap();
        let (vm, mut vcpu) = kvm.create(&Parts { root: Space::ROOT, exception_stack: Space::EXCEPTION_STACK }).unwrap();
        let mut space = Space::new(memory, vm, &kvm.control_pages()).unwrap();
        let code = Span::new(CODE, PAGE_BYTES).unwrap();
        space.map(code, Rights::RX, Fill::Now, Promise::Committed).unwrap();
        space.load(CODE, &program(pages, write)).unwrap();
        let heap = Span::new(HEAP, u64::from(pages) * PAGE_BYTES).unwrap();
        space.map(heap, Rights::RW, Fill::Now, Promise::Committed).unwrap();
        let mut content = Vec::new();
        let mut frames = Vec::new();
        for page in 0..pages {
            let address = HEAP + u64::from(page) * PAGE_BYTES;
            let frame = space.contiguous(Span::new(address, PAGE_BYTES).unwrap()).unwrap() / PAGE_BYTES;
            frames.push(Frame(frame as u32));
            content.resize_with(frame as usize + 1, || None);
            if way != Way::Drop {
                let bytes = Box::new([page as u8; PAGE_BYTES as usize]);
                space.load(address, &*bytes).unwrap();
                content[frame as usize] = Some(bytes);
            }
        }
        vcpu.set_registers(&Registers { rip: CODE, ..Registers::default() });
        let state = space.state();
        space.memory_mut().forget_touched();
        let mut guest = Self { space, vcpu, state, content, heap: frames, list: Vec::new(), way };
        guest.run();
        guest.restore();
        guest
    }

    /// Enters the guest once: it writes and rings.
    ///
    /// # Panics
    /// When it does anything else.
    #[expect(clippy::unwrap_used, reason = "a benchmark without KVM has nothing to do")]
    pub fn run(&mut self) {
        loop {
            match self.vcpu.run(self.space.memory_mut()).unwrap() {
                Exit::Doorbell => return,
                Exit::LogFull => self.space.empty_log().unwrap(),
                other => panic!("the guest of the sweep did not ring: {other:?}"),
            }
        }
    }

    /// Has the whole heap on the list of pages that the guest may have written, whether it did or not.
    pub fn note_all(&mut self) {
        for page in &self.heap {
            self.space.memory_mut().note_written(*page);
        }
    }

    /// Puts the heap back.
    ///
    /// # Panics
    /// When the kernel refuses.
    #[expect(clippy::unwrap_used, reason = "a benchmark without KVM has nothing to do")]
    pub fn restore(&mut self) {
        let Self { space, state, content, list, .. } = self;
        space.collect_written().unwrap();
        let content = |page: Frame| content.get(page.0 as usize).and_then(Option::as_deref);
        if self.way == Way::CopyBack {
            return space.restore(state, &[], |page| Ok::<_, io::Error>(content(page))).unwrap();
        }
        list.clear();
        list.extend(space.memory().hot().as_slice());
        let memory = space.memory_mut();
        if self.way == Way::Drop {
            list.sort_unstable();
            for run in list.chunk_by(|page, next| page + 1 == *next) {
                let start = Frame(run[0]).address();
                memory.discard(start..start + run.len() as u64 * PAGE_BYTES).unwrap();
            }
            memory.forget_touched();
        } else {
            for page in list.iter().map(|page| Frame(*page)) {
                memory.restore_changed(page, content(page)).unwrap();
            }
            space.empty_log().unwrap();
        }
    }

    /// How many pages of the heap have not the content that they shall have.
    pub fn wrong_pages(&self) -> usize {
        let is_wrong = |page: &&Frame| {
            let mut now = [0; PAGE_BYTES as usize];
            let want = self.content.get(page.0 as usize).and_then(Option::as_deref);
            self.space.memory().read(page.address(), &mut now).is_err()
                || now != *want.unwrap_or(&[0; PAGE_BYTES as usize])
        };
        self.heap.iter().filter(is_wrong).count()
    }
}

/// Writes to each of the pages, rings, and starts again.
fn program(pages: u32, write: Option<Write>) -> Vec<u8> {
    let mut code = Vec::new();
    if let Some(write) = write {
        code.push(0xbf); // mov edi, HEAP
        code.extend((HEAP as u32).to_le_bytes());
        code.push(0xb9); // mov ecx, pages
        code.extend(pages.to_le_bytes());
        let next = code.len();
        match write {
            Write::Byte => {
                code.extend([0xfe, 0x07]); // inc byte [rdi]
                code.extend([0x48, 0x81, 0xc7, 0x00, 0x10, 0x00, 0x00]); // add rdi, 4096
            }
            Write::HalfPage => {
                code.extend([0x89, 0xca]); // mov edx, ecx
                code.extend([0x48, 0x89, 0xf8]); // mov rax, rdi: no page is of its own address, and none is read first
                code.extend([0xb9, 0x00, 0x01, 0x00, 0x00]); // mov ecx, 256
                code.extend([0xf3, 0x48, 0xab]); // rep stosq
                code.extend([0x48, 0x81, 0xc7, 0x00, 0x08, 0x00, 0x00]); // add rdi, 2048
                code.extend([0x89, 0xd1]); // mov ecx, edx
            }
        }
        code.extend([0xff, 0xc9]); // dec ecx
        code.extend([0x75, (next as i64 - code.len() as i64 - 2) as u8]); // jnz next
    }
    code.extend([0xe6, 0xe9]); // out 0xe9, al
    code.extend([0xeb, (-(code.len() as i64) - 2) as u8]); // jmp start
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guest_writes_its_heap_and_each_way_puts_it_back() {
        if coracle_testing::kvm_or_skip().is_none() {
            return;
        }
        for write in [Write::Byte, Write::HalfPage] {
            for way in [Way::CopyBack, Way::Drop, Way::Cool] {
                // More than one page table's worth, so that frames do not all follow each other.
                let mut guest = Guest::new(600, Some(write), way);
                for round in 0..3 {
                    assert_eq!(guest.wrong_pages(), 0, "{write:?}, {way:?}, round {round}");
                    guest.run();
                    assert_eq!(guest.wrong_pages(), 600, "{write:?}, {way:?}, round {round}");
                    guest.restore();
                }
            }
        }
    }

    #[test]
    fn a_guest_without_a_write_changes_nothing() {
        if coracle_testing::kvm_or_skip().is_none() {
            return;
        }
        let mut guest = Guest::new(3, None, Way::CopyBack);
        guest.run();
        assert_eq!(guest.wrong_pages(), 0);
    }
}
