//! `regrow parity`: writes parity, which can repair a checkpoint.

use std::io::Write;
use std::path::{Path, PathBuf};

use regrow::{ParityOptions, ParityRatio};
use regrow_base::text::{counted, printable};
use serde_json::json;

use crate::Globals;
use crate::exit::{Exit, Failure};
use crate::out;

const EXAMPLES: &str = "\
Examples:
  regrow parity step_100
  regrow parity step_100 --ratio 1/8
  regrow parity step_100 --remove";

/// Put parity beside a checkpoint, for `regrow repair`.
///
/// Works for every layout. The checkpoint is verified first and does not change. The parity is two
/// files: `regrow.parity.json` and `regrow.parity.blocks` in a folder, `regrow.parity.NAME.json`
/// and `regrow.parity.NAME.blocks` beside a file.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Parity {
    /// The checkpoint.
    path: PathBuf,
    /// Size of the parity as a part of the checkpoint. It heals that much damage.
    #[arg(long, value_name = "RATIO", default_value = "1/16")]
    ratio: ParityRatio,
    /// Remove the parity instead.
    #[arg(long, conflicts_with = "ratio")]
    remove: bool,
}

impl Parity {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn run(&self, globals: &Globals, out: &mut impl Write) -> Result<Exit, Failure> {
        globals.refuse_item()?;
        let at = globals.locate(&self.path)?;
        let (bar, monitor) = globals.bar("making parity");
        let (ratio, step, remove) = (self.ratio, globals.step, self.remove);
        let made =
            regrow::add_parity(at, &ParityOptions { ratio, step, remove, monitor, wait: globals.wait() });
        drop(bar);
        let report = made?;
        let path = report.path.to_string_lossy();
        if globals.json {
            out::json(
                out,
                &json!({
                    "path": path,
                    "file_count": report.file_count,
                    "bytes": report.bytes,
                    "parity_bytes": report.parity_bytes,
                    "has_changed": report.has_changed,
                }),
            )?;
            return Ok(Exit::Fine);
        }
        let path = printable(&path);
        match (report.has_changed, self.remove) {
            (true, false) => {
                let files = counted(report.file_count, "file", "files");
                let (bytes, parity) = (out::size(report.bytes), out::size(report.parity_bytes));
                writeln!(out, "{path}: {parity} of parity for {files}, {bytes}")?;
            }
            (true, true) => writeln!(out, "{path}: removed")?,
            (false, _) => writeln!(out, "{path}: there is no parity")?,
        }
        Ok(Exit::Fine)
    }
}
