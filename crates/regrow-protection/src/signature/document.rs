//! A signature as a file: `regrow.signature.json`.
//!
//! ```text
//! {"signatures":[{"public_key":"3fa9...",     64 hex digits
//!                 "signature":"84c1..."}],    Ed25519, 128 hex digits; one for each key
//!  "signed":{"format":"regrow-signature", "version":1,
//!            "writer":"regrow 0.1.0", "created_unix_ns":...,
//!            "layout":"orbax",              the layout in which the checkpoint was opened
//!            "covers_folder":true,          whether `names` has all files of the folder
//!            "block_len_bytes":262144,
//!            "names":["_METADATA","d/3f2a"],
//!            "len_bytes":[812,1048576],
//!            "block_blake3":"9a40..."}}     64 hex digits a block, file after file
//! ```
//!
//! The signed bytes are [`PREFIX`] and then the bytes of the value of `signed`, exactly as in the
//! file. So JSON needs no canonical form, and a reader can verify these bytes before it parses
//! them.
//!
//! Names are relative to the folder. In a checkpoint of single files, names begin with `*`, which
//! means the checkpoint's own name. So the signature file can be copied with the checkpoint under
//! another name, and never covers neighbouring files.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::keys::{PrivateKey, PublicKey, SIGNATURE_LEN_BYTES};
use crate::seal::Covered;
use regrow_base::bytes::hex::{digests, fixed};
use regrow_base::bytes::side_document::{SideDocument, now_unix_ns, writer};
use regrow_base::error::{Error, ErrorKind, Result};
pub(super) use regrow_storage::side_files::SIGNATURE as NAMES;

/// Length of a block; the last block of a file is shorter. The digests of a GiB take 256 KiB, as in
/// a seal.
pub const BLOCK_LEN_BYTES: u64 = 256 << 10;

/// The only version that this build reads and writes.
const VERSION: u32 = 1;

const FORMAT: &str = "regrow-signature";

const KIND: SideDocument = SideDocument {
    what: "the signature of the checkpoint",
    format: FORMAT,
    version: VERSION,
    help_if_newer: "a newer regrow made it: update regrow",
    error: |what| untrusted(what),
};

/// The prefix of the signed bytes, so that no other signature by the same key passes for one of a
/// checkpoint.
const PREFIX: &[u8] = b"regrow signature 1\n";

const SIGNATURES_MAX: usize = 64;

pub(super) const HELP: &str = "do not use the data: check the key, or get the checkpoint again from its \
    author; if you changed it yourself, sign it again (`regrow sign`)";

/// The parsed file, not yet verified.
#[derive(Debug, Serialize, Deserialize)]
pub struct SignatureDocument {
    signatures: Vec<SignatureOf>,
    signed: Box<RawValue>,
}

/// One key's signature.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SignatureOf {
    public_key: String,
    signature: String,
}

/// The signed data.
#[derive(Debug, Serialize, Deserialize)]
pub struct Signed {
    format: String,
    version: u32,
    /// Program and version that made the signature.
    writer: String,
    created_unix_ns: u64,
    /// The layout that the checkpoint was opened in, for people. An item may have another layout.
    layout: String,
    /// Whether the files are all files of the folder.
    pub covers_folder: bool,
    /// Length of a block; the last block of a file is shorter.
    pub block_len_bytes: u64,
    /// The files, by their paths below the folder.
    pub names: Vec<String>,
    /// The length of each file.
    pub len_bytes: Vec<u64>,
    /// BLAKE3 of each block.
    #[serde(with = "digests")]
    pub block_blake3: Vec<blake3::Hash>,
}

/// A file to sign.
#[derive(Debug)]
pub struct FileDigests {
    /// The path of the file below the folder.
    pub name: String,
    /// Length of the file.
    pub len_bytes: u64,
    /// The digest of each block.
    pub block_blake3: Vec<blake3::Hash>,
}

impl SignatureDocument {
    /// The file with these contents and no signature.
    pub fn unsigned(signed: &Signed) -> Result<Self> {
        let raw = serde_json::value::to_raw_value(signed).map_err(|error| unwritten(&error))?;
        Ok(Self { signatures: Vec::new(), signed: raw })
    }

    /// Parses the file's bytes.
    ///
    /// # Errors
    /// `Untrusted` for a file that is not a signature.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let parsed: Self = serde_json::from_slice(bytes)
            .map_err(|error| untrusted(format!("the signature of the checkpoint cannot be read: {error}")))?;
        match parsed.signatures.len() <= SIGNATURES_MAX {
            true => Ok(parsed),
            false => Err(untrusted("the signature of the checkpoint cannot be read: there are too many")
                .expected(format_args!("at most {SIGNATURES_MAX}"), parsed.signatures.len())),
        }
    }

    /// The file's bytes.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|error| unwritten(&error))
    }

    /// Adds the signature of a key, and removes an earlier signature of the same key.
    ///
    /// # Errors
    /// `Limit` if the file has too many signatures.
    pub fn add(&mut self, key: &PrivateKey) -> Result<()> {
        let public_key = key.public_key().to_string();
        self.signatures.retain(|other| other.public_key != public_key);
        if self.signatures.len() >= SIGNATURES_MAX {
            return Err(Error::new(ErrorKind::Limit, "the checkpoint has too many signatures")
                .expected(format_args!("at most {SIGNATURES_MAX}"), "one more"));
        }
        let signature = hex_of(&key.sign(&self.message()));
        self.signatures.push(SignatureOf { public_key, signature });
        Ok(())
    }

    /// The keys whose signatures verify.
    pub fn signers(&self) -> Vec<PublicKey> {
        let message = self.message();
        self.signatures.iter().filter_map(|signature| signature.verified(&message)).collect()
    }

    /// The signed data, without a check of the signer.
    pub fn unverified(&self) -> Result<Signed> {
        Signed::parse(self.signed.get())
    }

    /// The signed data, and the signing key among these keys.
    ///
    /// # Errors
    /// `Untrusted` if none of the keys has signed it, the signature does not verify, or its content
    /// is inconsistent; `Unsupported` for another version.
    pub fn verified(&self, trusted: &[PublicKey]) -> Result<(Signed, PublicKey)> {
        let message = self.message();
        let named = |key: &&PublicKey| {
            let name = key.to_string();
            self.signatures.iter().any(|signature| signature.public_key == name)
        };
        let signer = self.signatures.iter().filter_map(|signature| {
            // Untrusted keys are not even parsed.
            trusted.iter().find(|key| key.to_string() == signature.public_key)?;
            signature.verified(&message)
        });
        let Some(signer) = signer.into_iter().next() else {
            let keys: Vec<&str> = self.signatures.iter().map(|one| one.public_key.as_str()).collect();
            return Err(match trusted.iter().find(named) {
                Some(key) => untrusted("the signature of the checkpoint is not valid")
                    .expected(format_args!("a signature by {key}"), "another one"),
                None => untrusted("no trusted key signed the checkpoint").expected(
                    trusted.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
                    if keys.is_empty() { "no key".to_owned() } else { keys.join(", ") },
                ),
            });
        };
        Ok((self.unverified()?, signer))
    }

    fn message(&self) -> Vec<u8> {
        [PREFIX, self.signed.get().as_bytes()].concat()
    }
}

impl SignatureOf {
    fn verified(&self, message: &[u8]) -> Option<PublicKey> {
        let key = PublicKey::from_bytes(&fixed(&self.public_key)?).ok()?;
        let signature = fixed::<SIGNATURE_LEN_BYTES>(&self.signature)?;
        key.verifies(message, &signature).then_some(key)
    }
}

impl Signed {
    /// The data to sign for these files.
    pub fn new(layout: &str, covers_folder: bool, files: Vec<FileDigests>) -> Self {
        let mut signed = Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            writer: writer(),
            created_unix_ns: now_unix_ns(),
            layout: layout.to_owned(),
            covers_folder,
            block_len_bytes: BLOCK_LEN_BYTES,
            names: Vec::new(),
            len_bytes: Vec::new(),
            block_blake3: Vec::new(),
        };
        for file in files {
            signed.names.push(file.name);
            signed.len_bytes.push(file.len_bytes);
            signed.block_blake3.extend(file.block_blake3);
        }
        signed
    }

    /// The layout that the checkpoint was opened in.
    pub fn layout(&self) -> &str {
        &self.layout
    }

    /// Whether both describe the same files.
    pub fn has_files_of(&self, other: &Self) -> bool {
        self.covered() == other.covered() && self.block_blake3 == other.block_blake3
    }

    fn covered(&self) -> Covered<'_> {
        let Self { covers_folder, block_len_bytes, names, len_bytes, .. } = self;
        Covered { covers_folder: *covers_folder, block_len_bytes: *block_len_bytes, names, len_bytes }
    }

    fn parse(text: &str) -> Result<Self> {
        let parsed: Self = KIND.parse(text.as_bytes())?;
        parsed.check()?;
        Ok(parsed)
    }

    fn check(&self) -> Result<()> {
        let files = (&*self.names, &*self.len_bytes);
        KIND.check_blocks(files, self.block_len_bytes, self.block_blake3.len(), "digests")
    }
}

pub(super) fn untrusted(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Untrusted, what).help(HELP)
}

fn unwritten(error: &serde_json::Error) -> Error {
    Error::invalid(format!("the signature cannot be written: {error}"))
}

fn hex_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
