//! Many sandboxes at once.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use coracle::{Image, Sandbox};
use coracle_artifacts::ECHO_NOSTD;
use coracle_testing::{kvm_or_skip, within};

fn image() -> Image {
    Image::from_path(ECHO_NOSTD.path()).unwrap()
}

fn sandbox(image: &Image) -> Sandbox {
    Sandbox::builder(image).host_fn("greet", |name: String| Ok::<_, String>(name)).build().unwrap()
}

#[test]
fn two_hundred_alive_at_once_all_answer() {
    within(Duration::from_secs(120), || {
        if kvm_or_skip().is_none() {
            return;
        }
        let image = image();
        let mut sandboxes: Vec<Sandbox> = (0..200).map(|_| sandbox(&image)).collect();
        for round in 0..3 {
            for (n, sandbox) in (0..).zip(&mut sandboxes) {
                assert_eq!(sandbox.call::<i32>("add", (n, round)).unwrap(), n + round);
            }
        }
    });
}
