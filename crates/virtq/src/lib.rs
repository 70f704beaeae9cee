//! How two sides that share memory, and do not trust each other, pass messages: packed virtqueues as VIRTIO 1.3
//! section 2.8 describes them, a pool of fixed-size slots for what the messages carry, and payloads that lie in
//! several slots.
//!
//! The *driver* makes buffers available and collects them when they were used; the *device* takes available buffers
//! and returns them used. Each side is single-threaded and keeps its own books; what it reads from shared memory is
//! a claim by the other side, copied out once and then checked. A chain that does not hold is handed back and
//! reported, and the next one is served.
//!
//! | module | what it does |
//! |---|---|
//! | [`memory`] | what a side needs of the shared memory, as a trait |
//! | [`mod@pointer`] | that trait over a mapping of this process; the only unsafe code, with the copy it makes |
//! | [`ring`] | where a queue lies, its descriptors, and places in it |
//! | [`event`] | asking for notifications and learning whether the other side wants one |
//! | [`driver`], [`device`] | the two sides of a queue |
//! | [`pool`] | fixed-size slots, given out and taken back |
//! | [`payload`] | bytes to and from several segments |
//! | [`link`] | all of it together: send, receive, reply |
//! | [`lockstep`] | the two sides for a program that trusts its peer and keeps no books |
//!
//! Memory is allocated when a side is made and never later. Left to others: what a message means, how a
//! notification travels, and who waits for whom. Not offered: indirect descriptors, and in-order use as a
//! negotiated feature (the device may complete chains in any order).
//!
//! ```
//! use coracle_virtq::link::{Config, Receiver, Sender};
//! use coracle_virtq::pointer::Owned;
//!
//! let memory = Owned::new(0x10_0000, 64 << 10);
//! let config = Config::contiguous(0x10_0000, 16, 4096, 8)?;
//! let mut sender = Sender::new(memory.view(), config)?;
//! let mut receiver = Receiver::new(memory.view(), config)?;
//!
//! sender.send(&[b"hello, ", b"guest"], 64)?;
//! let mut message = receiver.next()?.expect("one was sent");
//! let mut request = [0; 12];
//! message.read(0, &mut request)?;
//! assert_eq!(&request, b"hello, guest");
//! message.reply(&[b"hello, host"])?;
//! drop(message);
//!
//! let reply = sender.collect()?.expect("one was answered");
//! let mut answer = [0; 11];
//! reply.read(0, &mut answer)?;
//! assert_eq!(&answer, b"hello, host");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;

#[cfg(target_arch = "x86_64")]
mod copy;
#[cfg(not(target_arch = "x86_64"))]
#[path = "copy_portable.rs"]
mod copy;
pub mod device;
pub mod driver;
pub mod event;
pub mod link;
pub mod lockstep;
pub mod memory;
pub mod payload;
pub mod pointer;
pub mod pool;
pub mod ring;
