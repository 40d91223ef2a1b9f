//! `regrow convert`: converts a checkpoint from any layout to any other.

use std::io::Write;
use std::path::{Path, PathBuf};

use regrow::engine::{
    CastRule, ConvertOptions, ConvertPlan, ConvertReport, ConvertRules, Layout, PlannedLeaf, RenameRule,
    ReshapeRule, TransposeRule, convert_steps, plan_convert, plan_convert_steps,
};
use regrow::location::Location;
use regrow::tree::LeafInfo;
use regrow::{Error, ErrorKind, ParityRatio};
use regrow_base::text::{counted, printable, printable_lines};
use regrow_base::wording::Caller;
use regrow_layouts::{Loss, LossKind};
use serde_json::{Map, Value, json};

use crate::Globals;
use crate::exit::{self, Exit, Failure};
use crate::out::{self, Align};

const EXAMPLES: &str = "\
Examples:
  regrow convert orbax_step_100 model.safetensors -o format=pt
  regrow convert step_100 small --only 'params/**' --cast bfloat16
  regrow convert step_100 renamed --rename 'params/(.*)=model/$1' --dry-run
  regrow convert flax_run regrow_run --all-steps";

/// Convert a checkpoint to another layout.
///
/// If DST cannot hold SRC without a loss, the command lists each loss and writes nothing; --lossy
/// converts anyway. Globs and rules match the key paths of SRC as `regrow ls` prints them.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Convert {
    /// The checkpoint to read. For a folder of steps add --step N or --all-steps.
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// The checkpoint to write.
    #[arg(value_name = "DST")]
    target: PathBuf,
    /// Layout to write: regrow, orbax, flax, equinox, pytree_data, trak, safetensors or npy.
    /// [default: by the suffix of DST, else regrow]
    #[arg(short, long, value_name = "LAYOUT")]
    layout: Option<String>,
    /// TOML file of rules: layout, options, only, lossy, rename, cast, transpose, reshape. Rules on
    /// the command line come first.
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Option of the layout; VALUE is JSON or text. Repeatable.
    #[arg(short, long = "option", value_name = "NAME=VALUE")]
    options: Vec<String>,
    /// Convert only leaves that match this glob. Repeatable.
    #[arg(long, value_name = "GLOB")]
    only: Vec<String>,
    /// Rename leaves whose whole key path matches; $1 is the first group. The first match decides.
    #[arg(long, value_name = "REGEX=PATH")]
    rename: Vec<String>,
    /// Split flat names at this text into dicts: `.` makes `params.kernel` params/kernel.
    #[arg(long, value_name = "TEXT")]
    nest: Option<String>,
    /// Cast leaves. A glob casts floats to floats and integers to integers; a full key path casts
    /// that leaf to any dtype.
    #[arg(long, value_name = "[GLOB=]DTYPE")]
    cast: Vec<String>,
    /// Reorder axes: `**/kernel=1,0`.
    #[arg(long, value_name = "GLOB=AXES")]
    transpose: Vec<String>,
    /// Reshape after the transpose; -1 is inferred: `**/qkv=3,-1,64`.
    #[arg(long, value_name = "GLOB=SHAPE")]
    reshape: Vec<String>,
    /// Convert even if something is lost, and list each loss.
    #[arg(long)]
    lossy: bool,
    /// Convert the intact leaves of a damaged checkpoint, and list each lost one. Exit code 1 if a
    /// leaf is lost.
    #[arg(long)]
    salvage: bool,
    /// Show the result for each leaf and write nothing. Errors and exit code are those of the
    /// conversion.
    #[arg(long)]
    dry_run: bool,
    /// Convert every committed step of the folder SRC into the folder DST.
    #[arg(long)]
    all_steps: bool,
    /// Replace an existing checkpoint.
    #[arg(long)]
    overwrite: bool,
    /// Earlier checkpoint; unchanged data files are linked to it, not written again. Layout regrow
    /// only.
    #[arg(long, value_name = "PATH")]
    base: Option<PathBuf>,
    /// Link files of the base without checking them first.
    #[arg(long, requires = "base")]
    trust_base: bool,
    /// Do not wait for the disk. Faster, but a power cut may lose the new checkpoint.
    #[arg(long)]
    no_sync: bool,
    /// Also write a seal, as `regrow seal` does.
    #[arg(long)]
    seal: bool,
    /// Also write parity, as `regrow parity` does: 1/16 of the size, for example.
    #[arg(long, value_name = "RATIO")]
    parity: Option<ParityRatio>,
    /// Print the time of each stage on stderr.
    #[arg(short, long)]
    verbose: bool,
}

impl Convert {
    pub fn paths(&self) -> Vec<&Path> {
        [&self.source, &self.target]
            .into_iter()
            .chain(&self.base)
            .chain(&self.rules)
            .map(PathBuf::as_path)
            .collect()
    }

    pub fn run(&self, globals: &Globals, out: &mut impl Write) -> Result<Exit, Failure> {
        // Every invalid option is a usage error, even if the engine calls the option unsupported.
        let mut options = self.convert_options(globals).map_err(Failure::Usage)?;
        let (source, target) = (globals.locate(&self.source)?, globals.locate(&self.target)?);
        globals.refuse_step_with_all(self.all_steps)?;
        // Open the source first: a source that cannot be opened is an error, not a refusal.
        let step = match self.salvage {
            true => globals.step,
            false => regrow::open_with(&source, &options.open)?.description().step,
        };
        if self.dry_run {
            let plans = match self.all_steps {
                true => plan_convert_steps(&source, &target, &options).map(numbered),
                false => plan_convert(&source, &options)
                    .and_then(|plan| plan.check(&target, &options).map(|()| vec![(step, plan)])),
            };
            let plans = match plans {
                Err(error) => return Self::refused(error, &source, options.lossy, globals),
                Ok(plans) => plans,
            };
            let fits = |(_, plan): &(_, ConvertPlan)| {
                (options.lossy || plan.is_lossless()) && plan.damage.is_empty()
            };
            if globals.json {
                out::json(out, &self.all_json(&plans, plan_json))?;
            } else {
                for (step, plan) in &plans {
                    step.map_or(Ok(()), |step| writeln!(out, "step {step}:"))?;
                    print_plan(out, plan)?;
                }
            }
            return Ok(if plans.iter().all(fits) { Exit::Fine } else { Exit::FoundWrong });
        }
        let (bar, monitor) = globals.bar("converting");
        options.save.monitor = monitor;
        let reports = match self.all_steps {
            true => convert_steps(&source, &target, &options).map(numbered),
            false => regrow::convert(&source, &target, &options).map(|report| vec![(step, report)]),
        };
        drop(bar);
        let reports = match reports {
            Err(error) => return Self::refused(error, &source, options.lossy, globals),
            Ok(reports) => reports,
        };
        let is_whole = reports.iter().all(|(_, report)| report.damage.is_empty());
        let exit = if is_whole { Exit::Fine } else { Exit::FoundWrong };
        let layout = options.save.layout.name();
        if globals.json {
            out::json(out, &self.all_json(&reports, |report| report_json(report, layout)))?;
            return Ok(exit);
        }
        for (step, report) in &reports {
            self.print(out, *step, report, layout)?;
        }
        Ok(exit)
    }

    /// A single value; or the values of all steps, each with its step.
    fn all_json<T>(&self, each: &[(Option<u64>, T)], as_json: impl Fn(&T) -> Value) -> Value {
        let value = |(step, each): &(Option<u64>, T)| {
            let mut value = as_json(each);
            if let (Some(step), Value::Object(members)) = (step, &mut value) {
                members.insert("step".to_owned(), json!(step));
            }
            value
        };
        let mut values: Vec<Value> = each.iter().map(value).collect();
        match self.all_steps {
            true => Value::Array(values),
            false => values.pop().unwrap_or_default(),
        }
    }

    fn print(
        &self,
        out: &mut impl Write,
        step: Option<u64>,
        report: &ConvertReport,
        layout: &str,
    ) -> std::io::Result<()> {
        let of_step = step.map(|step| format!("step {step}: ")).unwrap_or_default();
        for error in &report.damage {
            let error = error.in_words_of(Caller::Shell);
            out::warn(&format!("{of_step}lost: {error}"));
        }
        for loss in &report.losses {
            out::warn(&format!("{of_step}{}: {loss}", loss.kind.name()));
        }
        if self.verbose {
            out::warn(&report.save.to_string());
        }
        let leaves = counted(report.save.leaf_count, "leaf", "leaves");
        let size = out::size(report.save.stored_bytes);
        let path = report.save.path.to_string_lossy();
        write!(out, "{}: {of_step}{leaves}, {size}, {layout}", printable(&path))?;
        if self.base.is_some() {
            write!(out, ", {} reused", out::size(report.save.reused_bytes))?;
        }
        writeln!(out)
    }

    /// Reports a refused conversion, and returns the exit code. The same for a dry run.
    fn refused(error: Error, source: &Location, is_lossy: bool, globals: &Globals) -> Result<Exit, Failure> {
        // Without --salvage the source was opened before, so this error means that a glob matches
        // no leaf.
        if error.kind() == ErrorKind::NotFound && error.place().file.as_deref() == Some(&*source.describe()) {
            return Err(Failure::Usage(error));
        }
        if error.kind() != ErrorKind::Unsupported || is_lossy {
            return Err(error.into());
        }
        // The source is readable; the target layout cannot store all of it.
        exit::report(&error, globals.json);
        Ok(Exit::FoundWrong)
    }

    fn convert_options(&self, globals: &Globals) -> Result<ConvertOptions, Error> {
        let mut rules = match &self.rules {
            Some(file) => ConvertRules::read(globals.locate(file)?)?,
            None => ConvertRules::default(),
        };
        if let Some(layout) = &self.layout {
            if rules.to_layout()?.name() != layout {
                // The options in the rules are for another layout.
                rules.options = Map::new();
            }
            rules.layout = Some(layout.clone());
        }
        if rules.layout.is_none() {
            let chosen = Layout::for_target(&globals.locate(&self.target)?)?;
            rules.layout = Some(chosen.name().to_owned());
        }
        for text in &self.options {
            let (name, value) = split(text, "NAME=VALUE")?;
            let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
            rules.options.insert(name.to_owned(), value);
        }
        if !self.only.is_empty() {
            rules.only.clone_from(&self.only);
        }
        rules.lossy |= self.lossy;
        // The first matching rule decides, so the rules of the command line precede the rules of
        // the file.
        prepend(&mut rules.rename, &self.rename, |text| {
            let (from, to) = split(text, "REGEX=PATH")?;
            Ok(RenameRule { from: from.to_owned(), to: to.to_owned() })
        })?;
        prepend(&mut rules.cast, &self.cast, |text| {
            let (leaves, dtype) = text.rsplit_once('=').unwrap_or(("**", text));
            Ok(CastRule { leaves: leaves.to_owned(), dtype: dtype.to_owned() })
        })?;
        prepend(&mut rules.transpose, &self.transpose, |text| {
            let (leaves, axes) = numbers(text, "GLOB=AXES")?;
            Ok(TransposeRule { leaves, axes })
        })?;
        prepend(&mut rules.reshape, &self.reshape, |text| {
            let (leaves, shape) = numbers(text, "GLOB=SHAPE")?;
            Ok(ReshapeRule { leaves, shape })
        })?;
        let mut options = rules.options()?;
        options.open = globals.open_options();
        options.nest.clone_from(&self.nest);
        options.salvage = self.salvage;
        options.save.overwrite = self.overwrite;
        options.save.not_durable = self.no_sync;
        options.save.seal = self.seal;
        options.save.parity = self.parity;
        options.save.trust_base = self.trust_base;
        options.save.base = self.base.as_deref().map(|base| globals.locate(base)).transpose()?;
        Ok(options)
    }
}

fn numbered<T>(each: Vec<(u64, T)>) -> Vec<(Option<u64>, T)> {
    each.into_iter().map(|(step, each)| (Some(step), each)).collect()
}

fn report_json(report: &ConvertReport, layout: &str) -> Value {
    json!({
        "path": report.save.path.to_string_lossy(),
        "layout": layout,
        "leaf_count": report.save.leaf_count,
        "stored_bytes": report.save.stored_bytes,
        "data_bytes": report.save.data_bytes,
        "reused_bytes": report.save.reused_bytes,
        "seconds": report.save.seconds,
        "gb_per_s": report.save.gb_per_s(),
        "stages": report.save.stages.iter().map(super::stage_json).collect::<Vec<_>>(),
        "io_path": report.save.io_path.to_string(),
        "losses": report.losses.iter().map(loss_json).collect::<Vec<_>>(),
        "damage": report.damage.iter().map(exit::error_json).collect::<Vec<_>>(),
    })
}

fn prepend<R>(
    rules: &mut Vec<R>,
    texts: &[String],
    of: impl Fn(&str) -> Result<R, Error>,
) -> Result<(), Error> {
    let first = texts.iter().map(|text| of(text)).collect::<Result<Vec<R>, Error>>()?;
    rules.splice(0..0, first);
    Ok(())
}

/// Splits a rule at its last `=`, because globs and regular expressions may contain `=`. Splits an
/// option at its first `=`.
fn split<'a>(text: &'a str, form: &str) -> Result<(&'a str, &'a str), Error> {
    let split = if form.starts_with("NAME") { text.split_once('=') } else { text.rsplit_once('=') };
    split.ok_or_else(|| Error::invalid(format!("{text:?} lacks a =")).expected(form, text))
}

fn numbers<T: std::str::FromStr>(text: &str, form: &str) -> Result<(String, Vec<T>), Error> {
    let (glob, numbers) = split(text, form)?;
    let numbers: Result<Vec<T>, _> =
        numbers.split(',').filter(|number| !number.trim().is_empty()).map(|n| n.trim().parse()).collect();
    let numbers = numbers
        .map_err(|_| Error::invalid(format!("{text:?} is not a list of numbers")).expected(form, text))?;
    Ok((glob.to_owned(), numbers))
}

fn print_plan(out: &mut impl Write, plan: &ConvertPlan) -> std::io::Result<()> {
    let described = |leaf: &LeafInfo| format!("{} {}", leaf.dtype_text(), leaf.shape);
    let rows: Vec<[String; 4]> = plan
        .leaves
        .iter()
        .map(|leaf| {
            let to = leaf.to.as_ref().map_or("(left out)".to_owned(), ToString::to_string);
            let (source, target) = (described(&leaf.source), described(&leaf.target));
            let target = if source == target || leaf.to.is_none() { String::new() } else { target };
            [leaf.from.to_string(), to, source, target]
        })
        .collect();
    let header = Some(["from", "to", "is", "becomes"]);
    out::columns(out, "", header, [Align::Left; 4], &rows)?;
    for loss in &plan.losses {
        writeln!(out, "{}", printable_lines(&format!("{}: {loss}", loss.kind.name())))?;
    }
    if plan.losses.iter().any(|loss| loss.kind != LossKind::Note) {
        writeln!(out, "the target would lose something: pass --lossy to convert")?;
    }
    for error in &plan.damage {
        let error = error.in_words_of(Caller::Shell);
        writeln!(out, "{}", printable_lines(&format!("lost: {error}")))?;
    }
    Ok(())
}

fn plan_json(plan: &ConvertPlan) -> Value {
    let leaf = |leaf: &PlannedLeaf| {
        let info = |info: &LeafInfo| json!({ "kind": info.kind.name(), "dtype": info.dtype.name(), "shape": info.shape.dims() });
        json!({
            "from": leaf.from.to_string(),
            "to": leaf.to.as_ref().map(ToString::to_string),
            "source": info(&leaf.source),
            "target": info(&leaf.target),
        })
    };
    json!({
        "leaves": plan.leaves.iter().map(leaf).collect::<Vec<_>>(),
        "losses": plan.losses.iter().map(loss_json).collect::<Vec<_>>(),
        "lossless": plan.is_lossless(),
        "damage": plan.damage.iter().map(exit::error_json).collect::<Vec<_>>(),
    })
}

fn loss_json(loss: &Loss) -> Value {
    json!({ "kind": loss.kind.name(), "key_path": loss.path.to_string(), "what": loss.what })
}
