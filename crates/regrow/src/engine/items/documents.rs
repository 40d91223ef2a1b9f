//! Adds items that are JSON documents, such as configurations and metrics.

use serde_json::Value;

use super::ItemsSave;
use super::names::{Taken, check_file, path_in};
use crate::error::{Error, Result};
use crate::formats::container::json_text;
use crate::formats::container::{JSON_HANDLER, V1_JSON_HANDLER, V1_METRICS_HANDLER};
use crate::formats::items_record::ItemKind;

const METRICS: &str = "metrics";

/// The file name of a JSON item, in the older API and in the v1 API of Orbax.
const JSON_FILE: &str = crate::formats::container::JSON_FILE;
const V1_JSON_FILE: &str = "data.json";

impl ItemsSave {
    /// Adds a JSON document in the form of Orbax' `JsonCheckpointHandler`.
    ///
    /// # Errors
    /// `AlreadyExists` for a name that was added before; errors of the storage.
    pub fn json(&self, name: &str, value: &Value) -> Result<()> {
        self.json_text(name, None, &json_text::to_python_json(value)?)
    }

    /// Adds a JSON text, which may contain Python's `NaN` and `Infinity`, in a file named `file`.
    ///
    /// # Errors
    /// The errors of [`json`](Self::json); `InvalidArgument` if the text is not JSON.
    #[doc(hidden)]
    pub fn json_text(&self, name: &str, file: Option<&str>, text: &[u8]) -> Result<()> {
        let (usual, handler) = match self.v1 {
            true => (V1_JSON_FILE, V1_JSON_HANDLER),
            false => (JSON_FILE, JSON_HANDLER),
        };
        self.add(name, Taken::Alone, || {
            self.write_json(name, file.unwrap_or(usual), handler, text)?;
            self.note_json(name, ItemKind::Json, file.unwrap_or(usual));
            Ok(())
        })
    }

    /// Adds metrics: as the item `metrics`, which Orbax' manager reads, and as an entry of the
    /// checkpoint's metadata.
    ///
    /// # Errors
    /// The errors of [`json`](Self::json).
    pub fn metrics(&self, metrics: &Value) -> Result<()> {
        self.metrics_text(&json_text::to_python_json(metrics)?)
    }

    /// Adds metrics as a JSON text, which may contain Python's `NaN` and `Infinity`.
    ///
    /// # Errors
    /// The errors of [`json_text`](Self::json_text).
    #[doc(hidden)]
    pub fn metrics_text(&self, text: &[u8]) -> Result<()> {
        let handler = if self.v1 { V1_METRICS_HANDLER } else { JSON_HANDLER };
        self.add(METRICS, Taken::Alone, || {
            let value = self.write_json(METRICS, METRICS, handler, text)?;
            self.note_json(METRICS, ItemKind::Metrics, METRICS);
            match value {
                Value::Object(metrics) => {
                    self.state().metrics = metrics;
                    Ok(())
                }
                other => Err(Error::invalid("metrics must be an object of numbers")
                    .expected("a JSON object", regrow_zarr::zarr::json::brief(&other))),
            }
        })
    }

    fn write_json(&self, name: &str, file: &str, handler: &str, text: &[u8]) -> Result<Value> {
        let value: Value = json_text::parse(text)
            .map_err(|error| Error::invalid(format!("the item {name} is not JSON: {}", error.what())))?;
        check_file(file)?;
        self.keep_name(name, file)?;
        self.note(name, Some(handler));
        self.on_rank_0(|| self.write_summed(&path_in(name, file), text))?;
        Ok(value)
    }
}
