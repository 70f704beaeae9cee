//! How people name a snapshot: `STORE:TAG` or `STORE@sha256:DIGEST`.

use std::fmt;
use std::path::{Path, PathBuf};

use coracle::Digest;

/// A snapshot in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    store: PathBuf,
    reference: Reference,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Reference {
    Tag(String),
    /// As text, as the library takes it.
    Digest(String),
}

const FORM: &str = "write STORE:TAG, as in ./store:latest, or STORE@sha256:DIGEST";
const OF_DIGEST: &str = "@sha256:";

impl Name {
    /// Paths may hold colons: the last one counts, and a tag holds none.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (store, reference) = match text.rfind(OF_DIGEST).filter(|at| !text[*at..].contains('/')) {
            Some(at) => {
                let digest = &text[at + 1..];
                digest.parse::<Digest>().map_err(|error| error.to_string())?;
                (&text[..at], Reference::Digest(digest.to_owned()))
            }
            None => {
                let (store, tag) = text.rsplit_once(':').ok_or_else(|| format!("there is no tag: {FORM}"))?;
                if tag.contains('/') {
                    return Err(format!("there is no tag, for its last colon belongs to the path: {FORM}"));
                }
                if tag.is_empty() {
                    return Err(format!("there is nothing behind its last colon: {FORM}"));
                }
                check_tag(tag)?;
                (store, Reference::Tag(tag.to_owned()))
            }
        };
        if store.is_empty() {
            return Err(format!("there is no path of a store: {FORM}"));
        }
        Ok(Self { store: PathBuf::from(store), reference })
    }

    pub(crate) fn store(&self) -> &Path {
        &self.store
    }

    /// The tag or digest, as the library takes it.
    pub(crate) fn reference(&self) -> &str {
        let (Reference::Tag(text) | Reference::Digest(text)) = &self.reference;
        text
    }

    /// The tag, if it is one.
    pub(crate) fn tag(&self) -> Option<&str> {
        match &self.reference {
            Reference::Tag(tag) => Some(tag),
            Reference::Digest(_) => None,
        }
    }
}

/// As it is written.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.tag().is_some() { ':' } else { '@' };
        write!(f, "{}{sign}{}", self.store.display(), self.reference())
    }
}

/// The store's rule, known before a guest has run for nothing.
fn check_tag(tag: &str) -> Result<(), String> {
    let is_word = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let is_good = tag.len() <= 128
        && tag.starts_with(is_word)
        && tag.chars().all(|character| is_word(character) || matches!(character, '.' | '-'));
    if is_good { Ok(()) } else { Err("a tag is a letter, digit or _, then at most 127 of these, . and -".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_colon_parts_store_and_tag() {
        for (text, store, tag) in [
            ("store:latest", "store", "latest"),
            ("/a:b/c:v1.0-x_y", "/a:b/c", "v1.0-x_y"),
            ("a:b:c", "a:b", "c"),
            ("./x@sha256:y/store:t", "./x@sha256:y/store", "t"),
            (".:_", ".", "_"),
        ] {
            let name = Name::parse(text).unwrap();
            assert_eq!((name.store(), name.tag(), name.reference()), (Path::new(store), Some(tag), tag), "{text}");
            assert_eq!(name.to_string(), text);
        }
    }

    #[test]
    fn a_digest_follows_an_at_sign() {
        let digest = Digest::of(b"").to_string();
        let text = format!("/a:b@c@{digest}");
        let name = Name::parse(&text).unwrap();
        assert_eq!((name.store(), name.tag(), name.reference()), (Path::new("/a:b@c"), None, digest.as_str()));
        assert_eq!(name.to_string(), text);
    }

    #[test]
    fn what_is_no_name_says_what_is_wrong() {
        let long = format!("s:{}", "t".repeat(129));
        for (text, says) in [
            ("store", "there is no tag: write STORE:TAG"),
            ("", "there is no tag: write STORE:TAG"),
            ("/a:b/store", "last colon belongs to the path"),
            ("store:", "nothing behind its last colon"),
            (":tag", "no path of a store"),
            ("store:-x", "a tag is a letter"),
            ("store:a b", "a tag is a letter"),
            (&long, "a tag is a letter"),
            ("store@sha256:12", "64 lower-case hexadecimal digits"),
        ] {
            let error = Name::parse(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
        let digest = Digest::of(b"").to_string();
        assert!(Name::parse(&format!("@{digest}")).unwrap_err().contains("no path of a store"));
    }
}
