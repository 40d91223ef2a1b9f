//! Keys, public and private, in the formats of OpenSSL and OpenSSH.

#![no_main]

use libfuzzer_sys::fuzz_target;
use regrow::{PrivateKey, PublicKey};

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(key) = PublicKey::parse(text) {
        assert_eq!(PublicKey::parse(&key.to_string()).unwrap().to_bytes(), key.to_bytes());
    }
    if let Ok(key) = PrivateKey::parse(text) {
        let _ = key.public_key();
    }
});
