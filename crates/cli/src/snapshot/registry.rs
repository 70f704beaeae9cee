//! `coracle snapshot push` and `pull`: to and from registries.

use std::path::PathBuf;
use std::time::Duration;

use coracle::Store;
use coracle_registry::{Credentials, Progress, Registry, RegistryReference};
use serde_json::json;

use super::{Name, Report, counted};
use crate::failure::Failure;
use crate::progress::Bar;
use crate::quantity;
use crate::text::{size, table};

/// How to talk to a registry
#[derive(Debug, clap::Args)]
struct Flags {
    /// Talk HTTP without TLS: for a registry on this machine
    #[arg(long, help_heading = "Registry")]
    plain_http: bool,

    /// Trust a registry with a certificate from this authority, too: a PEM file
    #[arg(long, value_name = "FILE", help_heading = "Registry")]
    authority: Option<PathBuf>,

    /// Where logins are, as 'docker login' leaves them [default: $DOCKER_CONFIG/config.json or ~/.docker/config.json]
    #[arg(long, value_name = "FILE", help_heading = "Registry")]
    login: Option<PathBuf>,

    /// Do not log in
    #[arg(long, conflicts_with = "login", help_heading = "Registry")]
    anonymous: bool,

    /// How long the registry may be silent [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = quantity::duration, help_heading = "Registry")]
    silence: Option<Duration>,
}

impl Flags {
    fn registry(&self) -> Result<Registry, Failure> {
        let credentials = match &self.login {
            Some(path) => Credentials::DockerConfig(path.clone()),
            None if self.anonymous => Credentials::Anonymous,
            None => Credentials::Docker,
        };
        let mut builder = Registry::builder().plain_http(self.plain_http).credentials(credentials);
        if let Some(silence) = self.silence {
            builder = builder.timeout(silence);
        }
        if let Some(path) = &self.authority {
            let pem = std::fs::read(path).map_err(|error| {
                Failure::own(format!("cannot read the certificate in {}", path.display())).because(&error)
            })?;
            builder = builder.root_certificates(pem);
        }
        Ok(builder.build()?)
    }
}

/// Copies a snapshot to a registry
///
/// What the registry has already is not sent. The snapshot has the same digest there.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  coracle snapshot push ./store:hello registry.example.com/team/hello:v1
  coracle snapshot push --plain-http ./store:hello localhost:5000/hello:v1")]
pub(super) struct PushArgs {
    /// The snapshot
    #[arg(value_name = "STORE:TAG", value_parser = Name::parse)]
    from: Name,

    /// Registry, name and tag
    #[arg(value_name = "REGISTRY/NAME:TAG", value_parser = reference)]
    to: RegistryReference,

    #[command(flatten)]
    flags: Flags,
}

/// Copies a snapshot from a registry
///
/// What the store has already is not fetched. The store is made if there is none; what had the tag loses it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  coracle snapshot pull registry.example.com/team/hello:v1 ./store:hello
  coracle snapshot pull registry.example.com/team/hello@sha256:… ./store:hello")]
pub(super) struct PullArgs {
    /// Registry, name, and tag or digest
    #[arg(value_name = "REGISTRY/NAME:TAG", value_parser = reference)]
    from: RegistryReference,

    /// Where to keep it
    #[arg(value_name = "STORE:TAG", value_parser = Name::parse)]
    to: Name,

    #[command(flatten)]
    flags: Flags,
}

fn reference(text: &str) -> Result<RegistryReference, String> {
    text.parse().map_err(|error: coracle_registry::Error| error.to_string())
}

pub(super) fn push(args: &PushArgs, as_json: bool) -> Result<Report, Failure> {
    let registry = args.flags.registry()?;
    let store = Store::open(args.from.store())?;
    let bar = Bar::of_bytes("pushing", as_json);
    let pushed = registry.push(&store, args.from.reference(), &args.to, |at| show(&bar, at))?;
    drop(bar);
    Ok(report(
        &args.to.to_string(),
        &pushed.digest.to_string(),
        pushed.bytes_moved,
        pushed.blobs_moved,
        pushed.blobs_skipped,
    ))
}

pub(super) fn pull(args: &PullArgs, as_json: bool) -> Result<Report, Failure> {
    let tag = args.to.tag().ok_or_else(|| {
        Failure::own(format!("'{}' is no place to pull to: its digest comes of itself, give a tag", args.to))
    })?;
    let registry = args.flags.registry()?;
    let store = Store::create(args.to.store())?;
    let bar = Bar::of_bytes("pulling", as_json);
    let pulled = registry.pull(&store, &args.from, tag, |at| show(&bar, at))?;
    drop(bar);
    Ok(report(
        &args.to.to_string(),
        &pulled.digest.to_string(),
        pulled.bytes_moved,
        pulled.blobs_moved,
        pulled.blobs_skipped,
    ))
}

fn show(bar: &Bar, at: Progress) {
    bar.at(at.bytes, at.total);
}

fn report(place: &str, digest: &str, bytes: u64, moved: usize, skipped: usize) -> Report {
    let rows = [
        ["moved".to_owned(), format!("{} in {}", size(bytes), counted(moved as u64, "blob"))],
        ["there already".to_owned(), counted(skipped as u64, "blob")],
    ];
    let json = json!({
        "snapshot": place, "digest": digest, "bytes_moved": bytes, "blobs_moved": moved, "blobs_skipped": skipped,
    });
    Report { text: format!("{digest}\n{}", table("  ", &rows)), json }
}
