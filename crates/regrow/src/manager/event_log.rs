//! One structured record of each save, restore and deletion: an event of the crate `log`, and a
//! line of JSON in a file.
//!
//! ```text
//! {"event": "save", "step": 400, "path": "run/400", "time": 1795232533.5, "seconds": 1.2, …}
//! ```
//! The event has the target [`TARGET`], and the same entries as key-value pairs. A failure is
//! logged as a warning. [`Hooks::on_record`] replaces the event: the program's function receives
//! the record. The line in the file is written in both cases.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use log::kv::{Error as KvError, Key, Source, Value as KvValue, VisitSource};
use log::{Level, Record};
use serde_json::{Map, Value, json};

use super::hooks::Hooks;
use super::records;
use crate::error::{Error, Result};
use crate::formats::container::json_text;
use crate::text::printable;

/// The target of the events.
pub const TARGET: &str = "regrow::manager";

/// Writes records to the file and to the logger or hook.
#[derive(Debug, Clone)]
pub(super) struct EventLog {
    file: Option<PathBuf>,
    hooks: Hooks,
}

impl EventLog {
    pub(super) fn new(file: Option<PathBuf>, hooks: Hooks) -> Self {
        Self { file, hooks }
    }

    /// Writes the record of an event of a step, without entries that are null.
    pub(super) fn add(
        &self,
        event: &str,
        step: u64,
        path: &Path,
        is_bad: bool,
        members: Value,
    ) -> Result<()> {
        let mut record = Map::new();
        record.insert("event".to_owned(), json!(event));
        record.insert("step".to_owned(), json!(step));
        record.insert("path".to_owned(), json!(path.to_string_lossy()));
        record.insert("time".to_owned(), json!(records::now()));
        if let Value::Object(members) = members {
            record.extend(members.into_iter().filter(|(_, value)| !value.is_null()));
        }
        match &self.hooks.on_record {
            Some(on_record) => on_record(&record, is_bad)?,
            None => tell(event, step, is_bad, &record),
        }
        let Some(file) = &self.file else { return Ok(()) };
        let mut line = json_text::to_python_json(&record)?;
        line.push(b'\n');
        append(file, &line).map_err(|error| Error::io("cannot add a record to the log", file, error))
    }
}

/// Appends with one write, so that lines of several processes do not mix.
#[expect(clippy::disallowed_types, reason = "a log is a local file, not a part of a checkpoint")]
fn append(file: &Path, line: &[u8]) -> std::io::Result<()> {
    let mut opened = std::fs::File::options().append(true).create(true).open(file)?;
    opened.write_all(line)
}

fn tell(event: &str, step: u64, is_bad: bool, record: &Map<String, Value>) {
    let level = if is_bad { Level::Warn } else { Level::Info };
    if !log::log_enabled!(target: TARGET, level) {
        return;
    }
    let said = record.iter().filter(|(name, _)| !matches!(name.as_str(), "event" | "step" | "time"));
    let said: Vec<String> = said.map(|(name, value)| format!("{name}={value}")).collect();
    let said = said.join(", ");
    log::logger().log(
        &Record::builder()
            .level(level)
            .target(TARGET)
            .key_values(&Members(record))
            .args(format_args!("{event} of step {step}: {}", printable(&said)))
            .build(),
    );
}

/// The entries of a record as pairs of the crate `log`. Objects and lists are JSON text.
struct Members<'a>(&'a Map<String, Value>);

impl Source for Members<'_> {
    fn visit<'kvs>(&'kvs self, visitor: &mut dyn VisitSource<'kvs>) -> std::result::Result<(), KvError> {
        for (name, value) in self.0 {
            let told = match value {
                Value::String(text) => KvValue::from(text.as_str()),
                Value::Bool(flag) => KvValue::from(*flag),
                Value::Number(number) => match (number.as_u64(), number.as_f64()) {
                    (Some(whole), _) => KvValue::from(whole),
                    (None, Some(real)) => KvValue::from(real),
                    (None, None) => KvValue::from_display(value),
                },
                _ => KvValue::from_display(value),
            };
            visitor.visit_pair(Key::from(name.as_str()), told)?;
        }
        Ok(())
    }
}
