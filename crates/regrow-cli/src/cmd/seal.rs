//! `regrow seal`: writes checksums beside a checkpoint of a layout without checksums.

use std::io::Write;
use std::path::{Path, PathBuf};

use regrow::SealOptions;
use regrow_base::text::{counted, printable};
use serde_json::json;

use crate::Globals;
use crate::exit::{Exit, Failure};
use crate::out;

const EXAMPLES: &str = "\
Examples:
  regrow seal orbax_step_100
  regrow seal model.safetensors --remove";

/// Put checksums beside a checkpoint of another tool.
///
/// The checkpoint is verified first and does not change. The seal is one file: `regrow.seal.json`
/// in a folder, or `regrow.seal.NAME.json` beside a file. From then on every command checks the
/// bytes that it reads.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Seal {
    /// The checkpoint.
    path: PathBuf,
    /// Remove the seal instead.
    #[arg(long)]
    remove: bool,
}

impl Seal {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn run(&self, globals: &Globals, out: &mut impl Write) -> Result<Exit, Failure> {
        globals.refuse_item()?;
        let at = globals.locate(&self.path)?;
        let (bar, monitor) = globals.bar("sealing");
        let sealed = regrow::seal(
            at,
            &SealOptions { step: globals.step, remove: self.remove, monitor, wait: globals.wait() },
        );
        drop(bar);
        let report = sealed?;
        let path = report.path.to_string_lossy();
        if globals.json {
            let (files, bytes, changed) = (report.file_count, report.bytes, report.has_changed);
            out::json(
                out,
                &json!({ "path": path, "file_count": files, "bytes": bytes, "has_changed": changed }),
            )?;
            return Ok(Exit::Fine);
        }
        let path = printable(&path);
        let files = counted(report.file_count, "file", "files");
        match (report.has_changed, self.remove) {
            (true, false) => writeln!(out, "{path}: sealed {files}, {}", out::size(report.bytes))?,
            (true, true) => writeln!(out, "{path}: removed")?,
            (false, true) => writeln!(out, "{path}: there is no seal")?,
            (false, false) => {
                writeln!(out, "{path}: nothing to do, since this layout has its own checksums")?
            }
        }
        Ok(Exit::Fine)
    }
}
