//! Talking to one repository of a registry. Here is all that is sent and received, with its limits.

use std::fs::File;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use coracle_snapshot::{Descriptor, Digest};
use reqwest::header::{
    ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION, WWW_AUTHENTICATE,
};
use reqwest::redirect::Policy;
use reqwest::{Body, Client, Method, RequestBuilder, Response, StatusCode, Url};
use serde::Deserialize;
use tokio::runtime::Runtime;

use crate::challenge::{self, Challenge};
use crate::credentials::Login;
use crate::error::shown;
use crate::upload::Upload;
use crate::{Error, ErrorKind, Registry, RegistryReference};

const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
/// Most bytes of a manifest: no snapshot has more.
const MANIFEST_MAX: usize = 1 << 16;
/// Most bytes of what is read of a token, and of an error.
const TOKEN_MAX: usize = 1 << 16;
const MESSAGE_MAX: usize = 1 << 13;

const REDIRECTS_MAX: usize = 5;

/// A blob that moves slower than this is given up, although something comes now and then.
const SLOWEST_BYTES_PER_SECOND: u64 = 1 << 10;

/// How often somebody who watches an upload is told.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// What the login must allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Pull,
    Push,
}

pub(crate) struct Session<'r> {
    registry: &'r Registry,
    reference: &'r RegistryReference,
    access: Access,
    /// Taken when it ends.
    runtime: Option<Runtime>,
    http: Client,
    /// `https://host/v2/`
    base: Url,
    login: Option<Login>,
    /// Sent to the registry, and to nobody else.
    authorization: Option<HeaderValue>,
}

impl<'r> Session<'r> {
    pub(crate) fn begin(
        registry: &'r Registry,
        reference: &'r RegistryReference,
        access: Access,
    ) -> Result<Self, Error> {
        let scheme = if registry.plain_http { "http" } else { "https" };
        let bad = |what: &str| Error::new(ErrorKind::Input, format!("{}: {what}", reference.registry()));
        let base = Url::parse(&format!("{scheme}://{}/v2/", reference.host()));
        let base = base.map_err(|error| bad("is no address of a registry").with(error))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| bad("cannot set up networking").with(error))?;
        let http = Client::builder()
            .tls_backend_preconfigured(registry.tls.clone())
            .connect_timeout(registry.timeout)
            .redirect(redirects())
            .user_agent(concat!("coracle/", env!("CARGO_PKG_VERSION")));
        // As everybody does: a proxy does not know this machine's own address.
        let http = if is_loopback(&base) { http.no_proxy() } else { http };
        let http = http.build().map_err(|error| bad("cannot set up HTTP").with(error))?;
        Ok(Self { registry, reference, access, runtime: Some(runtime), http, base, login: None, authorization: None })
    }

    /// The manifest's bytes. If the reference has a digest, they have it.
    pub(crate) fn manifest(&mut self) -> Result<Vec<u8>, Error> {
        let what = format!("fetch the manifest of {}", self.reference);
        let name = match self.reference.digest() {
            Some(digest) => digest.to_string(),
            None => self.reference.tag().unwrap_or_default().to_owned(),
        };
        let url = self.url(&format!("manifests/{name}"))?;
        let response = self.send(Method::GET, &url, &what, &|request| Ok(request.header(ACCEPT, MANIFEST_TYPE)))?;
        let response = self.expect(response, &[StatusCode::OK], &what)?;
        let media_type =
            response.headers().get(CONTENT_TYPE).map_or("", |value| value.to_str().unwrap_or("unreadable"));
        let media_type = media_type.split(';').next().unwrap_or_default().trim();
        if !media_type.eq_ignore_ascii_case(MANIFEST_TYPE) {
            let media_type = shown(media_type);
            let sentence = format!("{} is no snapshot: its content type is \"{media_type}\"", self.reference);
            return Err(Error::new(ErrorKind::Answer, sentence));
        }
        let said = digest_header(response.headers());
        let bytes = self.read_all(response, MANIFEST_MAX, &what)?;
        let digest = Digest::of(&bytes);
        if self.reference.digest().or(said.as_ref()).is_some_and(|wanted| *wanted != digest) {
            let sentence = format!("the manifest of {} came with another digest, {digest}", self.reference);
            return Err(Error::new(ErrorKind::Answer, sentence));
        }
        Ok(bytes)
    }

    /// The response whose body is the blob.
    pub(crate) fn blob(&mut self, blob: &Descriptor) -> Result<Response, Error> {
        let what = format!("fetch {}", blob.digest);
        let url = self.url(&format!("blobs/{}", blob.digest))?;
        let response = self.send(Method::GET, &url, &what, &Ok)?;
        let response = self.expect(response, &[StatusCode::OK], &what)?;
        match response.content_length() {
            Some(length) if length != blob.size => {
                let Descriptor { digest, size, .. } = blob;
                let sentence = format!("the registry has {length} bytes of {digest}, whose manifest says {size}");
                Err(Error::new(ErrorKind::Answer, sentence))
            }
            _ => Ok(response),
        }
    }

    /// Whether the registry has the blob.
    pub(crate) fn has_blob(&mut self, blob: &Descriptor) -> Result<bool, Error> {
        let what = format!("ask for {}", blob.digest);
        let url = self.url(&format!("blobs/{}", blob.digest))?;
        let response = self.send(Method::HEAD, &url, &what, &Ok)?;
        if response.status() == StatusCode::NOT_FOUND {
            return Ok(false);
        }
        let response = self.expect(response, &[StatusCode::OK], &what)?;
        let length = response.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        // One that is cut short is sent again.
        Ok(length.is_none_or(|length: u64| length == blob.size))
    }

    /// Sends a blob. `open` is called again when it must be sent again.
    pub(crate) fn upload(
        &mut self,
        blob: &Descriptor,
        open: &dyn Fn() -> Result<File, Error>,
        report: &mut dyn FnMut(u64),
    ) -> Result<(), Error> {
        let what = format!("send {}", blob.digest);
        let url = self.url("blobs/uploads/")?;
        let response = self.send(Method::POST, &url, &what, &|request| Ok(request.header(CONTENT_LENGTH, 0)))?;
        let response = self.expect(response, &[StatusCode::ACCEPTED], &what)?;
        let mut url = self.location(&response)?;
        url.query_pairs_mut().append_pair("digest", &blob.digest.to_string());

        let moved = Arc::new(AtomicU64::new(0));
        let prepare = |request: RequestBuilder| {
            let body = Upload::new(open()?, blob.size, moved.clone());
            Ok(request.header(CONTENT_TYPE, "application/octet-stream").body(Body::wrap(body)))
        };
        let response = self.send_watched(Method::PUT, &url, &what, &prepare, Some((&moved, blob.size, report)))?;
        self.expect(response, &[StatusCode::CREATED], &what).map(drop)
    }

    /// Sends the manifest, as it is.
    pub(crate) fn put_manifest(&mut self, bytes: Vec<u8>, digest: &Digest) -> Result<(), Error> {
        let what = format!("send the manifest of {}", self.reference);
        let name = self.reference.tag().map_or_else(|| digest.to_string(), str::to_owned);
        let url = self.url(&format!("manifests/{name}"))?;
        let prepare = |request: RequestBuilder| Ok(request.header(CONTENT_TYPE, MANIFEST_TYPE).body(bytes.clone()));
        let response = self.send(Method::PUT, &url, &what, &prepare)?;
        let response = self.expect(response, &[StatusCode::CREATED], &what)?;
        match digest_header(response.headers()) {
            Some(there) if there != *digest => {
                let sentence = format!("the registry changed the manifest: it has the digest {there}, not {digest}");
                Err(Error::new(ErrorKind::Answer, sentence))
            }
            _ => Ok(()),
        }
    }

    fn url(&self, path: &str) -> Result<Url, Error> {
        let path = format!("{}/{path}", self.reference.repository());
        self.base.join(&path).map_err(|error| Error::new(ErrorKind::Input, "the name makes no URL").with(error))
    }

    /// Where the registry wants an upload. On another host it gets no login.
    fn location(&self, response: &Response) -> Result<Url, Error> {
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let url = location.and_then(|location| response.url().join(location).ok());
        let url = url.filter(|url| is_allowed(self.base.scheme(), url));
        url.ok_or_else(|| {
            Error::new(ErrorKind::Answer, "the registry does not say where to send a blob, or not safely")
        })
    }

    fn send(
        &mut self,
        method: Method,
        url: &Url,
        what: &str,
        prepare: &dyn Fn(RequestBuilder) -> Result<RequestBuilder, Error>,
    ) -> Result<Response, Error> {
        self.send_watched(method, url, what, prepare, None)
    }

    /// Sends a request, a second time if the registry asks for a login, or for a new token.
    fn send_watched(
        &mut self,
        method: Method,
        url: &Url,
        what: &str,
        prepare: &dyn Fn(RequestBuilder) -> Result<RequestBuilder, Error>,
        mut watch: Option<Watch<'_>>,
    ) -> Result<Response, Error> {
        let mut is_second = false;
        loop {
            let mut request = prepare(self.http.request(method.clone(), url.clone()))?;
            if let Some(authorization) = self.authorization.as_ref().filter(|_| self.is_ours(url)) {
                request = request.header(AUTHORIZATION, authorization.clone());
            }
            let response = match &mut watch {
                Some(watch) => self.wait_moving(request.send(), watch, what)?,
                None => self.wait(request.send(), self.deadline(0), what)?,
            };
            if response.status() != StatusCode::UNAUTHORIZED || is_second || !self.is_ours(response.url()) {
                return Ok(response);
            }
            self.log_in(response.headers(), what)?;
            is_second = true;
        }
    }

    fn is_ours(&self, url: &Url) -> bool {
        url.origin() == self.base.origin()
    }

    /// Does what the registry wants for a login.
    fn log_in(&mut self, headers: &HeaderMap, what: &str) -> Result<(), Error> {
        let host = self.reference.registry();
        let login = match self.login.take() {
            Some(login) => login,
            None => self.registry.credentials.find(host)?,
        };
        let headers = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
        let mut authorization = match (challenge::parse(headers), &login) {
            (Some(Challenge::Basic), Login::Password { user, password }) => {
                basic(user, password).ok_or_else(|| bad_login(host))?
            }
            (Some(Challenge::Bearer { realm, service }), login) => {
                let token = self.token(&realm, service.as_deref(), login)?;
                let header = HeaderValue::from_str(&format!("Bearer {token}"));
                header.map_err(|_| Error::new(ErrorKind::Answer, format!("{host} gave out a token that is none")))?
            }
            (challenge, _) => {
                let wants = match challenge {
                    Some(_) => "it wants user and password",
                    None => "it wants no login that is known here",
                };
                return Err(Error::new(ErrorKind::Login, format!("{host} does not let us {what}: {wants}")));
            }
        };
        authorization.set_sensitive(true);
        self.authorization = Some(authorization);
        self.login = Some(login);
        Ok(())
    }

    /// Fetches a token from where the registry says.
    fn token(&self, realm: &str, service: Option<&str>, login: &Login) -> Result<String, Error> {
        let host = self.reference.registry();
        let mut url = Url::parse(realm).ok().filter(|url| is_allowed(self.base.scheme(), url)).ok_or_else(|| {
            let realm = shown(realm);
            Error::new(
                ErrorKind::Answer,
                format!("{host} says that tokens are at \"{realm}\", which is not safe to ask"),
            )
        })?;
        let what =
            format!("get a token for {} from {}", self.reference.repository(), url.host_str().unwrap_or("nowhere"));
        let actions = if self.access == Access::Push { "pull,push" } else { "pull" };
        let scope = format!("repository:{}:{actions}", self.reference.repository());
        let mut query = vec![("scope", scope.as_str())];
        query.extend(service.map(|service| ("service", service)));
        let request = if let Login::Identity(token) = login {
            query.extend([("grant_type", "refresh_token"), ("client_id", "coracle"), ("refresh_token", token)]);
            // Percent-encoding as in a query, which a form has too.
            let mut form = url.clone();
            form.query_pairs_mut().clear().extend_pairs(query);
            let form = form.query().unwrap_or_default().to_owned();
            self.http.post(url).header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(form)
        } else {
            url.query_pairs_mut().extend_pairs(query);
            let request = self.http.get(url);
            match login {
                Login::Password { user, password } => {
                    request.header(AUTHORIZATION, basic(user, password).ok_or_else(|| bad_login(host))?)
                }
                _ => request,
            }
        };
        let response = self.wait(request.send(), self.deadline(0), &what)?;
        let response = self.expect(response, &[StatusCode::OK], &what).map_err(|error| match error.kind() {
            ErrorKind::Refused | ErrorKind::NotFound => Error::new(ErrorKind::Login, error.to_string()),
            _ => error,
        })?;
        #[derive(Deserialize)]
        struct Token {
            token: Option<String>,
            access_token: Option<String>,
        }
        let bytes = self.read_all(response, TOKEN_MAX, &what)?;
        let token: Option<Token> = serde_json::from_slice(&bytes).ok();
        let token = token.and_then(|token| token.token.or(token.access_token)).filter(|token| !token.is_empty());
        token.ok_or_else(|| Error::new(ErrorKind::Answer, format!("cannot {what}: the answer has no token")))
    }

    /// The response, if it has one of these codes; otherwise what its body says.
    fn expect(&self, response: Response, codes: &[StatusCode], what: &str) -> Result<Response, Error> {
        let status = response.status();
        if codes.contains(&status) {
            return Ok(response);
        }
        let host = response.url().host_str().unwrap_or_default().to_owned();
        let said = self.message(response);
        let said = if said.is_empty() { String::new() } else { format!(": {said}") };
        let code = status.as_u16();
        let (kind, next) = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => (ErrorKind::Login, "; check the login"),
            StatusCode::NOT_FOUND => (ErrorKind::NotFound, ""),
            status if status.is_success() || status.is_redirection() => (ErrorKind::Answer, ""),
            _ => (ErrorKind::Refused, ""),
        };
        Err(Error::new(kind, format!("cannot {what}: {host} answers {code}{said}{next}")))
    }

    /// What a registry says of an error: its own form of it, or text.
    fn message(&self, response: Response) -> String {
        #[derive(Deserialize)]
        struct Errors {
            errors: Vec<One>,
        }
        #[derive(Deserialize)]
        struct One {
            #[serde(default)]
            code: String,
            #[serde(default)]
            message: String,
        }
        let Ok(bytes) = self.read_all(response, MESSAGE_MAX, "read an error") else { return String::new() };
        match serde_json::from_slice::<Errors>(&bytes).map(|errors| errors.errors.into_iter().next()) {
            Ok(Some(One { code, message })) => shown(&format!("{message} ({code})")),
            _ => String::new(), // A page of some proxy: its code says enough.
        }
    }

    /// A small body, whole.
    fn read_all(&self, mut response: Response, most: usize, what: &str) -> Result<Vec<u8>, Error> {
        let deadline = self.deadline(0);
        let mut bytes = Vec::new();
        while let Some(piece) = self.wait(response.chunk(), deadline, what)? {
            if piece.len() > most - bytes.len() {
                let sentence = format!("cannot {what}: the answer has more than {most} bytes");
                return Err(Error::new(ErrorKind::Answer, sentence));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    }

    /// When something with so many bytes is to be done.
    pub(crate) fn deadline(&self, bytes: u64) -> Instant {
        let longest = self.registry.timeout.saturating_add(Duration::from_secs(bytes / SLOWEST_BYTES_PER_SECOND));
        // A time that cannot be told is one that does not come.
        let now = Instant::now();
        now.checked_add(longest).unwrap_or_else(|| now + Duration::from_secs(1 << 30))
    }

    /// Waits for one step of the transport, and not longer than it may be silent.
    pub(crate) fn wait<T>(
        &self,
        step: impl Future<Output = reqwest::Result<T>>,
        deadline: Instant,
        what: &str,
    ) -> Result<T, Error> {
        let Some(runtime) = &self.runtime else { return Err(self.timed_out(what)) };
        let limit = deadline.saturating_duration_since(Instant::now()).min(self.registry.timeout);
        match runtime.block_on(async { tokio::time::timeout(limit, step).await }) {
            Ok(result) => result.map_err(|error| network(error, what)),
            Err(_) => Err(self.timed_out(what)),
        }
    }

    /// Waits for an upload, as long as it moves.
    fn wait_moving(
        &self,
        step: impl Future<Output = reqwest::Result<Response>>,
        (moved, size, report): &mut Watch<'_>,
        what: &str,
    ) -> Result<Response, Error> {
        let Some(runtime) = &self.runtime else { return Err(self.timed_out(what)) };
        let deadline = self.deadline(*size);
        runtime.block_on(async {
            let mut step = std::pin::pin!(step);
            let (mut last, mut since) = (0, Instant::now());
            loop {
                let interval = REPORT_INTERVAL.min(self.registry.timeout);
                if let Ok(result) = tokio::time::timeout(interval, step.as_mut()).await {
                    return result.map_err(|error| network(error, what));
                }
                let bytes = moved.load(Ordering::Relaxed);
                if bytes != last {
                    (last, since) = (bytes, Instant::now());
                    report(bytes);
                } else if since.elapsed() >= self.registry.timeout {
                    return Err(self.timed_out(what));
                }
                if Instant::now() >= deadline {
                    return Err(self.timed_out(what));
                }
            }
        })
    }

    fn timed_out(&self, what: &str) -> Error {
        let host = self.reference.registry();
        Error::new(ErrorKind::Timeout, format!("cannot {what}: {host} takes too long; try again, or allow more time"))
    }
}

/// Bytes that an upload has moved, all that it has, and whom to tell.
type Watch<'a> = (&'a AtomicU64, u64, &'a mut dyn FnMut(u64));

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // Looking up a name cannot be interrupted, and is not waited for.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Follows a few, and never from TLS to none. reqwest takes the login off when the host changes.
fn redirects() -> Policy {
    Policy::custom(|attempt| {
        let scheme = attempt.previous().last().map_or("https", Url::scheme).to_owned();
        if attempt.previous().len() > REDIRECTS_MAX {
            attempt.error("it redirects in circles")
        } else if !is_allowed(&scheme, attempt.url()) {
            attempt.error("it redirects to where nothing is encrypted")
        } else {
            attempt.follow()
        }
    })
}

/// Whether somebody who is talked to in this way may send us there.
fn is_allowed(scheme: &str, url: &Url) -> bool {
    url.scheme() == "https" || (url.scheme() == "http" && scheme == "http")
}

fn is_loopback(url: &Url) -> bool {
    let Some(host) = url.host_str() else { return false };
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn digest_header(headers: &HeaderMap) -> Option<Digest> {
    headers.get("docker-content-digest")?.to_str().ok()?.parse().ok()
}

fn basic(user: &str, password: &str) -> Option<HeaderValue> {
    use base64::Engine as _;
    let pair = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
    let mut value = HeaderValue::from_str(&format!("Basic {pair}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn bad_login(host: &str) -> Error {
    Error::new(ErrorKind::Input, format!("the login for {host} cannot be sent"))
}

fn network(error: reqwest::Error, what: &str) -> Error {
    // A URL may have a signature in it that is as good as a login.
    let error = error.without_url();
    let (kind, why) = if error.is_redirect() {
        (ErrorKind::Answer, "the registry redirects in circles, or to where nothing is encrypted")
    } else if error.is_timeout() {
        (ErrorKind::Timeout, "the registry cannot be reached in time")
    } else if error.is_connect() {
        (ErrorKind::Network, "the registry cannot be reached: check its name, and whether it speaks TLS")
    } else {
        (ErrorKind::Network, "the connection broke, or what came is no HTTP; try again")
    };
    Error::new(kind, format!("cannot {what}: {why}")).with(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_leads_from_tls_to_none() {
        let allowed = |scheme, url: &str| is_allowed(scheme, &Url::parse(url).unwrap());
        assert!(allowed("https", "https://b.example/x"));
        assert!(allowed("http", "http://b.example/x") && allowed("http", "https://b.example/x"));
        for url in ["http://a.example/x", "file:///etc/passwd", "data:,x"] {
            assert!(!allowed("https", url), "{url}");
        }
    }

    #[test]
    fn this_machine_is_not_asked_through_a_proxy() {
        for (url, want) in [
            ("http://127.0.0.1:5000/", true),
            ("http://localhost/", true),
            ("http://[::1]:5000/", true),
            ("http://127.0.0.1.example.com/", false),
            ("http://10.0.0.1/", false),
        ] {
            assert_eq!(is_loopback(&Url::parse(url).unwrap()), want, "{url}");
        }
    }
}
