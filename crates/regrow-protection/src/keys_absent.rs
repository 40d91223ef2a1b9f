//! Replaces `keys` in a build without the feature `protection`: every function that would make a
//! key returns an error.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use regrow_base::error::{Error, Result};
use regrow_storage::location::ToLocation;

pub(crate) const SIGNATURE_LEN_BYTES: usize = 64;

/// A private key. No value of this type exists.
#[derive(Debug)]
pub struct PrivateKey(Infallible);

/// A public key. No value of this type exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKey(Infallible);

fn absent() -> Error {
    Error::unsupported("signatures need the feature `protection`, which this build lacks")
        .help("build regrow with the feature `protection`")
}

/// Returns an error: this build cannot check signatures.
pub(crate) fn check_available() -> Result<()> {
    Err(absent())
}

impl PrivateKey {
    /// Returns an error: this build has no keys.
    pub fn read(_path: impl ToLocation) -> Result<Self> {
        Err(absent())
    }

    /// Returns an error: this build has no keys.
    pub fn parse(_text: &str) -> Result<Self> {
        Err(absent())
    }

    /// The public key that verifies signatures of this key.
    pub fn public_key(&self) -> PublicKey {
        match self.0 {}
    }

    pub(crate) fn sign(&self, _message: &[u8]) -> [u8; SIGNATURE_LEN_BYTES] {
        match self.0 {}
    }
}

impl PublicKey {
    /// Returns an error: this build has no keys.
    pub fn read(_path: impl ToLocation) -> Result<Self> {
        Err(absent())
    }

    /// Returns an error: this build has no keys.
    pub fn parse(_text: &str) -> Result<Self> {
        Err(absent())
    }

    /// Returns an error: this build has no keys.
    pub fn parse_or_read(_text: &str) -> Result<Self> {
        Err(absent())
    }

    pub(crate) fn from_bytes(_bytes: &[u8; 32]) -> Result<Self> {
        Err(absent())
    }

    /// The key's 32 bytes.
    pub fn to_bytes(&self) -> [u8; 32] {
        match self.0 {}
    }

    pub(crate) fn verifies(&self, _message: &[u8], _signature: &[u8; SIGNATURE_LEN_BYTES]) -> bool {
        match self.0 {}
    }
}

impl FromStr for PublicKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, _f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {}
    }
}
