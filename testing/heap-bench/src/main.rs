//! Prints the counts of each candidate as a table.

use std::io;

use coracle_heap_bench::measure::{cold, demand, doubling, first, init, keeping, pieces, steady};
use coracle_heap_bench::workload::Start;
use coracle_heap_bench::{Heap, PAGE_BYTES, for_each_heap};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const HEAD: [&str; 15] = [
    "allocator",
    "init 128 KiB",
    "init 8 MiB",
    "init 256 MiB",
    "init 16 GiB",
    "start and request",
    "1st request",
    "1st, no holes",
    "steady",
    "keeping",
    "touched then",
    "largest piece, half live",
    "largest, all freed",
    "Vec to half",
    "Vec reaches",
];

fn main() -> io::Result<()> {
    let (allocs, reallocs, bytes) = demand()?;
    println!("One request: {allocs} allocs, {reallocs} reallocs, at most {bytes} bytes live at once,");
    println!(
        "so {} pages at least. Columns to `touched then` are pages, the allocator's own static",
        bytes.div_ceil(PAGE_BYTES)
    );
    println!("included; `Vec` columns are the worst of 128 KiB, 8 MiB and 256 MiB.\n");
    println!("| {} |\n|{}", HEAD.join(" | "), "---|".repeat(HEAD.len()));
    let mut result = Ok(());
    for_each_heap!(print_row(&mut result));
    result
}

fn print_row<H: Heap>(result: &mut io::Result<()>) {
    if result.is_ok() {
        *result = row::<H>().map(|cells| println!("| {} |", cells.join(" | ")));
    }
}

fn row<H: Heap>() -> io::Result<Vec<String>> {
    let mut cells = vec![H::NAME.to_owned()];
    for bytes in [128 * KIB, 8 * MIB, 256 * MIB, 16 << 30] {
        let pages = init::<H>(bytes)?;
        cells.push((pages.state_written + pages.heap_touched).to_string());
    }
    let (keeping, touched) = keeping::<H>()?;
    let requests = [first::<H>(Start::LeavesHoles)?, first::<H>(Start::LeavesNone)?, steady::<H>()?, keeping, touched];
    cells.push(cold::<H>()?.to_string());
    cells.extend(requests.map(|pages| pages.to_string()));
    let pieces = pieces::<H>()?;
    cells.push(pieces.half_live.map_or("does not fit".to_owned(), percent));
    cells.push(percent(pieces.all_freed));
    let reached = doubling::<H>(128 * KIB)?.min(doubling::<H>(8 * MIB)?).min(doubling::<H>(256 * MIB)?);
    cells.push(if reached >= 0.5 { "yes" } else { "no" }.to_owned());
    cells.push(percent(reached));
    Ok(cells)
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}
