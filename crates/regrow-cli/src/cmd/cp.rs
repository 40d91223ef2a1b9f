//! `regrow cp`: copies a checkpoint, byte for byte.

use std::io::Write;
use std::path::{Path, PathBuf};

use regrow::engine::committed_steps;
use regrow::{CopyOptions, Error, ErrorKind};
use regrow_base::text::{counted, format_seconds, printable};
use serde_json::json;

use crate::Globals;
use crate::exit::{Exit, Failure};
use crate::out;

const EXAMPLES: &str = "\
Examples:
  regrow cp runs/step_100 s3://bucket/runs/step_100
  regrow cp s3://bucket/runs runs";

/// Copy a checkpoint to a disk or a bucket, byte for byte.
///
/// SRC and DST are paths or URLs. A folder of steps is copied with all committed steps; --step N
/// copies one. Every file is read back and compared. DST becomes a checkpoint only when the copy is
/// complete. If a copy is interrupted, the same command continues it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Cp {
    /// The checkpoint to read.
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// The checkpoint to write.
    #[arg(value_name = "DST")]
    target: PathBuf,
    /// Copy all committed steps (the default). Fails if SRC is not a folder of steps.
    #[arg(long)]
    all_steps: bool,
    /// Replace an existing checkpoint.
    #[arg(long)]
    overwrite: bool,
    /// Do not read the copy back.
    #[arg(long)]
    no_verify: bool,
    /// Do not wait for the disk. Faster, but a power cut may lose the copy.
    #[arg(long)]
    no_sync: bool,
    /// Parallel requests, at most 8. [default: number of processors]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Print the time of each stage on stderr.
    #[arg(short, long)]
    verbose: bool,
}

impl Cp {
    pub fn paths(&self) -> Vec<&Path> {
        vec![&self.source, &self.target]
    }

    pub fn run(&self, globals: &Globals, out: &mut impl Write) -> Result<Exit, Failure> {
        globals.refuse_item()?;
        globals.refuse_step_with_all(self.all_steps)?;
        let (mut source, target) = (globals.locate(&self.source)?, globals.locate(&self.target)?);
        let steps = committed_steps(&source, &globals.open_options()).unwrap_or_default();
        let mut taken: Vec<u64> = steps.iter().map(|step| step.number).collect();
        if let Some(wanted) = globals.step {
            let step = steps.iter().find(|step| step.number == wanted);
            let missing = || {
                Error::new(ErrorKind::NotFound, format!("step {wanted} does not exist"))
                    .in_file(&source)
                    .expected(format_args!("one of {taken:?}"), wanted)
            };
            source = source.join(&step.ok_or_else(missing)?.name);
            taken = vec![wanted];
        } else if self.all_steps && steps.is_empty() {
            return Err(Failure::Usage(
                Error::invalid("this is not a folder of steps")
                    .in_file(&source)
                    .expected("committed steps", "none")
                    .help("leave out `all_steps`"),
            ));
        }
        let (bar, monitor) = globals.bar("copying");
        let options = CopyOptions {
            overwrite: self.overwrite,
            unverified: self.no_verify,
            not_durable: self.no_sync,
            threads: self.jobs.map(usize::from),
            wait: globals.wait(),
            monitor: monitor.clone(),
            ..CopyOptions::default()
        };
        let report = regrow::copy(source, target, &options);
        drop(bar);
        let report = report?;
        let path = report.path.to_string_lossy();
        if globals.json {
            let value = json!({
                "path": path,
                "steps": taken,
                "file_count": report.file_count,
                "bytes": report.bytes,
                "reused_bytes": report.reused_bytes,
                "verified": !self.no_verify,
                "seconds": report.seconds,
                "gb_per_s": report.gb_per_s(),
                "stages": monitor.stages().iter().map(super::stage_json).collect::<Vec<_>>(),
            });
            out::json(out, &value)?;
            return Ok(Exit::Fine);
        }
        if self.verbose {
            out::warn(&report.to_string());
            for stage in monitor.stages() {
                out::warn(&format!("  {:13} {:>9}", stage.stage.name(), format_seconds(stage.seconds)));
            }
        }
        let files = counted(report.file_count, "file", "files");
        write!(out, "{}: {files}, {}", printable(&path), out::size(report.bytes))?;
        if report.reused_bytes > 0 {
            write!(out, ", {} already copied", out::size(report.reused_bytes))?;
        }
        if !taken.is_empty() {
            let names: Vec<String> = taken.iter().map(u64::to_string).collect();
            let word = if names.len() == 1 { "step" } else { "steps" };
            write!(out, ", {word} {}", names.join(", "))?;
        }
        writeln!(out)?;
        Ok(Exit::Fine)
    }
}
