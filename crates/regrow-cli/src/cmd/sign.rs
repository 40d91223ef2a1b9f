//! `regrow sign`: writes a signature beside a checkpoint.

use std::io::Write;
use std::path::{Path, PathBuf};

use regrow::{PrivateKey, SignOptions};
use regrow_base::text::{counted, printable};
use serde_json::json;

use crate::Globals;
use crate::exit::{Exit, Failure};
use crate::out;

const EXAMPLES: &str = "\
Examples:
  openssl genpkey -algorithm ed25519 -out key.pem
  openssl pkey -in key.pem -pubout -out public.pem
  regrow sign step_100 --key key.pem
  regrow verify step_100 --key public.pem";

/// Sign a checkpoint, so that others can prove that it is yours.
///
/// The checkpoint is verified first and does not change. The signature is one file:
/// `regrow.signature.json` in a folder, or `regrow.signature.NAME.json` beside a file. Signatures
/// by other keys stay. To check a signature, give --trusted-key to any command that reads.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Sign {
    /// The checkpoint.
    path: PathBuf,
    /// File with your private Ed25519 key: PKCS#8 PEM or OpenSSH.
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
        let signed =
            regrow::sign(at, &key, &SignOptions { step: globals.step, monitor, wait: globals.wait() });
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
