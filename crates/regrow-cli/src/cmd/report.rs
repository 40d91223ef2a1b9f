//! `regrow report`: writes an HTML page about a checkpoint.

use std::io::Write;
use std::path::{Path, PathBuf};

use regrow::engine::ByteSize;
use regrow::tree::PathPattern;
use regrow::{Error, ErrorKind};
use regrow_base::text::{counted, printable};
use regrow_report::model::{Finding, Overview, Reading, Report as Model};
use regrow_report::{ReportOptions, Subject, assemble, check_target, page, save_page};

use crate::Globals;
use crate::exit::{Exit, Failure};
use crate::out::{self, Tint};

const OUTPUT_DEFAULT: &str = "report.html";

const EXAMPLES: &str = "\
Examples:
  regrow report step_100
  regrow report step_200 step_100 -o compared.html
  regrow report run --sample 16MiB --title 'run 7'";

/// Write one HTML page about a checkpoint.
///
/// The page needs no network. It shows sizes, statistics and histograms of all leaves, shardings,
/// checksums and damage. With OTHER it shows the differences. For a folder of steps it shows the
/// newest step, and sizes, times, metrics and norms of all. It reads every byte once, of at most 20
/// steps; --sample and --no-statistics read less. Exit code 1: damage found.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Report {
    /// The checkpoint, or a folder of steps.
    path: PathBuf,
    /// Checkpoints to compare with.
    #[arg(value_name = "OTHER")]
    others: Vec<PathBuf>,
    /// The HTML file; `-` is stdout. [default: report.html]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace an existing HTML file. Other files are never replaced.
    #[arg(long)]
    overwrite: bool,
    /// Title of the page. [default: last part of PATH]
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
    /// Read only about this much of each longer array, in evenly spread blocks.
    #[arg(long, value_name = "SIZE")]
    sample: Option<ByteSize>,
    /// Read no data of PATH: no statistics, and damage of data is not found.
    #[arg(long, conflicts_with = "sample")]
    no_statistics: bool,
    /// Read and compare only leaves that match this glob; list all. Repeatable.
    #[arg(long, value_name = "GLOB")]
    only: Vec<String>,
}

impl Report {
    pub fn paths(&self) -> Vec<&Path> {
        [&self.path].into_iter().chain(&self.others).map(PathBuf::as_path).collect()
    }

    pub fn run(&self, globals: &Globals, out: &mut impl Write) -> Result<Exit, Failure> {
        let only = self.only.iter().map(|glob| PathPattern::new(glob)).collect::<Result<Vec<_>, Error>>();
        let only = only.map_err(Failure::Usage)?;
        let to_stdout = self.output.as_deref() == Some(Path::new("-"));
        if to_stdout && globals.json {
            let what = "--json and a page cannot both go to stdout";
            return Err(Failure::Usage(
                Error::invalid(what).help("give -o the name of a file, or leave it out"),
            ));
        }
        // --json prints the model, and writes a page only if -o names a file.
        let file = match &self.output {
            _ if to_stdout => None,
            None if globals.json => None,
            output => Some(output.clone().unwrap_or_else(|| OUTPUT_DEFAULT.into())),
        };
        // Check the target before the read, which may take long.
        file.as_deref().map_or(Ok(()), |file| check_target(file, self.overwrite))?;
        let (bar, monitor) = globals.bar("reading");
        let options = ReportOptions {
            title: self.title.clone(),
            command: self.command(),
            open: globals.open_options(),
            only,
            sample_bytes: self.sample.map(|size| size.0),
            without_statistics: self.no_statistics,
            monitor,
            ..ReportOptions::default()
        };
        let subject = Subject::At(globals.locate(&self.path)?);
        let others = self.others.iter().map(|other| globals.locate(other).map(Subject::At));
        let others = others.collect::<Result<Vec<_>, Error>>()?;
        let model = assemble(&subject, &others, &options);
        drop(bar);
        let model = model.map_err(|error| match error.kind() {
            // The checkpoints were opened before, so only an unmatched glob can give this error.
            ErrorKind::NotFound if error.what().starts_with("no leaf matches") => Failure::Usage(error),
            _ => Failure::Engine(error),
        })?;
        if let Some(file) = &file {
            save_page(&model, file, self.overwrite)?;
        }
        if globals.json {
            // Write arrays as columns on one line: with one line for each number the output would
            // be very long.
            out::json_line(out, &model)?;
        } else if let Some(file) = &file {
            say(out, file, &model)?;
        } else {
            page(&model, out)?;
        }
        out.flush()?;
        let overviews =
            || std::iter::once(&model.checkpoint).chain(model.comparisons.iter().map(|one| &one.other));
        if !globals.json {
            overviews().flat_map(|one| &one.findings).for_each(|finding| out::warn(&finding_text(finding)));
            overviews()
                .flat_map(|one| &one.warnings)
                .for_each(|warning| out::warn(&format!("warning: {warning}")));
        }
        Ok(if model.is_sound() { Exit::Fine } else { Exit::FoundWrong })
    }

    fn command(&self) -> String {
        let mut words = vec!["regrow report".to_owned()];
        words.extend(self.paths().into_iter().map(|path| path.to_string_lossy().into_owned()));
        words.extend(self.only.iter().map(|glob| format!("--only {glob}")));
        words.extend(self.sample.map(|size| format!("--sample {}", size.0)));
        words.extend(self.no_statistics.then(|| "--no-statistics".to_owned()));
        words.join(" ")
    }
}

fn say(out: &mut impl Write, file: &Path, model: &Model) -> std::io::Result<()> {
    let about = &model.checkpoint;
    let damaged =
        model.steps.iter().flat_map(|series| &series.steps).filter(|step| step.is_damaged == Some(true));
    let verdict = match (about.findings.len(), damaged.count(), about.reading) {
        (0, 0, Reading::Whole) => out::tint(Tint::Good, "sound"),
        (0, 0, _) => "not all of it read".into(),
        (0, steps, _) => {
            out::tint(Tint::Bad, &format!("{} damaged", counted(steps, "step", "steps"))).into_owned().into()
        }
        (found, ..) => {
            let found = counted(found, "finding", "findings");
            out::tint(Tint::Bad, &format!("damaged: {found}")).into_owned().into()
        }
    };
    let leaves = counted(about.leaf_count, "leaf", "leaves");
    let size = out::size(about.data_bytes);
    writeln!(out, "{}: {}: {verdict}; {leaves}, {size}{}", name(file), title(about), unprotected(about))
}

fn name(file: &Path) -> String {
    printable(&file.to_string_lossy()).into_owned()
}

fn title(about: &Overview) -> String {
    match about.step {
        Some(step) => format!("{}, step {step}", printable(&about.location)),
        None => printable(&about.location).into_owned(),
    }
}

fn unprotected(about: &Overview) -> String {
    match about.protection.unprotected_bytes {
        0 => String::new(),
        bytes => format!(", {} of them without a checksum", out::size(bytes)),
    }
}

fn finding_text(finding: &Finding) -> String {
    let mut text = match &finding.key_path {
        Some(leaf) => format!("error: leaf {leaf} is damaged: {}", finding.what),
        None => format!("error: {}", finding.what),
    };
    if let Some(file) = &finding.file {
        text += &format!("\n  in {file}");
        if let Some(offset) = finding.offset_bytes {
            text += &format!(", at byte {offset}");
        }
    }
    if let Some(help) = &finding.help {
        text += &format!("\n  help: {help}");
    }
    text
}
