//! Debian's `docker-registry`, for as long as a test takes.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use coracle_testing::skip;
use tempfile::TempDir;

use super::{directory, files};

const STARTING: Duration = Duration::from_secs(20);

/// What a registry wants.
#[derive(Clone, Copy, Default)]
pub(crate) struct Wants<'a> {
    /// Lines of an htpasswd file.
    pub(crate) passwords: Option<&'a str>,
    /// Clients that speak TLS, and trust the tests' own authority.
    pub(crate) tls: bool,
}

pub(crate) struct DockerRegistry {
    child: Child,
    directory: TempDir,
    pub(crate) address: SocketAddr,
}

impl DockerRegistry {
    /// One that is up, or `None` after having said why not.
    pub(crate) fn start_or_skip(wants: Wants<'_>) -> Option<Self> {
        for program in ["docker-registry", "setpriv"] {
            let there = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
            if there.is_err() {
                skip(&format!("{program} is not installed"));
                return None;
            }
        }
        // Somebody else may take the port between our finding it and the registry's using it.
        let mut said = String::new();
        for _ in 0..5 {
            match Self::start(wants) {
                Ok(registry) => return Some(registry),
                Err(why) => said = why,
            }
        }
        panic!("docker-registry is installed and does not start: {said}");
    }

    /// Or what it says of why it does not start.
    fn start(wants: Wants<'_>) -> Result<Self, String> {
        let directory = directory();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let path = |name: &str| directory.path().join(name);
        let mut config = format!(
            "version: 0.1\nlog:\n  level: error\n  accesslog:\n    disabled: true\nstorage:\n  filesystem:\n    \
             rootdirectory: {}\nhttp:\n  addr: {address}\n",
            path("storage").display()
        );
        if wants.tls {
            // Made with openssl, for 127.0.0.1 and until 2126. The authority's own key was thrown away.
            let tls = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls");
            let (certificate, key) = (tls.join("server.pem"), tls.join("server.key"));
            config += &format!("  tls:\n    certificate: {}\n    key: {}\n", certificate.display(), key.display());
        }
        if let Some(passwords) = wants.passwords {
            fs::write(path("passwords"), passwords).unwrap();
            config += &format!("auth:\n  htpasswd:\n    realm: test\n    path: {}\n", path("passwords").display());
        }
        fs::write(path("config.yml"), config).unwrap();
        // It goes with this thread, whatever becomes of the test.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "docker-registry", "serve"])
            .arg(path("config.yml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(path("errors")).unwrap())
            .spawn()
            .unwrap();
        let mut registry = Self { child, directory, address };
        let start = Instant::now();
        while start.elapsed() < STARTING {
            if registry.child.try_wait().unwrap().is_some() {
                break;
            }
            if TcpStream::connect(address).is_ok() {
                return Ok(registry);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(fs::read_to_string(registry.directory.path().join("errors")).unwrap())
    }

    /// Bytes of all blobs that it stores.
    pub(crate) fn stored_bytes(&self) -> u64 {
        let blobs: PathBuf = self.directory.path().join("storage/docker/registry/v2/blobs");
        if !blobs.exists() {
            return 0;
        }
        files(&blobs).iter().map(|file| file.symlink_metadata().unwrap().len()).sum()
    }
}

impl Drop for DockerRegistry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
