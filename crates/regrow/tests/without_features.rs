//! A call that needs a feature returns `Unsupported` with the name of the feature, in a build
//! without the feature: `cargo test -p regrow --no-default-features --test without_features`.

#![cfg(not(any(feature = "archive", feature = "cloud", feature = "protection", feature = "torch")))]

use std::fmt::Debug;
use std::fs;

use regrow::{Error, ErrorKind, PrivateKey, PublicKey, Result, SaveOptions, open, save, save_with};
use regrow_testkit::archives;

fn refuses<T: Debug>(call: &str, result: Result<T>, feature: &str) {
    let error: Error = result.expect_err(call);
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{call}: {error}");
    assert!(error.to_string().contains(&format!("`{feature}`")), "{call}: {error}");
}

#[test]
fn calls_name_the_feature_that_they_need() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name);
    let values = vec![1.0_f32, 2.0];
    save(path("checkpoint"), &values).unwrap();

    let torch = regrow_testkit::fixtures().join("torch");
    refuses("open a file of PyTorch", open(torch.join("big_endian.pt")), "torch");

    let members = archives::files_below(&path("checkpoint")).unwrap();
    fs::write(path("run.tar"), archives::tar(&members)).unwrap();
    fs::write(path("run.zip"), archives::zip(&members)).unwrap();
    refuses("open an archive", open(path("run.tar")), "archive");
    refuses("open an archive", open(path("run.zip")), "archive");
    refuses("open a path in an archive", open(path("run.tar/checkpoint")), "archive");

    for address in ["s3://bucket/run", "gs://bucket/run", "az://bucket/run", "https://host/run"] {
        refuses(address, open(address), "cloud");
        refuses(address, save(address, &values), "cloud");
    }

    refuses("read a key", PrivateKey::read(path("key")), "protection");
    refuses("parse a key", PublicKey::parse("ssh-ed25519 AAAA"), "protection");
    refuses("add parity", regrow::add_parity(path("checkpoint"), &Default::default()), "protection");
    let options = SaveOptions { parity: Some(Default::default()), ..SaveOptions::default() };
    refuses("save with parity", save_with(path("other"), &values, &options), "protection");
    assert!(!path("other").exists());
}
