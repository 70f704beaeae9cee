//! Registries as callers see them: settings, push and pull.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use coracle_snapshot::{Descriptor, Digest, Store};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls_platform_verifier::Verifier;

use crate::download::Download;
use crate::error::shown;
use crate::reference::check_tag;
use crate::session::{Access, Session};
use crate::{Credentials, Error, ErrorKind, RegistryReference};

/// Most bytes of a snapshot that is pulled, unless the caller says otherwise.
const PULL_MAX: u64 = 64 << 30;

/// How long a registry may be silent, unless the caller says otherwise.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How registries are talked to. One serves any number of registries and threads.
///
/// Its functions block. They may be called anywhere, also inside an async runtime, whose thread they block then.
#[derive(Clone)]
pub struct Registry {
    pub(crate) tls: rustls::ClientConfig,
    pub(crate) credentials: Credentials,
    pub(crate) plain_http: bool,
    pub(crate) timeout: Duration,
    pull_max: u64,
}

/// Describes a [`Registry`]; from [`Registry::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    credentials: Credentials,
    plain_http: bool,
    timeout: Duration,
    pull_max: u64,
    roots: Vec<Vec<u8>>,
}

/// How far a push or a pull is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// The blob that this is about.
    pub blob: Digest,
    /// Whether it was on the other side already.
    pub skipped: bool,
    /// Bytes of the blob that are done.
    pub blob_bytes: u64,
    /// All bytes of the blob.
    pub blob_total: u64,
    /// Bytes of the snapshot's blobs that are done, those that were skipped included.
    pub bytes: u64,
    /// All bytes of the snapshot's blobs.
    pub total: u64,
}

/// What a push did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pushed {
    /// Of the manifest: the same as in the store.
    pub digest: Digest,
    /// Bytes of blobs that were sent, and of the manifest.
    pub bytes_moved: u64,
    /// Blobs that were sent.
    pub blobs_moved: usize,
    /// Blobs that the registry had.
    pub blobs_skipped: usize,
}

/// What a pull did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pulled {
    /// Of the manifest: the same as in the registry.
    pub digest: Digest,
    /// Bytes of blobs that came, and of the manifest.
    pub bytes_moved: u64,
    /// Blobs that came.
    pub blobs_moved: usize,
    /// Blobs that the store had.
    pub blobs_skipped: usize,
}

impl Builder {
    /// Where logins come from. Nobody logs in unless this is called.
    pub fn credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = credentials;
        self
    }

    /// Talks HTTP without TLS: for a registry on this machine, or on a network that is trusted with the login and the bytes.
    pub fn plain_http(mut self, plain_http: bool) -> Self {
        self.plain_http = plain_http;
        self
    }

    /// How long the registry may be silent: 30 seconds unless this is called. A blob may take that long and a second for each
    /// KiB, a small answer that long altogether.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Most bytes of a snapshot that is pulled: 64 GiB unless this is called.
    pub fn pull_bytes_max(mut self, bytes: u64) -> Self {
        self.pull_max = bytes;
        self
    }

    /// Trusts registries with a certificate from these authorities too: certificates as PEM.
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.roots.push(pem.into());
        self
    }

    /// Makes it. Talks to nobody.
    ///
    /// # Errors
    /// [`ErrorKind::Input`] when a certificate is none, or when the system trusts no authority at all.
    pub fn build(self) -> Result<Registry, Error> {
        let Self { credentials, plain_http, timeout, pull_max, roots } = self;
        let mut extra = Vec::new();
        for pem in &roots {
            let before = extra.len();
            for certificate in CertificateDer::pem_slice_iter(pem) {
                extra.push(certificate.map_err(|error| bad_certificate().with(error))?);
            }
            if extra.len() == before {
                return Err(bad_certificate());
            }
        }
        Ok(Registry { tls: tls(extra, plain_http)?, credentials, plain_http, timeout, pull_max })
    }
}

fn bad_certificate() -> Error {
    Error::new(
        ErrorKind::Input,
        "a root certificate is not one, in PEM: give a file that has -----BEGIN CERTIFICATE-----",
    )
}

/// TLS, trusting whom the system trusts and these.
fn tls(extra: Vec<CertificateDer<'static>>, plain_http: bool) -> Result<rustls::ClientConfig, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let failed = |error: rustls::Error| Error::new(ErrorKind::Input, "cannot set up TLS").with(error);
    let config = rustls::ClientConfig::builder_with_provider(provider.clone());
    let config = config.with_safe_default_protocol_versions().map_err(failed)?;
    let config = match Verifier::new_with_extra_roots(extra, provider) {
        Ok(verifier) => config.dangerous().with_custom_certificate_verifier(Arc::new(verifier)),
        // A small system without certificates: without TLS it needs none, and with TLS it trusts nobody.
        Err(_) if plain_http => config.with_root_certificates(rustls::RootCertStore::empty()),
        Err(error) => {
            let sentence = "the system trusts no certificate authority: install ca-certificates, or give certificates";
            return Err(Error::new(ErrorKind::Input, sentence).with(error));
        }
    };
    Ok(config.with_no_client_auth())
}

impl Registry {
    /// With TLS, without a login.
    pub fn builder() -> Builder {
        Builder {
            credentials: Credentials::Anonymous,
            plain_http: false,
            timeout: TIMEOUT,
            pull_max: PULL_MAX,
            roots: Vec::new(),
        }
    }

    /// Sends the snapshot with this tag or digest in the store to a registry. Blobs that the registry has are not sent. The
    /// manifest comes last, so that the registry has the snapshot whole or not at all.
    ///
    /// # Errors
    /// [`ErrorKind::Store`] when the store does not have it whole, [`ErrorKind::Input`] when `to` has another digest; and
    /// what the registry makes of it. Blobs that were sent by then stay there, and are not sent again.
    pub fn push(
        &self,
        store: &Store,
        reference: &str,
        to: &RegistryReference,
        mut progress: impl FnMut(Progress) + Send,
    ) -> Result<Pushed, Error> {
        on_a_thread(|| self.push_here(store, reference, to, &mut progress))
    }

    /// Fetches a snapshot into the store, and gives it a tag there. Blobs that the store has are not fetched.
    ///
    /// # Errors
    /// What the registry did wrong, or [`ErrorKind::Store`]. No tag of the store has changed then. Blobs that came whole are
    /// kept for the next try, until the store is pruned.
    pub fn pull(
        &self,
        store: &Store,
        from: &RegistryReference,
        tag: &str,
        mut progress: impl FnMut(Progress) + Send,
    ) -> Result<Pulled, Error> {
        on_a_thread(|| self.pull_here(store, from, tag, &mut progress))
    }

    fn push_here(
        &self,
        store: &Store,
        reference: &str,
        to: &RegistryReference,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Pushed, Error> {
        let in_store = |error| Error::store("cannot read the snapshot from the store", error);
        // Nobody prunes what is being sent.
        let _kept = store.import().map_err(in_store)?;
        let (digest, manifest_bytes, manifest) = store.manifest(reference).map_err(in_store)?;
        if to.digest().is_some_and(|there| *there != digest) {
            let sentence = format!("the store's snapshot has the digest {digest}, and cannot be pushed as {to}");
            return Err(Error::new(ErrorKind::Input, sentence));
        }
        let mut session = Session::begin(self, to, Access::Push)?;
        let mut meter = Meter::new(manifest.layers().iter().chain([manifest.config()]), progress);
        for blob in manifest.layers().iter().chain([manifest.config()]) {
            if session.has_blob(blob)? {
                meter.skip(blob);
                continue;
            }
            meter.begin(blob);
            session.upload(blob, &|| store.open_blob(blob).map_err(in_store), &mut |bytes| meter.moved(bytes))?;
            meter.end(blob);
        }
        let bytes_moved = meter.bytes_moved + manifest_bytes.len() as u64;
        let (blobs_moved, blobs_skipped) = (meter.blobs_moved, meter.blobs_skipped);
        session.put_manifest(manifest_bytes, &digest)?;
        Ok(Pushed { digest, bytes_moved, blobs_moved, blobs_skipped })
    }

    fn pull_here(
        &self,
        store: &Store,
        from: &RegistryReference,
        tag: &str,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Pulled, Error> {
        let in_store = |error| Error::store("cannot write the snapshot to the store", error);
        // Before anything is fetched for it.
        check_tag(tag).map_err(|why| {
            Error::new(ErrorKind::Input, format!("\"{}\" cannot be a tag of a store: {why}", shown(tag)))
        })?;
        let import = store.import().map_err(in_store)?;
        let mut session = Session::begin(self, from, Access::Pull)?;
        let manifest_bytes = session.manifest()?;
        let manifest = import.manifest(&manifest_bytes).map_err(|error| {
            Error::new(ErrorKind::Answer, format!("{from} is no snapshot of Coracle's")).with(error)
        })?;
        let mut meter = Meter::new([manifest.config()].into_iter().chain(manifest.layers()), progress);
        if meter.total > self.pull_max {
            let sentence = format!(
                "{from} has {} bytes, and at most {} are allowed: allow more if that is right",
                meter.total, self.pull_max
            );
            return Err(Error::new(ErrorKind::TooLarge, sentence));
        }
        for blob in [manifest.config()].into_iter().chain(manifest.layers()) {
            if import.has(blob) {
                meter.skip(blob);
                continue;
            }
            meter.begin(blob);
            let response = session.blob(blob)?;
            let mut report = |bytes| meter.moved(bytes);
            let mut download = Download::new(&session, response, blob, &mut report);
            let added = import.add(blob, &mut download);
            // What happened on the way is what matters: the store only saw its reader fail.
            if let Some(failure) = download.failure() {
                return Err(failure);
            }
            added.map_err(|error| match error {
                coracle_snapshot::Error::Damaged { .. } => {
                    let sentence = format!("the registry sent other bytes than those of {}", blob.digest);
                    Error::new(ErrorKind::Answer, sentence).with(error)
                }
                error => in_store(error),
            })?;
            meter.end(blob);
        }
        let bytes_moved = meter.bytes_moved + manifest_bytes.len() as u64;
        let (blobs_moved, blobs_skipped) = (meter.blobs_moved, meter.blobs_skipped);
        let digest = import.finish(tag, &manifest_bytes).map_err(in_store)?;
        Ok(Pulled { digest, bytes_moved, blobs_moved, blobs_skipped })
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { credentials, plain_http, timeout, pull_max, .. } = self;
        f.debug_struct("Registry")
            .field("credentials", credentials)
            .field("plain_http", plain_http)
            .field("timeout", timeout)
            .field("pull_bytes_max", pull_max)
            .finish_non_exhaustive()
    }
}

/// Inside an async runtime no other may be waited for. On a thread of its own nobody knows where the caller is.
fn on_a_thread<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("coracle-registry".into()).spawn_scoped(scope, work);
        let thread = thread.map_err(|error| Error::new(ErrorKind::Network, "cannot start a thread").with(error))?;
        match thread.join() {
            Ok(result) => result,
            // The caller's own progress function.
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Counts, and tells the caller.
struct Meter<'a> {
    tell: &'a mut dyn FnMut(Progress),
    total: u64,
    /// Of blobs that are done.
    before: u64,
    blob: Option<(Digest, u64)>,
    bytes_moved: u64,
    blobs_moved: usize,
    blobs_skipped: usize,
}

impl<'a> Meter<'a> {
    fn new<'b>(blobs: impl Iterator<Item = &'b Descriptor>, tell: &'a mut dyn FnMut(Progress)) -> Self {
        let total = blobs.fold(0, |sum: u64, blob| sum.saturating_add(blob.size));
        Self { tell, total, before: 0, blob: None, bytes_moved: 0, blobs_moved: 0, blobs_skipped: 0 }
    }

    fn tell(&mut self, blob: Digest, blob_total: u64, blob_bytes: u64, skipped: bool) {
        let bytes = self.before.saturating_add(blob_bytes).min(self.total);
        (self.tell)(Progress { blob, skipped, blob_bytes, blob_total, bytes, total: self.total });
    }

    fn skip(&mut self, blob: &Descriptor) {
        self.tell(blob.digest, blob.size, blob.size, true);
        self.before = self.before.saturating_add(blob.size);
        self.blobs_skipped += 1;
    }

    fn begin(&mut self, blob: &Descriptor) {
        self.blob = Some((blob.digest, blob.size));
        self.tell(blob.digest, blob.size, 0, false);
    }

    /// So many bytes of the blob are done.
    fn moved(&mut self, bytes: u64) {
        if let Some((digest, total)) = self.blob {
            self.tell(digest, total, bytes.min(total), false);
        }
    }

    fn end(&mut self, blob: &Descriptor) {
        self.tell(blob.digest, blob.size, blob.size, false);
        self.blob = None;
        self.before = self.before.saturating_add(blob.size);
        self.bytes_moved = self.bytes_moved.saturating_add(blob.size);
        self.blobs_moved += 1;
    }
}
