//! A registry that does everything wrong: each is a clear error, and the store is as it was.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::Write;
use std::net::TcpStream;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use common::server::{Request, Server, answer, head};
use common::{Snapshots, chain, empty_store, everything, plain, reference, snapshots};
use coracle_registry::{Builder, Credentials, Error, ErrorKind, RegistryReference};
use coracle_testing::patiently;

const MANIFEST_TYPE: (&str, &str) = ("Content-Type", "application/vnd.oci.image.manifest.v1+json");
const OK: &str = "200 OK";

/// What a registry does when it is asked for a layer, or for the manifest: `None` leaves it to do that well.
type Wrong = fn(&Request, &mut TcpStream) -> Option<()>;

/// The bytes of a snapshot, by the ends of their paths.
fn content(from: &Snapshots) -> Vec<(String, Vec<u8>)> {
    let (digest, manifest_bytes, manifest) = from.store.manifest("child").unwrap();
    let mut content = vec![("manifests/v1".to_owned(), manifest_bytes.clone())];
    content.push((format!("manifests/{digest}"), manifest_bytes));
    for blob in manifest.layers().iter().chain([manifest.config()]) {
        let digest = blob.digest.to_string();
        let path = from.store.path().join("blobs/sha256").join(&digest["sha256:".len()..]);
        content.push((format!("blobs/{digest}"), std::fs::read(path).unwrap()));
    }
    content
}

/// A registry that has the snapshot `child`, and does one thing wrong.
fn registry(from: &Snapshots, wrong: Wrong) -> Server {
    let content = content(from);
    Server::start(move |request, stream| {
        if wrong(request, stream).is_some() {
            return;
        }
        match content.iter().find(|(name, _)| request.line.ends_with(name)) {
            Some((name, bytes)) if name.starts_with("manifests") => answer(stream, OK, &[MANIFEST_TYPE], bytes),
            Some((_, bytes)) => answer(stream, OK, &[], bytes),
            None => answer(stream, "404 Not Found", &[], b""),
        }
    })
}

fn there(server: &Server) -> RegistryReference {
    reference(&format!("{}/team/app:v1", server.address))
}

/// Impatient, for servers that would let us wait.
fn impatient() -> Builder {
    plain().timeout(Duration::from_millis(500))
}

/// Pulls from a registry that does one thing wrong, into a store that has all but the layer, and sees that nothing came.
#[track_caller]
fn check(wrong: Wrong, kind: ErrorKind, sentence: &str) {
    check_with(plain(), wrong, kind, sentence);
}

#[track_caller]
fn check_with(builder: Builder, wrong: Wrong, kind: ErrorKind, sentence: &str) {
    let from = snapshots();
    let (_directory, to) = empty_store();
    let good = registry(&from, |_, _| None);
    let client = builder.build().unwrap();
    // The base and the config are there: what comes below is the layer of the child.
    let import = to.import().unwrap();
    let (_, _, base) = from.store.manifest("base").unwrap();
    for blob in base.layers().iter().chain([base.config()]) {
        import.add(blob, from.store.open_blob(blob).unwrap()).unwrap();
    }
    drop(import);
    let before = everything(&to);
    let bad = registry(&from, wrong);
    let start = Instant::now();
    let error = client.pull(&to, &there(&bad), "mine", |_| {}).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(20));
    let all = chain(&error);
    assert_eq!(error.kind(), kind, "{all}");
    assert!(all.contains(sentence), "{all}");
    assert!(!all.contains('\u{1b}'), "{all}");
    assert!(everything(&to) == before);
    assert!(to.list().unwrap().is_empty());
    // It was the registry's fault.
    client.pull(&to, &there(&good), "mine", |_| {}).unwrap();
    to.verify_all().unwrap();
}

fn is_manifest(request: &Request) -> Option<()> {
    request.line.contains("/manifests/").then_some(())
}

fn is_blob(request: &Request) -> Option<()> {
    request.line.contains("/blobs/").then_some(())
}

/// Writes until nobody reads any more.
fn for_ever(stream: &mut TcpStream, piece: &[u8], pause: Duration) {
    while stream.write_all(piece).is_ok() {
        std::thread::sleep(pause);
    }
}

fn endless(stream: &mut TcpStream) {
    for_ever(stream, &[b' '; 1 << 16], Duration::ZERO);
}

/// The layer's bytes, as far as their number matters.
fn layer_bytes() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| snapshots().store.manifest("child").unwrap().2.layers()[1].size as usize)
}

#[test]
fn a_good_registry_is_one() {
    patiently(|| {
        let from = snapshots();
        let (_directory, to) = empty_store();
        let server = registry(&from, |_, _| None);
        let pulled = plain().build().unwrap().pull(&to, &there(&server), "mine", |_| {}).unwrap();
        assert_eq!(pulled.digest, from.child.digest);
    });
}

#[test]
fn manifests_that_are_none_are_refused() {
    patiently(|| {
        let large: Wrong = |request, stream| {
            is_manifest(request)?;
            answer(stream, OK, &[MANIFEST_TYPE], &vec![b' '; (1 << 16) + 1]);
            Some(())
        };
        check(large, ErrorKind::Answer, "more than 65536 bytes");
        let without_end: Wrong = |request, stream| {
            is_manifest(request)?;
            head(stream, OK, &[MANIFEST_TYPE]);
            endless(stream);
            Some(())
        };
        check(without_end, ErrorKind::Answer, "more than 65536 bytes");
        let other_type: Wrong = |request, stream| {
            is_manifest(request)?;
            answer(stream, OK, &[("Content-Type", "text/html; charset=utf-8")], b"<html>");
            Some(())
        };
        check(other_type, ErrorKind::Answer, "content type");
        let no_type: Wrong = |request, stream| {
            is_manifest(request)?;
            answer(stream, OK, &[], b"{}");
            Some(())
        };
        check(no_type, ErrorKind::Answer, "content type is \"\"");
        let empty: Wrong = |request, stream| {
            is_manifest(request)?;
            answer(stream, OK, &[MANIFEST_TYPE], b"{}");
            Some(())
        };
        check(empty, ErrorKind::Answer, "no snapshot of Coracle's");
        let deep: Wrong = |request, stream| {
            is_manifest(request)?;
            answer(stream, OK, &[MANIFEST_TYPE], &[b'['; 60_000]);
            Some(())
        };
        check(deep, ErrorKind::Answer, "no snapshot of Coracle's");
        let other_digest: Wrong = |request, stream| {
            is_manifest(request)?;
            let digest = format!("sha256:{}", "0".repeat(64));
            answer(stream, OK, &[MANIFEST_TYPE, ("Docker-Content-Digest", &digest)], b"{}");
            Some(())
        };
        check(other_digest, ErrorKind::Answer, "another digest");
    });
}

#[test]
fn a_digest_is_what_it_is() {
    patiently(|| {
        let from = snapshots();
        let server = registry(&from, |request, stream| {
            is_manifest(request)?;
            answer(stream, OK, &[MANIFEST_TYPE], b"{}");
            Some(())
        });
        let (_directory, to) = empty_store();
        let by_digest = reference(&format!("{}/team/app@{}", server.address, from.child.digest));
        let error = plain().build().unwrap().pull(&to, &by_digest, "mine", |_| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Answer);
        assert!(error.to_string().contains("another digest"), "{error}");
    });
}

#[test]
fn blobs_of_other_bytes_are_refused() {
    patiently(|| {
        let other: Wrong = |request, stream| {
            is_blob(request)?;
            answer(stream, OK, &[], &vec![7; layer_bytes()]);
            Some(())
        };
        check(other, ErrorKind::Answer, "sent other bytes");
        let said_longer: Wrong = |request, stream| {
            is_blob(request)?;
            answer(stream, OK, &[], &vec![7; layer_bytes() + 1]);
            Some(())
        };
        check(said_longer, ErrorKind::Answer, "whose manifest says");
        let longer: Wrong = |request, stream| {
            is_blob(request)?;
            head(stream, OK, &[]);
            let _ = stream.write_all(&vec![7; layer_bytes() + 1]);
            Some(())
        };
        check(longer, ErrorKind::Answer, "sends more bytes");
        let without_end: Wrong = |request, stream| {
            is_blob(request)?;
            head(stream, OK, &[]);
            endless(stream);
            Some(())
        };
        check(without_end, ErrorKind::Answer, "sends more bytes");
        let shorter: Wrong = |request, stream| {
            is_blob(request)?;
            head(stream, OK, &[]);
            let _ = stream.write_all(&vec![7; layer_bytes() - 1]);
            Some(())
        };
        check(shorter, ErrorKind::Answer, "bytes of sha256");
        let broken: Wrong = |request, stream| {
            is_blob(request)?;
            head(stream, OK, &[("Content-Length", &layer_bytes().to_string())]);
            let _ = stream.write_all(&[7; 1000]);
            Some(())
        };
        check(broken, ErrorKind::Network, "the connection broke");
        let chunks: Wrong = |request, stream| {
            is_blob(request)?;
            head(stream, OK, &[("Transfer-Encoding", "chunked")]);
            let _ = stream.write_all(b"fffffffffffffffffff\r\n");
            Some(())
        };
        check(chunks, ErrorKind::Network, "the connection broke");
        let partial: Wrong = |request, stream| {
            is_blob(request)?;
            answer(stream, "206 Partial Content", &[], b"x");
            Some(())
        };
        check(partial, ErrorKind::Answer, "answers 206");
    });
}

#[test]
fn who_is_silent_or_slow_is_not_waited_for() {
    patiently(|| {
        let silent: Wrong = |request, _| {
            is_manifest(request)?;
            std::thread::sleep(Duration::from_secs(30));
            Some(())
        };
        check_with(impatient(), silent, ErrorKind::Timeout, "takes too long");
        let slow_manifest: Wrong = |request, stream| {
            is_manifest(request)?;
            head(stream, OK, &[MANIFEST_TYPE]);
            for_ever(stream, b" ", Duration::from_millis(50));
            Some(())
        };
        check_with(impatient(), slow_manifest, ErrorKind::Timeout, "takes too long");
        let slow_head: Wrong = |request, stream| {
            is_manifest(request)?;
            for_ever(stream, b"H", Duration::from_millis(50));
            Some(())
        };
        check_with(impatient(), slow_head, ErrorKind::Timeout, "takes too long");
        let silent_blob: Wrong = |request, stream| {
            is_blob(request)?;
            head(stream, OK, &[]);
            let _ = stream.write_all(&[7; 1000]);
            std::thread::sleep(Duration::from_secs(30));
            Some(())
        };
        check_with(impatient(), silent_blob, ErrorKind::Timeout, "takes too long");
    });
}

#[test]
fn redirects_lead_somewhere_or_nowhere() {
    patiently(|| {
        let circle: Wrong = |request, stream| {
            is_blob(request)?;
            let (_, path) = request.line.split_once(' ').unwrap();
            answer(stream, "307 Temporary Redirect", &[("Location", path)], b"");
            Some(())
        };
        check(circle, ErrorKind::Answer, "redirects in circles");
        let file: Wrong = |request, stream| {
            is_blob(request)?;
            answer(stream, "307 Temporary Redirect", &[("Location", "file:///etc/passwd")], b"");
            Some(())
        };
        check(file, ErrorKind::Answer, "answers 307");
        let nowhere: Wrong = |request, stream| {
            is_blob(request)?;
            answer(stream, "307 Temporary Redirect", &[], b"");
            Some(())
        };
        check(nowhere, ErrorKind::Answer, "answers 307");
    });
}

#[test]
fn errors_are_read_as_far_as_they_are_worth_it() {
    patiently(|| {
        let without_end: Wrong = |request, stream| {
            is_blob(request)?;
            head(stream, "500 Internal Server Error", &[]);
            endless(stream);
            Some(())
        };
        check(without_end, ErrorKind::Refused, "answers 500");
        let colourful: Wrong = |request, stream| {
            is_manifest(request)?;
            let body = br#"{"errors":[{"code":"TOOMANYREQUESTS","message":"\u001b[31mlater\n"}]}"#;
            answer(stream, "429 Too Many Requests", &[], body);
            Some(())
        };
        check(colourful, ErrorKind::Refused, "answers 429: [31mlater (TOOMANYREQUESTS)");
    });
}

#[test]
fn a_snapshot_larger_than_allowed_is_not_begun() {
    patiently(|| {
        let from = snapshots();
        let server = registry(&from, |_, _| None);
        let (_directory, to) = empty_store();
        let pull = |most| {
            let client = plain().pull_bytes_max(most).build().unwrap();
            client.pull(&to, &there(&server), "mine", |_| {})
        };
        let (_, bytes, _) = from.store.manifest("child").unwrap();
        let total = from.child.bytes - bytes.len() as u64;
        assert_eq!(pull(total - 1).unwrap_err().kind(), ErrorKind::TooLarge);
        assert_eq!(server.asked().len(), 1);
        pull(total).unwrap();
    });
}

/// A registry that wants tokens, from a server of tokens.
fn with_tokens(from: &Snapshots, token: &'static str) -> (Server, Server) {
    let tokens = Server::start(move |_, stream| answer(stream, OK, &[], token.as_bytes()));
    let realm = format!("Bearer realm=\"http://{}/token?a=b\",service=\"ours\"", tokens.address);
    let content = content(from);
    let server = Server::start(move |request, stream| {
        let Some((name, bytes)) = content.iter().find(|(name, _)| request.line.ends_with(name)) else { return };
        let kind = if name.starts_with("manifests") { &[MANIFEST_TYPE][..] } else { &[] };
        match request.header("authorization") {
            Some("Bearer good") => answer(stream, OK, kind, bytes),
            _ => answer(stream, "401 Unauthorized", &[("WWW-Authenticate", &realm)], b""),
        }
    });
    (server, tokens)
}

fn pull_with(credentials: Credentials, server: &Server) -> Result<(), Error> {
    let (_directory, to) = empty_store();
    let client = plain().credentials(credentials).build().unwrap();
    client.pull(&to, &there(server), "mine", |_| {}).map(drop)
}

#[test]
fn tokens_are_fetched_with_the_login_that_there_is() {
    patiently(|| {
        let from = snapshots();
        let (server, tokens) = with_tokens(&from, r#"{"token":"good"}"#);
        pull_with(Credentials::Anonymous, &server).unwrap();
        let [asked] = &tokens.asked()[..] else { panic!("a token serves for the whole pull") };
        assert_eq!(asked.line, "GET /token?a=b&scope=repository%3Ateam%2Fapp%3Apull&service=ours");
        assert_eq!(asked.header("authorization"), None);

        let credentials = Credentials::Password { user: "ali".into(), password: "open sesame".into() };
        pull_with(credentials, &server).unwrap();
        assert_eq!(tokens.asked()[1].header("authorization"), Some("Basic YWxpOm9wZW4gc2VzYW1l"));
        // Nobody but the server of tokens saw it.
        assert!(
            server.asked().iter().all(|asked| asked.header("authorization").is_none_or(|value| value == "Bearer good"))
        );

        let (server, tokens) = with_tokens(&from, r#"{"access_token":"good","expires_in":1}"#);
        let directory = common::directory();
        let path = directory.path().join("config.json");
        let auths = format!(r#"{{"auths":{{"{}":{{"identitytoken":"iden tity"}}}}}}"#, server.address);
        std::fs::write(&path, auths).unwrap();
        pull_with(Credentials::DockerConfig(path), &server).unwrap();
        let asked = &tokens.asked()[0];
        assert!(asked.line.starts_with("POST "), "{asked:?}");
        assert!(String::from_utf8_lossy(&asked.body).ends_with("&refresh_token=iden+tity"), "{asked:?}");
    });
}

#[test]
fn tokens_that_are_none_are_refused() {
    patiently(|| {
        let from = snapshots();
        for (token, kind, sentence) in [
            (r#"{"token":"a\nb"}"#, ErrorKind::Answer, "gave out a token that is none"),
            (r#"{"token":""}"#, ErrorKind::Answer, "no token"),
            ("{}", ErrorKind::Answer, "no token"),
            ("<html>", ErrorKind::Answer, "no token"),
            (r#"{"token":"bad"}"#, ErrorKind::Login, "check the login"),
        ] {
            let (server, _tokens) = with_tokens(&from, token);
            let error = pull_with(Credentials::Anonymous, &server).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(sentence), "{error}");
        }
        let tokens = Server::start(|_, stream| {
            head(stream, OK, &[]);
            endless(stream);
        });
        let realm = format!("Bearer realm=\"http://{}/\"", tokens.address);
        for (realm, kind) in [(realm.as_str(), ErrorKind::Answer), ("Bearer realm=\"file:///x\"", ErrorKind::Answer)] {
            let realm = realm.to_owned();
            let server = Server::start(move |_, stream| {
                answer(stream, "401 Unauthorized", &[("WWW-Authenticate", &realm)], b"");
            });
            assert_eq!(pull_with(Credentials::Anonymous, &server).unwrap_err().kind(), kind);
        }
    });
}

#[test]
fn a_login_goes_to_nobody_else() {
    patiently(|| {
        let from = snapshots();
        let content = content(&from);
        let storage = Server::start(move |request, stream| {
            let found = content.iter().find(|(name, _)| request.line.ends_with(name));
            if let Some((_, bytes)) = found {
                answer(stream, OK, &[], bytes);
            }
        });
        let (_, manifest, _) = from.store.manifest("child").unwrap();
        let elsewhere = storage.address;
        let server = Server::start(move |request, stream| {
            if request.header("authorization").is_none() {
                answer(stream, "401 Unauthorized", &[("WWW-Authenticate", "Basic realm=\"x\"")], b"");
            } else if is_manifest(request).is_some() {
                answer(stream, OK, &[MANIFEST_TYPE], &manifest);
            } else {
                let path = request.line.split_once(' ').unwrap().1;
                let location = format!("http://{elsewhere}{path}");
                answer(stream, "307 Temporary Redirect", &[("Location", &location)], b"");
            }
        });
        let credentials = Credentials::Password { user: "ali".into(), password: "open sesame".into() };
        pull_with(credentials, &server).unwrap();
        assert_eq!(storage.asked().len(), 3);
        assert!(storage.asked().iter().all(|asked| asked.header("authorization").is_none()));
    });
}

#[test]
fn an_upload_elsewhere_gets_no_login() {
    patiently(|| {
        let from = snapshots();
        let storage = Server::start(|_, stream| answer(stream, "201 Created", &[], b""));
        let elsewhere = format!("http://{}/upload?signature=x", storage.address);
        let server = Server::start(move |request, stream| match request.line.split(' ').next() {
            _ if request.header("authorization").is_none() => {
                answer(stream, "401 Unauthorized", &[("WWW-Authenticate", "Basic realm=\"x\"")], b"");
            }
            Some("HEAD") => head(stream, "404 Not Found", &[]),
            Some("POST") => answer(stream, "202 Accepted", &[("Location", &elsewhere)], b""),
            _ => answer(stream, "201 Created", &[], b""),
        });
        let credentials = Credentials::Password { user: "ali".into(), password: "open sesame".into() };
        let client = plain().credentials(credentials).build().unwrap();
        client.push(&from.store, "child", &there(&server), |_| {}).unwrap();
        let (_, manifest, parsed) = from.store.manifest("child").unwrap();
        let uploads = storage.asked();
        assert_eq!(uploads.len(), 3);
        for (asked, blob) in uploads.iter().zip(parsed.layers().iter().chain([parsed.config()])) {
            assert_eq!(asked.header("authorization"), None);
            assert_eq!(coracle_snapshot::Digest::of(&asked.body), blob.digest);
            assert!(asked.line.starts_with("PUT /upload?signature=x&digest=sha256%3A"), "{}", asked.line);
        }
        // The manifest comes last, as it is.
        let asked = server.asked();
        let last = asked.last().unwrap();
        assert_eq!((last.line.as_str(), &last.body), ("PUT /v2/team/app/manifests/v1", &manifest));
    });
}

#[test]
fn what_a_registry_does_to_a_push_is_told() {
    patiently(|| {
        let from = snapshots();
        let push_with = |builder: Builder, answers: fn(&Request, &mut TcpStream)| {
            let server = Server::start(answers);
            builder.build().unwrap().push(&from.store, "child", &there(&server), |_| {}).unwrap_err()
        };
        let push = |answers| push_with(plain(), answers);
        let nowhere = push(|request, stream| match request.line.split(' ').next() {
            Some("HEAD") => head(stream, "404 Not Found", &[]),
            _ => answer(stream, "202 Accepted", &[], b""),
        });
        assert!(nowhere.to_string().contains("where to send"), "{nowhere}");
        let unsafe_place = push(|request, stream| match request.line.split(' ').next() {
            Some("HEAD") => head(stream, "404 Not Found", &[]),
            _ => answer(stream, "202 Accepted", &[("Location", "gopher://x/")], b""),
        });
        assert_eq!(unsafe_place.kind(), ErrorKind::Answer);
        // Says that it has everything, and makes something else of the manifest.
        let changed = push(|request, stream| match request.line.split(' ').next() {
            Some("HEAD") => head(stream, OK, &[]),
            _ => {
                let digest = format!("sha256:{}", "0".repeat(64));
                answer(stream, "201 Created", &[("Docker-Content-Digest", &digest)], b"");
            }
        });
        assert!(changed.to_string().contains("changed the manifest"), "{changed}");
        // Takes the connection, and no blob.
        let deaf = push_with(impatient(), |request, stream| match request.line.split(' ').next() {
            Some("HEAD") => head(stream, "404 Not Found", &[]),
            Some("POST") => answer(stream, "202 Accepted", &[("Location", "/upload?state=x")], b""),
            _ => std::thread::sleep(Duration::from_secs(30)),
        });
        assert_eq!(deaf.kind(), ErrorKind::Timeout, "{deaf}");
    });
}

#[test]
fn nobody_there_is_told_at_once() {
    patiently(|| {
        let (_directory, to) = empty_store();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let client = plain().build().unwrap();
        let error = client.pull(&to, &reference(&format!("{port}/a:b")), "mine", |_| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Network);
        assert!(error.to_string().contains("cannot be reached"), "{error}");
    });
}

/// Runs again as a process with a `PATH` in which there are credential helpers.
#[test]
fn helpers_are_asked_and_their_answers_checked() {
    const INSIDE: &str = "CORACLE_TEST_SERVER";
    if let Ok(server) = std::env::var(INSIDE) {
        let there = reference(&format!("{server}/team/app:v1"));
        let (_directory, to) = empty_store();
        let client = plain().credentials(Credentials::Docker).build().unwrap();
        let result = client.pull(&to, &there, "mine", |_| {});
        match std::env::var("CORACLE_TEST_WANT").unwrap().as_str() {
            "" => drop(result.unwrap()),
            want => assert!(chain(result.as_ref().unwrap_err()).contains(want), "{result:?}"),
        }
        return;
    }
    let directory = common::directory();
    let program = |name: &str, script: &str| {
        use std::os::unix::fs::PermissionsExt;
        let path = directory.path().join(format!("docker-credential-{name}"));
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    let from = snapshots();
    let content = content(&from);
    let server = Server::start(move |request, stream| {
        let Some((name, bytes)) = content.iter().find(|(name, _)| request.line.ends_with(name)) else { return };
        let kind = if name.starts_with("manifests") { &[MANIFEST_TYPE][..] } else { &[] };
        match request.header("authorization") {
            Some("Basic YWxpOm9wZW4gc2VzYW1l") => answer(stream, OK, kind, bytes),
            _ => answer(stream, "401 Unauthorized", &[("WWW-Authenticate", "Basic realm=\"x\"")], b""),
        }
    });
    let address = server.address.to_string();
    let asks = format!(r#"test "$1" = get && test "$(cat)" = "{address}" || exit 3"#);
    program("good", &format!("{asks}\necho '{{\"Username\":\"ali\",\"Secret\":\"open sesame\"}}'"));
    program("none", "cat >/dev/null; echo credentials not found in native keychain; exit 1");
    program("broken", "cat >/dev/null; echo no such thing; exit 1");
    program("chatty", "yes");
    for (config, want) in [
        (format!(r#"{{"credHelpers":{{"{address}":"good"}}}}"#), ""),
        (format!(r#"{{"credsStore":"good","auths":{{"{address}":{{}}}}}}"#), ""),
        (r#"{"credsStore":"none"}"#.to_owned(), "wants user and password"),
        (r#"{"credsStore":"broken"}"#.to_owned(), "which failed: no such thing"),
        (r#"{"credsStore":"chatty"}"#.to_owned(), "docker-credential-chatty"),
        (r#"{"credsStore":"../good"}"#.to_owned(), "no name of a credential helper"),
        ("{".to_owned(), "no Docker config file"),
    ] {
        std::fs::write(directory.path().join("config.json"), &config).unwrap();
        let path = std::env::var("PATH").unwrap();
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "helpers_are_asked_and_their_answers_checked"])
            .env("PATH", format!("{}:{path}", directory.path().display()))
            .env("DOCKER_CONFIG", directory.path())
            .env(INSIDE, &address)
            .env("CORACLE_TEST_WANT", want)
            .output()
            .unwrap();
        assert!(status.status.success(), "{config}: {}", String::from_utf8_lossy(&status.stdout));
    }
}
