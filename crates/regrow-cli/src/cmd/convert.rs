//! `regrow convert`: converts a checkpoint from any layout to any other.

use std::io::Write;
use std::path::{Path, PathBuf};

use regrow::engine::{
    CastRule, ConvertOptions, ConvertPlan, ConvertReport, ConvertRules, Layout, PlannedLeaf, RenameRule,
    ReshapeRule, TransposeRule, convert_steps, plan_convert, plan_convert_steps,
};
use regrow::formats::{Loss, LossKind};
use regrow::location::Location;
use regrow::text::{counted, printable, printable_lines};
use regrow::tree::LeafInfo;
use regrow::wording::Caller;
use regrow::{Error, ErrorKind, ParityRatio};
use serde_json::{Map, Value, json};

use crate::Globals;
use crate::exit::{self, Exit, Failure};
use crate::out::{self, Align};

/// Convert a checkpoint to another layout.
///
/// What the target cannot hold is refused, with every leaf named, unless --lossy is given; then it
/// is listed. Globs and rules go by the key paths of the source, as `regrow ls` prints them.
#[derive(Debug, clap::Args)]
pub struct Convert {
    /// The checkpoint to read. Of a folder of several steps, --step chooses one, and --all-steps
    /// converts all.
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// The checkpoint to make.
    #[arg(value_name = "DST")]
    target: PathBuf,
    /// The layout to write: regrow, orbax, flax, equinox, pytree_data, trak, safetensors or npy.
    /// Without it the suffix of DST chooses (.safetensors, .npz, .npy, .msgpack, .eqx), or it is
    /// regrow.
    #[arg(short, long, value_name = "LAYOUT")]
    layout: Option<String>,
    /// A TOML file of rules: layout, options, only, lossy, rename, cast, transpose, reshape. What
    /// the command line says comes before them.
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// An option of the layout; its value is JSON, or text. Can be given several times.
    #[arg(short, long = "option", value_name = "NAME=VALUE")]
    options: Vec<String>,
    /// Only leaves that match this glob. Can be given several times.
    #[arg(long, value_name = "GLOB")]
    only: Vec<String>,
    /// Rename: where the regular expression matches a whole key path, put what stands behind the =
    /// in its place ($1 is what the first group has matched). The first rule that matches decides.
    #[arg(long, value_name = "REGEX=PATH")]
    rename: Vec<String>,
    /// Cast to a dtype: `bfloat16`, or `params/**=bfloat16`. A floating dtype is for floating
    /// leaves, an integer for integers; a leaf's whole key path casts it to any dtype:
    /// `step=float32`.
    #[arg(long, value_name = "[GLOB=]DTYPE")]
    cast: Vec<String>,
    /// Put axes into another order: `**/kernel=1,0`.
    #[arg(long, value_name = "GLOB=AXES")]
    transpose: Vec<String>,
    /// Give another shape, after the transpose; one -1 is inferred: `**/qkv=3,-1,64`.
    #[arg(long, value_name = "GLOB=SHAPE")]
    reshape: Vec<String>,
    /// Convert also what the target cannot hold as it is, and values that a cast changes beyond
    /// rounding; list both.
    #[arg(long)]
    lossy: bool,
    /// Convert what is intact in a damaged checkpoint. All of it is verified first; each lost leaf
    /// is listed on stderr, with file and offset. Lost leaves become placeholders, or stay behind.
    /// Exit code 1: something is lost.
    #[arg(long)]
    salvage: bool,
    /// Show what would happen to each leaf, and write nothing; fails as the conversion itself
    /// would.
    #[arg(long)]
    dry_run: bool,
    /// Convert each committed step of a folder of steps into a step of the folder DST.
    #[arg(long)]
    all_steps: bool,
    /// Replace a checkpoint that is there.
    #[arg(long)]
    overwrite: bool,
    /// An earlier checkpoint in the layout regrow: data files in which nothing changed since are
    /// linked to its own instead of written. For the layout regrow only.
    #[arg(long, value_name = "PATH")]
    base: Option<PathBuf>,
    /// Link files of the base without reading them: otherwise their blocks are checked first.
    #[arg(long, requires = "base")]
    trust_base: bool,
    /// Do not wait until the disk has it: faster, but a power cut may cost the new checkpoint.
    #[arg(long)]
    no_sync: bool,
    /// Put a seal beside the new checkpoint, as `regrow seal` does.
    #[arg(long)]
    seal: bool,
    /// Put parity beside the new checkpoint, so much of it, as `regrow parity` does.
    #[arg(long, value_name = "RATIO")]
    parity: Option<ParityRatio>,
    /// Say on stderr how long each part of the work took.
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

    /// One value, or those of all steps, each with its step.
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

    /// How a refusal ends, on a dry run as on a run.
    fn refused(error: Error, source: &Location, is_lossy: bool, globals: &Globals) -> Result<Exit, Failure> {
        // The source was opened before, so this error means that a glob matches no leaf.
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

/// Puts rules of texts before those that are there.
fn prepend<R>(
    rules: &mut Vec<R>,
    texts: &[String],
    of: impl Fn(&str) -> Result<R, Error>,
) -> Result<(), Error> {
    let first = texts.iter().map(|text| of(text)).collect::<Result<Vec<R>, Error>>()?;
    rules.splice(0..0, first);
    Ok(())
}

/// The two halves around the last `=`: keys and expressions may hold one.
fn split<'a>(text: &'a str, form: &str) -> Result<(&'a str, &'a str), Error> {
    let split = if form.starts_with("NAME") { text.split_once('=') } else { text.rsplit_once('=') };
    split.ok_or_else(|| Error::invalid(format!("{text:?} lacks a =")).expected(form, text))
}

/// A glob, and a list of numbers.
fn numbers<T: std::str::FromStr>(text: &str, form: &str) -> Result<(String, Vec<T>), Error> {
    let (glob, numbers) = split(text, form)?;
    let numbers: Result<Vec<T>, _> =
        numbers.split(',').filter(|number| !number.trim().is_empty()).map(|n| n.trim().parse()).collect();
    let numbers = numbers
        .map_err(|_| Error::invalid(format!("{text:?} holds no list of numbers")).expected(form, text))?;
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
        writeln!(out, "the target cannot hold everything as it is: converting needs --lossy")?;
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
