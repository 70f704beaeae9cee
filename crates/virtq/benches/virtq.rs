//! What the queue, the pool and their payloads cost in one process and on one thread, without a VM: a ring of 128
//! descriptors, 8 MiB of slots of 4 KiB. `memcpy/*` is the limit: the same bytes copied once in the same run;
//! `memcpy_fragmented/*` is it for a fragmented pool: the same bytes copied to each second page.
//!
//! A read-only round trip copies once: the sender into slots. The receiver takes the message and sees where it lies
//! (a guest reads in place), returns it, and the sender collects it and has its slots back. A read-write round trip
//! copies twice: the request and a reply of the same size. `virtq_copied_out` copies each of those out too.
#![allow(missing_docs, reason = "criterion's macro makes a public function")]
#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::hint::black_box;
use std::time::Duration;

use coracle_virtq::driver::Driver;
use coracle_virtq::link::{Config, Receiver, Sender};
use coracle_virtq::memory::Segment;
use coracle_virtq::pointer::{Owned, PointerMemory};
use coracle_virtq::pool::SlotPool;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const BASE: u64 = 0x10_0000;
const RING: u16 = 128;
const SLOT_BYTES: u32 = 4096;
const SLOTS: u16 = 2048;
const SIZES: [usize; 3] = [8 << 10, 64 << 10, 256 << 10];

struct Pair<'m> {
    sender: Sender<PointerMemory<'m>>,
    receiver: Receiver<PointerMemory<'m>>,
}

fn memory() -> Owned {
    Owned::new(BASE, (8 << 20) + (1 << 16))
}

fn config() -> Config {
    Config::contiguous(BASE, RING, SLOT_BYTES, SLOTS).unwrap()
}

fn pair(memory: &Owned, pool: SlotPool) -> Pair<'_> {
    let driver = Driver::new(memory.view(), config().layout, config().bytes_max).unwrap();
    Pair { sender: Sender::from_parts(driver, pool), receiver: Receiver::new(memory.view(), config()).unwrap() }
}

fn whole() -> SlotPool {
    SlotPool::new(config().area)
}

/// A pool in which none of the next `slots` free slots follows another.
fn fragmented(slots: usize) -> SlotPool {
    let mut pool = whole();
    let taken: Vec<u64> = (0..2 * slots).map(|_| pool.alloc().unwrap()).collect();
    for address in taken.iter().rev().step_by(2) {
        pool.free(*address).unwrap();
    }
    pool
}

impl Pair<'_> {
    /// One message there, and back with a reply of as many bytes as `response` has.
    fn round_trip(&mut self, request: &[u8], response: &[u8]) {
        self.sender.send(&[request], response.len() as u32).unwrap();
        let mut message = self.receiver.next().unwrap().unwrap();
        black_box(message.segments());
        message.reply(&[response]).unwrap();
        drop(message);
        let reply = self.sender.collect().unwrap().unwrap();
        black_box((reply.bytes().unwrap(), reply.segments()));
    }

    /// The same, with each side copying what it gets.
    fn copied_out(&mut self, request: &[u8], response: &[u8], out: &mut [u8]) {
        self.sender.send(&[request], response.len() as u32).unwrap();
        let mut message = self.receiver.next().unwrap().unwrap();
        message.read(0, &mut out[..request.len()]).unwrap();
        message.reply(&[response]).unwrap();
        drop(message);
        let reply = self.sender.collect().unwrap().unwrap();
        reply.read(0, &mut out[..response.len()]).unwrap();
    }
}

fn slot_pool(c: &mut Criterion) {
    let mut group = c.benchmark_group("slot_pool");
    for bytes in [128_u32, 1500, 4096] {
        let mut pool = whole();
        group.bench_function(format!("alloc_dealloc_{bytes}"), |b| {
            b.iter(|| {
                assert!(black_box(bytes) <= pool.area().slot_bytes());
                let address = pool.alloc().unwrap();
                pool.free(black_box(address)).unwrap();
            });
        });
    }
    group.finish();
}

fn payload_allocation(c: &mut Criterion) {
    let mut group = c.benchmark_group("payload_allocation");
    for (name, make) in
        [("slot_pool_segmented", whole as fn() -> SlotPool), ("slot_pool_segmented_fragmented", || fragmented(64))]
    {
        for size in SIZES {
            let mut pool = make();
            let mut segments = [Segment::default(); 64];
            group.bench_function(BenchmarkId::new(name, size), |b| {
                b.iter(|| {
                    let count = pool.alloc_payload(black_box(size as u32), &mut segments).unwrap();
                    pool.free_payload(black_box(&segments[..count])).unwrap();
                });
            });
        }
    }
    group.finish();
}

fn round_trips(c: &mut Criterion) {
    let memory = memory();
    let bytes = vec![0xa5_u8; SIZES[2]];
    let mut out = vec![0_u8; SIZES[2]];
    // Aligned as slots are: the target decides how fast memcpy is.
    let mut slots = vec![0_u8; 2 * SIZES[2] + 4096];
    let start = slots.as_ptr().align_offset(4096);
    let slots = &mut slots[start..];
    for size in SIZES {
        let bytes = &bytes[..size];
        let mut group = c.benchmark_group("memcpy");
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| black_box(&mut slots[..size]).copy_from_slice(black_box(bytes)));
        });
        group.finish();
        let mut group = c.benchmark_group("memcpy_fragmented");
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| {
                for (to, from) in black_box(&mut *slots).chunks_mut(2 * 4096).zip(black_box(bytes).chunks(4096)) {
                    to[..4096].copy_from_slice(from);
                }
            });
        });
        group.finish();
        for (name, times) in [("virtq_readonly", 1), ("virtq_readwrite", 2)] {
            let mut group = c.benchmark_group(name);
            group.throughput(Throughput::Bytes(times * size as u64));
            let count = times as usize * size / SLOT_BYTES as usize;
            let pools = [("slot_pool_segmented", whole()), ("slot_pool_segmented_fragmented", fragmented(count))];
            for (name, pool) in pools {
                let mut pair = pair(&memory, pool);
                let response = if times == 1 { &[] } else { bytes };
                group.bench_function(BenchmarkId::new(name, size), |b| {
                    b.iter(|| pair.round_trip(black_box(bytes), black_box(response)));
                });
            }
            group.finish();
        }
        let mut group = c.benchmark_group("virtq_copied_out");
        group.throughput(Throughput::Bytes(4 * size as u64));
        let mut pair = pair(&memory, whole());
        group.bench_function(BenchmarkId::new("slot_pool_segmented", size), |b| {
            b.iter(|| pair.copied_out(black_box(bytes), black_box(bytes), black_box(&mut out)));
        });
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(700))
        .sample_size(40);
    targets = slot_pool, payload_allocation, round_trips
}
criterion_main!(benches);
