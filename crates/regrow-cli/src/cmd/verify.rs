//! `regrow verify`: reads every file once, and lists all damage.

use std::io::Write;
use std::path::{Path, PathBuf};

use regrow::engine::{UnprotectedFile, verify_steps};
use regrow::{Error, ErrorKind, VerifyOptions, VerifyReport};
use regrow_base::text::{counted, printable};
use serde_json::{Value, json};

use crate::Globals;
use crate::exit::{self, Exit, Failure};
use crate::out::{self, Tint};

/// The most files without checksums that are listed. Others are only counted.
const FILES_SHOWN: usize = 10;

const EXAMPLES: &str = "\
Examples:
  regrow verify step_100
  regrow verify run --all-steps
  regrow verify step_100 --key public.pem";

/// Read all of a checkpoint and report all damage.
///
/// Prints a verdict for each path on stdout, and each finding with file, leaf and offset on stderr.
/// Notes on stderr are no damage; they do not change the exit code. Exit code 1: damage found.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Verify {
    /// The checkpoints.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Require a signature by the owner of this public key. The same as --trusted-key.
    #[arg(long = "key", value_name = "KEY", allow_hyphen_values = true)]
    keys: Vec<String>,
    /// Verify every committed step. [default: the newest, or --step]
    #[arg(long)]
    all_steps: bool,
}

type Verified = Result<VerifyReport, Error>;

impl Verify {
    pub fn paths(&self) -> Vec<&Path> {
        self.paths.iter().map(PathBuf::as_path).collect()
    }

    pub fn run(&self, globals: &Globals, out: &mut impl Write) -> Result<Exit, Failure> {
        let keys = crate::public_keys(&self.keys)?;
        let mut worst = Exit::Fine;
        let mut results = Vec::new();
        globals.refuse_step_with_all(self.all_steps)?;
        for path in &self.paths {
            let (bar, monitor) = globals.bar("verifying");
            let mut options = VerifyOptions { open: globals.open_options(), monitor };
            options.open.trusted_keys.extend(&keys);
            let verified = globals.locate(path).and_then(|at| match self.all_steps {
                true => verify_steps(at, &options).map(|steps| steps.into_iter().map(numbered).collect()),
                false => Ok(vec![(None, regrow::verify_with(at, &options))]),
            });
            drop(bar);
            // Verify the other paths even if one cannot be opened.
            for (step, verified) in verified.unwrap_or_else(|error| vec![(None, Err(error))]) {
                if let (None, None, false, Ok(VerifyReport { step: Some(newest), steps, .. })) =
                    (step, globals.step, globals.json, &verified)
                    && steps.len() > 1
                {
                    let count = steps.len();
                    out::warn(&format!(
                        "note: step {newest} of {count} steps is verified; --all-steps verifies all"
                    ));
                }
                let exit = tell(out, globals, path, step, verified, &mut results)?;
                worst = worst.max(exit);
            }
        }
        if globals.json {
            out::json(out, &Value::Array(results))?;
        }
        Ok(worst)
    }
}

fn numbered(step: (u64, Verified)) -> (Option<u64>, Verified) {
    (Some(step.0), step.1)
}

fn tell(
    out: &mut impl Write,
    globals: &Globals,
    path: &Path,
    step: Option<u64>,
    verified: Verified,
    results: &mut Vec<Value>,
) -> Result<Exit, Failure> {
    let error = match verified {
        Ok(report) => {
            if globals.json {
                results.push(as_json(path, &report));
            } else {
                print(out, path, &report)?;
            }
            return Ok(if report.findings.is_empty() { Exit::Fine } else { Exit::FoundWrong });
        }
        Err(error) => error,
    };
    if globals.json {
        let error = exit::error_json(&error);
        results.push(json!({ "path": path.to_string_lossy(), "step": step, "sound": false, "error": error }));
    } else {
        let verdict = if error.kind() == ErrorKind::Corrupt { "damaged" } else { "not read" };
        verdict_line(out, path, step, &out::tint(Tint::Bad, verdict))?;
        exit::report(&error, false);
    }
    Ok(Failure::Engine(error).exit())
}

fn print(out: &mut impl Write, path: &Path, report: &VerifyReport) -> std::io::Result<()> {
    let leaves = counted(report.leaf_count, "leaf", "leaves");
    if report.findings.is_empty() {
        let sound = out::tint(Tint::Good, "sound");
        let read = out::size(report.checked_bytes);
        verdict_line(out, path, report.step, &format!("{sound}: {leaves}, {read} read"))?;
    } else {
        let found = counted(report.findings.len(), "finding", "findings");
        let damaged = out::tint(Tint::Bad, "damaged");
        verdict_line(out, path, report.step, &format!("{damaged}: {found} in {leaves}"))?;
    }
    if let Some(signer) = &report.signer {
        writeln!(out, "{}: signed by {signer}", printable(&path.to_string_lossy()))?;
    }
    report.findings.iter().for_each(|finding| exit::report(&finding.error, false));
    report.notes.iter().for_each(|note| out::warn(&format!("note: {note}")));
    if !report.findings.is_empty() {
        let path = printable(&path.to_string_lossy()).into_owned();
        out::warn(&format!("note: `regrow repair {path} --check` shows what a repair can restore"));
    } else if !report.has_data_checksums {
        out::warn(&format!(
            "note: {} has no checksums for {} of array data: regrow cannot detect damage there; `regrow \
             seal` adds checksums",
            printable(&path.to_string_lossy()),
            out::size(report.unprotected_bytes),
        ));
        let files = &report.unprotected_files;
        for each in files.iter().take(FILES_SHOWN) {
            let file = each.file.to_string_lossy();
            out::warn(&format!("  {} in {}", out::size(each.bytes), printable(&file)));
        }
        if files.len() > FILES_SHOWN {
            out::warn(&format!("  and in {} more: --json lists them", files.len() - FILES_SHOWN));
        }
    }
    Ok(())
}

/// Prints the verdict and flushes stdout, so that verdicts and the findings on stderr keep their
/// order.
fn verdict_line(out: &mut impl Write, path: &Path, step: Option<u64>, verdict: &str) -> std::io::Result<()> {
    let step = step.map(|step| format!("step {step}: ")).unwrap_or_default();
    writeln!(out, "{}: {step}{verdict}", printable(&path.to_string_lossy()))?;
    out.flush()
}

fn as_json(path: &Path, report: &VerifyReport) -> Value {
    let findings: Vec<Value> =
        report.findings.iter().map(|finding| exit::error_json(&finding.error)).collect();
    let unprotected =
        |each: &UnprotectedFile| json!({ "file": each.file.to_string_lossy(), "bytes": each.bytes });
    let unprotected_files: Vec<Value> = report.unprotected_files.iter().map(unprotected).collect();
    json!({
        "path": path.to_string_lossy(),
        "step": report.step,
        "sound": report.findings.is_empty(),
        "leaf_count": report.leaf_count,
        "checked_bytes": report.checked_bytes,
        "has_data_checksums": report.has_data_checksums,
        "unprotected_bytes": report.unprotected_bytes,
        "unprotected_files": unprotected_files,
        "signer": report.signer.map(|signer| signer.to_string()),
        "findings": findings,
        "notes": report.notes,
    })
}
