//! No two lives of a guest have a random number in common, wherever they get it from.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use coracle::{Image, Sandbox};
use coracle_artifacts::{HYGIENE, KEEPER};
use coracle_testing::{kvm_or_skip, within};

/// Who drew which word.
#[derive(Default)]
struct Drawn(HashMap<u64, String>);

impl Drawn {
    /// Lets the guest draw twice from all of its sources.
    #[track_caller]
    fn draw(&mut self, sandbox: &mut Sandbox, life: &str) {
        for time in ["first", "second"] {
            let sources: Vec<(String, [u64; 4])> = sandbox.call("random_words", ()).unwrap();
            assert_eq!(sources.len(), 5);
            for (source, words) in sources {
                for word in words {
                    let who = format!("{life}, {source}");
                    // What the boot page says stays all life long; everything else is drawn anew.
                    if let Some(other) = self.0.insert(word, who.clone()) {
                        assert!(
                            time == "second" && source == "boot page" && other == who,
                            "{word:#x}: {other}; again in the {time} draw of {who}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn no_two_of_two_hundred_lives_share_a_random_number() {
    within(Duration::from_secs(120), || {
        if kvm_or_skip().is_none() {
            return;
        }
        let builder = Sandbox::builder(&Image::from_path(HYGIENE.path()).unwrap())
            .host_fn("refuse", |text: String| Err::<(), _>(text))
            .host_fn("refuse.again", |text: String| Err::<(), _>(text));
        let mut sandbox = builder.build().unwrap();
        let (mut drawn, mut generations) = (Drawn::default(), Vec::new());
        // Whatever the first draws leave behind is in the snapshot, for all to repeat.
        drawn.draw(&mut sandbox, "the first life");
        generations.push(sandbox.call::<u64>("generation", ()).unwrap());
        let snapshot = sandbox.snapshot().unwrap();
        let mut live = |sandbox: &mut Sandbox, life: &str| {
            drawn.draw(sandbox, life);
            generations.push(sandbox.call::<u64>("generation", ()).unwrap());
        };
        for n in 0..100 {
            sandbox.restore(&snapshot).unwrap();
            live(&mut sandbox, &format!("restore {n}"));
            let mut spawned = Sandbox::from_snapshot(&snapshot).unwrap();
            live(&mut spawned, &format!("spawn {n}"));
            if n % 10 == 0 {
                live(&mut spawned.fork().unwrap(), &format!("fork {n}"));
            }
        }
        assert_eq!(drawn.0.len(), (1 + 200 + 10) * (4 * 2 + 1) * 4);
        generations.sort_unstable();
        assert!(generations.windows(2).all(|pair| pair[0] != pair[1]), "{generations:?}");
    });
}

/// Who reads them again has others; what a C library made of them at its start stays.
#[test]
fn the_random_bytes_of_the_stack_are_of_one_life() {
    within(Duration::from_secs(60), || {
        if kvm_or_skip().is_none() {
            return;
        }
        let mut sandbox = Sandbox::builder(&Image::from_path(KEEPER.path()).unwrap()).build().unwrap();
        let mut seen = HashSet::new();
        let mut live = |sandbox: &mut Sandbox| {
            let bytes: Vec<u8> = sandbox.call("at_random", ()).unwrap();
            assert_eq!(sandbox.call::<Vec<u8>>("at_random", ()).unwrap(), bytes, "in one life they stay");
            assert!(seen.insert(bytes));
        };
        live(&mut sandbox);
        let mut snapshot = sandbox.snapshot().unwrap();
        for n in 0..50 {
            sandbox.restore(&snapshot).unwrap();
            live(&mut sandbox);
            live(&mut Sandbox::from_snapshot(&snapshot).unwrap());
            if n % 10 == 0 {
                snapshot = sandbox.snapshot().unwrap();
            }
        }
    });
}
