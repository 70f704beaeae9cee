//! Where a snapshot is: registry, repository, and a tag or a digest.

use std::fmt;
use std::str::FromStr;

use coracle_snapshot::Digest;

use crate::error::shown;
use crate::{Error, ErrorKind};

/// Most bytes of a repository's name, as registries have it.
const REPOSITORY_MAX: usize = 255;
const HOST_MAX: usize = 255;

/// Names a snapshot in a registry: `registry.example.com:5000/team/name:tag`, `…/name@sha256:…`, or both.
///
/// The registry is always said, and so are the tag or the digest: nothing is guessed. With both, the digest decides what is
/// pulled, and the tag what is pushed to.
///
/// ```
/// # use coracle_registry::RegistryReference;
/// let reference: RegistryReference = "registry.example.com:5000/team/name:v1".parse()?;
/// assert_eq!(reference.registry(), "registry.example.com:5000");
/// assert_eq!(reference.repository(), "team/name");
/// assert_eq!(reference.tag(), Some("v1"));
/// assert!("team/name:v1".parse::<RegistryReference>().is_err()); // Which registry?
/// # Ok::<(), coracle_registry::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RegistryReference {
    registry: String,
    repository: String,
    // Invariant: at least one of the two.
    tag: Option<String>,
    digest: Option<Digest>,
}

impl RegistryReference {
    /// Host and port of the registry, as given.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The name in the registry.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The tag, if one was given.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The digest, if one was given.
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// The host that is asked. Docker Hub's is not the one of its name.
    pub(crate) fn host(&self) -> &str {
        match self.registry.as_str() {
            "docker.io" | "index.docker.io" => "registry-1.docker.io",
            registry => registry,
        }
    }
}

impl fmt::Display for RegistryReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

impl FromStr for RegistryReference {
    type Err = Error;

    /// # Errors
    /// [`ErrorKind::Input`], with the rule that it breaks.
    fn from_str(text: &str) -> Result<Self, Error> {
        parse(text).map_err(|why| {
            let text = shown(text);
            Error::new(ErrorKind::Input, format!("\"{text}\" names no snapshot in a registry: {why}"))
        })
    }
}

fn parse(text: &str) -> Result<RegistryReference, &'static str> {
    if text.contains("://") {
        return Err("leave out the https://");
    }
    let Some((registry, rest)) = text.split_once('/') else {
        return Err("it is written registry/name:tag, such as registry.example.com/team/name:v1");
    };
    check_registry(registry)?;
    let (rest, digest) = match rest.split_once('@') {
        Some((rest, digest)) => {
            let why = "what follows the @ is sha256: and 64 lower-case hexadecimal digits";
            (rest, Some(digest.parse().map_err(|_| why)?))
        }
        None => (rest, None),
    };
    let (repository, tag) = match rest.split_once(':') {
        Some((repository, tag)) => (repository, Some(tag)),
        None => (rest, None),
    };
    check_repository(repository)?;
    if let Some(tag) = tag {
        check_tag(tag)?;
    }
    if tag.is_none() && digest.is_none() {
        return Err("it ends with :tag or @sha256:…");
    }
    let tag = tag.map(str::to_owned);
    Ok(RegistryReference { registry: registry.to_owned(), repository: repository.to_owned(), tag, digest })
}

fn check_registry(registry: &str) -> Result<(), &'static str> {
    let (host, port) = match registry.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']').ok_or("the address of the registry lacks its ]")?;
            address.parse::<std::net::Ipv6Addr>().map_err(|_| "the registry's address is not one of IPv6")?;
            match port.strip_prefix(':') {
                Some(port) => (None, Some(port)),
                None if port.is_empty() => (None, None),
                None => return Err("what follows the address of the registry is no port"),
            }
        }
        None => match registry.split_once(':') {
            Some((host, port)) => (Some(host), Some(port)),
            None => (Some(registry), None),
        },
    };
    if let Some(port) = port {
        let digits = port.bytes().all(|byte| byte.is_ascii_digit());
        match port.parse::<u16>() {
            Ok(1..) if digits => {}
            _ => return Err("the registry's port is not a number from 1 to 65535"),
        }
    }
    let Some(host) = host else { return Ok(()) };
    let label = |label: &str| {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        !label.is_empty() && label.bytes().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    if host.len() > HOST_MAX || !host.split('.').all(label) {
        return Err("what comes before the first / is no host name");
    }
    if !host.contains('.') && host != "localhost" && port.is_none() {
        return Err("it begins with the registry's host, such as registry.example.com, or host:port");
    }
    Ok(())
}

/// Words of lower-case letters and digits, joined by `.`, `_`, `__` or hyphens; such components, joined by `/`.
fn check_repository(repository: &str) -> Result<(), &'static str> {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_component = |component: &str| {
        let edges = [component.bytes().next(), component.bytes().next_back()];
        edges.into_iter().all(|edge| edge.is_some_and(is_word))
            && component
                .split(|c: char| u8::try_from(c).is_ok_and(is_word))
                .all(|joint| matches!(joint, "" | "." | "_" | "__") || joint.bytes().all(|byte| byte == b'-'))
    };
    if repository.len() <= REPOSITORY_MAX && repository.split('/').all(is_component) {
        Ok(())
    } else {
        Err("the name is words of lower-case letters and digits, joined by . _ __ - or /, of at most 255 characters")
    }
}

/// What is wrong with a tag. Stores have the same rule.
pub(crate) fn check_tag(tag: &str) -> Result<(), &'static str> {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    match tag.as_bytes() {
        [first, rest @ ..]
            if is_word(first)
                && rest.len() < 128
                && rest.iter().all(|byte| is_word(byte) || matches!(byte, b'.' | b'-')) =>
        {
            Ok(())
        }
        _ => Err("the tag is a letter, digit or _, then at most 127 of these, . and -"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_what_is_shown() {
        let digest = Digest::of(b"x");
        for text in [
            "registry.example.com:5000/team/name:tag",
            "localhost/a:1",
            "host:1/a:latest",
            "127.0.0.1:5000/a__b/c.d-e---f_g:T.-_9",
            "[::1]:5000/a:b",
            "[2001:db8::1]/a:b",
            &format!("ghcr.io/team/name@{digest}"),
            &format!("ghcr.io/team/name:v1@{digest}"),
        ] {
            let reference: RegistryReference = text.parse().unwrap();
            assert_eq!(reference.to_string(), text);
        }
        let hub: RegistryReference = "docker.io/library/a:b".parse().unwrap();
        assert_eq!((hub.registry(), hub.host()), ("docker.io", "registry-1.docker.io"));
    }

    #[test]
    fn nonsense_is_told_why() {
        let long = format!("a.b/{}:t", "a".repeat(256));
        let long_tag = format!("a.b/c:{}", "a".repeat(129));
        for (text, why) in [
            ("", "registry/name:tag"),
            ("name:tag", "registry/name:tag"),
            ("https://a.b/c:d", "https://"),
            ("team/name:tag", "host"),
            ("a..b/c:d", "host name"),
            ("-a.b/c:d", "host name"),
            ("user@a.b/c:d", "host name"),
            ("a.b:/c:d", "port"),
            ("a.b:0/c:d", "port"),
            ("a.b:65536/c:d", "port"),
            ("a.b:+1/c:d", "port"),
            ("[::1/c:d", "]"),
            ("[zz]/c:d", "IPv6"),
            ("[::1]x/c:d", "port"),
            ("a.b/c", ":tag or @"),
            ("a.b/:d", "words"),
            ("a.b/C:d", "words"),
            ("a.b/../c:d", "words"),
            ("a.b/c//d:e", "words"),
            ("a.b/c._d:e", "words"),
            ("a.b/c___d:e", "words"),
            ("a.b/c-:d", "words"),
            ("a.b/\u{e4}:d", "words"),
            ("a.b/c?x=y:d", "words"),
            (&long, "255"),
            ("a.b/c:", "the tag is"),
            ("a.b/c:d/e", "the tag is"),
            ("a.b/c:d:e", "the tag is"),
            (&long_tag, "the tag is"),
            ("a.b/c@sha256:12", "64 lower-case"),
            ("a.b/c@sha512:12", "64 lower-case"),
            ("a.b/c@", "64 lower-case"),
        ] {
            let error = text.parse::<RegistryReference>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Input);
            assert!(error.to_string().contains(why), "{text}: {error}");
        }
    }
}
