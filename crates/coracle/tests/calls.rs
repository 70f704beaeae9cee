//! Typed calls in both directions, with a guest that has `std` and one that has not.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use coracle::{Builder, Cause, ErrorKind, Image, Output, Sandbox, Schema, Status};
use coracle_artifacts::{ECHO, ECHO_NOSTD, RustGuest};
use coracle_testing::{kvm_or_skip, patiently};
use serde::{Deserialize, Serialize};

fn builder(guest: RustGuest) -> Builder {
    let image = Image::from_path(guest.path()).unwrap();
    Sandbox::builder(&image)
        .timeout(Duration::from_secs(20))
        .host_fn("greet", |name: String| match name.as_str() {
            "nobody" => Err("there is nobody to greet".to_owned()),
            "panic" => panic!("the host function's own panic"),
            name => Ok(format!("Hello, {name}!")),
        })
        .host_fn("host_add", |(a, b): (i32, i32)| a.checked_add(b).ok_or("overflow"))
}

/// Runs `body` on each guest, where there is KVM.
fn with_each(body: fn(&mut Sandbox)) {
    patiently(move || {
        if kvm_or_skip().is_none() {
            return;
        }
        for guest in [ECHO, ECHO_NOSTD] {
            body(&mut builder(guest).build().unwrap());
        }
    });
}

fn with_std(body: fn(&mut Sandbox)) {
    patiently(move || {
        if kvm_or_skip().is_some() {
            body(&mut builder(ECHO).build().unwrap());
        }
    });
}

#[test]
fn a_string_comes_back() {
    with_each(|sandbox| {
        for text in ["", "hello", "ünïcödé", &"x".repeat(100_000)] {
            assert_eq!(sandbox.call::<String>("echo", text).unwrap(), text);
        }
    });
}

#[test]
fn several_arguments_are_a_tuple() {
    with_each(|sandbox| {
        assert_eq!(sandbox.call::<i32>("add", (40, 2)).unwrap(), 42);
        assert_eq!(sandbox.call::<i32>("add", (i32::MAX, 1)).unwrap(), i32::MIN);
    });
}

#[test]
fn a_resolved_function_is_called_without_a_look_up() {
    with_each(|sandbox| {
        let echo = sandbox.function::<str, String>("echo").unwrap();
        for n in 0..100 {
            let text = format!("call {n}");
            assert_eq!(echo.call(sandbox, &text).unwrap(), text);
        }
    });
}

#[derive(Serialize, Deserialize, Schema, Clone, Debug, PartialEq)]
enum Colour {
    Red,
    Rgb(u8, u8, u8),
    Named { name: String },
}

#[derive(Serialize, Deserialize, Schema, Clone, Debug, PartialEq)]
struct Point {
    x: i64,
    y: f64,
    label: Option<String>,
    colour: Colour,
    tags: Vec<String>,
    weights: BTreeMap<String, u32>,
}

#[test]
fn structures_come_back() {
    with_std(|sandbox| {
        let point = Point {
            x: i64::MIN,
            y: 0.5,
            label: Some("here".into()),
            colour: Colour::Named { name: "teal".into() },
            tags: vec!["a".into(), String::new()],
            weights: BTreeMap::from([("n".into(), 7)]),
        };
        for colour in [Colour::Red, Colour::Rgb(1, 2, 3), point.colour.clone()] {
            let point = Point { colour, ..point.clone() };
            assert_eq!(sandbox.call::<Point>("point", &point).unwrap(), point);
        }
    });
}

#[test]
fn bytes_come_back() {
    with_std(|sandbox| {
        let bytes: Vec<u8> = (0..=255).cycle().take(70_000).collect();
        assert_eq!(sandbox.call::<Vec<u8>>("echo_bytes", &bytes[..]).unwrap(), bytes);
    });
}

#[test]
fn the_guest_calls_the_host() {
    with_each(|sandbox| {
        assert_eq!(sandbox.call::<String>("call_host", "world").unwrap(), "Hello, world!");
        assert_eq!(sandbox.stats().host_calls, 1);
    });
}

#[test]
fn a_host_functions_error_and_panic_reach_the_guest_and_nobody_else() {
    with_each(|sandbox| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        for (name, want) in [("nobody", "there is nobody to greet"), ("panic", "the host function's own panic")] {
            let error = sandbox.call::<String>("call_host", name).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::GuestReturned | ErrorKind::GuestStopped), "{error:?}");
            assert!(error.to_string().contains(want), "{error}");
            if error.kind() == ErrorKind::GuestStopped {
                // The guest's own decision, since it unwrapped: it panicked.
                assert_eq!(sandbox.status(), Status::Poisoned);
                break;
            }
            assert_eq!(sandbox.call::<String>("call_host", "you").unwrap(), "Hello, you!");
        }
        std::panic::set_hook(before);
    });
}

#[test]
fn a_guests_error_leaves_the_sandbox_ready() {
    with_each(|sandbox| {
        for _ in 0..3 {
            let error = sandbox.call::<String>("fail", "on purpose").unwrap_err();
            assert_eq!((error.kind(), error.to_string().contains("on purpose")), (ErrorKind::GuestReturned, true));
            assert_eq!(sandbox.status(), Status::Ready);
            assert_eq!(sandbox.call::<i32>("add", (1, 2)).unwrap(), 3);
        }
    });
}

#[test]
fn a_panic_tells_message_and_place_and_poisons() {
    with_each(|sandbox| {
        let error = sandbox.call::<()>("panic_with", "so be it").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::GuestStopped);
        match &error.crash().unwrap().cause {
            Cause::Panic { message, location } => {
                assert_eq!(message, "so be it");
                assert!(location.contains(".rs:"), "{location}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(sandbox.status(), Status::Poisoned);
        assert_eq!(sandbox.call::<i32>("add", (1, 2)).unwrap_err().kind(), ErrorKind::Unusable);
    });
}

#[test]
fn types_are_compared_before_the_call() {
    with_each(|sandbox| {
        let entries = sandbox.stats().entries;
        let wrong = sandbox.call::<u64>("echo", "x").unwrap_err();
        assert_eq!(wrong.kind(), ErrorKind::Signature);
        assert_eq!(wrong.to_string(), "the guest offers echo(string) -> string, the host calls echo(string) -> u64");
        let unknown = sandbox.call::<()>("ecko", ()).unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::Signature);
        assert!(unknown.to_string().contains("no function 'ecko'; it has add,"), "{unknown}");
        assert!(sandbox.function::<(i32, i64), i32>("add").is_err());
        assert_eq!(sandbox.stats().entries, entries, "the guest was entered");
    });
}

#[test]
fn a_payload_above_the_limit_is_refused_before_the_call() {
    with_each(|sandbox| {
        let error = sandbox.call::<String>("echo", &*"x".repeat((64 << 20) + 1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit);
        assert!(error.to_string().contains("payload_bytes"), "{error}");
        assert_eq!(sandbox.call::<String>("echo", "still here").unwrap(), "still here");
    });
}

#[test]
fn a_missing_host_function_is_named_before_the_guest_runs() {
    patiently(|| {
        let image = Image::from_path(ECHO.path()).unwrap();
        let error = Sandbox::builder(&image).host_fn("greet", |n: u8| Ok::<_, String>(n)).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Signature);
        let text = error.to_string();
        assert!(text.contains("the guest expects greet(string) -> string, the host offers greet(u8) -> u8"), "{text}");
        assert!(text.contains("the guest needs host_add(i32,i32) -> i32"), "{text}");
    });
}

#[test]
fn initial_data_is_read_in_place() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        for text in ["", "x", &"line\n".repeat(20_000)] {
            let mut sandbox = builder(ECHO).init_data(text.as_bytes()).build().unwrap();
            assert_eq!(sandbox.call::<String>("init_text", ()).unwrap(), text);
        }
    });
}

#[test]
fn arguments_and_environment_reach_a_guest() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        let mut sandbox = builder(ECHO).args(["a", "b"]).env([("K", "v")]).build().unwrap();
        let (args, env): (Vec<String>, Vec<(String, String)>) = sandbox.call("args_and_env", ()).unwrap();
        assert_eq!((args[1..].to_vec(), env), (vec!["a".into(), "b".into()], vec![("K".into(), "v".into())]));
    });
}

#[test]
fn random_bytes_differ() {
    with_std(|sandbox| {
        let first: Vec<u8> = sandbox.call("random_bytes", 64_u32).unwrap();
        let second: Vec<u8> = sandbox.call("random_bytes", 64_u32).unwrap();
        assert_eq!(first.len(), 64);
        assert_ne!(first, second);
        assert_ne!(first, vec![0; 64]);
    });
}

#[test]
fn an_exit_is_no_answer() {
    with_std(|sandbox| {
        let error = sandbox.call::<()>("exit_with", 9).unwrap_err();
        assert_eq!(error.crash().unwrap().cause, Cause::ExitedWithoutAnswer(9));
        assert_eq!(sandbox.status(), Status::Poisoned);
    });
}

#[test]
fn a_heap_grows_as_it_is_used() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        let mut sandbox = builder(ECHO).heap_bytes(32 << 20).build().unwrap();
        let before = sandbox.stats().pages_in_use;
        assert_eq!(sandbox.call::<u64>("allocate", 16_u64 << 20).unwrap(), 16 << 8);
        assert!(sandbox.stats().pages_in_use >= before + (16 << 8) - 64);
        assert!(before < 1024, "{before} pages in use before the heap was used");
    });
}

#[test]
fn output_goes_where_it_is_sent() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        let (stderr, captured) = Output::capture(4096);
        let mut sandbox = builder(ECHO).stderr(stderr).build().unwrap();
        let _ = sandbox.call::<()>("panic_with", "loud");
        // A panic is a frame, not text on a stream.
        assert_eq!(captured.text(), "");
    });
}

/// Collects what reaches `tracing`.
struct Collect(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Collect {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0.push_str(&format!(" {field}={value:?}"));
            }
        }
        let mut text = Text(format!("{} {}", event.metadata().level(), event.metadata().target()));
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn log_records_become_events() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        let events = Arc::new(Mutex::new(Vec::new()));
        let subscriber = Collect(Arc::clone(&events));
        tracing::subscriber::with_default(subscriber, || {
            let mut config = coracle::Config::default();
            config.log_level = Some(tracing::Level::DEBUG);
            let mut sandbox = builder(ECHO).config(config).build().unwrap();
            sandbox.call::<()>("log_something", (2_u8, "watch out")).unwrap();
            sandbox.call::<()>("log_something", (5_u8, "too detailed")).unwrap();
        });
        let events = events.lock().unwrap();
        assert_eq!(events.len(), 1, "{events:?}");
        assert!(events[0].starts_with("WARN coracle::guest"), "{events:?}");
        assert!(events[0].contains("watch out") && events[0].contains("guest_target="), "{events:?}");
    });
}

#[test]
fn an_image_of_another_abi_is_refused_with_both_versions() {
    patiently(|| {
        let mut bytes = std::fs::read(ECHO.path()).unwrap();
        let note = [8_u32.to_le_bytes().as_slice()].concat();
        // Owner length, description length, type 1, owner: the version follows.
        let at = bytes
            .windows(20)
            .position(|window| window[..4] == note && window[8..12] == [1, 0, 0, 0] && &window[12..] == b"Coracle\0");
        bytes[at.unwrap() + 20] = 99;
        let error = Sandbox::builder(&Image::from_bytes(bytes).unwrap()).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Image);
        assert!(error.to_string().contains("ABI 99") && error.to_string().contains("ABI 2"), "{error}");
    });
}

#[test]
fn host_functions_are_shared_and_sandboxes_are_sent() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        let count = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let count = Arc::clone(&count);
                let sandbox = builder(ECHO).host_fn("greet", move |name: String| {
                    count.fetch_add(1, Ordering::Relaxed);
                    Ok::<_, String>(name)
                });
                let mut sandbox = sandbox.build().unwrap();
                std::thread::spawn(move || {
                    for _ in 0..50 {
                        assert_eq!(sandbox.call::<String>("call_host", "x").unwrap(), "x");
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(count.load(Ordering::Relaxed), 200);
    });
}
