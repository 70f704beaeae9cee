//! Coracle's snapshots in OCI registries: push one from a store, pull one into a store.
//!
//! A snapshot is a manifest, a config and layers, in a store as in a registry: the same bytes under the same digests. Only
//! blobs that the other side lacks are moved, so a snapshot that derives from one that is there costs its own layer.
//! Blobs go before the manifest, so nobody sees a snapshot whose layers are missing.
//!
//! What a registry answers is not trusted. Every answer has a limit in bytes and in time, sizes and digests are compared
//! while bytes come in, and a login is sent to nobody but the registry and who it says gives out tokens, and never
//! unencrypted unless [`plain_http`](Builder::plain_http) was asked for.
//!
//! | module | what it is |
//! |---|---|
//! | `reference` | where a snapshot is |
//! | `registry` | settings, and the two ways to move |
//! | `session` | talking to one repository: logins, limits, errors |
//! | `upload`, `download` | the body of a blob, as it goes and as it comes |
//! | `credentials`, `challenge` | which login there is, which one is wanted |
//!
//! ```no_run
//! use coracle_registry::{Credentials, Registry, RegistryReference};
//! use coracle_snapshot::Store;
//!
//! let store = Store::open("snapshots")?;
//! let registry = Registry::builder().credentials(Credentials::Docker).build()?;
//! let there: RegistryReference = "registry.example.com/team/app:v1".parse()?;
//! let pushed = registry.push(&store, "app", &there, |progress| {
//!     eprint!("\r{} of {} bytes", progress.bytes, progress.total);
//! })?;
//! println!("{}: {} bytes moved, {} blobs were there", pushed.digest, pushed.bytes_moved, pushed.blobs_skipped);
//!
//! // Elsewhere:
//! let pulled = registry.pull(&store, &there, "app", |_| {})?;
//! assert_eq!(pulled.digest, pushed.digest);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod challenge;
mod credentials;
mod download;
mod error;
mod reference;
mod registry;
mod session;
mod upload;

pub use credentials::Credentials;
pub use error::{Error, ErrorKind};
pub use reference::RegistryReference;
pub use registry::{Builder, Progress, Pulled, Pushed, Registry};
