//! Seals and signatures in a bucket that does not answer: a side file that cannot be read is an
//! error, and does not count as absent.

use std::path::Path;

use crate::common::buckets::s3;
use crate::common::tree;
use regrow::engine::Layout;
use regrow::location::Location;
use regrow::{
    ErrorKind, LoadOptions, OpenOptions, PrivateKey, PublicKey, SaveOptions, SealOptions, SignOptions,
};
use regrow_testkit::fixtures;
use regrow_testkit::object_server::{Fault, ObjectServer, Op, Refusal};

#[test]
fn a_seal_that_cannot_be_read_is_an_error() {
    let server = ObjectServer::start().unwrap();
    server.create_bucket("seals");
    let options = s3(server.endpoint()).with("max_retries", "1").with("retry_timeout", "1");
    let root = Location::with_options(Path::new("s3://seals/runs"), &options).unwrap();
    let keys = fixtures().join("keys");
    let key = PrivateKey::read(keys.join("alice.pem")).unwrap();
    let public = PublicKey::read(keys.join("alice.pub.pem")).unwrap();
    for (name, suffix) in [("npy", ""), ("safetensors", ".safetensors")] {
        let at = root.join(format!("x{suffix}"));
        let layout = Layout::from_name(name, serde_json::Value::Null).unwrap();
        regrow::save_with(&at, &tree(1), &SaveOptions { layout, ..SaveOptions::default() }).unwrap();
        regrow::seal(&at, &SealOptions::default()).unwrap();
        regrow::sign(&at, &key, &SignOptions::default()).unwrap();
        let trusting = OpenOptions { trusted_keys: vec![public], ..OpenOptions::default() };
        let load = |open: &OpenOptions| {
            let options = LoadOptions { open: open.clone(), ..LoadOptions::default() };
            regrow::engine::load_with(&at, &options).map(|_| ())
        };
        for (file, open) in [("*regrow.seal*", OpenOptions::default()), ("*regrow.signature*", trusting)] {
            load(&open).unwrap();
            server.fault(Fault::refuse(Refusal::InternalError).on(Op::Get).key(file));
            let error = load(&open).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io, "{name} {file}: {error}");
            server.clear_faults();
            // Buckets say so of what is not there, too: a seal is not known of then, and a
            // signature is asked for.
            server.fault(Fault::refuse(Refusal::AccessDenied).on(Op::Get).key(file));
            let denied = load(&open);
            match open.trusted_keys.is_empty() {
                true => denied.unwrap(),
                false => assert_eq!(denied.unwrap_err().kind(), ErrorKind::Untrusted, "{name} {file}"),
            }
            server.clear_faults();
        }
    }
}
