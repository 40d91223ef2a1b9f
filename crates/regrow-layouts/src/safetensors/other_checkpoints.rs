//! Refuses a folder of safetensors files that also has files of other layouts: a load of the folder
//! would omit the other files without an error.
//!
//! A model's folder also has other files (configurations, tokenizers, files of other programs), and
//! the same weights for Flax under a special name. These files are no reason for an error. With an
//! index there is no error either, because the index lists the files of the checkpoint.

use super::parts;
use crate::pytree_data::MANIFEST_SUFFIX;
use crate::{Format, pytree_data, suggestions};
use regrow_base::error::{Error, ErrorKind, Result};
use regrow_storage::Entry;
use regrow_storage::location::Location;

/// The prefixes of Flax files with the same weights as the safetensors files beside them, from
/// transformers and diffusers.
const SAME_WEIGHTS: [&str; 2] = ["flax_model", "diffusion_flax_model"];

const SHOWN_MAX: usize = 5;

pub(super) fn refuse(at: &Location) -> Result<()> {
    if !at.has_listings() || !at.is_folder() {
        return Ok(());
    }
    let mut files = at.entries()?;
    files.retain(Entry::is_file);
    if files.iter().any(|file| parts::is_index(&file.name)) {
        return Ok(());
    }
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for file in files {
        let name = file.name.to_string_lossy().into_owned();
        if name.starts_with('.') {
            continue;
        } else if parts::is_named_so(&file.name) {
            own.push(name);
        } else if is_of_another(&at.join(&file.name), &name)? {
            others.push(name);
        }
    }
    if others.is_empty() {
        return Ok(());
    }
    let what = "the folder has files of several layouts, so the checkpoint is ambiguous";
    Err(Error::new(ErrorKind::NotACheckpoint, what)
        .in_file(at)
        .expected("only safetensors files", format_args!("{} beside {}", some(others), some(own)))
        .help("open one of the files, or move the others into a folder of their own"))
}

fn is_of_another(file: &Location, name: &str) -> Result<bool> {
    if SAME_WEIGHTS.iter().any(|beginning| name.starts_with(beginning)) {
        return Ok(false);
    }
    let is_manifest = name.ends_with(MANIFEST_SUFFIX) && pytree_data::PytreeData.recognise(file)?;
    Ok(is_manifest || suggestions::is_named_like_one(file.name()))
}

fn some(mut names: Vec<String>) -> String {
    names.sort();
    let more = if names.len() > SHOWN_MAX { " and more" } else { "" };
    let shown: Vec<String> = names.iter().take(SHOWN_MAX).map(|name| format!("{name:?}")).collect();
    shown.join(", ") + more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_arrays_of_other_layouts_are_in_the_way() {
        let folder = tempfile::tempdir().unwrap();
        let at = Location::local(folder.path());
        let put = |name: &str| std::fs::write(folder.path().join(name), b"").unwrap();
        for name in [
            "model.safetensors",
            "adapter.safetensors",
            "config.json",
            "tokenizer.json",
            "tokenizer.model",
            "vocab.txt",
            "README.md",
            "pytorch_model.bin",
            "flax_model.msgpack",
            "optimizer.pt",
            ".gitattributes",
            "data.manifest",
        ] {
            put(name);
        }
        std::fs::create_dir(folder.path().join("checkpoint_3")).unwrap();
        refuse(&at).unwrap();
        put("x.npy");
        put("opt.msgpack");
        let error = refuse(&at).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotACheckpoint);
        let (_, found) = error.expected_found().unwrap();
        assert_eq!(found, r#""opt.msgpack", "x.npy" beside "adapter.safetensors", "model.safetensors""#);
        refuse(&at.join("model.safetensors")).unwrap();
        // An index lists the files of the checkpoint.
        put("model.safetensors.index.json");
        refuse(&at).unwrap();
    }
}
