//! Run untrusted code in a hardware-isolated micro-VM as if it were a function call.
//!
//! A *guest* is an ordinary static Linux program. It runs in ring 3 of a virtual machine that has no kernel and no
//! firmware: the few system calls that such programs need are answered by this library, everything else is refused. A
//! guest made with the `coracle-guest` SDK offers typed functions, and may call those that the host offers.
//!
//! ```no_run
//! use coracle::{Image, Sandbox};
//!
//! let image = Image::from_path("target/guests/hello")?;
//! let mut sandbox = Sandbox::builder(&image)
//!     .host_fn("time_of_day", |(): ()| Ok::<_, String>("morning".to_owned()))
//!     .build()?;
//! let greeting: String = sandbox.call("greet", "world")?;
//! # Ok::<(), coracle::Error>(())
//! ```
//!
//! | module | what is in it |
//! |---|---|
//! | [`image`] | programs, checked before they run |
//! | [`linux`] | the system calls that a guest may make |
//! | [`crash`] | why a guest ended |
//! | [`dynamic`] | calls whose types are known only at run time: JSON |
//! | [`shells`] | virtual machines that are used again |
//! | [`fake`] | a backend without a hypervisor, for tests |
#![forbid(unsafe_code)]

mod batch;
mod builder;
mod bytes;
mod calling;
mod config;
pub mod crash;
mod deadline;
pub mod dynamic;
mod entropy;
mod error;
pub mod fake;
mod host;
pub mod image;
mod instructions;
mod interface;
mod jail;
mod layout;
pub mod linux;
mod log;
mod machine;
mod mapping;
mod origin;
mod pool;
mod sandbox;
pub mod shells;
mod snapshot;
mod stack;
mod stats;
mod stored;
mod stream;
mod transport;

pub use batch::{Answers, Batch, Ticket};
pub use builder::{Builder, Ended};
pub use bytes::Bytes;
pub use config::Config;
pub use coracle_snapshot::{self as store, Digest, Saved, Store};
pub use coracle_vm::kvm::{CpuTemplate, DirtyLog, Kvm};
pub use coracle_vm::{Backend, Registers, Rights};
pub use crash::{Cause, CrashReport};
pub use error::{Error, ErrorKind};
pub use image::Image;
pub use interface::{FunctionInfo, Interface};
pub use jail::{Jail, Violation};
pub use mapping::{Content, MapMode, Mapping};
pub use pool::{Pool, PoolBuilder, PoolGuard, PoolStats};
pub use postcard_schema::{self, Schema};
pub use sandbox::{Function, Sandbox, Status};
pub use snapshot::Snapshot;
pub use stats::Stats;
pub use stored::Loader;
pub use stream::{Captured, Input, Output};
