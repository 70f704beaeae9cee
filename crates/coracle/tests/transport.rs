//! Does everything arrive: of any size, in any number, in both directions, before and after a restore?
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use coracle::fake::FakeGuest;
use coracle::{Batch, Builder, ErrorKind, Image, Sandbox, Status};
use coracle_artifacts::CARRIER;
use coracle_testing::{kvm_or_skip, within};

fn builder() -> Builder {
    Sandbox::builder(&Image::from_path(CARRIER.path()).unwrap())
        .timeout(Duration::from_secs(60))
        .host_fn("count", |_: u32| Ok::<_, String>(()))
        .host_fn("host_bytes", |count: u32| match count {
            u32::MAX => Err("no bytes today".to_owned()),
            count => Ok(vec![7_u8; count as usize]),
        })
        .host_fn("host_take", |bytes: Vec<u8>| Ok::<_, String>(bytes.len() as u64))
}

/// Runs `body` where there is KVM.
fn with_kvm(body: impl FnOnce() + Send + 'static) {
    within(Duration::from_secs(240), || {
        if kvm_or_skip().is_some() {
            body();
        }
    });
}

/// So many bytes encode to how many: a length, and themselves.
fn encoded(count: u32) -> u64 {
    u64::from(count) + (u64::from(33 - (count | 1).leading_zeros() - 1)).div_ceil(7)
}

/// The most bytes whose encoding has at most `limit`.
fn most(limit: u64) -> u32 {
    (0..=limit as u32).rev().find(|count| encoded(*count) <= limit).unwrap()
}

#[test]
fn payloads_around_each_limit_arrive_or_are_named() {
    with_kvm(|| {
        for limit in [4096, 5000, 40_000, 200_000] {
            let mut sandbox = builder().payload_bytes(limit).build().unwrap();
            let result = sandbox.function::<u32, Vec<u8>>("make_bytes").unwrap();
            let most = most(limit);
            // Where small messages end, with and without a header and a key; and the limit.
            let inside =
                [4_000_u32, 5_872, 8_192, 24_576, 61_432, 63_000, 64_480, 64_512, 65_520, 65_536, 65_552, 131_072];
            let edges = inside.into_iter().flat_map(|edge| edge - 3..edge + 4).chain([0, 1, 127, 128, most - 1, most]);
            for count in edges.filter(|count| *count <= most) {
                let bytes = vec![7_u8; count as usize];
                assert_eq!(result.call(&mut sandbox, &count).unwrap(), bytes, "{count} of {limit}");
                if encoded(count) < limit {
                    assert_eq!(sandbox.call::<u64>("measure", (&bytes[..], "")).unwrap(), u64::from(count));
                }
                assert_eq!(sandbox.call::<u64>("give", count).unwrap(), u64::from(count), "{count} of {limit}");
                assert_eq!(
                    sandbox.call::<u64>("fetch", (count, &[1_u8; 9][..])).unwrap(),
                    u64::from(count),
                    "{count} of {limit}"
                );
            }
            for count in [most + 1, most + 2, 2 * most, 4 * limit as u32] {
                let named = |error: coracle::Error, kind: ErrorKind| {
                    assert_eq!(error.kind(), kind, "{count} of {limit}: {error}");
                    let text = error.to_string();
                    assert!(text.contains(&limit.to_string()) && text.contains("payload_bytes"), "{text}");
                };
                let bytes = vec![7_u8; count as usize];
                named(result.call(&mut sandbox, &count).unwrap_err(), ErrorKind::GuestReturned);
                named(sandbox.call::<u64>("measure", (&bytes[..], "")).unwrap_err(), ErrorKind::Limit);
                named(sandbox.call::<u64>("give", count).unwrap_err(), ErrorKind::GuestReturned);
                named(sandbox.call::<u64>("fetch", (count, &[1_u8; 9][..])).unwrap_err(), ErrorKind::GuestReturned);
                assert_eq!(result.call(&mut sandbox, &3).unwrap(), [7; 3], "the next call");
            }
            // A reply of the largest size beside arguments of the largest size.
            let beside = vec![1_u8; most as usize - 8];
            assert_eq!(sandbox.call::<u64>("fetch", (most, &beside[..])).unwrap(), u64::from(most));
            // Not even an error is larger than there is room for.
            let error = sandbox.call::<u64>("fetch", (u32::MAX, &beside[..])).unwrap_err();
            assert_eq!(error.to_string(), "no bytes today");
        }
    });
}

#[test]
fn large_payloads_need_memory_and_nothing_else() {
    with_kvm(|| {
        let mut sandbox = builder().memory_bytes(64 << 20).build().unwrap();
        let before = sandbox.stats().pages_in_use;
        let bytes = vec![3_u8; 4 << 20];
        assert_eq!(sandbox.call::<u64>("measure", (&bytes[..], "text")).unwrap(), (4 << 20) + 4);
        let after = sandbox.stats().pages_in_use;
        assert!(after - before < 1024 + 64, "{before} {after}");
        assert_eq!(sandbox.call::<Vec<u8>>("make_bytes", 3_u32 << 20).unwrap().len(), 3 << 20);
        // More than there is memory for, below the limit.
        let error = sandbox.call::<u64>("measure", (&vec![3_u8; 60 << 20][..], "")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit);
        assert!(error.to_string().contains("memory_bytes"), "{error}");
        assert_eq!(sandbox.call::<u64>("measure", (&bytes[..], "")).unwrap(), 4 << 20);
    });
}

#[test]
fn a_batch_enters_once() {
    with_kvm(|| {
        let mut sandbox = builder().build().unwrap();
        let empty = sandbox.function::<(), ()>("empty").unwrap();
        let even = sandbox.function::<u64, u64>("even").unwrap();
        let entries = |sandbox: &mut Sandbox, calls: usize| {
            let before = sandbox.stats();
            let results = sandbox.call_batch(&empty, vec![(); calls]);
            assert!(results.len() == calls && results.iter().all(Result::is_ok));
            let after = sandbox.stats();
            assert_eq!(after.calls - before.calls, calls as u64);
            assert_eq!(after.hypervisor_calls, before.hypervisor_calls);
            after.entries - before.entries
        };
        entries(&mut sandbox, 200);
        for (calls, want) in
            [(0, 0), (1, 1), (2, 1), (63, 1), (64, 1), (65, 2), (100, 2), (128, 2), (129, 3), (1000, 16)]
        {
            assert_eq!(entries(&mut sandbox, calls), want, "{calls} calls");
        }
        for count in [1, 10, 64, 65, 300] {
            let results = sandbox.call_batch(&even, 0..count);
            for (number, result) in (0..count).zip(results) {
                match result {
                    Ok(same) => assert_eq!((same, number % 2), (number, 0)),
                    Err(error) => assert_eq!(error.to_string(), format!("{number} is odd")),
                }
            }
        }
        assert_eq!(sandbox.status(), Status::Ready);
    });
}

#[test]
fn batches_carry_all_sizes_and_host_calls() {
    with_kvm(|| {
        for limit in [4096, 100_000, 64 << 20] {
            let mut sandbox = builder().payload_bytes(limit).build().unwrap();
            let make = sandbox.function::<u32, Vec<u8>>("make_bytes").unwrap();
            let fetch = sandbox.function::<(u32, Vec<u8>), u64>("fetch").unwrap();
            let mut batch = Batch::new();
            let counts: Vec<u32> = (0..200).map(|n| (n * n * 37) % 90_000).collect();
            let made: Vec<_> = counts.iter().map(|count| batch.add(&make, count).unwrap()).collect();
            let beside: Vec<_> = counts.iter().map(|count| vec![1; *count as usize / 3]).collect();
            let both = counts.iter().zip(&beside);
            let fetched: Vec<_> =
                both.map(|(count, beside)| batch.add(&fetch, &(*count, beside.clone())).unwrap()).collect();
            let mut answers = sandbox.run_batch(&batch);
            assert_eq!((answers.len(), batch.len()), (400, 400));
            for (at, count) in counts.iter().enumerate() {
                let fits = encoded(*count) <= limit;
                match answers.take(made[at]) {
                    Ok(bytes) => assert!(fits && bytes == vec![7; *count as usize]),
                    Err(error) => assert!(!fits && error.to_string().contains("payload_bytes"), "{count}: {error}"),
                }
                match answers.take(fetched[at]) {
                    Ok(length) => assert!(fits && length == u64::from(*count)),
                    Err(error) => assert!(!fits && error.to_string().contains("payload_bytes"), "{count}: {error}"),
                }
                assert!(answers.take(made[at]).is_err(), "an answer is taken once");
            }
            assert_eq!(make.call(&mut sandbox, &5).unwrap(), [7; 5]);
        }
    });
}

#[test]
fn a_panic_ends_a_batch_where_it_happens() {
    with_kvm(|| {
        let mut sandbox = builder().build().unwrap();
        let clean = sandbox.snapshot().unwrap();
        let panic_at = sandbox.function::<(u32, u32), u32>("panic_at").unwrap();
        for at in [0, 1, 30, 63, 64, 99] {
            let results = sandbox.call_batch(&panic_at, (0..100).map(|number| (number, at)));
            assert_eq!(results.len(), 100);
            for (number, result) in (0..100).zip(results) {
                match result {
                    Ok(same) => assert!(same == number && number < at),
                    Err(error) if number == at => assert_eq!(error.kind(), ErrorKind::GuestStopped),
                    Err(error) => assert!(error.kind() == ErrorKind::Unusable && number > at, "{number} {at}: {error}"),
                }
            }
            sandbox.restore(&clean).unwrap();
            assert_eq!(panic_at.call(&mut sandbox, &(1, 2)).unwrap(), 1);
        }
    });
}

#[test]
fn batches_of_a_scripted_guest_work_too() {
    let guest = FakeGuest::new()
        .function("half", |n: u64| if n.is_multiple_of(2) { Ok(n / 2) } else { Err("odd") })
        .function("bytes", |n: u32| Ok::<_, String>(vec![1_u8; n as usize]));
    let mut sandbox = Sandbox::builder(&guest.image()).backend(guest.backend()).build().unwrap();
    let half = sandbox.function::<u64, u64>("half").unwrap();
    for count in [0, 1, 64, 65, 1000] {
        let results = sandbox.call_batch(&half, 0..count);
        assert_eq!(results.len() as u64, count);
        assert!(
            results.iter().zip(0..).all(|(result, n)| result.as_ref().ok() == (n % 2 == 0).then_some(n / 2).as_ref())
        );
    }
    let mut batch = Batch::new();
    assert!(batch.is_empty());
    let bytes = sandbox.function::<u32, Vec<u8>>("bytes").unwrap();
    let tickets = [3, 0, 30_000].map(|count| (count, batch.add(&bytes, &count).unwrap()));
    let mut answers = sandbox.run_batch(&batch);
    assert!(!answers.is_empty());
    for (count, ticket) in tickets {
        assert_eq!(answers.take(ticket).unwrap().len(), count as usize);
    }
}

#[test]
fn what_nobody_waits_for_goes_with_the_next_exit() {
    with_kvm(|| {
        let told = Arc::new(Mutex::new(Vec::new()));
        let (kept, failed) = (Arc::clone(&told), Arc::new(AtomicU64::new(0)));
        let failures = Arc::clone(&failed);
        let mut sandbox = builder()
            .host_fn("count", move |n: u32| {
                kept.lock().unwrap().push(n);
                failures.fetch_add(1, Ordering::Relaxed);
                Err::<(), _>("which nobody hears")
            })
            .build()
            .unwrap();
        sandbox.call::<u32>("tell", 200_u32).unwrap();
        for (numbers, want) in [(0, 1), (1, 1), (10, 1), (63, 1), (64, 2), (200, 4)] {
            told.lock().unwrap().clear();
            let before = sandbox.stats();
            assert_eq!(sandbox.call::<u32>("tell", numbers).unwrap(), numbers);
            let after = sandbox.stats();
            assert_eq!(*told.lock().unwrap(), (0..numbers).collect::<Vec<_>>());
            assert_eq!(after.host_calls - before.host_calls, u64::from(numbers));
            assert_eq!(after.entries - before.entries, want, "{numbers}");
            // Log records too.
            let before = sandbox.stats().entries;
            sandbox.call::<u32>("chatter", numbers).unwrap();
            assert!(sandbox.stats().entries - before <= want, "{numbers}");
        }
    });
}

#[test]
fn a_hundred_thousand_calls_leave_everything_as_it_was() {
    with_kvm(|| {
        let mut sandbox = builder().build().unwrap();
        let even = sandbox.function::<u64, u64>("even").unwrap();
        let round = |sandbox: &mut Sandbox| {
            for result in sandbox.call_batch(&even, 0..1000) {
                drop(result);
            }
            let results = sandbox.call_batch(&even, (0..2000).map(|n| 2 * n + 1));
            assert!(results.iter().all(Result::is_err));
            for n in 0..100_u32 {
                assert_eq!(sandbox.call::<u64>("fetch", (n, &[1_u8; 50][..])).unwrap(), u64::from(n));
                assert_eq!(sandbox.call::<Vec<u8>>("make_bytes", 70_000_u32).unwrap().len(), 70_000);
                let limit = sandbox.call::<u64>("measure", (&vec![0_u8; 0][..], "")).unwrap();
                assert_eq!(limit, 0);
            }
        };
        round(&mut sandbox);
        round(&mut sandbox);
        let (pages, hot) = (sandbox.stats().pages_in_use, sandbox.stats().hot_pages);
        while sandbox.stats().calls < 100_000 {
            round(&mut sandbox);
        }
        assert_eq!(sandbox.stats().pages_in_use, pages);
        assert!(sandbox.stats().hot_pages <= hot + 4, "{} hot pages, {hot} before", sandbox.stats().hot_pages);
    });
}

#[test]
fn queues_go_on_from_where_a_snapshot_was_taken() {
    with_kvm(|| {
        let mut sandbox = builder().build().unwrap();
        let even = sandbox.function::<u64, u64>("even").unwrap();
        let check = |sandbox: &mut Sandbox| {
            for n in 0..70 {
                assert_eq!(even.call(sandbox, &(2 * n)).unwrap(), 2 * n);
                assert_eq!(sandbox.call::<u64>("fetch", (9_u32, &[][..] as &[u8])).unwrap(), 9);
            }
            assert_eq!(sandbox.call_batch(&even, 0..200).into_iter().flatten().count(), 100);
            sandbox.call::<u32>("chatter", 100_u32).unwrap();
        };
        let mut snapshots = Vec::new();
        // At places in both laps of each ring, after records, replies and errors.
        for n in 0..40_u64 {
            snapshots.push(sandbox.snapshot().unwrap());
            sandbox.call::<u32>("chatter", n as u32).unwrap();
            assert!(even.call(&mut sandbox, &(2 * n + 1)).is_err());
            assert!(sandbox.call::<u64>("fetch", (u32::MAX, &[][..] as &[u8])).is_err());
            sandbox.call_batch(&even, 0..n);
        }
        for (at, snapshot) in snapshots.iter().enumerate() {
            sandbox.restore(snapshot).unwrap();
            check(&mut sandbox);
            if at % 8 == 0 {
                check(&mut Sandbox::from_snapshot(snapshot).unwrap());
                let panic_at = sandbox.function::<(u32, u32), u32>("panic_at").unwrap();
                sandbox.call_batch(&panic_at, (0..20).map(|number| (number, at as u32)));
            }
        }
        sandbox.restore(&snapshots[3]).unwrap();
        check(&mut sandbox);
    });
}
