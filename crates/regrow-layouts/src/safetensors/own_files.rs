//! Tells safetensors files of a checkpoint from other files. Safetensors files have no marker: a
//! folder is a checkpoint if all its files belong to one model.

use std::collections::HashSet;

use super::index::{INDEX_ENDING, INDEX_FILE_NAME, INDEX_SUFFIX};
use super::parts::{MODEL_FILE_NAME, SUFFIX};
use crate::item_files::ItemForm;
use crate::own_files::FileNames;

pub(super) const FILE_NAMES: FileNames = FileNames {
    beginnings: &[INDEX_FILE_NAME, MODEL_FILE_NAME],
    are_of_one: Some(are_of_one),
    of_item_folders: &[MODEL_FILE_NAME, INDEX_FILE_NAME],
    item: Some(|layout, _| ItemForm::of_file(layout, MODEL_FILE_NAME)),
    step_name: Some(|_, plain, _| format!("{plain}{SUFFIX}")),
    is_part: Some(|file| file.name_text().ends_with(INDEX_SUFFIX)),
    suffixes: &[SUFFIX],
    looked_for: &["safetensors files"],
    ..FileNames::NONE
};

fn are_of_one(files: &[&str]) -> bool {
    let model_of = |name: &&str| model_of(name).filter(|_| !name.contains('/')).map(str::to_owned);
    let models: Option<HashSet<String>> = files.iter().map(model_of).collect();
    models.is_some_and(|models| models.len() <= 1)
}

/// The stem of the files of one model, from the name of one file: `m` for `m.safetensors`,
/// `m-00001-of-00002.safetensors` and `m.safetensors.index.json`.
fn model_of(name: &str) -> Option<&str> {
    let name = name.strip_suffix(INDEX_ENDING).unwrap_or(name).strip_suffix(SUFFIX)?;
    let of_shard = || {
        let (rest, count) = name.rsplit_once("-of-")?;
        let (model, at) = rest.rsplit_once('-')?;
        (is_number(at) && is_number(count)).then_some(model)
    };
    Some(of_shard().unwrap_or(name))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_one_model_are_told_by_their_names() {
        for (names, is_one) in [
            (&["m.safetensors"][..], true),
            (&["m-00001-of-00002.safetensors", "m.safetensors.index.json"], true),
            // A name that only resembles the name of a shard is the name of another model.
            (&["m-a-of-00002.safetensors", "m.safetensors"], false),
            (&["m-00001-of-b.safetensors", "m.safetensors"], false),
            (&["m--of-00002.safetensors", "m.safetensors"], false),
            (&["m-00001-of-.safetensors", "m.safetensors"], false),
            (&["m-a-of-2.safetensors"], true),
            (&["m-1-of-2.safetensors", "below/m-2-of-2.safetensors"], false),
            (&["m.safetensors", "notes.txt"], false),
        ] {
            assert_eq!(are_of_one(names), is_one, "{names:?}");
        }
    }
}
