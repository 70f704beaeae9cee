//! `coracle snapshot freeze`: an ordinary program, loaded and kept before its first instruction.

use std::path::PathBuf;

use coracle::{Image, Sandbox, Store};
use serde_json::json;

use super::{Name, Report};
use crate::failure::Failure;
use crate::settings::Settings;
use crate::text::{size, table};

/// Loads an ordinary program and keeps it before its first instruction
///
/// Arguments and environment are part of what is kept. 'coracle run --from' runs it from there, as often as wanted, where the program
/// itself need not be.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "coracle snapshot freeze [OPTIONS] <PROGRAM> <STORE:TAG> [-- ARGS...]",
    after_help = "\
Examples:
  coracle snapshot freeze ./busybox ./store:sums -- sha256sum
  echo hello | coracle run --from ./store:sums"
)]
pub(super) struct Args {
    /// The program: a static x86-64 ELF file
    #[arg(value_name = "PROGRAM")]
    program: PathBuf,

    /// Where to keep it
    #[arg(value_name = "STORE:TAG", value_parser = Name::parse)]
    target: Name,

    /// Its arguments, whatever they look like
    #[arg(value_name = "ARGS", last = true)]
    args: Vec<String>,

    #[command(flatten)] // Last, because its heading is that of all that follow.
    settings: Settings,
}

pub(super) fn run(args: &Args) -> Result<Report, Failure> {
    let tag = args.target.tag().ok_or_else(|| {
        Failure::own(format!("'{}' is no place to save to: its digest comes of itself, give a tag", args.target))
    })?;
    let image = Image::from_path(&args.program)?;
    let frozen = args.settings.apply(Sandbox::builder(&image)).args(args.args.clone()).freeze()?;
    let saved = frozen.save(&Store::create(args.target.store())?, tag)?;
    let digest = saved.digest.to_string();
    let text = format!("{digest}\n{}", table("  ", &[["written".to_owned(), size(saved.own_bytes)]]));
    let json = json!({ "snapshot": args.target.to_string(), "digest": digest, "bytes": saved.bytes, "own_bytes": saved.own_bytes });
    Ok(Report { text, json })
}
