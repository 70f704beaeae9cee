//! Logins: given, or found in Docker's config file, or asked from the program that the file names.

use std::collections::HashMap;
use std::fmt;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::Deserialize;

use crate::error::shown;
use crate::{Error, ErrorKind};

/// Most bytes of the config file, and of what a helper says.
const CONFIG_MAX: u64 = 1 << 20;
const ANSWER_MAX: u64 = 1 << 16;

/// How long a helper may take: it may have to ask a person.
const HELPER_TIMEOUT: Duration = Duration::from_secs(60);

/// Where the login for a registry comes from. It is looked for when a registry asks for one, and not before.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Credentials {
    /// There is none.
    #[default]
    Anonymous,
    /// This one, whichever registry asks.
    Password {
        /// The user's name.
        user: String,
        /// The password, or what the registry gives out in its place.
        password: String,
    },
    /// What `docker login` left: `config.json` in the directory `$DOCKER_CONFIG`, or in `~/.docker`. Without such a file, none.
    Docker,
    /// A file of that format. It must be there.
    DockerConfig(PathBuf),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anonymous => f.write_str("Anonymous"),
            Self::Password { user, .. } => f.debug_struct("Password").field("user", user).finish_non_exhaustive(),
            Self::Docker => f.write_str("Docker"),
            Self::DockerConfig(path) => f.debug_tuple("DockerConfig").field(path).finish(),
        }
    }
}

/// A login. Not printable, on purpose.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Login {
    None,
    Password {
        user: String,
        password: String,
    },
    /// Is exchanged for tokens.
    Identity(String),
}

impl Credentials {
    /// The login for a registry, named as the user names it.
    pub(crate) fn find(&self, registry: &str) -> Result<Login, Error> {
        let path = match self {
            Self::Anonymous => return Ok(Login::None),
            Self::Password { user, password } => {
                return Ok(Login::Password { user: user.clone(), password: password.clone() });
            }
            Self::Docker => match default_path().filter(|path| path.exists()) {
                Some(path) => path,
                None => return Ok(Login::None),
            },
            Self::DockerConfig(path) => path.clone(),
        };
        Config::read(&path)?.find(registry, HELPER_TIMEOUT).map_err(|why| in_file(&path, why))
    }
}

fn default_path() -> Option<PathBuf> {
    let directory = std::env::var_os("DOCKER_CONFIG").filter(|directory| !directory.is_empty()).map(PathBuf::from);
    let directory = directory.or_else(|| Some(std::env::home_dir()?.join(".docker")))?;
    Some(directory.join("config.json"))
}

fn in_file(path: &Path, why: String) -> Error {
    Error::new(ErrorKind::Input, format!("{}: {why}", path.display()))
}

/// What of the file is ours to read; there is more in it.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Config {
    auths: HashMap<String, Entry>,
    creds_store: String,
    cred_helpers: HashMap<String, String>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Entry {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
}

impl Config {
    fn read(path: &Path) -> Result<Self, Error> {
        let failed = |error: std::io::Error| in_file(path, "cannot read this Docker config file".into()).with(error);
        let mut bytes = Vec::new();
        std::fs::File::open(path).map_err(failed)?.take(CONFIG_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > CONFIG_MAX {
            return Err(in_file(path, format!("has more than {CONFIG_MAX} bytes: this is no Docker config file")));
        }
        // The parser's words may quote what is in the file.
        serde_json::from_slice(&bytes).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            in_file(path, format!("is no Docker config file: see line {line}, column {column}"))
        })
    }

    fn find(self, registry: &str, timeout: Duration) -> Result<Login, String> {
        let name = canonical(registry);
        let helper = self.cred_helpers.iter().find(|(key, _)| canonical(key) == name).map(|(_, helper)| helper);
        if let Some(helper) = helper {
            return ask(helper, name, timeout);
        }
        // An entry may be there as a mark only, with the login in the store of logins.
        let entry = self.auths.into_iter().find(|(key, _)| canonical(key) == name).map(|(_, entry)| entry);
        if let Some(login) = entry.map(Entry::login).transpose()?.filter(|login| *login != Login::None) {
            return Ok(login);
        }
        if self.creds_store.is_empty() { Ok(Login::None) } else { ask(&self.creds_store, name, timeout) }
    }
}

/// Keys were URLs once, and still are for Docker Hub.
fn canonical(key: &str) -> &str {
    let key = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    let key = key.split('/').next().unwrap_or(key);
    if matches!(key, "docker.io" | "registry-1.docker.io") { "index.docker.io" } else { key }
}

impl Entry {
    fn login(self) -> Result<Login, String> {
        if !self.identitytoken.is_empty() {
            return Ok(Login::Identity(self.identitytoken));
        }
        if self.auth.is_empty() {
            let Self { username: user, password, .. } = self;
            return Ok(if user.is_empty() { Login::None } else { Login::Password { user, password } });
        }
        let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
        let decoded = GeneralPurpose::new(&base64::alphabet::STANDARD, config).decode(self.auth.trim()).ok();
        let decoded = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
        let pair = decoded.as_ref().and_then(|text| text.split_once(':'));
        let (user, password) = pair.ok_or("an \"auth\" is not user:password in base64: log in again")?;
        // Some old files have zeros behind the password.
        let password = password.trim_end_matches('\0');
        Ok(Login::Password { user: user.to_owned(), password: password.to_owned() })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    username: String,
    secret: String,
}

/// Asks the program `docker-credential-<helper>` for a login.
fn ask(helper: &str, registry: &str, timeout: Duration) -> Result<Login, String> {
    // With a slash in it, it would be a path to any program.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if helper.is_empty() || helper.len() > 64 || !helper.bytes().all(is_plain) {
        return Err(format!("\"{}\" is no name of a credential helper", shown(helper)));
    }
    let program = format!("docker-credential-{helper}");
    let server = if registry == "index.docker.io" { "https://index.docker.io/v1/" } else { registry };
    let mut command = Command::new(&program);
    command.arg("get");
    converse(command, server, timeout).map_err(|why| format!("it names {program}, which {why}"))
}

/// Runs a credential helper, with the server's name as its input.
fn converse(mut command: Command, server: &str, timeout: Duration) -> Result<Login, String> {
    let start = Instant::now();
    let failed = |what: &str, error: std::io::Error| format!("{what}: {error}");
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = child.map_err(|error| failed("cannot be started", error))?;
    if let Some(mut input) = child.stdin.take() {
        // One that does not read its input says why not.
        let _ = input.write_all(server.as_bytes());
    }
    let (send, answer) = mpsc::channel();
    let output = child.stdout.take();
    // A thread, which is left alone when it takes too long: what the helper started may keep the pipe open for ever.
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = output.map_or(Ok(0), |output| output.take(ANSWER_MAX + 1).read_to_end(&mut bytes));
        let _ = send.send(read.map(|_| bytes));
    });
    let answer = answer.recv_timeout(timeout);
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if answer.is_ok() && start.elapsed() < timeout => std::thread::sleep(Duration::from_millis(5)),
            _ => break None,
        }
    };
    let Some(status) = status else {
        let _ = child.kill();
        let _ = child.wait();
        return Err(format!("did not finish in {} s", timeout.as_secs()));
    };
    let bytes = match answer {
        Ok(read) => read.map_err(|error| failed("cannot be read from", error))?,
        Err(_) => return Err(format!("left its output open for {} s", timeout.as_secs())),
    };
    if !status.success() {
        let text = String::from_utf8_lossy(&bytes);
        if text.trim() == "credentials not found in native keychain" {
            return Ok(Login::None);
        }
        return Err(format!("failed: {}", shown(&text)));
    }
    let Ok(Answer { username, secret }) = serde_json::from_slice(&bytes) else {
        return Err("gave an answer that is no login".into());
    };
    Ok(if username == "<token>" {
        Login::Identity(secret)
    } else {
        Login::Password { user: username, password: secret }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        serde_json::from_str(text).unwrap()
    }

    fn find(text: &str, registry: &str) -> Result<Login, String> {
        config(text).find(registry, Duration::from_secs(5))
    }

    fn password(user: &str, password: &str) -> Result<Login, String> {
        Ok(Login::Password { user: user.into(), password: password.into() })
    }

    // `Login` is not printable.
    #[track_caller]
    fn check(found: Result<Login, String>, want: Result<Login, String>) {
        assert!(found == want, "{:?}", found.err());
    }

    #[test]
    fn entries_are_found_by_their_registry() {
        let text = r#"{"auths": {
            "a.example:5000": {"auth": "dXNlcjpwYXNzOndvcmQ="},
            "https://b.example/v1/": {"auth": "dXNlcjpwYXNzOndvcmQ"},
            "https://index.docker.io/v1/": {"username": "hub", "password": "p"},
            "c.example": {"identitytoken": "token", "auth": "dTpw"},
            "d.example": {},
            "e.example": {"auth": "%%%"},
            "f.example": {"auth": "dXNlcg=="}
        }, "HttpHeaders": {"x": "y"}, "detachKeys": 7}"#;
        check(find(text, "a.example:5000"), password("user", "pass:word"));
        check(find(text, "b.example"), password("user", "pass:word"));
        check(find(text, "docker.io"), password("hub", "p"));
        check(find(text, "c.example"), Ok(Login::Identity("token".into())));
        check(find(text, "d.example"), Ok(Login::None));
        check(find(text, "a.example"), Ok(Login::None));
        for bad in ["e.example", "f.example"] {
            assert!(find(text, bad).err().unwrap().contains("log in again"));
        }
    }

    #[test]
    fn a_helper_is_a_plain_name() {
        for name in ["../evil", "/bin/sh", "a b", "a\u{0}", "\u{e4}"] {
            let text = serde_json::json!({ "credHelpers": { "a.example": name } }).to_string();
            assert!(find(&text, "a.example").err().unwrap().contains("no name of a credential helper"), "{name}");
        }
        let text = r#"{"credsStore": "no-such-helper-anywhere"}"#;
        assert!(find(text, "a.example").err().unwrap().contains("cannot be started"));
    }

    #[test]
    fn helpers_are_not_waited_for_for_ever() {
        let run = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            converse(command, "a.example", Duration::from_millis(300)).err()
        };
        // Silent; done talking but still there; and one that left somebody behind who holds the pipe.
        assert!(run("exec sleep 20").unwrap().contains("did not finish"));
        assert!(run("exec >&-; exec sleep 20").unwrap().contains("did not finish"));
        assert!(run("sleep 2 & exit 0").unwrap().contains("left its output open"));
        assert!(run("yes").unwrap().contains("failed"));
    }

    #[test]
    fn secrets_are_not_printed() {
        let credentials = Credentials::Password { user: "u".into(), password: "secret".into() };
        assert!(!format!("{credentials:?}").contains("secret"));
    }
}
