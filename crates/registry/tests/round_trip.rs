//! From a store to a registry and to another store: Debian's registry, over loopback.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::docker::{DockerRegistry, Wants};
use common::proxy::Proxy;
use common::{chain, empty_store, everything, plain, reference, snapshots};
use coracle_registry::{Credentials, ErrorKind, Progress, Registry};
use coracle_snapshot::Digest;
use coracle_testing::patiently;

/// Heads of requests and answers, with room.
const HEADS_MAX: u64 = 16 << 10;

#[test]
fn what_is_pulled_is_what_was_pushed() {
    patiently(|| {
        let Some(docker) = DockerRegistry::start_or_skip(Wants::default()) else { return };
        let from = snapshots();
        let registry = plain().build().unwrap();
        let there = reference(&format!("{}/team/app:v1", docker.address));
        let pushed = registry.push(&from.store, "child", &there, |_| {}).unwrap();
        assert_eq!(pushed.digest, from.child.digest);
        assert_eq!((pushed.blobs_moved, pushed.blobs_skipped), (3, 0));
        assert_eq!(pushed.bytes_moved, from.child.bytes);

        let by_digest = reference(&format!("{}/team/app@{}", docker.address, pushed.digest));
        let both = reference(&format!("{}/team/app:gone@{}", docker.address, pushed.digest));
        for there in [there, by_digest, both] {
            let (_directory, to) = empty_store();
            let mut seen: Vec<Progress> = Vec::new();
            let pulled = registry.pull(&to, &there, "mine", |progress| seen.push(progress)).unwrap();
            assert_eq!(pulled.digest, from.child.digest);
            assert_eq!(pulled.bytes_moved, from.child.bytes);
            assert_eq!(to.manifest("mine").unwrap().1, from.store.manifest("child").unwrap().1);
            assert_eq!(to.verify_all().unwrap().layers, 2);
            assert_eq!(to.load("mine").unwrap().config, common::CONFIG);
            // Nothing is told twice, and the end is told.
            assert!(seen.windows(2).all(|pair| pair[0].bytes <= pair[1].bytes));
            let last = seen.last().unwrap();
            assert_eq!((last.bytes, last.blob_bytes), (last.total, last.blob_total));
        }
    });
}

#[test]
fn only_what_the_other_side_lacks_is_moved() {
    patiently(|| {
        let Some(docker) = DockerRegistry::start_or_skip(Wants::default()) else { return };
        let proxy = Proxy::start(docker.address);
        let from = snapshots();
        let registry = plain().build().unwrap();
        let at = |tag: &str| reference(&format!("{}/team/app:{tag}", proxy.address));
        registry.push(&from.store, "base", &at("base"), |_| {}).unwrap();
        let (stored, _) = (docker.stored_bytes(), proxy.counted());

        let own = from.own_bytes("variant");
        let mut skipped = 0;
        let pushed =
            registry.push(&from.store, "variant", &at("variant"), |progress| skipped += u64::from(progress.skipped));
        let pushed = pushed.unwrap();
        assert_eq!(pushed.digest, from.variant.digest);
        assert_eq!((pushed.blobs_moved, pushed.blobs_skipped, skipped), (1, 2, 2));
        assert_eq!(pushed.bytes_moved, own);
        let (sent, received) = proxy.counted();
        assert!((own..own + HEADS_MAX).contains(&sent) && received < HEADS_MAX, "{sent} {received} {own}");
        // The registry keeps beside each blob nothing but it.
        assert_eq!(docker.stored_bytes() - stored, own);

        let (_directory, to) = empty_store();
        registry.pull(&to, &at("base"), "base", |_| {}).unwrap();
        proxy.counted();
        let pulled = registry.pull(&to, &at("variant"), "variant", |_| {}).unwrap();
        assert_eq!((pulled.blobs_moved, pulled.blobs_skipped, pulled.bytes_moved), (1, 2, own));
        let (sent, received) = proxy.counted();
        assert!((own..own + HEADS_MAX).contains(&received) && sent < HEADS_MAX, "{sent} {received} {own}");
        assert_eq!(to.verify_all().unwrap().snapshots, 2);

        // Nothing at all, the second time, but the manifest.
        for again in [
            registry.push(&from.store, "variant", &at("variant"), |_| {}).map(|pushed| pushed.blobs_moved),
            registry.pull(&to, &at("variant"), "variant", |_| {}).map(|pulled| pulled.blobs_moved),
        ] {
            assert_eq!(again.unwrap(), 0);
        }
    });
}

#[test]
fn a_pull_that_was_cut_goes_on() {
    patiently(|| {
        let Some(docker) = DockerRegistry::start_or_skip(Wants::default()) else { return };
        let proxy = Proxy::start(docker.address);
        let from = snapshots();
        let registry = plain().build().unwrap();
        let there = reference(&format!("{}/team/app:v1", proxy.address));
        registry.push(&from.store, "child", &there, |_| {}).unwrap();

        let (_directory, to) = empty_store();
        registry.pull(&snapshots().store, &there, "before", |_| {}).unwrap();
        // In the middle of the second layer.
        let base = from.store.manifest("base").unwrap().2.layers()[0].size;
        proxy.cut_after(base + 100_000);
        let before = to.list().unwrap();
        let error = registry.pull(&to, &there, "mine", |_| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Network, "{}", chain(&error));
        assert_eq!(to.list().unwrap(), before);
        // No part of a blob is left.
        let left = everything(&to);
        assert!(left.iter().all(|(path, bytes)| {
            let name = path.file_name().unwrap().to_str().unwrap();
            !path.starts_with("blobs") || Digest::of(bytes).to_string().ends_with(name)
        }));
        assert!(!left.iter().any(|(path, _)| path.starts_with("coracle/tmp")));

        proxy.mend();
        let pulled = registry.pull(&to, &there, "mine", |_| {}).unwrap();
        assert_eq!((pulled.blobs_moved, pulled.blobs_skipped), (1, 2));
        assert_eq!(pulled.bytes_moved, from.own_bytes("child"));
        assert_eq!(to.verify_all().unwrap().layers, 2);
    });
}

#[test]
fn a_push_that_was_cut_goes_on() {
    patiently(|| {
        let Some(docker) = DockerRegistry::start_or_skip(Wants::default()) else { return };
        let proxy = Proxy::start(docker.address);
        let from = snapshots();
        let registry = plain().build().unwrap();
        let there = reference(&format!("{}/team/app:v1", proxy.address));
        registry.push(&from.store, "base", &reference(&format!("{}/team/app:base", proxy.address)), |_| {}).unwrap();
        // The registry's answers to what is asked before the layer is sent are longer.
        proxy.cut_after(600);
        let error = registry.push(&from.store, "child", &there, |_| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Network, "{}", chain(&error));
        proxy.mend();
        let (_directory, to) = empty_store();
        assert_eq!(registry.pull(&to, &there, "mine", |_| {}).unwrap_err().kind(), ErrorKind::NotFound);
        let pushed = registry.push(&from.store, "child", &there, |_| {}).unwrap();
        assert_eq!((pushed.blobs_moved, pushed.blobs_skipped), (1, 2));
        registry.pull(&to, &there, "mine", |_| {}).unwrap();
    });
}

#[test]
fn what_is_not_there_is_told() {
    patiently(|| {
        let Some(docker) = DockerRegistry::start_or_skip(Wants::default()) else { return };
        let from = snapshots();
        let registry = plain().build().unwrap();
        let at = |rest: &str| reference(&format!("{}/team/app{rest}", docker.address));
        let (_directory, to) = empty_store();
        let error = registry.pull(&to, &at(":gone"), "mine", |_| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("manifest unknown"), "{error}");
        let error = registry.push(&from.store, "gone", &at(":v1"), |_| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Store);
        assert!(chain(&error).contains("no snapshot \"gone\""), "{}", chain(&error));
        let other = format!("@{}", from.base.digest);
        let error = registry.push(&from.store, "child", &at(&other), |_| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Input);
        let error = registry.pull(&to, &at(":v1"), "../tag", |_| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Input);
        // With the right digest and without a tag it can be pushed.
        let own = format!("@{}", from.child.digest);
        registry.push(&from.store, "child", &at(&own), |_| {}).unwrap();
        // A blob that somebody changed does not arrive.
        let layer = from.store.manifest("variant").unwrap().2.layers()[1].digest.to_string();
        let path = from.store.path().join("blobs/sha256").join(&layer["sha256:".len()..]);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[5000] ^= 1;
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, bytes).unwrap();
        let error = registry.push(&from.store, "variant", &at(":v1"), |_| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{}", chain(&error));
        assert_eq!(registry.pull(&to, &at(":v1"), "mine", |_| {}).unwrap_err().kind(), ErrorKind::NotFound);
    });
}

#[test]
fn a_layer_larger_than_any_buffer_is_streamed_and_counted() {
    patiently(|| {
        let Some(docker) = DockerRegistry::start_or_skip(Wants::default()) else { return };
        let (_from_directory, from) = empty_store();
        let pages = (0..16 << 8).map(|number: u32| {
            let mut page = [0; coracle_snapshot::PAGE_BYTES];
            page[..4].copy_from_slice(&(number + 1).to_le_bytes());
            (number, page)
        });
        let pages = coracle_snapshot::Pages::base(pages);
        from.save("large", b"{}", &pages, coracle_snapshot::Compression::None).unwrap();
        let registry = plain().build().unwrap();
        let there = reference(&format!("{}/large:v1", docker.address));
        let (_directory, to) = empty_store();
        registry.push(&from, "large", &there, |_| {}).unwrap();
        let mut largest_step = 0;
        let mut last = 0;
        registry
            .pull(&to, &there, "large", |progress| {
                largest_step = largest_step.max(progress.bytes - last);
                last = progress.bytes;
            })
            .unwrap();
        assert!(last > 16 << 20);
        assert!(largest_step < 1 << 20, "{largest_step} bytes at once");
        to.verify_all().unwrap();
    });
}

#[test]
fn logins_come_from_the_docker_config_file() {
    patiently(|| {
        // The password is "open sesame", hashed with bcrypt.
        let passwords = "ali:$2b$04$OjdervVtz.vnoHqmTDYBY.HXuQFXA5fczYTPOs0UTdIhRIK50e1Pe\n";
        let Some(docker) = DockerRegistry::start_or_skip(Wants { passwords: Some(passwords), tls: false }) else {
            return;
        };
        let from = snapshots();
        let directory = common::directory();
        let path = directory.path().join("config.json");
        // "ali:open sesame"
        let auths = format!(r#"{{"auths":{{"{}":{{"auth":"YWxpOm9wZW4gc2VzYW1l"}}}}}}"#, docker.address);
        std::fs::write(&path, auths).unwrap();
        let there = reference(&format!("{}/team/app:v1", docker.address));
        let push = |credentials: Credentials| {
            let registry = plain().credentials(credentials).build().unwrap();
            registry.push(&from.store, "child", &there, |_| {})
        };
        let wrong = Credentials::Password { user: "ali".into(), password: "close".into() };
        for credentials in [Credentials::Anonymous, wrong] {
            let error = push(credentials).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Login, "{error}");
        }
        assert_eq!(docker.stored_bytes(), 0);
        let credentials = Credentials::DockerConfig(path);
        push(credentials.clone()).unwrap();
        let (_directory, to) = empty_store();
        let registry = plain().credentials(credentials).build().unwrap();
        assert_eq!(registry.pull(&to, &there, "mine", |_| {}).unwrap().digest, from.child.digest);
    });
}

#[test]
fn tls_is_spoken_with_those_who_can_show_who_they_are() {
    patiently(|| {
        let Some(docker) = DockerRegistry::start_or_skip(Wants { tls: true, passwords: None }) else { return };
        let from = snapshots();
        let there = reference(&format!("{}/team/app:v1", docker.address));
        // A system without certificates trusts nobody, and says so.
        if let Ok(stranger) = Registry::builder().build() {
            let error = stranger.push(&from.store, "child", &there, |_| {}).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Network);
            assert!(chain(&error).contains("certificate"), "{}", chain(&error));
        }
        let registry = Registry::builder().root_certificates(include_bytes!("tls/authority.pem")).build().unwrap();
        registry.push(&from.store, "child", &there, |_| {}).unwrap();
        let (_directory, to) = empty_store();
        assert_eq!(registry.pull(&to, &there, "mine", |_| {}).unwrap().digest, from.child.digest);
        // Who wants TLS does not get on without it.
        let Some(docker) = DockerRegistry::start_or_skip(Wants::default()) else { return };
        let there = reference(&format!("{}/team/app:v1", docker.address));
        let error = registry.push(&from.store, "child", &there, |_| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Network);
        assert!(error.to_string().contains("whether it speaks TLS"), "{error}");
        for pem in ["", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", "nonsense"] {
            let error = Registry::builder().root_certificates(pem).build().err();
            assert!(error.is_some_and(|error| error.kind() == ErrorKind::Input), "{pem}");
        }
    });
}

#[test]
fn another_client_reads_what_we_push_and_we_read_what_it_pushes() {
    use oci_client::client::{ClientConfig, ClientProtocol};
    use oci_client::secrets::RegistryAuth;

    patiently(|| {
        let Some(docker) = DockerRegistry::start_or_skip(Wants::default()) else { return };
        let from = snapshots();
        let registry = plain().build().unwrap();
        let ours = format!("{}/team/app:ours", docker.address);
        let theirs = format!("{}/elsewhere/app:theirs", docker.address);
        registry.push(&from.store, "child", &reference(&ours), |_| {}).unwrap();
        let (_, bytes, manifest) = from.store.manifest("child").unwrap();

        // It makes a TLS client in any case, and wants to be told of which make.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client =
            oci_client::Client::try_from(ClientConfig { protocol: ClientProtocol::Http, ..Default::default() });
        let client = client.unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let type_of_manifest = "application/vnd.oci.image.manifest.v1+json";
        runtime.block_on(async {
            let (ours, theirs) = (ours.parse().unwrap(), theirs.parse().unwrap());
            let pulled = client.pull_manifest_raw(&ours, &RegistryAuth::Anonymous, &[type_of_manifest]).await.unwrap();
            assert_eq!(pulled, (bytes.clone().into(), from.child.digest.to_string()));
            for blob in manifest.layers().iter().chain([manifest.config()]) {
                let digest = blob.digest.to_string();
                let mut out = Vec::new();
                client.pull_blob(&ours, digest.as_str(), &mut out).await.unwrap();
                client.push_blob(&theirs, out, &digest).await.unwrap();
            }
            client.push_manifest_raw(&theirs, bytes.clone(), type_of_manifest.parse().unwrap()).await.unwrap();
        });
        let (_directory, to) = empty_store();
        assert_eq!(registry.pull(&to, &reference(&theirs), "mine", |_| {}).unwrap().digest, from.child.digest);
        to.verify_all().unwrap();
        // Our functions may be called inside a runtime, too.
        let again = runtime.block_on(async { registry.pull(&to, &reference(&theirs), "again", |_| {}) });
        assert_eq!(again.unwrap().blobs_moved, 0);
    });
}
