//! Signatures: the first byte says whether the input is the whole file, or what a key that is
//! trusted has signed.

#![no_main]

mod door;

use std::sync::LazyLock;

use ed25519_dalek::{Signer, SigningKey};
use libfuzzer_sys::fuzz_target;
use regrow::{OpenOptions, PublicKey};

const SIGNED: &[u8] = include_bytes!("../../fixtures/safetensors/every_dtype.safetensors");

static KEY: LazyLock<SigningKey> = LazyLock::new(|| SigningKey::from_bytes(&[7; 32]));
static PUBLIC_KEY: LazyLock<PublicKey> =
    LazyLock::new(|| PublicKey::parse(&hex(KEY.verifying_key().as_bytes())).unwrap());

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fuzz_target!(|input: &[u8]| {
    let Some((which, body)) = input.split_first() else { return };
    let document = match which % 4 {
        0 => body.to_vec(),
        _ => {
            let signature = KEY.sign(&[b"regrow signature 1\n", body].concat()).to_bytes();
            let key = hex(KEY.verifying_key().as_bytes());
            let signatures = format!(
                "{{\"signatures\":[{{\"public_key\":\"{key}\",\"signature\":\"{}\"}}],\"signed\":",
                hex(&signature)
            );
            [signatures.as_bytes(), body, b"}"].concat()
        }
    };
    let path = door::put("x.safetensors", SIGNED);
    door::put("regrow.signature.x.safetensors.json", &document);
    let open = OpenOptions { trusted_keys: vec![PUBLIC_KEY.clone()], ..OpenOptions::default() };
    let Ok(checkpoint) = regrow::open_with(&path, &open) else { return };
    for leaf in 0..checkpoint.tree().len() {
        let _ = checkpoint.read(leaf);
    }
    let _ = checkpoint.verify();
});
