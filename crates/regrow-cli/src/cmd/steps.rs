//! `regrow steps`: lists the steps of a folder.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use regrow::manager::{DeleteOptions, Deleted, Step, StepList, Steps as Folder};
use regrow::{Error, ErrorKind, verify};
use regrow_base::text::{counted, printable};
use regrow_base::wording::Caller;
use regrow_storage::Stock;
use serde_json::{Map, Value, json};

use crate::Globals;
use crate::exit::{Exit, Failure, error_json};
use crate::out::{self, Align, Table, Tint};

const EXAMPLES: &str = "\
Examples:
  regrow steps run
  regrow steps run --verify
  regrow steps run --watch 10";

/// List the steps of a run: size, time, metrics, state.
///
/// States: `unfinished` is a save that runs or was interrupted; `in use` is a step that a reader
/// has open; `abandoned` is a step newer than the one from which the run continued.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Steps {
    /// The folder of steps.
    path: PathBuf,
    /// Read every step and mark damaged ones.
    #[arg(long)]
    verify: bool,
    /// Keep running and print new steps; look every SECONDS. [default: 5]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "5")]
    watch: Option<f64>,
    /// Delete abandoned steps first. Fails while another process writes to the folder.
    #[arg(long, conflicts_with = "watch")]
    delete_abandoned: bool,
}

/// A line of the table.
struct Row {
    step: Option<Step>,
    name: String,
    state: &'static str,
    stock: Option<Stock>,
    error: Option<Error>,
}

impl Steps {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn run(&self, globals: &Globals, out: &mut impl Write) -> Result<Exit, Failure> {
        globals.refuse_step_and_item()?;
        let pause = match self.watch.map(Duration::try_from_secs_f64) {
            None => None,
            Some(Ok(pause)) if !pause.is_zero() => Some(pause),
            Some(_) => {
                return Err(Failure::Usage(
                    Error::invalid("the time of --watch is not valid")
                        .help("give --watch a number of seconds above 0, or no number"),
                ));
            }
        };
        let at = globals.locate(&self.path)?;
        if !at.exists() && pause.is_none() {
            return Err(Error::new(ErrorKind::NotFound, "the folder does not exist").in_file(&at).into());
        }
        let folder = Folder::new(&at, None)?;
        if self.delete_abandoned {
            delete_abandoned(&folder)?;
        }
        let rows = self.rows(&folder, &folder.list()?, &BTreeSet::new())?;
        let exit = match rows.iter().any(|row| row.error.is_some()) {
            true => Exit::FoundWrong,
            false => Exit::Fine,
        };
        let Some(pause) = pause else {
            self.print(globals, out, &folder, &rows)?;
            return Ok(exit);
        };
        let mut seen = BTreeSet::new();
        let mut rows = rows;
        loop {
            for row in rows.iter().filter(|row| row.step.is_some()) {
                match globals.json {
                    true => out::json_line(out, &row.as_json())?,
                    false => writeln!(out, "{}", row.line(globals))?,
                }
            }
            out.flush()?;
            seen.extend(rows.iter().map(|row| row.name.clone()));
            std::thread::sleep(pause);
            // New steps may show another form of names, so determine the form again.
            let folder = Folder::new(&at, None)?;
            rows = self.rows(&folder, &folder.list()?, &seen)?;
        }
    }

    fn rows(&self, folder: &Folder, list: &StepList, seen: &BTreeSet<String>) -> Result<Vec<Row>, Failure> {
        let leased = folder.leased()?;
        let mut rows = Vec::new();
        for step in list.steps.iter().filter(|step| !seen.contains(&step.name)) {
            let error = match self.verify.then(|| verify(&step.location)) {
                Some(Ok(report)) => report.findings.into_iter().next().map(|finding| finding.error),
                Some(Err(error)) => Some(error),
                None => None,
            };
            let state = match &error {
                Some(_) => "damaged",
                None if step.is_damaged => "damaged",
                None if leased.contains(&step.number) => "in use",
                None if !list.is_current(step) => "abandoned",
                None => "committed",
            };
            let stock = folder.stock(step).ok().flatten();
            rows.push(Row { step: Some(step.clone()), name: step.name.clone(), state, stock, error });
        }
        let unfinished = |name: &String| Row {
            step: None,
            name: name.clone(),
            state: "unfinished",
            stock: None,
            error: None,
        };
        rows.extend(list.unfinished.iter().map(unfinished));
        list.notes.iter().filter(|_| seen.is_empty()).for_each(|note| out::warn(&format!("note: {note}")));
        Ok(rows)
    }

    fn print(
        &self,
        globals: &Globals,
        out: &mut impl Write,
        folder: &Folder,
        rows: &[Row],
    ) -> Result<(), Failure> {
        use Align::{Left, Right, Words};
        if globals.json {
            let path = folder.root().describe();
            let steps: Vec<Value> = rows.iter().map(Row::as_json).collect();
            out::json(out, &json!({ "path": path.to_string_lossy(), "steps": steps }))?;
            return Ok(());
        }
        let mut table = Table::new();
        table.titles(["STEP", "NAME", "STATE", "BYTES", "SAVED", "AGE", "METRICS"]);
        for row in rows {
            for (column, cell) in row.cells(globals).iter().enumerate() {
                table.tinted(if column == 2 { state_tint(row.state) } else { Tint::Plain }, cell);
            }
        }
        table.print(out, "", [Right, Left, Left, Right, Left, Right, Words])?;
        for row in rows {
            if let Some(error) = &row.error {
                let error = error.in_words_of(Caller::Shell);
                out::warn(&format!("{}: {error}", printable(&row.name)));
            }
        }
        let bytes =
            rows.iter().filter_map(|row| row.stock).fold(0_u64, |sum, stock| sum.saturating_add(stock.bytes));
        let steps = rows.iter().filter(|row| row.step.is_some()).count();
        writeln!(out, "{}, {bytes} bytes ({})", counted(steps, "step", "steps"), out::size(bytes))?;
        Ok(())
    }
}

fn delete_abandoned(folder: &Folder) -> Result<(), Failure> {
    let _lock = folder.lock()?;
    let numbers: Vec<u64> = folder.list()?.abandoned().map(|step| step.number).collect();
    for deletion in folder.delete(&numbers, &DeleteOptions::default())? {
        let name = printable(&deletion.name).into_owned();
        match deletion.outcome? {
            Deleted::Removed { bytes } => out::warn(&format!("deleted {name}: {bytes} bytes")),
            Deleted::Leased => out::warn(&format!("{name} is being read, so it stays")),
            Deleted::Moved { .. } | Deleted::Gone => {}
        }
    }
    folder.refresh()?;
    Ok(())
}

fn state_tint(state: &str) -> Tint {
    match state {
        "damaged" => Tint::Bad,
        "in use" | "unfinished" | "abandoned" => Tint::Note,
        _ => Tint::Plain,
    }
}

impl Row {
    fn saved(&self) -> Option<SystemTime> {
        let seconds = self.step.as_ref()?.seconds?;
        SystemTime::UNIX_EPOCH.checked_add(Duration::try_from_secs_f64(seconds).ok()?)
    }

    fn cells(&self, globals: &Globals) -> [String; 7] {
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let age = self.saved().and_then(|saved| saved.elapsed().ok());
        [
            or_none(self.step.as_ref().map(|step| step.number.to_string())),
            self.name.clone(),
            self.state.to_owned(),
            or_none(self.stock.map(|stock| globals.size(stock.bytes))),
            or_none(self.saved().map(|saved| out::when(saved).to_string())),
            or_none(age.map(age_text)),
            or_none(
                self.step.as_ref().map(|step| metrics_text(&step.metrics)).filter(|text| !text.is_empty()),
            ),
        ]
    }

    fn line(&self, globals: &Globals) -> String {
        printable(&self.cells(globals).join("  ")).into_owned()
    }

    fn as_json(&self) -> Value {
        json!({
            "step": self.step.as_ref().map(|step| step.number),
            "name": self.name,
            "path": self.step.as_ref().map(|step| step.location.describe().to_string_lossy().into_owned()),
            "state": self.state,
            "file_count": self.stock.map(|stock| stock.file_count),
            "bytes": self.stock.map(|stock| stock.bytes),
            "saved": self.step.as_ref().and_then(|step| step.seconds),
            "metrics": self.step.as_ref().map(|step| &step.metrics),
            "metadata": self.step.as_ref().map(|step| &step.custom_metadata),
            "error": self.error.as_ref().map(error_json),
        })
    }
}

/// An age as text: `3 d`, `2 h`, `5 min`, `7 s`.
fn age_text(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Metrics as text: `eval/loss=0.25 accuracy=0.9`.
fn metrics_text(metrics: &Map<String, Value>) -> String {
    let mut said = Vec::new();
    add_metrics("", metrics, &mut said);
    said.join(" ")
}

fn add_metrics(before: &str, metrics: &Map<String, Value>, said: &mut Vec<String>) {
    for (name, value) in metrics {
        match value {
            Value::Object(inner) => add_metrics(&format!("{before}{name}/"), inner, said),
            Value::Number(number) if number.is_f64() => {
                let value = number.as_f64().map_or_else(|| number.to_string(), rounded);
                said.push(format!("{before}{name}={value}"));
            }
            value => said.push(format!("{before}{name}={value}")),
        }
    }
}

/// A number with 6 significant digits: `0.00617683`, `1.5e-9`.
fn rounded(value: f64) -> String {
    let value = format!("{value:.5e}").parse().unwrap_or(value);
    match value.abs() {
        0.0 | 1e-4..1e6 => value.to_string(),
        _ => format!("{value:e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_six_digits() {
        let numbers = [0.006_176_828_784_278, 0.25, 1.0, 123_456.789, 1_234_567.8, 1.5e-9, -0.0, 1.0 / 3.0];
        assert_eq!(
            numbers.map(rounded),
            ["0.00617683", "0.25", "1", "123457", "1.23457e6", "1.5e-9", "-0", "0.333333"]
        );
    }
}
