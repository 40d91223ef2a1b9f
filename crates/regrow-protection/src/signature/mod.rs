//! Signatures: a side file that proves the author of a checkpoint.
//!
//! A signature is a [seal](crate::seal) with unforgeable checksums: a BLAKE3 of each 256 KiB of
//! each file, and Ed25519 signatures of all of them. A verified signature is used as a seal: each
//! read of the checkpoint reads whole blocks, and checks the digest of a block before it returns a
//! byte.
//!
//! | module | holds |
//! |---|---|
//! | `document` | the file: `regrow.signature.json` |
//! | `trust` | the signature of a checkpoint: verified by keys, and used as a seal |

mod document;
mod trust;

pub use document::{BLOCK_LEN_BYTES, FileDigests, SignatureDocument, Signed};
pub use trust::{missing, of_its_own_keys, place_of, trusted, unverified};
