//! Ordinary static Linux programs, whole: Rust with `std`, C with both libraries, AVX2, busybox.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::Duration;

use coracle::{Builder, CpuTemplate, ErrorKind, Image, Input, Output, Sandbox};
use coracle_artifacts::{AVX2, BAD_POINTERS, C_HELLO, CCompiler, STD_PROGRAM};
use coracle_testing::{kvm_or_skip, patiently, skip};

/// What a program printed, and how it ended.
struct Ran {
    code: Result<i32, coracle::Error>,
    output: String,
    error: String,
}

fn run(path: &Path, args: &[&str], input: &[u8], more: impl FnOnce(Builder) -> Builder) -> Ran {
    let image = Image::from_path(path).unwrap();
    let (stdout, output) = Output::capture(1 << 20);
    let (stderr, error) = Output::capture(1 << 20);
    let builder = Sandbox::builder(&image).args(args.to_vec()).stdin(Input::bytes(input)).stdout(stdout).stderr(stderr);
    let code = more(builder.timeout(Duration::from_secs(30))).run().map(|ended| ended.code);
    Ran { code, output: output.text(), error: error.text() }
}

#[track_caller]
fn std_program(args: &[&str], input: &str, want: &str) {
    let ran = run(&STD_PROGRAM.path(), args, input.as_bytes(), |builder| builder);
    assert_eq!((ran.code.unwrap(), ran.output.trim_end()), (0, want), "{args:?}: {}", ran.error);
}

#[test]
fn a_rust_program_finds_what_it_expects() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        std_program(&[], "", "hello");
        std_program(&["args", "one", "", "three words here", "ü"], "", "one||three words here|ü");
        std_program(&["upper"], "some\nlines\n", "SOME\nLINES");
        std_program(&["count"], &"abc".repeat(100_000), "300000 bytes, 3 different");
        std_program(&["time"], "", "true true");
        std_program(&["thread"], "", "true");
        std_program(&["files"], "", "true true true");
        std_program(&["reserve", "9000000000000"], "", "true");
        let half = (32 << 20).to_string();
        let sum = (0..32_u64 << 20).map(|n| n & 0xff).sum::<u64>().to_string();
        std_program(&["grow", &half], "", &sum);
    });
}

#[test]
fn the_environment_is_what_was_given() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        let ran = run(&STD_PROGRAM.path(), &["env"], b"", |builder| builder.env([("B", "2"), ("A", "")]));
        assert_eq!(ran.output.trim_end(), r#"[("A", ""), ("B", "2")]"#);
        for name in ["", "A=B"] {
            let ran = run(&STD_PROGRAM.path(), &["env"], b"", |builder| builder.env([(name, "x")]));
            assert_eq!(ran.code.unwrap_err().kind(), ErrorKind::Config);
        }
    });
}

#[test]
fn exit_codes_and_panics_come_through() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        let path = STD_PROGRAM.path();
        let panicked = run(&path, &["panic"], b"", |builder| builder);
        assert_eq!(panicked.code.unwrap(), 101);
        assert!(panicked.error.contains("as asked"), "{}", panicked.error);
        for code in [0, 7, 255] {
            assert_eq!(run(&path, &["exit", &code.to_string()], b"", |builder| builder).code.unwrap(), code);
        }
    });
}

#[test]
fn a_timeout_ends_a_loop_and_a_sleep() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        for mode in ["loop", "sleep"] {
            let ran = run(&STD_PROGRAM.path(), &[mode], b"", |builder| builder.timeout(Duration::from_millis(100)));
            assert_eq!(ran.code.unwrap_err().kind(), ErrorKind::TimedOut, "{mode}");
        }
    });
}

#[test]
fn a_full_capture_is_a_full_disk() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        let (stdout, output) = Output::capture(10_000);
        let ran = run(&STD_PROGRAM.path(), &["flood"], b"", |builder| builder.stdout(stdout));
        assert_eq!((ran.code.unwrap(), output.take().len()), (0, 10_000));
        assert_eq!(ran.error, "full after Some(2) blocks\n");
    });
}

#[test]
fn c_programs_run() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        for compiler in [CCompiler::GccStatic, CCompiler::GccStaticPie, CCompiler::MuslStaticPie] {
            let path = match C_HELLO.path(compiler) {
                Ok(path) => path,
                Err(why) => {
                    skip(&format!("{compiler:?}: {why}"));
                    continue;
                }
            };
            let ran = run(&path, &["x", "y z"], b"first\nsecond\n", |builder| builder.env([("HOME", "/")]));
            let want = "arg x\narg y z\nenv HOME=/\nline first\nline second\nsum 58720263\ntime now\npid 1\n";
            assert_eq!((ran.code.unwrap(), ran.output.as_str()), (42, want), "{compiler:?}");
        }
    });
}

#[test]
fn avx2_is_there_or_is_said_not_to_be() {
    patiently(|| {
        let Some(kvm) = kvm_or_skip() else { return };
        let report = kvm.report();
        let v3 =
            report.missing.iter().any(|(template, missing)| *template == CpuTemplate::X86_64V3 && missing.is_empty());
        let with = |template| run(&AVX2.path(), &[], b"", |builder| builder.cpu(template)).output;
        let sum: i32 = (0..4096).sum();
        if v3 {
            assert_eq!(with(CpuTemplate::Host), format!("AVX2 {sum}\n"));
            assert_eq!(with(CpuTemplate::X86_64V3), format!("AVX2 {sum}\n"));
        } else {
            skip("the processor has no AVX2");
        }
        if report.hardware {
            assert_eq!(with(CpuTemplate::X86_64V2), "no AVX2\n");
        } else {
            skip("on a PVM host a guest's CPUID is the processor's own: no template hides anything");
        }
    });
}

#[test]
fn busybox_works() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        let path = Path::new("/bin/busybox");
        if Image::from_path(path).is_err() {
            return skip("there is no static /bin/busybox (Debian: apt-get install busybox-static)");
        }
        let data: Vec<u8> = (0..2_u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let ran = run(path, &["sha256sum"], &data, |builder| builder);
        assert_eq!(ran.output, "13be75161a6f158aa8708117a980d7b34489b8c855384bc7689905b58d9a3202  -\n");
        let sorted = run(path, &["sort", "-n"], b"10\n9\n2\n33\n", |builder| builder);
        assert_eq!(sorted.output, "2\n9\n10\n33\n");
        let summed = run(path, &["awk", "{ sum += $1 } END { print sum }"], b"1\n2\n39\n", |builder| builder);
        assert_eq!(summed.output, "42\n");
    });
}

#[test]
fn bad_pointers_are_survived() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        let ran = run(&BAD_POINTERS.path(), &[], b"some input", |builder| builder);
        assert_eq!(ran.code.unwrap(), 0, "{}", ran.error);
        let made: u64 = ran.output.trim_end().strip_prefix("survived ").unwrap().parse().unwrap();
        assert!(made > 10_000, "{made}");
    });
}

#[test]
fn every_memory_size_works_or_is_refused() {
    patiently(|| {
        if kvm_or_skip().is_none() {
            return;
        }
        let path = STD_PROGRAM.path();
        for pages in (256..420).step_by(3).chain([1 << 10, (1 << 14) + 1, 1 << 18, 1 << 22]) {
            let ran = run(&path, &[], b"", |builder| builder.memory_bytes(pages * 4096 + 1));
            match ran.code {
                Ok(code) => assert_eq!((code, ran.output.as_str()), (0, "hello\n"), "{pages} pages"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Limit, "{pages} pages: {error}"),
            }
            assert!(pages < 1 << 10 || ran.output == "hello\n", "{pages} pages should be enough");
        }
    });
}
