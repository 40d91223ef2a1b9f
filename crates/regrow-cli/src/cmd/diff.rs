//! `regrow diff`: compares two checkpoints.

use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};

use regrow::array::{Distance, DtypeClass, Tolerance};
use regrow::engine::{ContainerDiff, DiffFinding, LeafDiff, LeafStatus};
use regrow::tree::{LeafInfo, PathPattern};
use regrow::{DiffOptions, DiffReport, Error, ErrorKind, OpenOptions};
use regrow_base::text::{counted, printable};
use regrow_base::wording::Caller;
use serde_json::{Map, Value, json};

use super::key_json;
use crate::Globals;
use crate::exit::{self, Exit, Failure};
use crate::out::{self, Align, Table, Tint};

/// The most leaves and containers that are listed without `--all`.
const SHOWN_MAX: usize = 20;

const EXAMPLES: &str = "\
Examples:
  regrow diff step_100 step_200
  regrow diff run --step 100 --step-b 200 --only 'params/**'
  regrow diff torch.safetensors jax_step --rtol 1e-5 --ignore-dtype";

/// Compare two checkpoints, or two steps of a run.
///
/// The layouts may differ. Leaves are paired by key path. Prints the verdict, then the leaves that
/// differ, the worst first. Without a tolerance every bit must be equal. With a tolerance an
/// element passes if --atol with --rtol, or --max-ulp, allows it. Exit code 1: they differ, or one
/// is damaged.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Diff {
    /// The first checkpoint.
    a: PathBuf,
    /// The second checkpoint, the reference of relative differences. [default: A, with --step-b or
    /// --item-b]
    #[arg(required_unless_present_any = ["step_b", "item_b"])]
    b: Option<PathBuf>,
    /// Absolute tolerance: abs(a - b) <= atol + rtol * abs(b).
    #[arg(long, value_name = "NUMBER")]
    atol: Option<f64>,
    /// Relative tolerance, as a part of abs(b).
    #[arg(long, value_name = "NUMBER")]
    rtol: Option<f64>,
    /// Tolerance as a number of representable values between a and b.
    #[arg(long, value_name = "COUNT")]
    max_ulp: Option<u64>,
    /// Compare only leaves that match this glob. Repeatable.
    #[arg(long, value_name = "GLOB")]
    only: Vec<String>,
    /// Compare values of different dtypes.
    #[arg(long)]
    ignore_dtype: bool,
    /// Count different containers (list, dict) and kinds of leaves as differences.
    #[arg(long)]
    check_types: bool,
    /// Say only which leaves differ, not by how much. Faster.
    #[arg(long, conflicts_with_all = ["atol", "rtol", "max_ulp"])]
    brief: bool,
    /// List equal leaves too.
    #[arg(long)]
    all: bool,
    /// Print only errors; the exit code has the result.
    #[arg(short, long, conflicts_with_all = ["all", "json"])]
    quiet: bool,
    /// Step to open in B. [default: --step]
    #[arg(long, value_name = "N")]
    step_b: Option<u64>,
    /// Item to open in B. [default: --item]
    #[arg(long, value_name = "NAME")]
    item_b: Option<String>,
}

impl Diff {
    pub fn paths(&self) -> Vec<&Path> {
        vec![&self.a, self.b()]
    }

    fn b(&self) -> &Path {
        self.b.as_deref().unwrap_or(&self.a)
    }

    pub fn run(&self, globals: &Globals, out: &mut impl Write) -> Result<Exit, Failure> {
        let only = self.only.iter().map(|glob| PathPattern::new(glob)).collect::<Result<Vec<_>, Error>>();
        let open_a = globals.open_options();
        let (bar, monitor) = globals.bar("comparing");
        let options = DiffOptions {
            open_b: OpenOptions {
                step: self.step_b.or(open_a.step),
                item: self.item_b.clone().or_else(|| open_a.item.clone()),
                ..open_a.clone()
            },
            open_a,
            only: only.map_err(Failure::Usage)?,
            tolerance: Tolerance { atol: self.atol, rtol: self.rtol, max_ulp: self.max_ulp },
            ignore_dtype: self.ignore_dtype,
            check_types: self.check_types,
            equality_only: self.brief,
            list_equal: self.all,
            monitor,
            ..DiffOptions::default()
        };
        let (a, b) = (globals.locate(&self.a)?, globals.locate(self.b())?);
        let compared = regrow::diff_with(a, b, &options);
        drop(bar);
        let report = compared.map_err(|error| match error.kind() {
            // An error about a missing checkpoint has a file; an error about a glob without a match
            // has none.
            ErrorKind::NotFound if error.place().file.is_none() => Failure::Usage(error),
            _ => Failure::Engine(error),
        })?;
        if globals.json {
            out::json(out, &as_json(&report))?;
        } else if !self.quiet {
            self.print(out, &report)?;
        }
        if !globals.json {
            for DiffFinding { side, error } in &report.findings {
                let error = error.in_words_of(Caller::Shell);
                out::warn(&format!("error: {}: {error}", side.name()));
            }
        }
        let verdict = if report.is_equal() { Exit::Fine } else { Exit::FoundWrong };
        let kinds = report.findings.into_iter().map(|finding| Failure::Engine(finding.error).exit());
        Ok(kinds.fold(verdict, Exit::max))
    }

    fn print(&self, out: &mut impl Write, report: &DiffReport) -> std::io::Result<()> {
        let counts = report.counts;
        let total = counted(counts.total(), "leaf", "leaves");
        let read = out::size(report.read_bytes);
        let path = |path: &Path| printable(&path.to_string_lossy()).into_owned();
        writeln!(out, "A  {}\nB  {}", path(&report.a), path(&report.b))?;
        match (report.is_equal(), counts.of(LeafStatus::Within)) {
            (true, 0) => writeln!(out, "{}: {total}, {read} read", out::tint(Tint::Good, "the same"))?,
            (true, within) => writeln!(
                out,
                "{}: {total}, {within} of them not bit-identical, {read} read",
                out::tint(Tint::Good, "the same within the tolerance")
            )?,
            (false, _) => {
                let different = counts.different();
                let differences = report.differences();
                writeln!(
                    out,
                    "{}: {different} of {total} ({differences}), {read} read",
                    out::tint(Tint::Bad, "different")
                )?;
            }
        }
        let worst = report.worst_first();
        let shown: Vec<&LeafDiff> = match self.all {
            true => worst,
            false => {
                let differ = worst.into_iter().filter(|leaf| leaf.status != LeafStatus::Equal);
                differ.take(SHOWN_MAX).collect()
            }
        };
        if !shown.is_empty() {
            print_leaves(out, &table(&shown))?;
        }
        let left = counts.different() + counts.of(LeafStatus::Within);
        if !self.all && left > SHOWN_MAX as u64 {
            writeln!(out, "and {} more; --all lists them", left - SHOWN_MAX as u64)?;
        }
        out.flush()?;
        let containers = report.containers.iter().take(SHOWN_MAX);
        containers.for_each(|container| out::warn(&format!("note: {}", container_text(container))));
        if report.containers.len() > SHOWN_MAX {
            out::warn(&format!("note: and {} more containers", report.containers.len() - SHOWN_MAX));
        }
        if report.other_kind_count > 0 {
            let leaves = counted(report.other_kind_count, "leaf is", "leaves are");
            out::warn(&format!(
                "note: {leaves} of another kind in B; --check-types counts them as \
                differences"
            ));
        }
        Ok(())
    }
}

/// Prints a row for each leaf, with as many columns as fit into the terminal. A leaf whose key path
/// does not fit takes two lines.
fn print_leaves(out: &mut impl Write, table: &Table<10>) -> std::io::Result<()> {
    use Align::{Hidden, Left, Right};
    const INDENT: &str = "        ";
    let room = out::terminal_width().unwrap_or(usize::MAX);
    let numbers = |shown: usize| std::array::from_fn::<_, 6, _>(|at| if at < shown { Right } else { Hidden });
    let aligned = |first: [Align; 4], shown: usize| {
        let mut align = [Left; 10];
        let columns = first.into_iter().chain(numbers(shown));
        align.iter_mut().zip(columns).for_each(|(align, column)| *align = column);
        align
    };
    // Drop the last columns first.
    let fitting = |first: [Align; 4], least: usize, room: usize| {
        (least..=6).rev().map(|shown| aligned(first, shown)).find(|align| table.width(*align) <= room)
    };
    if let Some(align) = fitting([Left; 4], 4, room) {
        return table.print(out, "", align);
    }
    let rest = [Hidden, Hidden, Left, Left];
    let rest = fitting(rest, 1, room.saturating_sub(INDENT.len())).unwrap_or(aligned(rest, 1));
    let heads = table.lines("", aligned([Left, Left, Hidden, Hidden], 0));
    let rests = table.lines(INDENT, rest);
    heads.iter().zip(&rests).try_for_each(|(head, rest)| write!(out, "{head}{rest}"))
}

fn table(leaves: &[&LeafDiff]) -> Table<10> {
    let mut table = Table::new();
    table.titles([
        "STATUS", "KEY PATH", "DTYPE", "SHAPE", "DIFFER", "NAN/INF", "MAX ABS", "MAX REL", "MAX ULP",
        "COSINE",
    ]);
    for leaf in leaves {
        let tint = match leaf.status {
            LeafStatus::Equal => Tint::Good,
            LeafStatus::Within => Tint::Note,
            _ => Tint::Bad,
        };
        table.tinted(tint, leaf.status.name());
        table.cell(&leaf.path);
        table.cell(both(leaf, |info| info.dtype_text().into_owned()));
        table.cell(both(leaf, |info| info.shape.to_string()));
        let Some(distance) = &leaf.distance else {
            (0..6).for_each(|_| table.cell("-"));
            continue;
        };
        table.cell(format_args!("{} of {}", distance.differing_count(), distance.count()));
        // Show the number of pairs without a distance, because the next columns leave these pairs
        // out.
        table.cell(or_none(Some(distance.incomparable_count()).filter(|&count| count > 0)));
        table.cell(or_none(distance.max_abs().map(number)));
        table.cell(or_none(distance.max_relative().map(number)));
        table.cell(or_none(distance.max_ulp()));
        table.cell(or_none(distance.cosine().map(|cosine| format!("{cosine:.6}"))));
    }
    table
}

/// A text for both sides, printed once if it is the same.
fn both(leaf: &LeafDiff, text: impl Fn(&LeafInfo) -> String) -> String {
    let texts: Vec<String> = [&leaf.a, &leaf.b].into_iter().flatten().map(text).collect();
    match texts.as_slice() {
        [a, b] if a == b => a.clone(),
        texts => texts.join(" / "),
    }
}

fn number(value: f64) -> String {
    if value == 0.0 { "0".to_owned() } else { format!("{value:.2e}") }
}

fn or_none(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn container_text(container: &ContainerDiff) -> String {
    let kind = |kind: &Option<String>| kind.as_deref().unwrap_or("nothing").to_owned();
    format!("{} is {} in A and {} in B", container.path, kind(&container.a), kind(&container.b))
}

fn as_json(report: &DiffReport) -> Value {
    let counts: Map<String, Value> = LeafStatus::ALL
        .into_iter()
        .map(|status| (status.name().to_owned(), report.counts.of(status).into()))
        .collect();
    let containers = report.containers.iter();
    let findings = report.findings.iter().map(|finding| {
        let mut error = exit::error_json(&finding.error);
        if let Some(members) = error.as_object_mut() {
            members.insert("side".to_owned(), finding.side.name().into());
        }
        error
    });
    json!({
        "a": report.a.to_string_lossy(),
        "b": report.b.to_string_lossy(),
        "equal": report.is_equal(),
        "leaf_count": report.counts.total(),
        "different_count": report.counts.different(),
        "counts": counts,
        "read_bytes": report.read_bytes,
        "leaves": report.worst_first().into_iter().map(leaf_json).collect::<Vec<_>>(),
        "containers": containers
            .map(|one| json!({ "key_path": one.path.to_string(), "a": one.a, "b": one.b }))
            .collect::<Vec<_>>(),
        "other_kind_count": report.other_kind_count,
        "findings": findings.collect::<Vec<_>>(),
    })
}

fn leaf_json(leaf: &LeafDiff) -> Value {
    let form = |info: &LeafInfo| json!({ "kind": info.kind.name(), "dtype": info.dtype_text(), "shape": info.shape.dims() });
    json!({
        "key_path": leaf.path.to_string(),
        "keys": leaf.path.keys().iter().map(key_json).collect::<Vec<_>>(),
        "status": leaf.status.name(),
        "a": leaf.a.as_ref().map(form),
        "b": leaf.b.as_ref().map(form),
        "same_file": leaf.is_same_file,
        "distance": leaf.distance.as_ref().map(|distance| distance_json(leaf, distance)),
    })
}

fn distance_json(leaf: &LeafDiff, distance: &Distance) -> Value {
    let is_complex =
        [&leaf.a, &leaf.b].into_iter().flatten().any(|info| info.dtype.class() == DtypeClass::Complex);
    let value = |[re, im]: [f64; 2]| match is_complex {
        true => json!([float_json(re), float_json(im)]),
        false => float_json(re),
    };
    let worst = leaf.worst();
    json!({
        "element_count": distance.count(),
        "differing_count": distance.differing_count(),
        "outside_count": distance.outside_count(),
        "incomparable_count": distance.incomparable_count(),
        "nan_counts": distance.nan_counts(),
        "infinity_counts": distance.infinity_counts(),
        "max_abs": distance.max_abs().map(float_json),
        "max_relative": distance.max_relative().map(float_json),
        "max_ulp": distance.max_ulp(),
        "cosine": distance.cosine(),
        "worst_index": worst.as_ref().map(|(index, _)| index),
        "worst_values": worst.as_ref().map(|(_, worst)| worst.values.map(value)),
    })
}

/// A float as JSON. NaN and infinities, which JSON lacks, become strings as in `cat`.
fn float_json(value: f64) -> Value {
    match value {
        value if value.is_nan() => "NaN".into(),
        f64::INFINITY => "Infinity".into(),
        f64::NEG_INFINITY => "-Infinity".into(),
        value => value.into(),
    }
}
