//! Builds the guests that tests, examples and benchmarks run: one constant each.
//!
//! A guest is built when it is first asked for, by the same `cargo build` that its author would use. Cargo sees to it that
//! nothing is built twice, and locks its directory, so that any number of test processes may ask at once.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The target that guests are built for.
const MUSL: &str = "x86_64-unknown-linux-musl";
/// The one that every toolchain for this host has, as a stand-in.
const GNU: &str = "x86_64-unknown-linux-gnu";

/// A guest written in Rust, in `testing/guests` or `examples`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RustGuest {
    package: &'static str,
    binary: &'static str,
    profile: &'static str,
}

/// A Rust guest whose binary is named as its package.
const fn rust(package: &'static str) -> RustGuest {
    RustGuest { package, binary: package, profile: "release" }
}

/// The guest of `examples/hello.rs`.
pub const HELLO: RustGuest = rust("hello-guest");
/// Functions of all kinds, with `std`.
pub const ECHO: RustGuest = rust("echo");
/// The same, fewer, without `std`.
pub const ECHO_NOSTD: RustGuest = rust("echo-nostd");
/// Keeps numbers, maps memory and fills registers, to be restored.
pub const KEEPER: RustGuest = rust("keeper");
/// Reads and writes what the host lends it.
pub const BORROWER: RustGuest = rust("borrower");
/// Makes, measures and passes on bytes of any number.
pub const CARRIER: RustGuest = rust("carrier");
/// Spreads a nonce over all that a guest has, searches all that it can read for one, draws random numbers.
pub const HYGIENE: RustGuest = rust("hygiene");
/// An ordinary program that uses all of `std`.
pub const STD_PROGRAM: RustGuest = RustGuest { package: "std-program", binary: "std-program", profile: "unwind" };
/// An ordinary program with AVX2 code.
pub const AVX2: RustGuest = rust("avx2");
/// An ordinary program that makes every system call with bad pointers.
pub const BAD_POINTERS: RustGuest = rust("bad-pointers");

/// A way to crash: a guest with one function, `go`.
const fn crash(binary: &'static str) -> RustGuest {
    RustGuest { package: "crashes", binary, profile: "release" }
}

/// Reads through a null pointer.
pub const NULL_POINTER: RustGuest = crash("null-pointer");
/// Recurses without end.
pub const STACK_OVERFLOW: RustGuest = crash("stack-overflow");
/// Writes to a constant.
pub const WRITE_TO_READ_ONLY: RustGuest = crash("write-to-read-only");
/// Writes to its own code.
pub const WRITE_TO_CODE: RustGuest = crash("write-to-code");
/// Jumps into a variable.
pub const EXECUTE_DATA: RustGuest = crash("execute-data");
/// Reads where nothing is mapped.
pub const UNMAPPED_MEMORY: RustGuest = crash("unmapped-memory");
/// Divides by zero.
pub const DIVISION_BY_ZERO: RustGuest = crash("division-by-zero");
/// Executes what is no instruction.
pub const ILLEGAL_INSTRUCTION: RustGuest = crash("illegal-instruction");
/// Executes an operating system's instruction.
pub const PRIVILEGED_INSTRUCTION: RustGuest = crash("privileged-instruction");
/// Writes to a foreign I/O port.
pub const FORBIDDEN_PORT: RustGuest = crash("forbidden-port");
/// Wants more memory than it may have.
pub const OUT_OF_MEMORY: RustGuest = crash("out-of-memory");
/// Aborts.
pub const ABORT: RustGuest = crash("abort");
/// Exits when an answer is due.
pub const EXIT_WITHOUT_ANSWER: RustGuest = crash("exit-without-answer");
/// Panics.
pub const PANIC: RustGuest = crash("panic");
/// Never answers.
pub const ENDLESS_LOOP: RustGuest = crash("endless-loop");

impl RustGuest {
    /// Builds it, if this process has not done so yet: its whole package at once.
    ///
    /// # Panics
    /// When it does not build; cargo's own words are on standard error.
    pub fn path(self) -> PathBuf {
        static BUILT: Mutex<Vec<(&str, &str)>> = Mutex::new(Vec::new());
        let toolchain = Toolchain::get();
        let target_directory = root().join("target/guests");
        let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
        if !built.contains(&(self.package, self.profile)) {
            let _building = Building::start();
            self.build(toolchain, &target_directory);
            built.push((self.package, self.profile));
        }
        target_directory.join(toolchain.target).join(self.profile).join(self.binary)
    }

    fn build(self, toolchain: &Toolchain, target_directory: &Path) {
        let mut cargo = Command::new(env!("CARGO"));
        cargo
            .args(["build", "--quiet", "--locked", "--profile", self.profile, "--package", self.package, "--bins"])
            .args(["--target", toolchain.target, "--manifest-path"])
            .arg(root().join("testing/guests/Cargo.toml"))
            .arg("--target-dir")
            .arg(target_directory);
        // What the outer cargo was told is not meant for guests.
        for variable in
            ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_TARGET_DIR", "CARGO_BUILD_TARGET", "RUSTC_WRAPPER"]
        {
            cargo.env_remove(variable);
        }
        if let Some(flags) = toolchain.rustflags {
            cargo.env("RUSTFLAGS", flags);
        }
        run(&mut cargo);
    }
}

/// Builds that are under way, for watchdogs: a build is no hang.
static BUILDS: AtomicUsize = AtomicUsize::new(0);

/// Whether a guest is being built now, by this process.
pub fn is_building() -> bool {
    BUILDS.load(Ordering::Relaxed) != 0
}

struct Building;

impl Building {
    fn start() -> Self {
        BUILDS.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for Building {
    fn drop(&mut self) {
        BUILDS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A guest written in C, in `testing/artifacts/c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CGuest {
    source: &'static str,
}

/// Prints its arguments, its environment and its input.
pub const C_HELLO: CGuest = CGuest { source: "hello" };

/// A way to build a static program in C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CCompiler {
    /// `gcc -static`: glibc at a fixed address.
    GccStatic,
    /// `gcc -static-pie`: glibc, position-independent.
    GccStaticPie,
    /// `musl-gcc -static-pie`: musl, position-independent.
    MuslStaticPie,
}

impl CGuest {
    /// Builds it, or says why it cannot be built here: a compiler that is not installed.
    ///
    /// # Errors
    /// What to install.
    ///
    /// # Panics
    /// When the compiler is there and refuses.
    pub fn path(self, compiler: CCompiler) -> Result<PathBuf, String> {
        let directory = root().join("target/guests/c");
        let made = std::fs::create_dir_all(&directory);
        assert!(made.is_ok(), "cannot make {}: {made:?}", directory.display());
        let source = root().join("testing/artifacts/c").join(self.source).with_extension("c");
        let output = directory.join(format!("{}-{compiler:?}-{}", self.source, std::process::id()));
        let (program, package) = match compiler {
            CCompiler::GccStatic | CCompiler::GccStaticPie => ("gcc", "gcc"),
            CCompiler::MuslStaticPie => ("musl-gcc", "musl-tools"),
        };
        if Command::new(program).arg("--version").output().is_err() {
            return Err(format!("{program} is not installed (Debian: apt-get install {package})"));
        }
        let mut command = Command::new(program);
        command.arg("-O2").arg("-o").arg(&output);
        match compiler {
            CCompiler::GccStatic => command.arg("-static").arg(&source),
            CCompiler::GccStaticPie => command.arg("-static-pie").arg(&source),
            CCompiler::MuslStaticPie => {
                // Debian's wrapper does not pass -static-pie on to the linker, nor choose the start file for it.
                let start = "/usr/lib/x86_64-linux-musl/rcrt1.o";
                command
                    .args([
                        "-static-pie",
                        "-fPIE",
                        "-nostartfiles",
                        "-Wl,-static,-pie,--no-dynamic-linker,-z,text",
                        start,
                    ])
                    .arg(&source)
            }
        };
        let _building = Building::start();
        run(&mut command);
        Ok(output)
    }
}

/// What guests are built with.
struct Toolchain {
    target: &'static str,
    rustflags: Option<&'static str>,
}

impl Toolchain {
    fn get() -> &'static Self {
        static TOOLCHAIN: OnceLock<Toolchain> = OnceLock::new();
        TOOLCHAIN.get_or_init(|| {
            // To try what happens where the guest target cannot be had.
            if std::env::var_os("CORACLE_GUESTS_WITHOUT_MUSL").is_some_and(|value| value == "1") {
                return Self::stand_in();
            }
            if has_target() {
                return Self { target: MUSL, rustflags: None };
            }
            say(&format!("adding the guest target: rustup target add {MUSL}"));
            let added = Command::new("rustup").args(["target", "add", MUSL]).current_dir(root()).status();
            if added.is_ok_and(|status| status.success()) && has_target() {
                return Self { target: MUSL, rustflags: None };
            }
            Self::stand_in()
        })
    }

    fn stand_in() -> Self {
        say(&format!("building them for {GNU} with a static C library instead of {MUSL}; they start more slowly"));
        Self { target: GNU, rustflags: Some("-C target-feature=+crt-static") }
    }
}

/// Whether the standard library for the guest target is there.
fn has_target() -> bool {
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    let output = rustc.args(["--print", "target-libdir", "--target", MUSL]).current_dir(root()).output();
    output.is_ok_and(|output| {
        let directory = String::from_utf8_lossy(&output.stdout);
        Path::new(directory.trim()).read_dir().is_ok_and(|mut entries| entries.next().is_some())
    })
}

fn run(command: &mut Command) {
    let program = command.get_program().to_owned();
    let arguments: Vec<_> = command.get_args().map(OsStr::to_owned).collect();
    match command.status() {
        Ok(status) => assert!(status.success(), "{program:?} {arguments:?}: {status}"),
        Err(error) => panic!("cannot start {program:?}: {error}"),
    }
}

fn say(text: &str) {
    use std::io::Write as _;
    // Not by a macro: a test's harness would keep the text to itself.
    let _ = writeln!(std::io::stderr(), "guests: {text}");
}

/// The top of the repository.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}
