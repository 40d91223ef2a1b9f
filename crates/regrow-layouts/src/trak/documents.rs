//! Reads and writes the JSON files. The files have the form of `json.dump`. A write replaces a
//! whole file, and a read checks each member.
//!
//! ```text
//! metadata.json      {"JL dimension": 4, "JL matrix type": "rademacher", "train set size": 6}
//! experiments.json   {"val": {"num_targets": 3, "scores_path": "/srv/scores/val.mmap",
//!                             "scores_finalized": 1}}
//! id_0.json          {"0": {"is_featurized": 1, "is_finalized": 0}}
//! ```

use std::io::Write;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::layout::{
    CHECKPOINT_FILE, MATRIX_TYPE_KEY, METADATA_FILE, PROJ_DIM_KEY, TRAIN_SET_SIZE_KEY, id_file, id_of_file,
};
use crate::orbax::json_text;
use regrow_base::bytes::glance::Language;
use regrow_base::error::{Error, ErrorKind, Result, ResultExt};
use regrow_base::text::brief;
use regrow_storage::local::NewFile;
use regrow_store::local::regular::open_regular;
use regrow_store::read_opened_document;

/// The key of the identity in the file of a model's checkpoint.
pub(super) const CHECKPOINT_KEY: &str = "checkpoint";
/// Longest document that is read. The records of a hundred thousand experiments take a tenth of
/// this.
const DOCUMENT_LEN_MAX_BYTES: u64 = 256 << 20;

const METADATA_HELP: &str = "give `repair` the right metadata";

/// The flags of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ModelFlags {
    /// All rows are done.
    pub is_featurized: bool,
    /// The features are computed from all rows.
    pub is_finalized: bool,
}

impl ModelFlags {
    pub(super) fn from_record(id: i64, record: &Value) -> Result<Self> {
        let flag = |name: &str| {
            record.get(name).and_then(as_flag).ok_or_else(|| {
                Error::corrupt(format!("the flag {name:?} of model {id} is missing"))
                    .expected("0 or 1", record)
            })
        };
        Ok(Self { is_featurized: flag("is_featurized")?, is_finalized: flag("is_finalized")? })
    }

    pub(super) fn to_record(self) -> Value {
        json!({"is_featurized": u8::from(self.is_featurized), "is_finalized": u8::from(self.is_finalized)})
    }

    pub(super) fn to_document(self, id: i64) -> Map<String, Value> {
        Map::from_iter([(id.to_string(), self.to_record())])
    }
}

/// The record of an experiment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Experiment {
    /// T: rows of its targets' gradients, columns of its scores.
    pub num_targets: u64,
    /// The scores are final.
    pub scores_finalized: bool,
}

impl Experiment {
    pub(super) fn from_record(name: &str, record: &Value) -> Result<Self> {
        let num_targets = record.get("num_targets").and_then(Value::as_u64);
        let finalized = record.get("scores_finalized").and_then(as_flag);
        match num_targets.zip(finalized) {
            Some((num_targets, scores_finalized)) => Ok(Self { num_targets, scores_finalized }),
            None => Err(Error::corrupt(format!("the record of experiment {name:?} is incomplete"))
                .expected("num_targets and scores_finalized, both numbers", record)),
        }
    }

    /// The record. It always has a path of the scores, though no reader uses the path.
    pub(super) fn to_record(&self, scores_path: &Path) -> Value {
        json!({
            "num_targets": self.num_targets,
            "scores_path": scores_path.to_string_lossy(),
            "scores_finalized": u8::from(self.scores_finalized),
        })
    }
}

/// Train set size and projection dimension. The dimension may be text, as TRAK allows.
pub(super) fn sizes_of(metadata: &Map<String, Value>) -> Result<(u64, u64)> {
    let number = |key: &str| -> Result<u64> {
        let value = metadata.get(key);
        let number = value.and_then(|value| value.as_u64().or_else(|| value.as_str()?.trim().parse().ok()));
        number.ok_or_else(|| {
            Error::corrupt(format!("the metadata lacks {key:?}, or its value is not a size"))
                .expected("a number", value.map_or("nothing".to_owned(), ToString::to_string))
                .help(METADATA_HELP)
        })
    };
    if !metadata.contains_key(MATRIX_TYPE_KEY) {
        return Err(Error::corrupt(format!("the metadata lacks {MATRIX_TYPE_KEY:?}")).help(METADATA_HELP));
    }
    Ok((number(TRAIN_SET_SIZE_KEY)?, number(PROJ_DIM_KEY)?))
}

/// The object in a file; `None` if there is no file.
///
/// # Errors
/// `Corrupt` if the file is empty, cut, or has no JSON object; `Limit` if the file is longer than
/// `DOCUMENT_LEN_MAX_BYTES`.
pub(super) fn read_object(path: &Path) -> Result<Option<Map<String, Value>>> {
    read_object_up_to(path, DOCUMENT_LEN_MAX_BYTES)
}

/// As [`read_object`], with another limit of the file's length.
pub(super) fn read_object_up_to(path: &Path, max_len_bytes: u64) -> Result<Option<Map<String, Value>>> {
    let read = || {
        let Some(file) = open_regular(path, false)? else { return Ok(None) };
        let what = "a JSON file of a TRAK store";
        let bytes = read_opened_document(&file, path, what, Language::Json, max_len_bytes)?;
        if bytes.is_empty() {
            return Err(Error::corrupt("a JSON file is empty").in_file(path));
        }
        match json_text::parse(&bytes).in_file(path)? {
            Value::Object(object) => Ok(Some(object)),
            other => Err(Error::corrupt("a JSON file does not have an object")
                .in_file(path)
                .expected("{...}", brief(&other.to_string()))),
        }
    };
    read().map_err(|error: Error| match error.kind() {
        ErrorKind::Corrupt => error.help(help_for(path)),
        _ => error,
    })
}

/// The advice for a damaged document. `repair` cannot rebuild the metadata or the record of the
/// checkpoint from the arrays: the arrays do not contain these facts.
fn help_for(path: &Path) -> String {
    let remedy = match path.file_name().and_then(|name| name.to_str()) {
        Some(METADATA_FILE) => {
            "`repair` writes it again from the metadata that it is given, and keeps the damaged one beside"
        }
        Some(CHECKPOINT_FILE) => "`repair` puts it aside, and the next `check_checkpoint` writes it again",
        _ => "`repair` rebuilds it from the arrays and keeps the damaged one beside",
    };
    format!("it was cut by a crash, or written by hand; {remedy}")
}

/// Replaces a document: a reader sees the old one or the new one, also after a power cut. The
/// caller holds the store's lock.
pub(super) fn write_object(folder: &Path, name: &str, object: &Map<String, Value>) -> Result<()> {
    let text = json_text::to_python_json(object)?;
    let new = NewFile::create(folder)?;
    let written = new.file().write_all(&text);
    written.map_err(|error| Error::io("cannot write", folder.join(name), error))?;
    new.give_name(name, true)
}

/// The model and its flags in a file of flags, which has the name of the model.
///
/// # Errors
/// `Corrupt` if it holds another model, or a flag is missing.
pub(super) fn read_flags(root: &Path, file: &str) -> Result<(i64, ModelFlags)> {
    let path = root.join(file);
    let object = read_object(&path)?.unwrap_or_default();
    let own = id_of_file(file).and_then(|id| Some((id, object.get(&id.to_string())?)));
    let Some((id, record)) = own.filter(|_| object.len() == 1) else {
        return Err(Error::corrupt("a file of flags holds another model than its name says")
            .in_file(path)
            .expected("one model, in id_<ID>.json", brief(&Value::Object(object).to_string()))
            .help("move the file away, or let `repair` put it aside"));
    };
    let flags = ModelFlags::from_record(id, record).map_err(|error| error.help(help_for(&path)));
    Ok((id, flags.in_file(&path)?))
}

/// Replaces a model's flags.
pub(super) fn write_flags(root: &Path, id: i64, flags: ModelFlags) -> Result<()> {
    write_object(root, &id_file(id), &flags.to_document(id))
}

/// A flag from JSON: 0, 1, `true` or `false`.
fn as_flag(value: &Value) -> Option<bool> {
    value.as_bool().or_else(|| value.as_i64().filter(|flag| (0..=1).contains(flag)).map(|flag| flag == 1))
}
