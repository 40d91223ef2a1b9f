//! `__metadata__`: text by name, of three origins.
//!
//! ```text
//! {"format":"pt",                    the option `metadata`, then the custom metadata of the save
//!  "regrow_metadata":"{\"a\":1}",    custom metadata that is more than text by name, as JSON
//!  "regrow":"{\"version\":1,...}"}   the exact pytree
//! ```

use serde_json::{Map, Value};

use super::SafetensorsOptions;
use crate::error::{Error, ErrorKind, Result};

/// Name under which the exact pytree stands.
pub(super) const STRUCTURE: &str = "regrow";

/// Name under which custom metadata stands that is more than text by name; it means nothing without a pytree.
const CUSTOM: &str = "regrow_metadata";

/// The entries of the file's `__metadata__`, without the pytree; `None` if there is to be no `__metadata__`.
///
/// # Errors
/// `InvalidArgument` for values that are no text, `NameCollision` for names given twice or taken by regrow.
pub(super) fn entries(
    options: &SafetensorsOptions,
    custom: Option<&Value>,
) -> Result<Option<Vec<(String, String)>>> {
    let mut out: Vec<(String, String)> = Vec::new();
    for (name, value) in options.metadata.iter().flatten() {
        let Value::String(text) = value else {
            return Err(Error::invalid(format!("the metadata {name:?} is no text"))
                .expected("text by name", value)
                .help("safetensors holds text only; turn it into text"));
        };
        out.push((name.clone(), text.clone()));
    }
    match custom.map(|custom| (custom, as_texts(custom))) {
        Some((_, Some(texts))) => out.extend(texts),
        Some((custom, None)) if options.structure => out.push((CUSTOM.to_owned(), custom.to_string())),
        Some((custom, None)) => {
            return Err(Error::invalid("the metadata is more than text by name")
                .expected("an object of texts", custom)
                .help("turn it into text, or keep the structure, which takes any JSON"));
        }
        None if options.metadata.is_none() => return Ok(None),
        None => {}
    }
    let mut names = std::collections::HashSet::new();
    let reserved = |name: &str| options.structure && (name == STRUCTURE || name == CUSTOM);
    let is_ours =
        |at: usize| at + 1 == out.len() && matches!(custom, Some(custom) if as_texts(custom).is_none());
    for (at, (name, _)) in out.iter().enumerate() {
        let twice = !names.insert(name);
        if twice || (reserved(name) && !is_ours(at)) {
            let why = if twice { "is given twice" } else { "is regrow's own" };
            return Err(Error::new(ErrorKind::NameCollision, format!("the metadata name {name:?} {why}"))
                .help("choose another name, or save without the structure"));
        }
    }
    Ok(Some(out))
}

/// What a reader is told, of the entries of a file whose pytree regrow kept: the custom metadata as it was.
pub(super) fn custom(mut entries: Map<String, Value>) -> Option<Value> {
    let stored = entries.get(CUSTOM).and_then(Value::as_str);
    match stored.and_then(|text| serde_json::from_str(text).ok()) {
        Some(Value::Object(more)) => {
            entries.shift_remove(CUSTOM);
            entries.extend(more);
            Some(entries.into())
        }
        Some(custom) if entries.len() == 1 => Some(custom),
        _ => (!entries.is_empty()).then_some(entries.into()),
    }
}

pub(super) fn as_texts(value: &Value) -> Option<Vec<(String, String)>> {
    let entries = value.as_object()?.iter();
    entries.map(|(name, text)| Some((name.clone(), text.as_str()?.to_owned()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn options(metadata: Option<Value>, structure: bool) -> SafetensorsOptions {
        let metadata = metadata.map(|value| value.as_object().unwrap().clone());
        SafetensorsOptions { metadata, structure, ..SafetensorsOptions::default() }
    }

    fn back(entries: Option<Vec<(String, String)>>) -> Option<Value> {
        custom(entries.into_iter().flatten().map(|(name, text)| (name, text.into())).collect())
    }

    #[test]
    fn any_metadata_comes_back() {
        assert_eq!(entries(&options(None, true), None).unwrap(), None);
        assert_eq!(entries(&options(Some(json!({})), true), None).unwrap(), Some(vec![]));
        let format = Some(json!({"format": "pt"}));
        for (given, custom, expected) in [
            (None, json!({"a": "1"}), json!({"a": "1"})),
            (format.clone(), json!({"a": "1"}), json!({"format": "pt", "a": "1"})),
            (format.clone(), json!({"a": {"b": [1, null]}}), json!({"format": "pt", "a": {"b": [1, null]}})),
            (None, json!([1, 2]), json!([1, 2])),
        ] {
            let stored = entries(&options(given, true), Some(&custom)).unwrap();
            assert_eq!(back(stored), Some(expected));
        }
        let both = entries(&options(format, true), Some(&json!(3))).unwrap();
        assert_eq!(back(both), Some(json!({"format": "pt", "regrow_metadata": "3"})));
    }

    #[test]
    fn what_is_no_text_or_ambiguous_is_refused() {
        let kind = |given: Value, custom: Option<Value>, structure: bool| {
            entries(&options(Some(given), structure), custom.as_ref()).unwrap_err().kind()
        };
        assert_eq!(kind(json!({"a": 1}), None, true), ErrorKind::InvalidArgument);
        assert_eq!(kind(json!({}), Some(json!({"a": 1})), false), ErrorKind::InvalidArgument);
        assert_eq!(kind(json!({"a": "1"}), Some(json!({"a": "2"})), false), ErrorKind::NameCollision);
        assert_eq!(kind(json!({"regrow": "1"}), None, true), ErrorKind::NameCollision);
        assert_eq!(kind(json!({"regrow_metadata": "1"}), Some(json!(1)), true), ErrorKind::NameCollision);
        assert!(entries(&options(Some(json!({"regrow": "1"})), false), None).is_ok());
    }
}
