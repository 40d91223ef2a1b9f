//! `regrow sign`: a signature beside a checkpoint.

use std::io::Write;
use std::path::{Path, PathBuf};

use regrow::text::{counted, printable};
use regrow::{PrivateKey, SignOptions};
use serde_json::json;

use crate::Globals;
use crate::exit::{Exit, Failure};
use crate::out;

/// Sign a checkpoint, so that others can prove that it is yours.
///
/// The checkpoint is verified first, and not touched: the signature is a file of its own,
/// `regrow.signature.json` in the folder, or `regrow.signature.NAME.json` beside a file.
/// `--trusted-key` of other commands asks for it. Signatures of other keys over the same files
/// stay.
#[derive(Debug, clap::Args)]
pub struct Sign {
    /// The checkpoint.
    path: PathBuf,
    /// The file with your private Ed25519 key, PKCS#8 PEM (`openssl genpkey -algorithm ed25519 -out
    /// key.pem`) or OpenSSH.
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    key: PathBuf,
}

impl Sign {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn run(&self, globals: &Globals, out: &mut impl Write) -> Result<Exit, Failure> {
        globals.refuse_item()?;
        let key = PrivateKey::read(&self.key)?;
        let at = globals.locate(&self.path)?;
        let (bar, monitor) = globals.bar("signing");
        let signed = regrow::sign(at, &key, &SignOptions { step: globals.step, monitor });
        drop(bar);
        let report = signed?;
        let path = report.path.to_string_lossy();
        let signers: Vec<String> = report.signers.iter().map(ToString::to_string).collect();
        if globals.json {
            let (files, bytes) = (report.file_count, report.bytes);
            out::json(
                out,
                &json!({ "path": path, "file_count": files, "bytes": bytes, "signers": signers }),
            )?;
            return Ok(Exit::Fine);
        }
        let files = counted(report.file_count, "file", "files");
        writeln!(out, "{}: signed {files}, {}", printable(&path), out::size(report.bytes))?;
        signers.iter().try_for_each(|signer| writeln!(out, "  by {signer}"))?;
        Ok(Exit::Fine)
    }
}
