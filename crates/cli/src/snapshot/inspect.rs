//! `coracle snapshot inspect`: what a snapshot is, without loading it. Needs no hypervisor.
//!
//! What the snapshot says of itself is anybody's words: escaped, and shown as what it says.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;

use coracle::dynamic::Signature;
use coracle::store::{Inspection, LayerInspection, LayerKind};
use coracle::{Digest, Store};
use coracle_abi::ABI_VERSION;
use serde_json::{Value, json};

use super::drawing::Map;
use super::runs::{self, Kind, Run};
use super::{Document, Name, Report, counted};
use crate::failure::Failure;
use crate::function::{Described, Functions, describe, section};
use crate::text::{escape, size, table, wrap};

/// Columns where the terminal has no width to tell.
const COLUMNS: usize = 80;

/// Shows what a snapshot is, without loading it
///
/// Its program, processor and limits, the functions that it offers and needs, its layers, and a map of its memory: which
/// pages are zero, which it shares with the snapshots below it, which are its own. Needs no hypervisor.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  coracle snapshot inspect ./store:hello
  coracle snapshot inspect ./store:hello --json | jq -r '.functions[].signature'
  coracle snapshot inspect ./store:hello --svg hello.svg")]
pub(super) struct Args {
    /// Draw the memory map to this file, too, as a picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// The snapshot
    #[arg(value_name = "STORE:TAG", value_parser = Name::parse)]
    name: Name,
}

/// All that there is to show.
struct Shown {
    name: String,
    inspection: Inspection,
    document: Document,
    functions: Functions,
    signatures: Vec<Signature>,
    host_signatures: Vec<Signature>,
    /// Tags of the store by the layers that they need.
    users: HashMap<Digest, u64>,
    runs: Vec<Run>,
}

pub(super) fn run(args: &Args) -> Result<Report, Failure> {
    let store = Store::open(args.name.store())?;
    let shown = Shown::new(args.name.to_string(), &store, store.inspect(args.name.reference())?)?;
    if let Some(path) = &args.svg {
        std::fs::write(path, shown.svg())
            .map_err(|error| Failure::own(format!("cannot write the picture to {}", path.display())).because(&error))?;
    }
    Ok(Report { text: shown.text(columns()), json: shown.json() })
}

/// Of the terminal that standard output goes to.
fn columns() -> usize {
    terminal_size::terminal_size_of(io::stdout()).map_or(COLUMNS, |(width, _)| width.0.into())
}

/// How many tags need each layer. What cannot be read counts for nothing: it is not what was asked for.
fn users(store: &Store) -> Result<HashMap<Digest, u64>, Failure> {
    let mut users = HashMap::new();
    for tagged in store.list()? {
        let Ok((_, _, manifest)) = store.manifest(&tagged.digest.to_string()) else { continue };
        for layer in manifest.layers() {
            *users.entry(layer.digest).or_default() += 1;
        }
    }
    Ok(users)
}

fn pages(ranges: &[std::ops::Range<u32>]) -> u64 {
    ranges.iter().map(|range| range.len() as u64).sum()
}

impl Shown {
    fn new(name: String, store: &Store, inspection: Inspection) -> Result<Self, Failure> {
        let document = Document::parse(&inspection.config)?;
        let functions = document.functions()?;
        let typed = |functions: &[Described]| functions.iter().map(Described::typed).collect::<Result<Vec<_>, _>>();
        Ok(Self {
            name,
            signatures: typed(&functions.offered)?,
            host_signatures: typed(&functions.needed)?,
            functions,
            document,
            users: users(store)?,
            runs: runs::of_layers(&inspection.layers),
            inspection,
        })
    }

    fn map(&self) -> Map<'_> {
        let last = self.runs.last().map_or(0, |run| run.pages.end);
        Map { runs: &self.runs, end: self.document.pages_used().max(last) }
    }

    fn program(&self) -> &str {
        self.document.at("/program/name").as_str().unwrap_or("a guest without a name")
    }

    fn text(&self, columns: usize) -> String {
        let document = &self.document;
        let bytes = |pointer: &str| document.number(pointer).map_or("unknown".to_owned(), size);
        let abi = document.number("/abi");
        let known = if document.knows_template() { "" } else { ", which this version does not know" };
        let mut out = format!("{}: a snapshot of {}\n", escape(&self.name), escape(self.program()));
        if abi.is_some_and(|abi| abi != u64::from(ABI_VERSION)) {
            out += "warning: it is of another ABI than this host's: make it anew to call it\n";
        }
        out += &table(
            "  ",
            &[
                ["digest".to_owned(), self.inspection.digest.to_string()],
                ["program".to_owned(), escape(document.text("/program/digest"))],
                ["SDK".to_owned(), escape(document.text("/sdk"))],
                [
                    "ABI".to_owned(),
                    format!("{} (this host: {ABI_VERSION})", abi.map_or("unknown".to_owned(), |it| it.to_string())),
                ],
                [
                    "memory".to_owned(),
                    format!(
                        "{}, of it {} heap, {} stack",
                        bytes("/limits/memory"),
                        bytes("/limits/heap"),
                        bytes("/limits/stack")
                    ),
                ],
                ["payloads".to_owned(), format!("up to {}", bytes("/limits/payload"))],
                ["processor".to_owned(), format!("{}{known}", escape(document.text("/cpu/template")))],
            ],
        );
        out += &wrap("  features   ", &escape(&document.features().join(" ")));
        out += &section("Functions", &self.signatures);
        out += &section("Host functions it needs", &self.host_signatures);
        out += "\nMappings\n";
        let mappings = self.mapping_rows();
        out += &if mappings.is_empty() { "  none\n".to_owned() } else { table("  ", &mappings) };
        out += "\nLayers\n";
        out += &table("  ", &self.layer_rows());
        out += "\nMemory\n";
        out + &self.map().text(columns)
    }

    fn mapping_rows(&self) -> Vec<[String; 4]> {
        let row = |mapping: &Value| {
            let mode = if mapping["copy_on_write"] == true { "copied when written" } else { "read-only" };
            [
                escape(mapping["name"].as_str().unwrap_or("unknown")),
                format!("{:#x}", mapping["address"].as_u64().unwrap_or(0)),
                format!("{}, {mode}", mapping["bytes"].as_u64().map_or("unknown".to_owned(), size)),
                escape(mapping["digest"].as_str().unwrap_or("unknown")),
            ]
        };
        self.document.list("/mappings").iter().map(row).collect()
    }

    fn layer_rows(&self) -> Vec<[String; 6]> {
        let mut rows = vec![["layer", "content", "zeroed", "in file", "used by", "digest"].map(str::to_owned)];
        rows.extend(self.inspection.layers.iter().map(|layer| {
            let packed = if layer.is_compressed { ", compressed" } else { "" };
            [
                kind(layer).to_owned(),
                counted(pages(&layer.pages), "page"),
                counted(pages(&layer.zeroed), "page"),
                format!("{}{packed}", size(layer.bytes)),
                counted(self.users_of(layer), "tag"),
                layer.digest.to_string(),
            ]
        }));
        rows
    }

    fn users_of(&self, layer: &LayerInspection) -> u64 {
        self.users.get(&layer.digest).copied().unwrap_or(0)
    }

    fn json(&self) -> Value {
        let document = &self.document;
        let functions = |described: &[Described], signatures: &[Signature]| -> Value {
            described.iter().zip(signatures).map(|(it, signature)| describe(&it.signature, signature)).collect()
        };
        let layers: Vec<Value> = self
            .inspection
            .layers
            .iter()
            .map(|layer| {
                json!({
                    "kind": kind(layer),
                    "digest": layer.digest.to_string(),
                    "bytes": layer.bytes,
                    "pages": pages(&layer.pages),
                    "zeroed_pages": pages(&layer.zeroed),
                    "compressed": layer.is_compressed,
                    "tags": self.users_of(layer),
                })
            })
            .collect();
        let map = self.map();
        let runs: Vec<Value> = self
            .runs
            .iter()
            .map(|run| json!({ "first": run.pages.start, "pages": run.pages.len(), "kind": run.kind.word() }))
            .collect();
        json!({
            "snapshot": self.name,
            "digest": self.inspection.digest.to_string(),
            "program": { "name": document.at("/program/name"), "digest": document.at("/program/digest") },
            "sdk": document.at("/sdk"),
            "abi_version": document.at("/abi"),
            "host_abi_version": ABI_VERSION,
            "cpu": { "template": document.at("/cpu/template"), "features": document.features() },
            "limits": document.at("/limits"),
            "functions": functions(&self.functions.offered, &self.signatures),
            "host_functions": functions(&self.functions.needed, &self.host_signatures),
            "mappings": document.list("/mappings"),
            "layers": layers,
            "pages": {
                "own": map.count(Kind::Own),
                "shared": map.count(Kind::Shared),
                "zero": map.count(Kind::Zero),
            },
            "runs": runs,
        })
    }

    fn svg(&self) -> String {
        self.map().svg(self.program(), &self.inspection.digest.to_string())
    }
}

const fn kind(layer: &LayerInspection) -> &'static str {
    match layer.kind {
        LayerKind::Base => "base",
        LayerKind::Derived => "derived",
        _ => "another",
    }
}
