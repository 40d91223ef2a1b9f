//! The files of a checkpoint: one file, the files of an index, or all files in a folder.

use std::ffi::{OsStr, OsString};

use super::index::{INDEX_FILE_NAME, INDEX_SUFFIX, Index};
use regrow_base::bytes::glance::Language;
use regrow_base::bytes::limits::JSON_LEN_MAX_BYTES;
use regrow_base::error::{Error, Result, ResultExt};
use regrow_storage::Entry;
use regrow_storage::location::Location;

pub(crate) const SUFFIX: &str = ".safetensors";

/// The usual name of a model in one file, for storages that cannot list folders.
pub(crate) const MODEL_FILE_NAME: &str = "model.safetensors";

/// The files of a checkpoint.
#[derive(Debug)]
pub(super) struct Parts {
    pub folder: Location,
    pub names: Vec<OsString>,
    /// The index that lists the files, with its location; `None` without an index.
    pub index: Option<(Location, Index)>,
    /// Whether the caller opened one file by its own name.
    pub is_one_file: bool,
}

pub(super) fn are_at(at: &Location) -> Result<bool> {
    if at.is_folder() {
        return Ok(names_in(at)?.iter().any(|name| is_named_so(name)));
    }
    Ok(is_named_so(at.name()))
}

pub(super) fn is_named_so(name: &OsStr) -> bool {
    is_part(name) || is_index(name)
}

impl Parts {
    /// Finds the files `at` a location: a safetensors file, an index, or a folder with either.
    ///
    /// If a folder has several indexes (of variants, such as `model.fp16.safetensors.index.json`),
    /// only the index with the usual name counts; without that index, no index counts. A salvage
    /// takes all files of a folder if an index cannot be read, and the existing files if some are
    /// missing.
    pub(super) fn find(at: &Location, salvage: bool) -> Result<Self> {
        if at.is_folder() {
            let mut names = names_in(at)?;
            names.sort();
            let indexes: Vec<&OsString> = names.iter().filter(|name| is_index(name)).collect();
            let usual = indexes.iter().find(|name| **name == INDEX_FILE_NAME);
            let only = indexes.first().filter(|_| indexes.len() == 1);
            let indexed = usual.or(only).map(|index| Self::of_index(at.clone(), at.join(index)));
            return match indexed {
                Some(Err(error)) if !(salvage && error.kind().is_damage()) => Err(error),
                Some(Ok(parts)) => Ok(parts),
                Some(Err(_)) | None => {
                    names.retain(|name| is_part(name));
                    if !salvage {
                        refuse_missing_shards(at, &names)?;
                    }
                    Ok(Self { folder: at.clone(), names, index: None, is_one_file: false })
                }
            };
        }
        match is_index(at.name()) {
            true => Self::of_index(at.parent(), at.clone()),
            false => {
                let names = vec![at.name().to_owned()];
                Ok(Self { folder: at.parent(), names, index: None, is_one_file: true })
            }
        }
    }

    fn of_index(folder: Location, file: Location) -> Result<Self> {
        let what = "the index of safetensors files";
        let no_file = || {
            Error::corrupt(format!("{what} is not a file"))
                .in_file(&file)
                .help("the download or copy of this model did not finish: copy it again")
        };
        let json = file.read_document(what, Language::Json, JSON_LEN_MAX_BYTES)?.ok_or_else(no_file)?;
        let index = Index::parse(&json).in_file(&file)?;
        let names = index.files().into_iter().map(OsString::from).collect();
        Ok(Self { folder, names, index: Some((file, index)), is_one_file: false })
    }
}

/// Refuses a folder in which shards are missing, as the names of the existing shards show.
fn refuse_missing_shards(folder: &Location, names: &[OsString]) -> Result<()> {
    let names: Vec<_> = names.iter().filter_map(|name| name.to_str()).collect();
    for name in &names {
        let Some((prefix, number, count)) = shard_of(name) else { continue };
        let is_there = |&wanted: &u64| {
            names.iter().filter_map(|name| shard_of(name)).any(|(other_prefix, other, other_count)| {
                other_prefix == prefix && other == wanted && other_count == count
            })
        };
        // The first missing shard. The search needs at most one step more than there are files.
        let missing = (1..=count).take(names.len() + 1).find(|wanted| !is_there(wanted));
        if let Some(missing) = missing {
            return Err(Error::corrupt(format!(
                "shard {missing} of {count} is missing, and so is the index"
            ))
            .in_file(folder.join(name))
            .expected(format_args!("{count} files"), format_args!("shard {number}"))
            .help("copy the whole checkpoint again, or open this one file by its own path"));
        }
    }
    Ok(())
}

/// The help text for a missing file of an index, with the names of the existing files.
pub(super) fn help_for_missing(folder: &Location, indexed: &[OsString]) -> String {
    const SHOWN_MAX: usize = 5;
    let mut there = names_in(folder).unwrap_or_default();
    there.retain(|name| is_part(name));
    there.sort();
    let some = |names: Vec<&OsString>| {
        let more = if names.len() > SHOWN_MAX { " and more" } else { "" };
        let shown: Vec<_> = names.iter().take(SHOWN_MAX).map(|name| format!("{name:?}")).collect();
        format!("{}{more}", shown.join(", "))
    };
    let (named, others): (Vec<&OsString>, Vec<&OsString>) =
        there.iter().partition(|name| indexed.contains(name));
    let named = match named.is_empty() {
        true => format!("all {} files of the index are missing", indexed.len()),
        false => format!("the index names {} files, but only {} exist", indexed.len(), some(named)),
    };
    match others.is_empty() {
        true => format!("{named}; copy the whole checkpoint again"),
        false => format!(
            "{named}; the index does not name {}: open that file by its own path, or remove the index if \
             it belongs to another checkpoint",
            some(others)
        ),
    }
}

/// Whether a folder has a whole model in one file, while its index lists only other files.
pub(super) fn has_stray_model(folder: &Location, indexed: &[OsString]) -> bool {
    let is_named = indexed.iter().any(|name| name == MODEL_FILE_NAME);
    !is_named && folder.join(MODEL_FILE_NAME).is_file()
}

/// The parts of a shard's name: the text before the numbers, the shard's number, and the number of
/// shards.
pub(super) fn shard_of(name: &str) -> Option<(&str, u64, u64)> {
    let (rest, count) = name.strip_suffix(SUFFIX)?.rsplit_once("-of-")?;
    let (prefix, number) = rest.rsplit_once('-')?;
    Some((prefix, number.parse().ok()?, count.parse().ok()?))
}

fn names_in(folder: &Location) -> Result<Vec<OsString>> {
    let entries = match folder.has_listings() {
        true => folder.entries()?,
        false => folder.those_there(&[INDEX_FILE_NAME, MODEL_FILE_NAME])?,
    };
    let files = entries.into_iter().filter(Entry::is_file);
    Ok(files.map(|file| file.name).collect())
}

fn is_part(name: &OsStr) -> bool {
    name.as_encoded_bytes().ends_with(SUFFIX.as_bytes())
}

/// Whether a file has the name of an index. An index lists the files of the checkpoint.
pub(super) fn is_index(name: &OsStr) -> bool {
    name.as_encoded_bytes().ends_with(INDEX_SUFFIX.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_decides_which_files_belong() {
        let folder = tempfile::tempdir().unwrap();
        let at = Location::local(folder.path());
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let names = || Parts::find(&at, false).unwrap().names;
        assert!(!are_at(&at).unwrap());
        write("m-00002-of-00002.safetensors", "");
        let error = Parts::find(&at, false).unwrap_err().to_string();
        assert!(error.contains("shard 1 of 2 is missing"), "{error}");
        std::fs::remove_file(folder.path().join("m-00002-of-00002.safetensors")).unwrap();
        write("b.safetensors", "");
        write("a.safetensors", "");
        write("readme.md", "");
        assert!(are_at(&at).unwrap());
        assert_eq!(names(), ["a.safetensors", "b.safetensors"]);
        write("model.fp16.safetensors.index.json", r#"{"weight_map":{"x":"b.safetensors"}}"#);
        assert_eq!(names(), ["b.safetensors"]);
        write("model.bf16.safetensors.index.json", r#"{"weight_map":{"x":"a.safetensors"}}"#);
        assert_eq!(names(), ["a.safetensors", "b.safetensors"]);
        write(INDEX_FILE_NAME, r#"{"weight_map":{"x":"a.safetensors","y":"a.safetensors"}}"#);
        assert_eq!(names(), ["a.safetensors"]);
        let variant = at.join("model.fp16.safetensors.index.json");
        assert_eq!(Parts::find(&variant, false).unwrap().names, ["b.safetensors"]);
        assert_eq!(Parts::find(&at.join("b.safetensors"), false).unwrap().names, ["b.safetensors"]);
    }
}
