//! Random lives of several sandboxes against a plain model: calls, mappings, snapshots, restores of their own and of others'
//! states, forks, crashes. After each step each sandbox is what the model says.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::time::Duration;

use coracle::{CpuTemplate, DirtyLog, ErrorKind, Image, Kvm, Sandbox, Snapshot};
use coracle_artifacts::KEEPER;
use coracle_testing::{kvm_or_skip, within};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// What a guest should hold.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    kept: Vec<u64>,
    /// By address: pages, the byte in each, and whether it may be written.
    mapped: BTreeMap<u64, (u64, u8, bool)>,
}

/// A step in the life of sandbox `who`. Numbers are taken modulo what there is.
#[derive(Clone, Debug)]
enum Step {
    Keep(u64),
    Map(u64, u8),
    Poke(usize, u8),
    Seal(usize),
    Unmap(usize),
    Snapshot,
    Restore(usize),
    Fork(usize),
    Crash(usize),
    TimeOut(usize),
}

fn step() -> impl Strategy<Value = (usize, Step)> {
    let any_step = prop_oneof![
        4 => any::<u64>().prop_map(Step::Keep),
        // Small ones get their pages at once, large ones when touched; the largest need tables of their own.
        4 => (prop_oneof![1..8_u64, 60..70_u64, 300..700_u64], any::<u8>()).prop_map(|(pages, byte)| Step::Map(pages, byte)),
        3 => (any::<usize>(), any::<u8>()).prop_map(|(which, byte)| Step::Poke(which, byte)),
        2 => any::<usize>().prop_map(Step::Seal),
        2 => any::<usize>().prop_map(Step::Unmap),
        5 => Just(Step::Snapshot),
        6 => any::<usize>().prop_map(Step::Restore),
        1 => any::<usize>().prop_map(Step::Fork),
        1 => any::<usize>().prop_map(Step::Crash),
        1 => any::<usize>().prop_map(Step::TimeOut),
    ];
    (0..SANDBOXES, any_step)
}

const SANDBOXES: usize = 3;

struct World {
    sandboxes: Vec<(Sandbox, Model)>,
    snapshots: Vec<(Snapshot, Model)>,
}

impl World {
    fn new(first: &Snapshot) -> Self {
        let sandboxes = (0..SANDBOXES).map(|_| (Sandbox::from_snapshot(first).unwrap(), Model::default())).collect();
        Self { sandboxes, snapshots: vec![(first.clone(), Model::default())] }
    }

    fn take(&mut self, who: usize, step: &Step) {
        let Self { sandboxes, snapshots } = self;
        let (sandbox, model) = &mut sandboxes[who];
        let nth = |model: &Model, which: usize| model.mapped.keys().nth(which % model.mapped.len().max(1)).copied();
        match *step {
            Step::Keep(number) => {
                sandbox.call::<()>("keep", number).unwrap();
                model.kept.push(number);
            }
            Step::Map(pages, byte) => {
                if model.mapped.len() < 8 {
                    let address: u64 = sandbox.call("map", (pages, byte)).unwrap();
                    assert_eq!(model.mapped.insert(address, (pages, byte, true)), None);
                }
            }
            Step::Poke(which, byte) => {
                if let Some(address) = nth(model, which)
                    && let Some((_, held, true)) = model.mapped.get_mut(&address)
                {
                    sandbox.call::<()>("poke", (address, byte)).unwrap();
                    *held = byte;
                }
            }
            Step::Seal(which) => {
                if let Some(address) = nth(model, which) {
                    let (pages, _, writable) = model.mapped.get_mut(&address).unwrap();
                    sandbox.call::<()>("seal", (address, *pages)).unwrap();
                    *writable = false;
                }
            }
            Step::Unmap(which) => {
                if let Some(address) = nth(model, which) {
                    let (pages, ..) = model.mapped.remove(&address).unwrap();
                    sandbox.call::<()>("unmap", (address, pages)).unwrap();
                }
            }
            Step::Snapshot => snapshots.push((sandbox.snapshot().unwrap(), model.clone())),
            Step::Restore(which) => {
                let (snapshot, state) = &snapshots[which % snapshots.len()];
                sandbox.restore(snapshot).unwrap();
                *model = state.clone();
            }
            Step::Fork(other) => {
                let fork = (sandbox.fork().unwrap(), model.clone());
                sandboxes[other % SANDBOXES] = fork;
            }
            Step::Crash(which) => {
                // By writing to what may not be written, if there is such a thing; else to nowhere.
                let sealed =
                    model.mapped.iter().find(|(_, (.., writable))| !writable).map_or(0x1000_0000, |(at, _)| *at);
                assert_eq!(sandbox.call::<()>("poke", (sealed, 1_u8)).unwrap_err().kind(), ErrorKind::GuestStopped);
                let (snapshot, state) = &snapshots[which % snapshots.len()];
                sandbox.restore(snapshot).unwrap();
                *model = state.clone();
            }
            Step::TimeOut(which) => {
                let (snapshot, state) = &snapshots[which % snapshots.len()];
                let mut hasty = snapshot.builder().timeout(Duration::from_millis(1)).build().unwrap();
                assert_eq!(hasty.call::<()>("spin", ()).unwrap_err().kind(), ErrorKind::TimedOut);
                hasty.restore(snapshot).unwrap();
                // What was healed is good for others, too.
                sandbox.restore(&hasty.snapshot().unwrap()).unwrap();
                *model = state.clone();
            }
        }
    }

    /// Compares each sandbox with its model.
    fn check(&mut self) {
        for (sandbox, model) in &mut self.sandboxes {
            assert_eq!(sandbox.call::<Vec<u64>>("kept", ()).unwrap(), model.kept);
            for (address, (pages, byte, _)) in &model.mapped {
                assert_eq!(sandbox.call::<u8>("peek", *address).unwrap(), *byte, "{address:#x}");
                // The last page is there, too.
                sandbox.call::<u8>("peek", address + ((pages - 1) << 12)).unwrap();
            }
        }
    }
}

#[test]
fn sandboxes_are_what_a_model_says() {
    within(Duration::from_secs(240), || {
        if kvm_or_skip().is_none() {
            return;
        }
        for log in [DirtyLog::Best, DirtyLog::Bitmap] {
            let kvm = Kvm::open(CpuTemplate::Host).unwrap().with_dirty_log(log);
            let image = Image::from_path(KEEPER.path()).unwrap();
            let builder = Sandbox::builder(&image).backend(kvm).timeout(Duration::from_secs(20));
            let first = builder.build().unwrap().snapshot().unwrap();
            let steps = prop::collection::vec(step(), 1..60);
            let config = Config { cases: 24, failure_persistence: None, ..Config::default() };
            let mut runner = TestRunner::new_with_rng(
                config,
                proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
            );
            let result = runner.run(&steps, |steps| {
                let mut world = World::new(&first);
                for (who, step) in &steps {
                    world.take(*who, step);
                    world.check();
                }
                Ok(())
            });
            if let Err(error) = result {
                panic!("{log:?}: {error}");
            }
        }
    });
}
