//! `coracle snapshot diff`: where two snapshots differ.

use std::ops::Range;

use coracle::Store;
use coracle::store::PAGE_BYTES;
use serde_json::{Value, json};

use super::places::Places;
use super::{Document, Name, Report, counted, runs};
use crate::failure::Failure;
use crate::progress;
use crate::text::{escape, size, table};

/// Shows which pages differ between two snapshots of a store
///
/// Runs of neighbouring pages, by their addresses in guest memory, and what lies there in the second snapshot, as its page
/// tables say.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A snapshot
    #[arg(value_name = "STORE:TAG", value_parser = Name::parse)]
    left: Name,

    /// Another one, in the same store
    #[arg(value_name = "STORE:TAG", value_parser = Name::parse)]
    right: Name,
}

/// Neighbouring pages that differ, and what they are.
struct Difference<'p> {
    pages: Range<u32>,
    place: &'p str,
}

pub(super) fn run(args: &Args, as_json: bool) -> Result<Report, Failure> {
    let (left, right) = (&args.left, &args.right);
    if !is_same_store(left, right) {
        let message = format!(
            "{left} and {right} are in two stores: save one where the other is, with 'coracle snapshot save --from'"
        );
        return Err(Failure::own(message));
    }
    let store = Store::open(left.store())?;
    let (numbers, places) = progress::during("comparing", as_json, || {
        let numbers = store.diff(left.reference(), right.reference())?;
        let loaded = store.load(right.reference())?;
        let places = match (numbers.as_slice(), Document::parse(&loaded.config)) {
            ([], _) | (_, Err(_)) => Places::default(),
            (_, Ok(document)) => Places::of(&document, &loaded.pages, &numbers),
        };
        Ok::<_, Failure>((numbers, places))
    })?;
    let differences = split(&numbers, &places);
    let pages = numbers.len() as u64;
    let mut text = match differences.len() as u64 {
        0 => "no page differs\n".to_owned(),
        runs => {
            format!("{} in {}, {}\n", counted(pages, "page"), counted(runs, "run"), size(pages * PAGE_BYTES as u64))
        }
    };
    let rows: Vec<[String; 3]> = differences
        .iter()
        .map(|Difference { pages, place }| {
            let count = counted(pages.len() as u64, "page");
            [format!("{:#x}", address(pages.start)), count, escape(place)]
        })
        .collect();
    text += &table("  ", &rows);
    let runs: Vec<Value> = differences
        .iter()
        .map(|Difference { pages, place }| json!({ "first": pages.start, "pages": pages.len(), "place": place }))
        .collect();
    let json = json!({ "left": left.to_string(), "right": right.to_string(), "pages": pages, "runs": runs });
    Ok(Report { text, json })
}

fn is_same_store(left: &Name, right: &Name) -> bool {
    let real = |name: &Name| name.store().canonicalize();
    left.store() == right.store() || matches!((real(left), real(right)), (Ok(left), Ok(right)) if left == right)
}

const fn address(page: u32) -> u64 {
    page as u64 * PAGE_BYTES as u64
}

/// Runs of pages that are neighbours, in the same place.
fn split<'p>(numbers: &[u32], places: &'p Places) -> Vec<Difference<'p>> {
    let mut out = Vec::new();
    for run in runs::of_numbers(numbers) {
        let mut rest = run;
        while !rest.is_empty() {
            let place = places.name(rest.start);
            let end = (rest.start..rest.end).find(|page| places.name(*page) != place).unwrap_or(rest.end);
            out.push(Difference { pages: rest.start..end, place });
            rest.start = end;
        }
    }
    out
}
