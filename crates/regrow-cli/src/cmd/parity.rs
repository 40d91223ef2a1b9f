//! `regrow parity`: writes parity, with which a checkpoint can be repaired.

use std::io::Write;
use std::path::{Path, PathBuf};

use regrow::text::{counted, printable};
use regrow::{ParityOptions, ParityRatio};
use serde_json::json;

use crate::Globals;
use crate::exit::{Exit, Failure};
use crate::out;

/// Put parity beside a checkpoint, by which `repair` heals it.
///
/// Any layout. The checkpoint is verified first, and not touched: the parity is two files of its
/// own, `regrow.parity.json` and `regrow.parity.blocks` in the folder, or `regrow.parity.NAME.json`
/// and `.blocks` beside a file.
#[derive(Debug, clap::Args)]
pub struct Parity {
    /// The checkpoint.
    path: PathBuf,
    /// How much: of 1/16 the parity takes a sixteenth of the checkpoint's size, and heals as much.
    #[arg(long, value_name = "RATIO", default_value = "1/16")]
    ratio: ParityRatio,
    /// Take the parity away instead.
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
        let made = regrow::add_parity(at, &ParityOptions { ratio, step, remove, monitor });
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
            (true, true) => writeln!(out, "{path}: taken away")?,
            (false, _) => writeln!(out, "{path}: there is no parity")?,
        }
        Ok(Exit::Fine)
    }
}
