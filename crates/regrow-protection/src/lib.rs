//! Internals of regrow, without promises: side files that protect the files of a checkpoint.
//!
//! | module | holds |
//! |---|---|
//! | [`seal`] | checksums of files, for layouts without checksums; reads of sealed files |
//! | [`signature`] | digests of files, and Ed25519 signatures of them |
//! | `keys` | private and public keys, in the formats of OpenSSL and OpenSSH |
//! | [`parity`] | Reed-Solomon blocks that can restore damaged and lost files |
//!
//! This crate works on files, and knows neither arrays nor layouts. A seal, a signature and an
//! index of parity are each a [`SideDocument`](regrow_base::bytes::side_document::SideDocument) in
//! JSON. A seal and an index of parity begin with a checksum of their own.

#[cfg_attr(not(feature = "protection"), path = "keys_absent.rs")]
mod keys;
pub mod parity;
pub mod seal;
pub mod signature;

pub use keys::{PrivateKey, PublicKey};
