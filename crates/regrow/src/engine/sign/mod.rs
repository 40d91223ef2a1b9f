//! Signs a checkpoint. [`mod@crate::signature`] describes a signature.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::checks::change_at;
use super::digests::Digest;
use super::locked::Change;
use super::seal::files_of;
use super::{Checkpoint, OpenOptions, open_with};
use crate::error::{Result, ResultExt};
use crate::location::{Location, ToLocation};
use crate::monitor::Monitor;
use crate::signature::{BLOCK_LEN_BYTES, FileDigests, SignatureDocument, Signed, place_of};
use crate::store::StoreExt;
use crate::text::{counted, format_bytes, printable};
use crate::{PrivateKey, PublicKey};

/// The options of signing.
#[derive(Debug, Clone, Default)]
pub struct SignOptions {
    /// The step to sign in a folder of steps; the newest committed one if `None`.
    pub step: Option<u64>,
    /// Watches the work, and can cancel it.
    pub monitor: Monitor,
    /// How long to wait for another process that changes the checkpoint, before the error `Busy`; a
    /// minute if `None`.
    pub wait: Option<Duration>,
}

/// The result of signing.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SignReport {
    /// The path of the file with the signature.
    pub path: PathBuf,
    /// The number of signed files.
    pub file_count: usize,
    /// The bytes of the signed files.
    pub bytes: u64,
    /// All signers of the files, in the order of their signatures.
    pub signers: Vec<PublicKey>,
}

impl fmt::Display for SignReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.to_string_lossy();
        let signers = self.signers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let files = counted(self.file_count, "file", "files");
        write!(f, "{}: {files}, {}, signed by {signers}", printable(&path), format_bytes(self.bytes))
    }
}

/// Signs the checkpoint at a path or URL, in any layout. Writes a side file with a BLAKE3 digest of
/// each 256 KiB of its files, and an Ed25519 signature of all digests. A reader that opens the
/// checkpoint with [`OpenOptions::trusted_keys`] checks that each byte it reads was signed. The
/// checkpoint itself is verified first, and not changed. All files are read twice.
///
/// Signatures of the same files by other keys stay. A signature of other files is replaced.
///
/// # Errors
/// Errors of opening; `Corrupt` if the checkpoint is damaged; `InvalidArgument` for a single file
/// of a checkpoint of several files; `Busy` if another process changes the checkpoint;
/// `Unsupported` in an archive and on a web server; `PermissionDenied` and other errors of the
/// storage. After an error an earlier signature is unchanged.
pub fn sign(path: impl ToLocation, key: &PrivateKey, options: &SignOptions) -> Result<SignReport> {
    let help = "sign the checkpoint before it goes into the archive";
    let change = Change { name: "sign", wait: options.wait, monitor: &options.monitor };
    let open = OpenOptions { step: options.step, ..OpenOptions::default() };
    change_at(path, help, &options.monitor, |at| {
        change.opened(at, || open_with(at, &open), |checkpoint, part, _| make(checkpoint, part, key, options))
    })
}

/// Signs an opened checkpoint, whose lock the caller has.
fn make(
    checkpoint: &Checkpoint,
    part: &Location,
    key: &PrivateKey,
    options: &SignOptions,
) -> Result<SignReport> {
    if let Some(first) = checkpoint.verify()?.findings.into_iter().next() {
        return Err(first
            .error
            .help("the checkpoint is damaged, so it gets no signature: `regrow verify` lists the damage"));
    }
    let layout = checkpoint.description().layout.clone();
    let signed = signed_of(part, &layout, &options.monitor)?;
    let file = place_of(part).file;
    let mut document = match earlier(part, &signed)? {
        Some(document) => document,
        None => SignatureDocument::unsigned(&signed)?,
    };
    document.add(key).in_file(&file)?;
    file.parent().store().put(file.name().as_encoded_bytes(), document.to_bytes()?.into())?;
    Ok(SignReport {
        path: file.describe(),
        file_count: signed.names.len(),
        bytes: signed.len_bytes.iter().fold(0, |all, len| all.saturating_add(*len)),
        signers: document.signers(),
    })
}

fn signed_of(at: &Location, layout: &str, monitor: &Monitor) -> Result<Signed> {
    let place = place_of(at);
    let (store, names) = files_of(at, &place, layout)?;
    let digest = Digest { block_len_bytes: BLOCK_LEN_BYTES, of_block: blake3::hash, doing: "signed" };
    let files = digest.files(&*store, names, monitor)?.into_iter().map(|file| {
        let name = match file.name.strip_prefix(&place.stem) {
            Some(rest) if !place.covers_folder => format!("*{rest}"),
            _ => file.name,
        };
        FileDigests { name, len_bytes: file.len_bytes, block_blake3: file.blocks }
    });
    Ok(Signed::new(layout, place.covers_folder, files.collect()))
}

/// The existing signature if it covers the same files; otherwise `None`.
fn earlier(at: &Location, signed: &Signed) -> Result<Option<SignatureDocument>> {
    let Some(bytes) = place_of(at).read("the signature")? else { return Ok(None) };
    // An unreadable signature is replaced, like a signature of other files.
    let document = SignatureDocument::parse(&bytes).ok();
    Ok(document.filter(|document| document.unverified().is_ok_and(|earlier| earlier.has_files_of(signed))))
}
