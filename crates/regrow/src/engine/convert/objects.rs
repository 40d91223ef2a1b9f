//! Adapts the record `regrow.torch` in a conversion. The record describes Python objects that the
//! pytree of a checkpoint does not contain.
//!
//! The record contains key paths, and links between tensors. If a leaf is renamed, changed or left
//! out, its entry is changed or removed too, because a link to a wrong tensor would give wrong
//! numbers. In a file of torch.save the record is separate from the metadata; in the result it is
//! part of the metadata.
//!
//! Source: `docs/formats/torch-objects.md`.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::{ConvertOptions, PlannedLeaf, first};
use crate::engine::Checkpoint;
use crate::formats::object_pointer as pointer;

/// The key of the record in the metadata.
const RECORD: &str = "regrow.torch";

/// The entries that make a tensor share the memory of another tensor.
const TIES: [&str; 5] = ["of", "same", "storage", "len", "view"];

/// The key path of a leaf in the target, and whether the leaf is unchanged.
struct Moved {
    to: String,
    is_same: bool,
}

/// The metadata of the source, with the record adapted to these leaves.
pub(super) fn metadata(
    checkpoint: &Checkpoint,
    leaves: &[PlannedLeaf],
    options: &ConvertOptions,
) -> Option<Value> {
    let about = checkpoint.description();
    let own = about.custom_metadata.clone();
    let text = match &own {
        Some(Value::Object(entries)) => entries.get(RECORD).and_then(Value::as_str),
        _ => None,
    };
    let Some(text) = text.or(about.objects.as_deref()) else { return own };
    // Leave an unreadable record as it is: a load reports the damage.
    let Some(record) = moved(text, leaves, options) else { return own };
    let mut entries = match own {
        Some(Value::Object(entries)) => entries,
        _ => Map::new(),
    };
    entries.insert(RECORD.to_owned(), record.into());
    Some(Value::Object(entries))
}

fn moved(text: &str, leaves: &[PlannedLeaf], options: &ConvertOptions) -> Option<String> {
    let mut record: Value = serde_json::from_str(text).ok()?;
    let entries = record.get_mut("at")?.as_object_mut()?;
    let (mut places, mut broken) = (HashMap::new(), HashSet::new());
    for leaf in leaves {
        let from = pointer(&leaf.from);
        let to = leaf.to.as_ref().map(pointer);
        if to.as_deref() != Some(&*from) {
            // The containers above this leaf lose a child, so their entries are removed.
            let ends = from.match_indices('/').map(|(at, _)| at);
            broken.extend(ends.filter_map(|at| from.get(..at)).map(str::to_owned));
        }
        let is_same = (&leaf.source.kind, leaf.source.dtype, &leaf.source.shape)
            == (&leaf.target.kind, leaf.target.dtype, &leaf.target.shape);
        let is_laid_out =
            first(&options.transpose, &leaf.from).is_some() || first(&options.reshape, &leaf.from).is_some();
        places.insert(from, to.map(|to| Moved { to, is_same: is_same && !is_laid_out }));
    }
    let old = std::mem::take(entries);
    for (place, entry) in old {
        let Value::Object(mut entry) = entry else { return None };
        let to = match places.get(&place) {
            Some(None) => continue,
            Some(Some(moved)) => {
                let target = ["of", "same"].iter().find_map(|tie| entry.get(*tie)?.as_str());
                let base = target.map(|target| places.get(target).and_then(Option::as_ref));
                let is_tied = moved.is_same && base.is_none_or(|base| base.is_some_and(|base| base.is_same));
                match base.flatten().filter(|_| is_tied).map(|base| base.to.clone()) {
                    Some(base) => {
                        let tie = if entry.contains_key("of") { "of" } else { "same" };
                        entry.insert(tie.to_owned(), base.into());
                    }
                    None if !is_tied => TIES.iter().for_each(|tie| drop(entry.remove(*tie))),
                    None => {}
                }
                if !moved.is_same {
                    entry.remove("stride");
                }
                moved.to.clone()
            }
            None if broken.contains(&place) => continue,
            None => place,
        };
        if !entry.is_empty() {
            entries.insert(to, Value::Object(entry));
        }
    }
    Some(record.to_string())
}
