//! What a request costs by the number of pages that it writes, and by the way in which they are put back.
//!
//! All ways run in turn, a few requests each, and medians are told. `--json FILE` writes them to a file, `--machine TEXT`
//! names the machine in it; `cargo xtask bench --plot` draws them.
#![expect(clippy::expect_used, reason = "a benchmark without its guest has nothing to do")]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use coracle::{Function, Sandbox, Snapshot};
use coracle_bench::sweep::{Guest, Way, Write};
use coracle_bench::workload;

/// Pages that a request writes. The last but one almost fills the ring by which KVM tells them, the last overflows it.
const PAGES: [u32; 14] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3900, 4096];
/// All is measured so often, from the smallest number of pages to the largest, so that what disturbs the machine for a
/// while does not bend one part of a curve.
const PASSES: usize = 5;
/// Requests in a row, the first of which are not counted: they find the caches as another way left them.
const BLOCK: usize = 8;
const UNCOUNTED: usize = 2;
/// Blocks of each way in a pass are so many that about as many pages are written, within bounds.
const PAGES_IN_PASS: u32 = 10_000;
const BLOCKS_MAX: u32 = 40;

/// Something that writes pages and puts them back.
trait Subject {
    fn run(&mut self);
    fn restore(&mut self);
}

impl Subject for Guest {
    fn run(&mut self) {
        self.run();
    }

    fn restore(&mut self) {
        self.restore();
    }
}

/// A guest that writes nothing, with all pages on the list: what pages cost that are there in vain.
struct Idle(Guest);

impl Subject for Idle {
    fn run(&mut self) {
        self.0.run();
        self.0.note_all(); // A restore may have dropped the list.
    }

    fn restore(&mut self) {
        self.0.restore();
    }
}

/// The library's own: a call and a restore.
struct Whole {
    sandbox: Sandbox,
    snapshot: Snapshot,
    dirty: Function<(u32, u32), ()>,
    arguments: (u32, u32),
}

impl Whole {
    fn new(pages: u32, write: Write) -> Self {
        let (mut sandbox, snapshot) = workload::dirtied(pages);
        let dirty = sandbox.function("dirty").expect("the guest has it");
        dirty.call(&mut sandbox, &(pages, write.bytes())).expect("it answers");
        Self { sandbox, snapshot, dirty, arguments: (pages, write.bytes()) }
    }
}

impl Subject for Whole {
    fn run(&mut self) {
        self.dirty.call(&mut self.sandbox, &self.arguments).expect("it answers");
    }

    fn restore(&mut self) {
        self.sandbox.restore(&self.snapshot).expect("a snapshot fits its own sandbox");
    }
}

/// How long each request took: to run, to be put back, and both together.
type Times = [Vec<Duration>; 3];

/// Adds the times of some blocks to those of each way, all in turn.
fn measure(subjects: &mut [Subjected], blocks: u32, times: &mut [(&str, Times)]) {
    for _ in 0..blocks {
        for ((_, subject), (_, times)) in subjects.iter_mut().zip(&mut *times) {
            for request in 0..BLOCK {
                let start = Instant::now();
                subject.run();
                let run = start.elapsed();
                let start = Instant::now();
                subject.restore();
                let restore = start.elapsed();
                if request >= UNCOUNTED {
                    times.iter_mut().zip([run, restore, run + restore]).for_each(|(times, time)| times.push(time));
                }
            }
        }
    }
}

/// In microseconds, to two places.
fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    (times[times.len() / 2].as_secs_f64() * 1e8).round() / 100.0
}

/// A way with its name.
type Subjected = (&'static str, Box<dyn Subject>);

fn subjects(pages: u32, write: Write) -> Vec<Subjected> {
    let guest = |way| Box::new(Guest::new(pages, Some(write), way));
    vec![
        ("nothing", Box::new(Guest::new(pages, None, Way::CopyBack))),
        ("copy_back", guest(Way::CopyBack)),
        ("drop", guest(Way::Drop)),
        ("cool", guest(Way::Cool)),
        ("idle", Box::new(Idle(Guest::new(pages, None, Way::CopyBack)))),
        ("sandbox", Box::new(Whole::new(pages, write))),
    ]
}

/// The value of an option.
fn option(name: &str) -> Option<String> {
    std::env::args().skip_while(|argument| argument != name).nth(1)
}

fn main() -> ExitCode {
    let mut measured: BTreeMap<(Write, u32), Vec<(&str, Times)>> = BTreeMap::new();
    for pass in 1..=PASSES {
        eprintln!("pass {pass} of {PASSES}");
        for write in [Write::Byte, Write::HalfPage] {
            for pages in PAGES {
                let blocks = (PAGES_IN_PASS / pages / BLOCK as u32).clamp(1, BLOCKS_MAX);
                let mut subjects = subjects(pages, write);
                let fresh = || subjects.iter().map(|(way, _)| (*way, Times::default())).collect();
                let times = measured.entry((write, pages)).or_insert_with(fresh);
                measure(&mut subjects, blocks, times);
            }
        }
    }
    println!("medians in turn, us: writing (run), putting back (restore), and a whole request (both)");
    println!("{:<10} {:>6}  {:<10} {:>10} {:>10} {:>10}", "write", "pages", "way", "run", "restore", "both");
    let mut points = Vec::new();
    for ((write, pages), ways) in measured {
        for (way, times) in ways {
            let (write, [run, restore, both]) = (write.name(), times.map(median));
            println!("{write:<10} {pages:>6}  {way:<10} {run:>10.2} {restore:>10.2} {both:>10.2}");
            points.push(serde_json::json!({
                "write": write, "pages": pages, "way": way, "run": run, "restore": restore, "both": both,
            }));
        }
    }
    let Some(path) = option("--json") else { return ExitCode::SUCCESS };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let machine = option("--machine").unwrap_or_else(|| format!("{processors} processors"));
    let lines: Vec<String> = points.iter().map(|point| format!("    {point}")).collect();
    let head = serde_json::json!(machine);
    let text = format!("{{\n  \"machine\": {head},\n  \"points\": [\n{}\n  ]\n}}\n", lines.join(",\n"));
    match std::fs::write(&path, text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sweep: cannot write {path}: {error}");
            ExitCode::FAILURE
        }
    }
}
