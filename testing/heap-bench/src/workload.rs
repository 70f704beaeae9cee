//! What a guest does with its heap: it starts, serves requests, and goes on for long. Deterministic throughout.

use std::alloc::Layout;
use std::hash::{BuildHasherDefault, DefaultHasher};

use allocator_api2::vec::Vec as VecIn;

use crate::handle::{Bytes, append};
use crate::{Block, Handle, Heap};

type MapIn<'a, H> = hashbrown::HashMap<Bytes<'a, H>, Bytes<'a, H>, BuildHasherDefault<DefaultHasher>, Handle<'a, H>>;

/// A small generator of numbers, the same for each run (xorshift64*).
pub struct Numbers(u64);

impl Numbers {
    /// Starts the sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `limit`.
    #[inline]
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let mixed = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d);
        ((u128::from(mixed) * limit as u128) >> 64) as usize
    }

    /// A number from `least` to `most`, small ones as often as large: each doubling is as likely as the next.
    #[inline]
    pub fn spread(&mut self, least: usize, most: usize) -> usize {
        let doublings = (most / least).ilog2() as usize;
        let low = least << self.below(doublings + 1);
        (low + self.below(low)).min(most)
    }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 8).expect("sizes here are small")
}

/// What a starting guest does with its heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// It frees a third of what it allocates, here and there.
    LeavesHoles,
    /// It keeps everything.
    LeavesNone,
}

/// What a guest allocates before its first request: 300 blocks, some of which stay.
pub fn start_up<H: Heap>(handle: Handle<'_, H>, start: Start) {
    let mut numbers = Numbers::new(1);
    let blocks = (0..300).filter_map(|_| handle.block(layout(numbers.spread(16, 1024)))).collect::<Vec<_>>();
    for (index, block) in blocks.into_iter().enumerate() {
        if start == Start::LeavesNone || index % 3 != 0 {
            std::mem::forget(block);
        }
    }
    handle.seal();
}

/// A message for [`request`]: 64 fields, 30 lists of words, and the lengths of six buffers of 1 to 8 KiB.
pub fn message(seed: u64) -> Vec<u8> {
    let mut numbers = Numbers::new(seed);
    let mut text = String::new();
    for field in 0..64 {
        let value = "v".repeat(numbers.spread(4, 128));
        text += &format!("field-{field}={value}\n");
    }
    for _ in 0..30 {
        let words: Vec<_> = (0..1 + numbers.below(6)).map(|_| "w".repeat(numbers.spread(4, 32))).collect();
        text += &format!("list {}\n", words.join(" "));
    }
    for _ in 0..6 {
        text += &format!("buffer {}\n", numbers.spread(1024, 8192));
    }
    text.into_bytes()
}

/// Parses a [`message`] and answers it. All that this allocates is freed at its end but the answer, which is returned.
///
/// # Panics
/// If the heap is full or the message is not one of ours.
pub fn request<'a, H: Heap>(handle: Handle<'a, H>, message: &[u8]) -> Bytes<'a, H> {
    let owned = |bytes: &[u8]| {
        let mut copy = VecIn::with_capacity_in(bytes.len(), handle);
        append(&mut copy, bytes);
        copy
    };
    let message = owned(message);
    let mut fields = MapIn::<H>::with_hasher_in(BuildHasherDefault::default(), handle);
    let mut lists = VecIn::<Bytes<'a, H>, _>::new_in(handle);
    let mut buffers = VecIn::<Bytes<'a, H>, _>::new_in(handle);
    for line in message.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        if let Some(words) = line.strip_prefix(b"list ") {
            let mut list = VecIn::new_in(handle);
            for word in words.split(|byte| *byte == b' ') {
                append(&mut list, word);
                list.push(b',');
            }
            lists.push(list);
        } else if let Some(length) = line.strip_prefix(b"buffer ") {
            let length = length.iter().fold(0, |sum, digit| sum * 10 + usize::from(digit - b'0'));
            let mut buffer = VecIn::new_in(handle);
            buffer.resize(length, b'b');
            buffers.push(buffer);
        } else {
            let equals = line.iter().position(|byte| *byte == b'=').expect("a field has a value");
            fields.insert(owned(&line[..equals]), owned(&line[equals + 1..]));
        }
    }

    let mut sorted = VecIn::<(&[u8], &[u8]), _>::new_in(handle);
    sorted.extend(fields.iter().map(|(name, value)| (name.as_slice(), value.as_slice())));
    sorted.sort_unstable();
    let mut answer = VecIn::new_in(handle);
    for (name, value) in sorted {
        append(&mut answer, name);
        answer.push(b':');
        append(&mut answer, value);
    }
    lists.iter().for_each(|list| append(&mut answer, list));
    buffers.iter().for_each(|buffer| append(&mut answer, &buffer[..16]));
    answer
}

/// Long-lived blocks of which a step frees one and allocates another, 16 B to 8 KiB.
pub struct Churn<'a, H: Heap> {
    handle: Handle<'a, H>,
    numbers: Numbers,
    blocks: Vec<Option<Block<'a, H>>>,
}

impl<'a, H: Heap> Churn<'a, H> {
    /// Allocates 512 blocks.
    pub fn new(handle: Handle<'a, H>, blocks: usize) -> Self {
        let mut numbers = Numbers::new(7);
        let blocks = (0..blocks).map(|_| handle.block(layout(numbers.spread(16, 8192)))).collect();
        Self { handle, numbers, blocks }
    }

    /// Frees one block and allocates another.
    #[inline]
    pub fn step(&mut self) {
        let place = self.numbers.below(self.blocks.len());
        self.blocks[place] = None;
        self.blocks[place] = self.handle.block(layout(self.numbers.spread(16, 8192)));
    }
}

/// Appends to a vector until it has `bytes`, 4 KiB at a time.
///
/// # Panics
/// If the heap is full.
pub fn grow<'a, H: Heap>(handle: Handle<'a, H>, bytes: usize) -> Bytes<'a, H> {
    let mut vec = VecIn::new_in(handle);
    while vec.len() < bytes {
        append(&mut vec, &[7; 4096]);
    }
    vec
}
