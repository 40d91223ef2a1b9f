//! `regrow repair`: repairs a damaged checkpoint.

use std::io::Write;
use std::path::{Path, PathBuf};

use regrow::{RepairOptions, RepairReport, Verdict};
use regrow_base::text::printable;
use regrow_base::wording::Caller;
use serde_json::json;

use crate::Globals;
use crate::exit::{self, Exit, Failure};
use crate::out;

const EXAMPLES: &str = "\
Examples:
  regrow repair step_100 --check
  regrow repair step_100 --from s3://bucket/run/step_100";

/// Heal a damaged checkpoint by its parity or a copy.
///
/// With parity (`regrow parity`) it restores damaged blocks and truncated or missing files. With
/// --from it takes blocks of another checkpoint if parity, a seal or checksums of the layout regrow
/// prove them. With neither it rebuilds metadata that other files repeat. It also finishes or
/// removes temporary files of unfinished saves.
///
/// Exit code 0: every file is proven whole. 1: damage remains; it is listed leaf by leaf. 4: no
/// damage found, but nothing proves every file.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Repair {
    /// The checkpoint.
    path: PathBuf,
    /// A copy of the checkpoint, or another step; it may be damaged too.
    #[arg(long, value_name = "OTHER")]
    from: Option<PathBuf>,
    /// Say what a repair would do and write nothing. Exit code 1: damage found.
    #[arg(long)]
    check: bool,
}

impl Repair {
    pub fn paths(&self) -> Vec<&Path> {
        [Some(&self.path), self.from.as_ref()].into_iter().flatten().map(PathBuf::as_path).collect()
    }

    pub fn run(&self, globals: &Globals, out: &mut impl Write) -> Result<Exit, Failure> {
        globals.refuse_item()?;
        let at = globals.locate(&self.path)?;
        let from = self.from.as_ref().map(|from| globals.locate(from)).transpose()?;
        let (bar, monitor) = globals.bar("repairing");
        let options =
            RepairOptions { step: globals.step, from, check: self.check, monitor, wait: globals.wait() };
        let repaired = regrow::repair(at, &options);
        drop(bar);
        let report = repaired?;
        if globals.json {
            out::json(out, &as_json(&report))?;
        } else {
            writeln!(out, "{report}")?;
            for file in &report.healed {
                let path = file.path.to_string_lossy();
                writeln!(out, "  {}: {}", printable(&path), out::size(file.bytes))?;
            }
            for file in &report.recovered {
                let path = file.path.to_string_lossy();
                writeln!(out, "  {}: {}, {}", printable(&path), out::size(file.bytes), printable(&file.how))?;
            }
            for error in report.lost.iter().chain(&report.findings) {
                let error = error.in_words_of(Caller::Shell);
                writeln!(out, "{error}")?;
            }
        }
        Ok(match report.verdict {
            Verdict::Whole(_) => Exit::Fine,
            Verdict::NotKnown => Exit::NotKnown,
            Verdict::Damaged => Exit::FoundWrong,
        })
    }
}

fn as_json(report: &RepairReport) -> serde_json::Value {
    let healed =
        report.healed.iter().map(|file| json!({ "path": file.path.to_string_lossy(), "bytes": file.bytes }));
    let recovered = report
        .recovered
        .iter()
        .map(|file| json!({ "path": file.path.to_string_lossy(), "bytes": file.bytes, "how": file.how }));
    let proved_by = match report.verdict {
        Verdict::Whole(by) => Some(by.name()),
        Verdict::NotKnown | Verdict::Damaged => None,
    };
    let texts = |errors: &[regrow::Error]| errors.iter().map(exit::error_json).collect::<Vec<_>>();
    json!({
        "path": report.path.to_string_lossy(),
        "bytes": report.bytes,
        "verdict": report.verdict.name(),
        "proved_by": proved_by,
        "healed": healed.collect::<Vec<_>>(),
        "recovered": recovered.collect::<Vec<_>>(),
        "lost": texts(&report.lost),
        "findings": texts(&report.findings),
        "notes": report.notes,
        "is_parity_damaged": report.is_parity_damaged,
        "is_check": report.is_check,
    })
}
