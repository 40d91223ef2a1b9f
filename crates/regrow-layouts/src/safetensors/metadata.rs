//! `__metadata__`: a dict of texts from three sources.
//!
//! ```text
//! {"format":"pt",                    the framework; transformers before 5 needs it
//!  "a":"1",                          the custom metadata of the save
//!  "regrow_metadata":"{\"a\":1}",    custom metadata that is not a dict of texts, as JSON
//!  "regrow":"{\"version\":1,...}"}   the exact pytree
//! ```

use serde_json::{Map, Value, json};

use super::SafetensorsOptions;
use regrow_base::error::{Error, ErrorKind, Result};

pub(super) const STRUCTURE: &str = "regrow";

/// The name of the entry with custom metadata that is not a map of texts. Only files with a pytree
/// have it.
const CUSTOM: &str = "regrow_metadata";

/// The name of the entry with the framework of the tensors, and the default value for a file with a
/// pytree.
const FORMAT: &str = "format";
const FORMAT_DEFAULT: &str = "pt";

/// The entries of the file's `__metadata__`, without the pytree; `None` if the file gets no
/// `__metadata__`.
///
/// # Errors
/// `InvalidArgument` for values that are not text, `NameCollision` for names given twice or taken
/// by regrow.
pub(super) fn entries(
    options: &SafetensorsOptions,
    custom: Option<&Value>,
) -> Result<Option<Vec<(String, String)>>> {
    let mut out: Vec<(String, String)> = Vec::new();
    out.extend(options.format.iter().map(|format| (FORMAT.to_owned(), format.clone())));
    match custom.map(|custom| (custom, as_texts(custom))) {
        Some((_, Some(texts))) => out.extend(texts),
        Some((custom, None)) if options.structure => out.push((CUSTOM.to_owned(), custom.to_string())),
        Some((custom, None)) => {
            return Err(Error::invalid("the metadata is not an object of texts")
                .expected("an object of texts", custom)
                .help("convert it to text, or keep the structure, which stores any JSON"));
        }
        None if out.is_empty() && !options.structure => return Ok(None),
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
    if !options.structure {
        return Ok(Some(out));
    }
    if !names.contains(&FORMAT.to_owned()) {
        out.insert(0, (FORMAT.to_owned(), FORMAT_DEFAULT.to_owned()));
    } else if let Some(given) = custom.and_then(as_texts).and_then(|texts| of_name(texts, FORMAT)) {
        // A load takes `format` for the file's own entry, and drops it from the custom metadata. So
        // the caller's entry of this name is stored a second time.
        out.push((CUSTOM.to_owned(), json!({ FORMAT: given }).to_string()));
    }
    Ok(Some(out))
}

fn of_name(texts: Vec<(String, String)>, name: &str) -> Option<String> {
    texts.into_iter().find(|(found, _)| found == name).map(|(_, text)| text)
}

/// The custom metadata as the caller gave it, from the entries of a file with a stored pytree.
pub(super) fn custom(mut entries: Map<String, Value>) -> Option<Value> {
    entries.shift_remove(FORMAT);
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

    fn options(format: Option<&str>, structure: bool) -> SafetensorsOptions {
        let format = format.map(str::to_owned);
        SafetensorsOptions { format, structure, ..SafetensorsOptions::default() }
    }

    fn back(entries: Option<Vec<(String, String)>>) -> Option<Value> {
        custom(entries.into_iter().flatten().map(|(name, text)| (name, text.into())).collect())
    }

    #[test]
    fn any_metadata_comes_back() {
        assert_eq!(entries(&options(None, false), None).unwrap(), None);
        for (given, written) in [(None, "pt"), (Some("np"), "np")] {
            let stored = entries(&options(given, true), None).unwrap().unwrap();
            assert_eq!(stored, [("format".to_owned(), written.to_owned())]);
            assert_eq!(back(Some(stored)), None);
        }
        let stored = entries(&options(Some("np"), false), None).unwrap().unwrap();
        assert_eq!(stored, [("format".to_owned(), "np".to_owned())]);
        // The file's `format` comes from the option. A load returns the caller's own metadata
        // unchanged.
        let format = Some("np");
        for (given, custom) in [
            (None, json!({"a": "1"})),
            (format, json!({"a": "1"})),
            (format, json!({"a": {"b": [1, null]}})),
            (None, json!([1, 2])),
            (format, json!(3)),
            (None, json!({"format": "pt"})),
            (None, json!({"format": "np", "a": "1"})),
            (None, json!({"format": 3})),
        ] {
            let stored = entries(&options(given, true), Some(&custom)).unwrap();
            assert_eq!(back(stored), Some(custom));
        }
    }

    #[test]
    fn what_is_no_text_or_ambiguous_is_refused() {
        let kind = |format: Option<&str>, custom: Value, structure: bool| {
            entries(&options(format, structure), Some(&custom)).unwrap_err().kind()
        };
        assert_eq!(kind(None, json!({"a": 1}), false), ErrorKind::InvalidArgument);
        assert_eq!(kind(Some("np"), json!({"format": "pt"}), false), ErrorKind::NameCollision);
        assert_eq!(kind(None, json!({"regrow": "1"}), true), ErrorKind::NameCollision);
        assert_eq!(kind(None, json!({"regrow_metadata": "1"}), true), ErrorKind::NameCollision);
        assert!(entries(&options(None, false), Some(&json!({"regrow": "1"}))).is_ok());
    }
}
